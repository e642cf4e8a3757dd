"""Start a job; return when every rank of generation 0 has started.

What stands behind `--` is appended to run.args, word for word. The job runs on without supctl: Ctrl-C only ends the
looking on. Ends with 0 when it has started (with --follow: when it has succeeded), 4 if it failed, 7 if it made no
progress, 75 if it failed for too few nodes, 5 if it was stopped or preempted (with --follow: preemption.exit_code),
78 if the job file has problems, 124 if --wait-timeout passed first.
"""

import argparse
import time

from protocol.exit_code import ExitCode
from protocol.messages.control import Done, LogSelection, RunStatus, Start, Statuses, Watch
from supervisor.cli.arguments import add_changes, duration_s
from supervisor.cli.client import ConnectionLost, Unavailable
from supervisor.cli.context import Context, Detached
from supervisor.cli.follow import WaitLine, follow, outcome_code, output_code, tell_outcome
from supervisor.cli.log_lines import safe
from supervisor.cli.render import span
from supervisor.cli.screen import Screen
from supervisor.cli.submission import request_for, tell_done
from supervisor.cli.watching import TICK_S
from supervisor.shell.clock import boot_s

COMEBACK_S = 10.0
"""A supd that went away before it had answered is given this long to come back."""
RETRY_S = 0.1

