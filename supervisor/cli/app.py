"""supctl: finds the command, and turns whatever it ends with into an exit code and one next step."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from protocol.errors import Refused, SupdError
from protocol.exit_code import ExitCode
from supervisor.cli.arguments import Parser, UsageError
from supervisor.cli.context import Context, Detached
from supervisor.cli.screen import Screen, give_up


class Subcommand(NamedTuple):
    """The module of its name has `add_arguments(parser)` and `run(arguments, context) -> int`.

    With a `rest` what stands behind `--` is that, and is left as it is, in `arguments.rest`.
    """

    help: str
    rest: str = ""


COMMANDS = {
    "init": Subcommand("write a job file for what is found here"),
    "start": Subcommand("start a job; returns when every rank has started", rest="arguments of the script"),
    "stop": Subcommand("stop a run gracefully"),
    "restart": Subcommand("end the generation of a run and begin the next one"),
    "resume": Subcommand("go on with a run that is held"),
    "policy": Subcommand("what would follow if a rank ended in some way"),
    "status": Subcommand("runs as they stand"),
    "describe": Subcommand("everything about one run, one rank, or one node"),
    "ps": Subcommand("the ranks of a run"),
    "nodes": Subcommand("the nodes of the fleet"),
    "drain": Subcommand("have nodes free: runs leave them at their next checkpoint"),
    "undrain": Subcommand("have nodes used again"),
    "scale": Subcommand("have a run on other numbers of nodes"),
    "node": Subcommand("give your word that nothing runs on a node any more"),
    "logs": Subcommand("output of the ranks"),
    "events": Subcommand("what the supervisor saw and did"),
    "wait": Subcommand("wait until a run is running, finished or succeeded"),
    "validate": Subcommand("check a job file; starts nothing"),
    "completion": Subcommand("complete words on the command line of a shell", rest="words"),
    "version": Subcommand("version of supctl and of supd"),
    "help": Subcommand("explain an error code, a key of job.toml, a command"),
}
ALIASES = {"list": "status", "ls": "status", "log": "logs", "tail": "logs", "follow": "logs -f"}
WITH_VALUE = ("--addr", "--color")


def main() -> int:
    """The process: ends with an ExitCode, whatever happens."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called us: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # to the end of the process
    try:
        return run(sys.argv[1:])
    except BrokenPipeError:
        give_up(sys.stdout)
        return ExitCode.PIPE_CLOSED


def run(argv: Sequence[str]) -> int:
    """One call of supctl on this process's streams and environment; returns its exit code."""
    screen = Screen(sys.stdout, sys.stderr, os.environ)
    command = ""
    try:
        before, command, rest = _split(argv)
        options = global_parser().parse_args(before)
        if options.version:
            from supervisor.shell.version import VERSION

            screen.print(f"supctl {VERSION}")
            return ExitCode.OK
        if options.help or not command:
            screen.print(global_parser().format_help().rstrip())
            return ExitCode.OK
        parser = command_parser(command)
        if COMMANDS[command].rest:
            rest, options.rest = _split_rest(rest)
        arguments = parser.parse_args(rest, options)
        screen = Screen(sys.stdout, sys.stderr, os.environ, color=arguments.color, is_quiet=arguments.quiet)
        return int(_module(command).run(arguments, Context(screen, os.environ, arguments.addr)))
    except SupdError as exc:
        return _tell_error(screen, argv, exc, f"supctl {command} --help" if command else "supctl --help")
    except BrokenPipeError:
        raise
    except OSError as exc:  # a full disk behind `>`, a folder that was removed under us
        give_up(sys.stdout)
        hint = "look where the output goes, and whether the working folder is still there"
        return _tell_error(screen, argv, Refused("C014", exc.strerror or str(exc)), hint)
    except KeyboardInterrupt as exc:
        screen.tell(str(exc) if isinstance(exc, Detached) else "interrupted")
        return ExitCode.INTERRUPTED


