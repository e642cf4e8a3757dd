"""What a wrong command line may have been meant to be."""

import argparse
from collections.abc import Iterator

UNKNOWN = "unrecognized arguments: "
"""argparse's own words."""


def near_option(parser: argparse.ArgumentParser, message: str) -> str:
    """The option that is nearest to the one of which argparse complains: "did you mean `--x`?", else ""."""
    before, _, words = message.partition(UNKNOWN)
    option = words.split(" ")[0].partition("=")[0]
    if before or not option.startswith("--"):
        return ""
    from protocol.tables import did_you_mean  # only where something is wrong

    known = (name.removeprefix("--") for name in _options(parser) if name.startswith("--"))
    return did_you_mean(option.removeprefix("--"), known, "`--{}`")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _options(below)
