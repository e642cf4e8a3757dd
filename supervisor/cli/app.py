"""supctl: finds the command, and turns whatever it ends with into an exit code and one next step."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from protocol.errors import Refused, SupdError
from supervisor.cli.arguments import Parser, UsageError
from supervisor.cli.client import Client
from supervisor.cli.context import Context, Detached
from supervisor.cli.exit_code import ExitCode
from supervisor.cli.screen import Screen
from supervisor.shell.paths import default_control_path


class Command(NamedTuple):
    """One command: its module has `add_arguments(parser)` and `run(arguments, context) -> int`."""

    module: str
    help: str


COMMANDS = {
    "start": Command("start", "start a job; returns when every rank has started"),
    "stop": Command("stop", "stop a run gracefully"),
    "restart": Command("restart", "end the generation of a run and begin the next one"),
    "status": Command("status", "runs as they stand (aliases: list, ls)"),
    "ps": Command("ps", "the ranks of a run"),
    "logs": Command("logs", "output of the ranks, and what the supervisor did in between"),
    "events": Command("events", "what the supervisor saw and did"),
    "wait": Command("wait", "wait until a run is running, finished or succeeded"),
    "validate": Command("validate", "check a job file; starts nothing"),
    "version": Command("version", "version of supctl and of supd"),
}
ALIASES = {"list": "status", "ls": "status"}
WITH_VALUE = ("--addr", "--color")


def main() -> int:
    """The process: ends with an ExitCode, whatever happens."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called us: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # to the end of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # argparse writes its help itself
    try:
        return run(sys.argv[1:])
    except BrokenPipeError:
        # What is still in the buffers has no reader; at exit Python must not try again.
        _give_up_stdout()
        return ExitCode.PIPE_CLOSED


def _give_up_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(argv: Sequence[str]) -> int:
    """One call of supctl on this process's streams and environment; returns its exit code."""
    screen = Screen(sys.stdout, sys.stderr, os.environ)
    command = ""
    try:
        before, command, rest = _split(argv)
        options = _global_parser().parse_args(before)
        if options.version:
            from supervisor.cli.version import own_version

            screen.print(f"supctl {own_version()}")
            return ExitCode.OK
        if options.help or not command:
            screen.print(_overview())
            return ExitCode.OK
        module = import_module(f"supervisor.cli.{COMMANDS[command].module}")
        parser = Parser(f"supctl {command}", description=module.__doc__, parents=[_common()])
        module.add_arguments(parser)
        arguments = parser.parse_args(rest, options)
        screen = Screen(sys.stdout, sys.stderr, os.environ, color=arguments.color, is_quiet=arguments.quiet)
        return int(module.run(arguments, Context(screen, _client(arguments.addr, screen), os.environ)))
    except SupdError as exc:
        hint = exc.hint or (f"supctl {command} --help" if command else "supctl --help")
        if "--json" in argv:
            from supervisor.cli.documents import error_document

            screen.err.write_text(error_document(exc, hint) + "\n")
        else:
            screen.fail(exc, hint)
        return exc.exit_code
    except BrokenPipeError:
        raise
    except OSError as exc:  # a full disk behind `>`, a folder that was removed under us
        _give_up_stdout()
        refused = Refused("C014", exc.strerror or str(exc))
        screen.fail(refused, "look where the output goes, and whether the working folder is still there")
        return ExitCode.FAILED
    except KeyboardInterrupt as exc:
        screen.tell(str(exc) if isinstance(exc, Detached) else "interrupted")
        return ExitCode.INTERRUPTED


def _split(argv: Sequence[str]) -> tuple[Sequence[str], str, Sequence[str]]:
    """Global options, the command ("" where there is none), and its own arguments."""
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in WITH_VALUE else 1
    if at >= len(argv):
        return argv, "", []
    word = argv[at]
    command = ALIASES.get(word, word)
    if command not in COMMANDS:
        from protocol.tables import did_you_mean  # only where something is wrong

        near = did_you_mean(word, [*COMMANDS, *ALIASES])
        raise UsageError(f"no command {word!r}" + (f"; {near}" if near else ""), "supctl --help")
    return argv[:at], command, argv[at + 1 :]


def _client(addr: str, screen: Screen) -> Client:
    """supd where it was said to be, else where this user's is; there, nobody else's may pose as it."""
    named = addr or os.environ.get("SUPD_ADDR", "")
    if named:
        return Client(named, screen.tell)
    return Client(str(default_control_path(os.environ, os.getuid())), screen.tell, owners=(os.getuid(), 0))


def _global_parser() -> Parser:
    parser = Parser("supctl", parents=[_common()], add_help=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--version", action="store_true", help="show the version of supctl")
    parser.set_defaults(addr="", quiet=False, color="auto")
    return parser


def _common() -> Parser:
    """Options that may stand before or behind the command."""
    parser = Parser("supctl", add_help=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--addr", metavar="PATH", help="supd's control socket (default: $SUPD_ADDR, else the user's own)"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="ids only, no progress")
    group.add_argument("--color", choices=("auto", "always", "never"), help="default auto; NO_COLOR is honoured")
    return parser


def _overview() -> str:
    commands = "\n".join(f"  {name:<9} {command.help}" for name, command in COMMANDS.items())
    options = _common().format_help().partition("everywhere:\n")[2].rstrip()
    head, foot = "supctl COMMAND: start, stop and watch training jobs", "supctl COMMAND --help, supctl --version"
    return f"{head}\n\n{commands}\n\n{options}\n\n{foot}"