def _tell_error(screen: Screen, argv: Sequence[str], error: SupdError, fallback_hint: str) -> int:
    """On stderr, as text or with --json as a document. Returns what supctl ends with."""
    hint = error.hint or fallback_hint
    if "--json" in _split_rest(argv)[0]:
        from supervisor.cli.documents import error_document

        screen.complain(error_document(error, hint))
    else:
        screen.fail(error, hint)
    return error.exit_code


def global_words(words: Sequence[str]) -> int:
    """How many words stand before the command: global options and their values, one of which may be missing."""
    count = 0
    while count < len(words) and words[count].startswith("-"):
        count += 2 if words[count] in WITH_VALUE else 1
    return count


def _split(argv: Sequence[str]) -> tuple[Sequence[str], str, Sequence[str]]:
    """Global options, the command ("" where there is none), and its own arguments."""
    at = global_words(argv)
    if at >= len(argv):
        if "--json" in argv:
            raise UsageError("--json goes with a command", "supctl status --json")
        return argv, "", []
    word = argv[at]
    command, *meant = ALIASES[word].split() if word in ALIASES else [word]
    if command not in COMMANDS:
        global_parser().parse_args(argv[:at])  # an option that is not there may have a value, which `word` then is
        from protocol.tables import did_you_mean  # only where something is wrong

        near = did_you_mean(word, [*COMMANDS, *ALIASES])
        raise UsageError(f"no command {word!r}" + (f"; {near}" if near else ""), "supctl --help")
    before = argv[:at]
    if "--json" in before:  # is said everywhere, and belongs to the commands that have it
        before = [option for option in before if option != "--json"]
        meant.append("--json")
    return before, command, [*meant, *argv[at + 1 :]]


def _split_rest(words: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """What stands before the first `--`, and what behind it."""
    if "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def global_parser() -> Parser:
    """What may stand before the command; its help is that of supctl."""
    rows = (f"  {name:<11} {command.help}{aliases_text(name, ' ({})')}" for name, command in COMMANDS.items())
    parser = Parser(
        "supctl",
        parents=[common()],
        add_help=False,
        usage="supctl COMMAND [OPTIONS]",
        description="\n".join(["Start, stop and watch training jobs.", "", *rows]),
        epilog="supctl COMMAND --help and supctl help TOPIC say more.",
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--version", action="store_true", help="show the version of supctl")
    parser.set_defaults(addr="", quiet=False, color="auto")
    return parser


def common() -> Parser:
    """Options that may stand before or behind the command."""
    parser = Parser("supctl", add_help=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--addr", metavar="PATH", help="supd's control socket (default: $SUPD_ADDR, else the user's own)"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="ids only, no progress")
    group.add_argument("--color", choices=("auto", "always", "never"), help="default auto; NO_COLOR is honoured")
    return parser


def command_parser(name: str) -> Parser:
    """The arguments of one command, and what may stand behind every command."""
    module = _module(name)
    parser = Parser(f"supctl {name}", rest=COMMANDS[name].rest, description=module.__doc__, parents=[common()])
    module.add_arguments(parser)
    if COMMANDS[name].rest:
        usage = parser.format_usage().removeprefix("usage: ").rstrip()
        parser.usage = f"{usage} [-- ARG ...]".replace("%", "%%")
    return parser


def aliases_text(name: str, whole: str = "{}", each: str = "{}") -> str:
    """The other names of a command, `each` formed like this and the `whole` like that; "" where it has none."""
    same = [each.format(alias) for alias, meant in ALIASES.items() if meant == name]
    more = [
        f"{each.format(alias)} is {each.format(meant)}"
        for alias, meant in ALIASES.items()
        if meant.startswith(f"{name} ")
    ]
    texts = [*([f"also {', '.join(same)}"] if same else []), *more]
    return whole.format("; ".join(texts)) if texts else ""


def _module(name: str) -> ModuleType:
    return import_module(f"supervisor.cli.{name}")
