"""What the argument parsers of supctl and supd know of their commands."""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from supervisor.cli.app import COMMANDS, command_parser, common
from supervisor.daemon.command_line import command_line


class Option(NamedTuple):
    """An option or an argument, as it is written, and what it does."""

    form: str  # "-n, --tail N"
    meaning: str


class CommandText(NamedTuple):
    """One command, as it is told."""

    name: str
    usage: str
    summary: str
    description: str
    arguments: tuple[Option, ...]
    options: tuple[Option, ...]


def supctl_commands() -> list[CommandText]:
    """The commands of supctl, in the order of its help."""
    return [
        _command(name, known.help, command_parser(name), rest=" [-- ARG …]" if known.rest else "")
        for name, known in COMMANDS.items()
    ]


def daemon_commands() -> list[CommandText]:
    """The commands of supd."""
    return list(_commands_below(command_line()))


def _commands_below(parser: argparse.ArgumentParser, name: str = "", summary: str = "") -> Iterator[CommandText]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield _command(name, summary, parser)
    for action in below:
        for choice in action._choices_actions:
            yield from _commands_below(action.choices[choice.dest], f"{name} {choice.dest}".strip(), choice.help or "")


def common_options() -> tuple[Option, ...]:
    """What may stand before or behind every command of supctl."""
    parser = common()
    return tuple(_option(parser, action) for action in parser._actions)


def _command(name: str, summary: str, parser: argparse.ArgumentParser, rest: str = "") -> CommandText:
    """Without --help and what may stand everywhere."""
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    arguments = [action for action in actions if not action.option_strings]
    options = [_option(parser, action) for action in actions if action.option_strings]
    own = [option for option in options if option not in common_options()]
    usage = [parser.prog, *(["[OPTIONS]"] if own else []), *map(_in_usage, arguments)]
    return CommandText(
        name=name,
        usage=" ".join(usage) + rest,
        summary=summary,
        description=(parser.description or summary).strip(),
        arguments=tuple(_option(parser, action) for action in arguments),
        options=tuple(own),
    )


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    value = "" if action.nargs == 0 else _value(action)
    form = f"{', '.join(action.option_strings)} {value}".strip()
    return Option(form, parser._get_formatter()._expand_help(action))


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    return "|".join(map(str, action.choices or ()))


def _in_usage(action: argparse.Action) -> str:
    value = _value(action)
    match action.nargs:
        case "?":
            return f"[{value}]"
        case "*":
            return f"[{value} …]"
        case _:
            return value
