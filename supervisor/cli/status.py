"""Runs as they stand: all of them, or one with its last incident."""

import argparse

from protocol.messages.control import GetStatus, RunStatus, Statuses
from supervisor.cli.arguments import add_json
from supervisor.cli.context import Context
from supervisor.cli.exit_code import ExitCode
from supervisor.cli.render import run_block, runs_table
from supervisor.shell.clock import wall_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl status`'s own arguments."""
    parser.add_argument("job", metavar="JOB", nargs="?", default="", help="job or run (NAME@HEX); default: all runs")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a table of all runs, or a block for one."""
    screen = context.screen
    if arguments.job:
        runs: tuple[RunStatus, ...] = (context.client.status(context.client.resolve(arguments.job)),)
    else:
        runs = context.client.ask(GetStatus(), Statuses).runs
    if arguments.json:
        from supervisor.cli import documents

        screen.print(documents.document("status", {"runs": [documents.run_of(run) for run in runs]}))
    elif screen.is_quiet:
        screen.print(*(run.run for run in runs))
    elif arguments.job:
        screen.print(*run_block(runs[0], wall_s(), screen.out))
    elif runs:
        screen.print(*runs_table(runs, wall_s(), screen.out))
    else:
        screen.tell("no runs yet   → supctl start FILE")
    return ExitCode.OK
