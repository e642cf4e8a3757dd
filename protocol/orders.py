"""What a runner is told, whatever it was told before (docs/protocol.md, "Who gets which order"). Pure functions."""

from protocol.coordinator_events import FINAL, Phase, RunRecord, StopRequested
from protocol.ids import NO_GENERATION
from protocol.messages.member import Assignment, Order, Release, Run, Stop, Wait


def order(phase: Phase, generation: int, assignment: Assignment | None, stop: Stop | None) -> Order:
    """The whole order for a runner that is not past; `assignment` is that of its seat, `stop` an operator's."""
    if phase in FINAL:
        return Release()
    if generation == NO_GENERATION:
        return Wait()
    if phase in (Phase.LAUNCHING, Phase.RUNNING) and assignment is not None:
        return Run(assignment=assignment)
    if phase is Phase.STOPPING and stop is not None:
        return Stop(generation=generation, grace_s=stop.grace_s, now=stop.now)
    return Stop(generation=generation)


def cause(run: RunRecord) -> tuple[object, ...]:
    """What the orders of a run follow from: as long as it is the same, so are they."""
    is_stopping, is_on = run.phase is Phase.STOPPING, run.phase in (Phase.LAUNCHING, Phase.RUNNING)
    return run.generation, is_on, run.phase in FINAL, run.stop if is_stopping else None


def tighter(earlier: Stop | None, asked: StopRequested, generation: int, job_grace_s: float) -> Stop:
    """The stop that an operator's wish comes to: a second one can only bring the end nearer, whichever is heard."""
    if earlier is None:
        return Stop(generation=generation, grace_s=asked.grace_s, now=asked.now)
    grace_s = min(earlier.grace_s, asked.grace_s, key=lambda grace_s: job_grace_s if grace_s is None else grace_s)
    return Stop(generation=generation, grace_s=grace_s, now=earlier.now or asked.now)


def manner(asked: StopRequested) -> str:
    """How an operator wants a run to end, for people."""
    return "now" if asked.now else "with the job's grace" if asked.grace_s is None else f"grace {asked.grace_s:g} s"


def grace(stop: Stop | None, job_grace_s: float) -> str:
    """What grace the ranks of a generation had, for people."""
    if stop is not None and stop.now:
        return "no grace"
    return f"grace {job_grace_s if stop is None or stop.grace_s is None else stop.grace_s:g} s"
