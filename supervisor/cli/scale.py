"""Have a run on other numbers of nodes.

It goes on with new ranks at its next checkpoint, and at the deadline without one; where its nodes fit already, or not
enough are there yet, nothing changes until then; the deadline counts from now all the same. A failure or a restart
before that is followed by as many nodes as before. `supctl status` says what it waits for. It holds for the rest of the
run, until a `restart --reload` of a file with another topology.nnodes.
"""

import argparse
import re

from protocol.exit_code import ExitCode
from protocol.job import MAX_NNODES
from protocol.messages.control import Done
from protocol.messages.upkeep import ScaleRun
from supervisor.cli.arguments import add_deadline, add_job
from supervisor.cli.context import Context
from supervisor.cli.log_lines import safe
from supervisor.cli.render import plan_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl scale`'s own arguments."""
    add_job(parser)
    parser.add_argument(
        "--nnodes", metavar="MIN:MAX", type=_nnodes, required=True, help="like 2:4, or 3 for exactly three"
    )
    add_deadline(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Scale, and say what the run waits for."""
    screen = context.screen
    name = context.client.resolve(arguments.job)
    least, most = arguments.nnodes
    context.client.ask(ScaleRun(run=name, nnodes=arguments.nnodes, deadline_s=arguments.deadline), Done)
    nnodes = str(least) if least == most else f"{least} to {most}"
    screen.tell(f"{screen.err.paint('✓', 'green')} {name} is to be on {nnodes} node{'' if most == 1 else 's'}")
    status = context.client.status(name)
    if status.plan:
        screen.tell(f"… {safe(plan_of(status))}   → supctl status {name}")
    if screen.is_quiet:
        screen.print(name)
    return ExitCode.OK


def _nnodes(text: str) -> tuple[int, int]:
    """MIN and MAX of `2:4`, or of `3`."""
    numbers = re.fullmatch("([0-9]{1,9})(?::([0-9]{1,9}))?", text)
    if numbers is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes; write 3, or 2:4 for a range")
    least, most = int(numbers[1]), int(numbers[2] or numbers[1])
    if not (1 <= least <= MAX_NNODES and 1 <= most <= MAX_NNODES):
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; numbers of nodes are 1 to {MAX_NNODES}")
    if least > most:
        raise argparse.ArgumentTypeError(f"{text!r} has its minimum above its maximum; did you mean {most}:{least}?")
    return least, most