NOT_ACCEPTED_YET = "not accepted yet: supd starts it once the run before is gone, unless supd itself ends before that"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl start`'s own arguments."""
    parser.add_argument("file", metavar="FILE", help="job file (docs/job-file.md)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--follow", action="store_true", help="show the output until the run ends")
    mode.add_argument("--detach", action="store_true", help="return as soon as supd has accepted the run")
    mode.add_argument("--dry-run", action="store_true", help="let supd check the job; start nothing")
    add_changes(parser)
    parser.add_argument(
        "--replace", action="store_true", help="stop the active run of this job first, and wait until it is gone"
    )
    parser.add_argument(
        "--allow-mixed",
        action="store_true",
        help="launch although nodes would not run the same script, Python or torch",
    )
    parser.add_argument(
        "--wait-timeout",
        metavar="DUR",
        type=duration_s,
        help="stop looking on if it has not started after this long, like 10m; it goes on",
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Submit the job, then look on for as long as was asked for."""
    screen = context.screen
    deadline_s = None if arguments.wait_timeout is None else boot_s() + arguments.wait_timeout
    request = request_for(
        arguments.file,
        context,
        check_only=arguments.dry_run,
        settings=arguments.settings,
        name=arguments.name,
        args=arguments.rest,
        replace=arguments.replace,
        allow_mixed=arguments.allow_mixed,
    )
    try:
        done = _submit(context, request, deadline_s)
        if arguments.dry_run:
            _tell_done(screen, f"{arguments.file} is valid; nothing was started", done)
            return ExitCode.OK
        _tell_done(screen, f"accepted run {done.run}", done)
        if screen.is_quiet and not arguments.follow:
            _print_run(screen, done.run)
        if arguments.detach:
            return ExitCode.OK
        progress = Progress(screen, tells_incidents=not arguments.follow)
        look_on = _follow_output if arguments.follow else _follow_start
        status = look_on(context, done.run, progress, deadline_s)
    except GaveUp as exc:
        screen.complain(f"{exc} within {span(arguments.wait_timeout)}; {exc.goes_on}")
        screen.next_step(f"supctl status {exc.run}".rstrip())
        return ExitCode.TIMED_OUT
    if status.is_final:
        tell_outcome(screen, status)
        return output_code(status) if arguments.follow else outcome_code(status)
    screen.tell(f"{status.job} is running   → supctl logs -f {status.job}")
    return ExitCode.OK


def _print_run(screen: Screen, run: str) -> None:
    try:
        screen.print(run)
    except OSError:
        screen.complain(f"accepted run {run}, and could not print that")
        raise


def _tell_done(screen: Screen, text: str, done: Done) -> None:
    tell_done(screen, text, done.notes, (*done.file_warnings, *done.warnings))


class GaveUp(Exception):
    """--wait-timeout passed; the text says what had not happened by then, to `run` where that is known."""

    def __init__(self, run: str, what: str, goes_on: str = "it goes on without us") -> None:
        self.run = run
        self.goes_on = goes_on
        super().__init__(what)


class Progress:
    """Tells how a start gets on, a line a change; incidents only where nobody else tells them."""

    def __init__(self, screen: Screen, *, tells_incidents: bool) -> None:
        self._screen = screen
        self._tells_incidents = tells_incidents
        self._told: set[str] = set()
        self._incident = 0

    def show(self, status: RunStatus) -> None:
        """Called at every snapshot."""
        if self._tells_incidents and not status.is_final:
            self._tell_incident(status)
        if status.ranks and (status.has_started or status.ranks_running == status.ranks):
            self._once(f"spawned {status.ranks}/{status.ranks} ranks")
        if status.has_started:
            self._once("started")

    def _tell_incident(self, status: RunStatus) -> None:
        if status.incident is not None and status.incident.number > self._incident:
            self._incident = status.incident.number
            self._screen.tell(f"{self._screen.err.paint('✗', 'red')} {safe(status.incident.summary)}")

    def _once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._screen.tell(f"{self._screen.err.paint('✓', 'green')} {what}")


def _submit(context: Context, request: Start, deadline_s: float | None) -> Done:
    """Ask once more where supd went away before it answered: the request's id makes that safe."""
    try:
        return _ask(context, request, deadline_s)
    except ConnectionLost as lost:
        context.screen.tell("supd went away before it answered; asking again when it is back")
        until_s = boot_s() + COMEBACK_S
        while True:
            try:
                return _ask(context, request, deadline_s)
            except ConnectionLost:
                raise
            except Unavailable:
                if boot_s() >= until_s:
                    raise lost from None
            time.sleep(RETRY_S)  # noqa: TID251  # there is nothing to wait on: the socket is not there


def _ask(context: Context, request: Start, deadline_s: float | None) -> Done:
    if request.replace and not request.check_only:
        return _ask_to_replace(context, request, deadline_s)
    return context.client.ask(request, Done)


def _ask_to_replace(context: Context, request: Start, deadline_s: float | None) -> Done:
    """supd shows the run that makes way as it changes, until that is over and the new one accepted."""
    screen = context.screen
    other: RunStatus | None = None
    wait_line = WaitLine(screen, lambda _run: "the run before to be gone")
    try:
        for reply in context.client.stream(request, TICK_S):
            match reply:
                case Done():
                    return reply
                case Statuses(runs=[status, *_]):
                    if other is None or other.run != status.run:
                        screen.tell(f"replacing {status.run}: stopping it")
                    if status.is_final:
                        screen.tell(f"{screen.err.paint('✓', 'green')} {status.run} {status.state}")
                    other = status
                case _:
                    pass
            if deadline_s is not None and boot_s() >= deadline_s:
                run = other.run if other else ""
                raise GaveUp(run, f"{run or 'the run before'} was not gone", NOT_ACCEPTED_YET)
            if other is not None and not other.is_final:
                wait_line.show(other)
    except KeyboardInterrupt:
        raise Detached(f"detached; {NOT_ACCEPTED_YET}   → supctl status") from None
    raise ConnectionLost(context.client.address)


def _follow_start(context: Context, run: str, progress: Progress, deadline_s: float | None) -> RunStatus:
    status = follow(
        context,
        run,
        lambda status: status.has_started,
        on_change=progress.show,
        deadline_s=deadline_s,
        after_interrupt=_detached(run, "starting"),
    )
    if status is None:
        raise GaveUp(run, f"{run} has not started")
    return status


def _follow_output(context: Context, run: str, progress: Progress, deadline_s: float | None) -> RunStatus:
    from supervisor.cli.story import DEFAULT_VIEW, Story, play

    def on_reply(status: RunStatus) -> None:
        progress.show(status)
        if deadline_s is not None and boot_s() >= deadline_s and not status.has_started:
            raise GaveUp(run, f"{run} has not started")

    status = context.client.status(run)
    story = Story(
        context.screen,
        status,
        lambda _event: True,
        showing=f"{DEFAULT_VIEW}, events (all: supctl logs -f -r all)",
        in_full_from_s=0.0,
    )
    request = Watch(
        run=run,
        follow=True,
        events=True,
        snapshots=True,
        logs=LogSelection(all_generations=True, tail_lines=None, may_skip=True),
    )
    try:
        play(context, story, request, on_reply=on_reply)
    except KeyboardInterrupt:
        raise Detached(_detached(run, "running")) from None
    return story.run


def _detached(run: str, doing: str) -> str:
    return f"detached; job keeps {doing}   → supctl logs -f {run}"
