"""End the generation of a run and begin the next one; not charged to the restart budget.

With --reload the run goes on with another job file: what was given to `start` besides, --set and arguments behind `--`,
does not count any more. It is checked as at a start, and where it has problems nothing is restarted. What `scale` has
said of its nodes still holds, unless the file has another topology.nnodes than the one before.

Ends with 0 when the next generation runs; if the run ended instead, 4, 7 for no progress, 75 for too few nodes, or 5;
if it is held after that generation, 4.
"""

import argparse

from protocol.messages.control import Done, RestartRun
from protocol.messages.upkeep import REASON_MAX
from supervisor.cli.arguments import add_job, node_word, reason_word
from supervisor.cli.context import Context
from supervisor.cli.follow import await_generation
from supervisor.cli.submission import request_for, tell_done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl restart`'s own arguments."""
    add_job(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", type=reason_word(REASON_MAX), default="", help="shown in events, and to the workers"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--reload",
        metavar="FILE",
        help="go on with this job file, of the same name, from now on: new arguments, limits, numbers of nodes",
    )
    how.add_argument(
        "--without",
        metavar="NODE",
        type=node_word,
        help="leave this node out of the next generation; the one after that may have it again",
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Restart, then look on until the next generation runs."""
    screen = context.screen
    name = context.client.resolve(arguments.job)
    before = context.client.status(name).generation
    job = None if arguments.reload is None else request_for(arguments.reload, context, check_only=False)
    request = RestartRun(run=name, reason=arguments.reason, without=arguments.without or "", job=job)
    done = context.client.ask(request, Done)
    if arguments.reload is not None:
        tell_done(
            screen, f"{name} has the job of {arguments.reload}", done.notes, (*done.file_warnings, *done.warnings)
        )
    without = f" without {arguments.without}" if arguments.without else ""
    screen.tell(f"restarting {name}{without}" + ("" if before is None else f": generation {before} ends"))
    return await_generation(context, name, before, "restarting")
