"""Arguments that several commands share, and the forms of their values."""

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from supervisor.cli.screen import Stream
from supervisor.shell.usage import UNKNOWN, near_option

HELP_COLUMNS = 100

RANKS_FORM = (
    "like 0 or 0,3 or 8-15 or !0 or local:0 or gpu-03 or gpu-0[1-4]/local:2 or all; root (of the last incident), "
    "failed, stalled, behind (lowest step)"
)


class UsageError(Refused):
    """The command line is not one that supctl has."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("C010", message, hint=hint, exit_code=ExitCode.USAGE)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal, up to HELP_COLUMNS. argparse would import shutil, at every start, to ask for that."""

    def __init__(self, prog: str) -> None:
        self._columns = Stream(sys.stdout, os.environ, "never").columns
        super().__init__(prog, max_help_position=28, width=min(HELP_COLUMNS, self._columns or HELP_COLUMNS))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """As it is written; paragraphs that are too wide are filled anew."""
        if all(len(line) <= width for line in text.splitlines()):
            return super()._fill_text(text, width, indent)
        from textwrap import fill

        parts = text.strip().split("\n\n")
        filled = (part if "\n " in f"\n{part}" else fill(part, width, break_on_hyphens=False) for part in parts)
        return "\n\n".join(filled) + "\n"


class Parser(argparse.ArgumentParser):
    """Tells a wrong command line the way every other error is told, and takes no abbreviated options.

    `rest` says what stands behind `--`, where something may.
    """

    def __init__(self, prog: str, *, rest: str = "", **options: Any) -> None:
        super().__init__(prog, formatter_class=HelpFormatter, allow_abbrev=False, **options)
        self._rest = rest
        self._negative_number_matcher = re.compile("-[0-9]")  # `-10m` is a value: whoever reads it says what is wrong

    def _print_message(self, message: str, file: Any = None) -> None:
        Stream(file or sys.stderr, os.environ, "never").write_text(message)  # in the characters that it has

    def error(self, message: str) -> NoReturn:
        near = near_option(self, message)
        if not near and self._rest and message.startswith(UNKNOWN):
            near = f"{self._rest} stand behind `--`"
        raise UsageError(f"{message}; {near}" if near else message, f"{self.prog} --help")


def add_job(parser: argparse.ArgumentParser) -> None:
    """The optional JOB."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        type=job_word,
        help="job or run (NAME@HEX); default: $SUPCTL_JOB, else the only active one, else the newest",
    )


def job_word(text: str) -> str:
    """A JOB. An empty one, of a variable that is not set, must not mean whatever job there is."""
    if not text:
        raise argparse.ArgumentTypeError("an empty JOB names none; leave the word out for the default")
    return text


def node_word(text: str) -> str:
    """The name of a node. An empty one, of a variable that is not set, must not mean none, or all of them."""
    if not text:
        raise argparse.ArgumentTypeError("an empty NODE names none")
    return text


def reason_word(chars_max: int) -> Callable[[str], str]:
    """For a reason: it stands in one line of `events`, and in a variable of every worker."""

    def reason(text: str) -> str:
        if len(text) > chars_max:
            raise argparse.ArgumentTypeError(f"at most {chars_max} characters, not {len(text)}")
        if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", text):  # the last two end a line as well
            raise argparse.ArgumentTypeError("one line, without control characters")
        return text

    return reason


def add_json(parser: argparse._ActionsContainer, what: str = "one JSON document") -> None:
    """--json, on everything that reads."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def add_deadline(parser: argparse.ArgumentParser) -> None:
    """--deadline, on what waits for a checkpoint."""
    from protocol.messages.upkeep import PLAN_DEADLINE_S  # only where it may wait

    parser.add_argument(
        "--deadline",
        metavar="DUR",
        type=duration_s,
        default=PLAN_DEADLINE_S,
        help="the longest wait for a checkpoint, like 1h (default: 30m)",
    )


def add_changes(parser: argparse.ArgumentParser) -> None:
    """What is changed in the job file for one call."""
    parser.add_argument(
        "--set",
        metavar="KEY=VAL",
        dest="settings",
        action="append",
        default=[],
        help="change one key of the job file, like stop.grace=2m; VAL is TOML, and a bare word is text; "
        "may be given often",
    )
    parser.add_argument("--name", metavar="NAME", help="another name than the job file's")


def duration_s(text: str) -> float:
    """Seconds of "90s", "1h30m", "500ms"."""
    from protocol.checks import parse_duration_s  # only where a duration is given

    try:
        return parse_duration_s(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text}: {exc}") from None
