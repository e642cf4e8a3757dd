"""Arguments that several commands share, and the forms of their values."""

import argparse
import re
from typing import Any, NoReturn

from protocol.errors import Refused
from protocol.messages.control import RunStatus
from supervisor.cli.exit_code import ExitCode

HELP_COLUMNS = 100
_PIECE = re.compile(r"(!?)(?:(all)|([0-9]{1,7})(?:-([0-9]{1,7}))?)")


class UsageError(Refused):
    """The command line is not one that supctl has."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("C010", message, hint=hint, exit_code=ExitCode.USAGE)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fixed width: argparse would import shutil, at every start, to ask the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=HELP_COLUMNS)


class Parser(argparse.ArgumentParser):
    """Tells a wrong command line the way every other error is told, and takes no abbreviated options."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, formatter_class=HelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"{self.prog} --help")


def add_job(parser: argparse.ArgumentParser) -> None:
    """The optional JOB."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        default="",
        help="job or run (NAME@HEX); default: the only active one, else the newest",
    )


def add_json(parser: argparse._ActionsContainer, what: str = "one JSON document") -> None:
    """--json, on everything that reads."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def duration_s(text: str) -> float:
    """Seconds of "90s", "1h30m", "500ms"."""
    from protocol.checks import parse_duration_s  # only where a duration is given

    try:
        return parse_duration_s(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text}: {exc}") from None


def ranks_of(selector: str, run: RunStatus) -> tuple[int, ...]:
    """The ranks that `0`, `0,3`, `8-15`, `!0`, `all` and their combinations choose, in order.

    Raises UsageError for another form, Refused for a rank that the run does not have.
    """
    every = range(run.ranks or 0)
    chosen: set[int] = set()
    pieces = selector.split(",")
    if pieces[0].startswith("!"):
        chosen.update(every)
    for piece in pieces:
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise UsageError(f"ranks {selector!r}: write them like 0 or 0,3 or 8-15 or !0 or all", "supctl logs --help")
        exclude, is_all, first, last = match.groups()
        ranks = every if is_all else range(int(first), int(last or first) + 1)
        if not ranks or ranks[-1] >= len(every):
            known = f"it has ranks 0-{len(every) - 1}" if every else "its ranks are not known yet"
            raise Refused(
                "C009",
                f"no rank {piece.removeprefix('!')} in {run.run}: {known}",
                hint=f"supctl ps {run.run}",
                exit_code=ExitCode.NOT_FOUND,
            )
        if exclude:
            chosen.difference_update(ranks)
        else:
            chosen.update(ranks)
    return tuple(sorted(chosen))
