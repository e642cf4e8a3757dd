"""Stop a run gracefully, and wait until it is gone.

Ends with 0 when it is over, also if it was over already. Ctrl-C leaves the stop under way.
"""

import argparse

from protocol.exit_code import ExitCode
from protocol.messages.control import Done, RunStatus, StopRun
from supervisor.cli.arguments import UsageError, add_job, duration_s
from supervisor.cli.context import Context
from supervisor.cli.follow import WaitLine, follow
from supervisor.cli.render import span
from supervisor.shell.clock import boot_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl stop`'s own arguments."""
    add_job(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--grace", metavar="DUR", type=duration_s, help="time until SIGKILL, like 30s (default: the job's)"
    )
    how.add_argument("--now", action="store_true", help="SIGKILL at once")
    parser.add_argument("--all", action="store_true", help="every active run of the fleet")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Stop one run, or all of them."""
    if arguments.all and arguments.job:
        raise UsageError("a JOB and --all exclude each other", "supctl stop --help")
    name = "" if arguments.all else context.client.resolve(arguments.job)
    if name:
        status = context.client.status(name)
        if status.is_final:
            context.screen.tell(f"nothing to stop: {name} is already over ({status.state})")
            return ExitCode.OK
    request = StopRun(run=name, all_runs=arguments.all, grace_s=arguments.grace, now=arguments.now)
    runs = context.client.ask(request, Done).runs
    if not runs:
        context.screen.tell("nothing to stop: no run is active")
    began_s = boot_s()
    for name in runs:
        context.screen.tell(f"stopping {name}{_how(arguments)}")
    for name in runs:
        _wait(context, name, began_s)
    return ExitCode.OK


def _wait(context: Context, name: str, began_s: float) -> None:
    status = follow(
        context,
        name,
        lambda _status: False,
        wait_line=WaitLine(context.screen, _ranks_left),
        after_interrupt=f"detached; {name} keeps stopping   → supctl status {name}",
    )
    assert status is not None, "only a deadline gives no status"
    mark = context.screen.err.paint("✓", "green")
    context.screen.tell(f"{mark} {name} {status.state}   {span(boot_s() - began_s)}")
    if context.screen.is_quiet:
        context.screen.print(name)


def _how(arguments: argparse.Namespace) -> str:
    if arguments.now:
        return ": SIGKILL now"
    return "" if arguments.grace is None else f": gracefully, then SIGKILL after {span(arguments.grace)}"


def _ranks_left(status: RunStatus) -> str:
    return f"{status.ranks_running} of {status.ranks} ranks to end" if status.ranks else "its ranks to end"
