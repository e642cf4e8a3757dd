"""The version of this supctl, and of the supd that answers."""

import argparse

from protocol.exit_code import ExitCode
from protocol.messages.control import CONTROL_VERSION
from supervisor.cli.arguments import add_json
from supervisor.cli.client import Unavailable
from supervisor.cli.context import Context
from supervisor.shell.version import VERSION


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl version`'s own arguments."""
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print both versions; a supd that does not answer is said, and is no failure of this command."""
    screen = context.screen
    client = VERSION
    warnings = []
    daemon = None
    try:
        daemon = context.client.greet()
    except Unavailable as exc:
        warnings.append(str(exc))
    if daemon is not None and daemon.control_version != CONTROL_VERSION:
        warnings.append(
            f"they do not understand each other: control versions {CONTROL_VERSION} and {daemon.control_version}"
        )
    if arguments.json:
        from supervisor.cli import documents

        ours = {"supd_version": client, "control_version": CONTROL_VERSION}
        screen.print(documents.document("version", {"client": ours, "daemon": daemon}, warnings))
        return ExitCode.OK
    screen.print(f"supctl {client}", f"supd   {daemon.supd_version if daemon else '-'}")
    for warning in warnings:
        screen.tell(warning)
    return ExitCode.OK
