"""Wait until a run is running, finished or succeeded, or no longer can be.

Ends with 0 when it is so, 4 if the run failed, 7 if it made no progress, 75 if it failed for too few nodes, 5 if it was
stopped or preempted, 124 if --timeout passed first. While supd is away the wait goes on.
"""

import argparse

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import Outcome, RunStatus
from supervisor.cli.arguments import add_job, add_json, duration_s
from supervisor.cli.context import Context
from supervisor.cli.follow import WaitLine, follow, outcome_code
from supervisor.cli.log_lines import safe
from supervisor.cli.render import span
from supervisor.shell.clock import boot_s

CONDITIONS = {"running": "run", "finished": "finish", "succeeded": "succeed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl wait`'s own arguments."""
    add_job(parser)
    parser.add_argument(
        "--for",
        dest="condition",
        choices=CONDITIONS,
        default="succeeded",
        help="running: all ranks have started; finished: over, whatever the outcome; succeeded (default)",
    )
    parser.add_argument("--timeout", metavar="DUR", type=duration_s, help="give up after this long, like 8h")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Wait, telling every change of state."""
    screen = context.screen
    name = context.client.resolve(arguments.job)
    told = ""

    def tell(status: RunStatus) -> None:
        nonlocal told
        reason = f"  {safe(status.reason)}" if status.reason else ""
        generation = "" if status.generation is None else f" generation {status.generation}"
        text = f"{name}  {status.state}{generation}{reason}"
        if text != told and not arguments.json:
            told = text
            screen.tell(text)

    status = follow(
        context,
        name,
        lambda status: arguments.condition == "running" and status.state == "running",
        on_change=tell,
        wait_line=WaitLine(screen, lambda _status: f"{name} to {CONDITIONS[arguments.condition]}"),
        deadline_s=None if arguments.timeout is None else boot_s() + arguments.timeout,
        after_interrupt=f"stopped waiting; {name} is not touched",
    )
    if status is None:
        message = f"{name} was not {arguments.condition} within {span(arguments.timeout)}"
        raise Refused("C017", message, hint=f"supctl status {name}", exit_code=ExitCode.TIMED_OUT)
    if arguments.json:
        from supervisor.cli import documents

        screen.print(documents.document("wait", {"condition": arguments.condition, "run": status}))
    code = _code(arguments.condition, status)
    if code is not ExitCode.OK:
        screen.next_step(f"supctl status {name}")
    return code


def _code(condition: str, status: RunStatus) -> ExitCode:
    """A run that has succeeded was running; one that failed or was stopped is finished, but no longer running."""
    if not status.is_final or condition == "finished" or status.state == Outcome.SUCCEEDED:
        return ExitCode.OK
    return outcome_code(status)
