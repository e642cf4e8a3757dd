"""End the generation of a run and begin the next one; not charged to the restart budget.

Ends with 0 when the next generation runs; if the run ended instead, 4, 75 for too few nodes, or 5.
"""

import argparse
import re

from protocol.exit_code import ExitCode
from protocol.messages.control import REASON_MAX, Done, RestartRun, RunStatus
from supervisor.cli.arguments import add_job, node_word
from supervisor.cli.context import Context
from supervisor.cli.follow import follow, outcome_code, tell_outcome
from supervisor.cli.render import ranks_of, span
from supervisor.shell.clock import boot_s

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # the last two end a line as well


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl restart`'s own arguments."""
    add_job(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", type=_reason, default="", help="shown in events, and to the workers"
    )
    parser.add_argument(
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
    context.client.ask(RestartRun(run=name, reason=arguments.reason, without=arguments.without or ""), Done)
    without = f" without {arguments.without}" if arguments.without else ""
    screen.tell(f"restarting {name}{without}" + ("" if before is None else f": generation {before} ends"))
    began_s = boot_s()

    def is_next(status: RunStatus) -> bool:
        is_newer = status.generation is not None and (before is None or status.generation > before)
        return is_newer and status.state == "running"

    status = follow(context, name, is_next, after_interrupt=f"detached; {name} keeps restarting")
    assert status is not None, "only a deadline gives no status"
    if status.is_final:
        tell_outcome(screen, status)
        return outcome_code(status)
    mark = screen.err.paint("✓", "green")
    took = span(boot_s() - began_s)
    screen.tell(f"{mark} generation {status.generation} runs   {ranks_of(status)} ranks   {took}")
    if screen.is_quiet:
        screen.print(name)
    return ExitCode.OK


def _reason(text: str) -> str:
    """A reason stands in one line of `events`, and in a variable of every worker."""
    if len(text) > REASON_MAX:
        raise argparse.ArgumentTypeError(f"at most {REASON_MAX} characters, not {len(text)}")
    if _CONTROL.search(text):
        raise argparse.ArgumentTypeError("one line, without control characters")
    return text
