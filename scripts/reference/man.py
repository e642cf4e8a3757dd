"""Manual pages, in the macros of man(7)."""

import re
from collections.abc import Iterator, Sequence

from commands import CommandText, Option, common_options
from pages import also

from protocol.exit_code import ExitCode
from supervisor.cli.reference import LINK
from supervisor.shell.version import VERSION
from supervisor.suprun.options import GROUPS, Form

SUMMARIES = {
    "supctl": "start, stop and watch training jobs",
    "supd": "the node daemon that supctl talks to",
    "suprun": "torchrun's command line: run a training job in the foreground",
}
SUPRUN_EXIT = {
    "0": "the job has succeeded",
    "1": "it has failed, and no rank can be named",
    "2": "the command line is wrong",
    "69": "the node that coordinates is gone, and so are the ranks of this one",
    "78": "the nodes do not belong together; the script, or the key, is not there",
    "124": "the nodes did not meet in time",
    "other": "that of the rank that failed first, 128+N for signal N; 128+N where suprun itself got signal N",
}
FILES = {
    "$XDG_CONFIG_HOME/supd/supd.toml": "what supd is told; ~/.config where the variable is not set",
    "$XDG_STATE_HOME/supd/HOST/": "what supd keeps: journal, runs, output; ~/.local/state where it is not set",
    "$XDG_RUNTIME_DIR/supd/control.sock": "where supctl finds supd; in $TMPDIR/supd-UID (/tmp/…) where it is not set",
}


def supctl_page(commands: Sequence[CommandText]) -> str:
    """The page of supctl as a whole; its commands have pages of their own."""
    lines = [*_head("supctl", SUMMARIES["supctl"]), ".SH SYNOPSIS", _code("supctl COMMAND"), ".SH COMMANDS"]
    for command in commands:
        lines += [".TP", _code(command.usage), _inline(command.summary)]
    lines += [".SH OPTIONS", "Before or behind every command:", *_options(common_options())]
    lines += [".SH EXIT STATUS", *_exit_status(), *_files()]
    return _page(lines, [*(f"supctl\\-{command.name}" for command in commands), "supd"])


def supd_page(commands: Sequence[CommandText]) -> str:
    """The page of supd with its commands."""
    lines = [*_head("supd", SUMMARIES["supd"]), ".SH SYNOPSIS", _code("supd COMMAND"), ".SH COMMANDS"]
    for command in commands:
        lines += [f'.SS "{_escape(command.usage)}"', _inline(command.summary), *_options(command.options)]
    lines += [".SH SIGNALS", "SIGTERM and SIGINT end supd. Runs go on, and the next supd finds them.", *_files()]
    return _page(lines, ["supctl"])


def suprun_page() -> str:
    """The page of suprun: its options, by groups."""
    lines = [*_head("suprun", SUMMARIES["suprun"]), ".SH SYNOPSIS", _code("suprun [OPTIONS] SCRIPT [ARG ...]")]
    lines += [".SH DESCRIPTION", "Runs a script on every rank of a job, on one node or on several, in the foreground."]
    lines += ["Options may be spelled with _ for \\-, and take their defaults from PET_ variables.", ".SH OPTIONS"]
    for group in GROUPS:
        lines.append(f'.SS "{_escape(group.title)}"')
        for option in group.options:
            value = "" if option.form is Form.SWITCH else f" {option.value}"
            lines += [
                ".TP",
                _code(", ".join(option.names) + value),
                _inline(f"{option.meaning}. {option.differs}".strip()),
            ]
    lines += [".SH EXIT STATUS"]
    for code, meaning in SUPRUN_EXIT.items():
        lines += [".TP", f".B {code}", _inline(meaning)]
    lines += [".SH ENVIRONMENT", ".TP", ".B SUPD_FLEET_KEY", "The file with the key that the nodes of a job share."]
    return _page(lines, ["supctl", "supd"])


def command_page(command: CommandText) -> str:
    """The page of one command of supctl."""
    lines = [*_head(f"supctl-{command.name}", command.summary), ".SH SYNOPSIS", _code(command.usage)]
    lines += [".SH DESCRIPTION", *_description(command.description)]
    if other_names := also(command):
        lines += [".PP", _inline(other_names)]
    for title, options in (("ARGUMENTS", command.arguments), ("OPTIONS", command.options)):
        if options:
            lines += [f".SH {title}", *_options(options)]
    lines += [".SH EXIT STATUS", f"See {_bold('supctl')}(1)."]
    return _page(lines, ["supctl"])


def _head(name: str, summary: str) -> list[str]:
    title = f'.TH "{_escape(name.upper())}" 1 "" "supd {VERSION}" "supd"'
    return ['.\\" Written by scripts/docs from the code.', title, ".SH NAME", f"{_escape(name)} \\- {_inline(summary)}"]


def _page(lines: Sequence[str], see_also: Sequence[str]) -> str:
    links = [f".BR {name} (1){',' if name != see_also[-1] else ''}" for name in see_also]
    return "\n".join([*lines, ".SH SEE ALSO", *links]) + "\n"


def _description(text: str) -> Iterator[str]:
    """Paragraphs; what is indented stands as it is."""
    for paragraph in re.split(r"\n\n+", text):
        if paragraph.startswith("    "):
            yield from (".PP", ".RS 4", ".nf", *(_verbatim(line[4:]) for line in paragraph.splitlines()), ".fi", ".RE")
        else:
            yield from (".PP", *(_inline(line) for line in paragraph.splitlines()))


def _options(options: Sequence[Option]) -> Iterator[str]:
    for option in options:
        yield from (".TP", _code(option.form), _inline(option.meaning))


def _files() -> Iterator[str]:
    yield ".SH FILES"
    for path, meaning in FILES.items():
        yield from (".TP", f".I {_escape(path)}", _inline(meaning))


def _exit_status() -> Iterator[str]:
    for code in ExitCode:
        yield from (".TP", f".B {int(code)}", _inline(code.meaning))


# --- characters --------------------------------------------------------------------------------------------------


def _inline(text: str) -> str:
    """Markdown of one line: code becomes bold, a link its text."""
    pieces = LINK.sub(r"\1", text).split("`")
    return _guard("".join(_bold(piece) if i % 2 else _escape(piece) for i, piece in enumerate(pieces)))


def _code(text: str) -> str:
    return _guard(_bold(text))


def _bold(text: str) -> str:
    return f"\\fB{_escape(text)}\\fR"


def _verbatim(line: str) -> str:
    return _guard(_escape(line))


def _escape(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def _guard(line: str) -> str:
    """A line that begins with a control character would be a request."""
    return f"\\&{line}" if line.startswith((".", "'")) else line
