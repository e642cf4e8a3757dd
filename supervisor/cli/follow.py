"""Looking on at one run until something is so, never silently: a wait over 2 s says what it waits for."""

import re
from collections.abc import Callable

from protocol.exit_code import ExitCode
from protocol.messages.control import Outcome, RunStatus, Statuses, Watch
from supervisor.cli.client import SILENT_S
from supervisor.cli.context import Context, Detached
from supervisor.cli.log_lines import safe
from supervisor.cli.render import incident_block, ranks_of, span
from supervisor.cli.screen import Screen
from supervisor.cli.watching import Watching
from supervisor.shell.clock import boot_s

AGAIN_S, EVERY_S = 30.0, 60.0
"""A wait that goes on is told again after this time, and then after each such time, where no terminal shows it."""

NUMBER = re.compile(r"(?<![\w.@:-])\d[\d,]*(\.\d+)?(?![\w.:-])")
"""One that counts or measures, and is no part of a name."""


class WaitLine:
    """What a run waits for: one line in place on a terminal, elsewhere a line a change of more than its numbers, and
    now and then one more."""

    def __init__(self, screen: Screen, fallback: Callable[[RunStatus], str] = lambda _run: "") -> None:
        self._screen = screen
        self._fallback = fallback
        self._seen: tuple[object, ...] = ()
        self._since_s = boot_s()
        self._told = ""
        self._again_at_s = 0.0

    def show(self, run: RunStatus) -> None:
        """Called at every snapshot and every tick."""
        now_s = boot_s()
        seen = (run.state, run.phase, run.generation, run.ranks_running)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        waited_s = now_s - self._since_s
        what = run.waiting_for or self._fallback(run)
        if not what or waited_s < SILENT_S:
            return
        left = "" if run.wait_left_s is None else f", {span(run.wait_left_s)} left"
        if self._screen.err.is_tty:
            self._screen.redraw(f"… waiting for {what} ({span(waited_s)}{left})")
            return
        key = NUMBER.sub("#", what)
        if key != self._told or now_s >= self._again_at_s:
            self._again_at_s = now_s + (AGAIN_S if key != self._told else EVERY_S)
            self._told = key
            self._screen.tell(f"… waiting for {what}{left}")


def follow(
    context: Context,
    run: str,
    is_done: Callable[[RunStatus], bool],
    *,
    on_change: Callable[[RunStatus], None] = lambda _run: None,
    wait_line: WaitLine | None = None,
    deadline_s: float | None = None,
    after_interrupt: str = "",
) -> RunStatus | None:
    """The first snapshot of `run` that is final or for which `is_done`; None where `deadline_s` came first.

    Raises Detached on Ctrl-C.
    """
    wait_line = wait_line or WaitLine(context.screen)
    status: RunStatus | None = None
    watching = Watching(context.client, context.screen.tell, Watch(run=run, follow=True))
    try:
        for reply in watching.replies():
            match reply:
                case Statuses(runs=[status, *_]):
                    on_change(status)
                    if status.is_final or is_done(status):
                        return status
                case _:
                    pass
            if deadline_s is not None and boot_s() >= deadline_s:
                return None
            if status is not None and not watching.is_lost:
                wait_line.show(status)
    except KeyboardInterrupt:
        raise Detached(after_interrupt) from None
    return status  # as its last snapshot was: it is final


def outcome_code(run: RunStatus) -> ExitCode:
    """What a command ends with that was there for the outcome of `run`."""
    match run.state:
        case Outcome.SUCCEEDED:
            return ExitCode.OK
        case Outcome.STOPPED | Outcome.PREEMPTED:
            return ExitCode.JOB_STOPPED
        case _ if run.lacked_nodes:
            return ExitCode.LACKED_NODES
        case _:
            return ExitCode.NO_PROGRESS if run.made_no_progress else ExitCode.JOB_FAILED


def output_code(run: RunStatus) -> int:
    """What a command ends with that has shown the output of `run` up to its end, in the place of its program: for who
    is to start it again after a preemption the job has a code of its own."""
    return run.preempted_code if run.state == Outcome.PREEMPTED else outcome_code(run)


def await_generation(context: Context, run: str, before: int | None, doing: str) -> int:
    """Look on until a generation of `run` that is newer than `before` runs, or the run is held after it, and tell that;
    returns what to end with."""
    began_s, screen = boot_s(), context.screen

    def is_next(status: RunStatus) -> bool:
        is_newer = status.generation is not None and (before is None or status.generation > before)
        return is_newer and status.state in ("running", "held")

    status = follow(context, run, is_next, after_interrupt=f"detached; {run} keeps {doing}")
    assert status is not None, "only a deadline gives no status"
    if status.is_final:
        tell_outcome(screen, status)
        return outcome_code(status)
    if status.state == "held":
        screen.complain(f"{screen.err.paint('✗', 'red')} {run} is held again: {safe(status.reason)}")
        screen.next_step(f"supctl status {run}")
        return ExitCode.JOB_FAILED
    mark = screen.err.paint("✓", "green")
    took = span(boot_s() - began_s)
    screen.tell(f"{mark} generation {status.generation} runs   {ranks_of(status)} ranks   {took}")
    if screen.is_quiet:
        screen.print(run)
    return ExitCode.OK


def tell_outcome(screen: Screen, run: RunStatus) -> None:
    """How a run ended: who died and how, if it failed, and where to look."""
    code = outcome_code(run)
    text = f"{run.run} {run.state}" + (f": {safe(run.reason)}" if run.reason else "")
    if code is ExitCode.OK:
        screen.tell(f"{screen.err.paint('✓', 'green')} {text}")
        return
    screen.complain(f"{screen.err.paint('✗', 'red')} {text}")
    if code in (ExitCode.JOB_FAILED, ExitCode.NO_PROGRESS) and run.incident is not None:
        for line in incident_block(run.incident, screen.err):
            screen.complain(line)
    screen.next_step("supctl nodes" if run.lacked_nodes else f"supctl status {run.run}")
