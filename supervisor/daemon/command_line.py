"""The command line of `supd`."""

import argparse
from pathlib import Path
from typing import NoReturn

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from supervisor.shell.usage import near_option
from supervisor.shell.version import VERSION


class _Parser(argparse.ArgumentParser):
    """Tells a wrong command line the way every other error is told."""

    def error(self, message: str) -> NoReturn:
        near = near_option(self, message)
        message = f"{message}; {near}" if near else message
        raise Refused("F001", message, hint=f"{self.prog} --help", exit_code=ExitCode.USAGE)


def command_line() -> argparse.ArgumentParser:
    """The command line of supd."""
    about = "The node daemon of supd. It is spoken to with supctl."
    parser = _Parser(prog="supd", description=about, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"supd {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "run in the foreground; SIGTERM ends it and leaves runs alive"
    run = commands.add_parser("run", help=about, allow_abbrev=False)
    run.add_argument("--config", type=Path, metavar="FILE", help="supd.toml (conf/supd.toml lists every key)")
    run.add_argument("--dev", action="store_true", help="loopback, any free port, state in a new temporary folder")
    about = (
        "from now on host the coordinator here, whoever comes first in `[fleet] join`; refused while the old one lives"
    )
    run.add_argument("--coordinator", action="store_true", help=about)
    about = "with --coordinator: the node that has hosted is off, and stays so; nobody is asked"
    run.add_argument("--old-is-dead", action="store_true", help=about)
    about = "the credential that all nodes of a fleet share: whoever holds it belongs to the fleet"
    fleet = commands.add_parser("fleet", help=about, allow_abbrev=False)
    key = fleet.add_subparsers(dest="object", required=True, metavar="key").add_parser("key", help=about)
    actions = key.add_subparsers(dest="action", required=True, metavar="new|show")
    for name, about in (
        ("new", "make one, 0600, where there is none; then copy it to every node"),
        ("show", "say where it is, and its fingerprint, which is the same on every node; never the key itself"),
    ):
        action = actions.add_parser(name, help=about, allow_abbrev=False)
        action.add_argument("--config", type=Path, metavar="FILE", help="supd.toml, which names its place")
    return parser


def read_command_line() -> argparse.Namespace:
    """What this process was called with. Raises Refused."""
    args = command_line().parse_args()
    if args.command == "run" and args.old_is_dead and not args.coordinator:
        what = "--old-is-dead says of the old host of the coordinator that it is gone; it goes with --coordinator"
        raise Refused("F001", what, hint="supd run --help", exit_code=ExitCode.USAGE)
    return args
