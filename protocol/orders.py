"""What a runner is told, whatever it was told before (docs/protocol.md, "Who gets which order"). Pure functions."""

from protocol.coordinator_events import FINAL, Phase, StopRequested
from protocol.dataclass import dataclass
from protocol.ids import NO_GENERATION
from protocol.messages.member import Assignment, Order, Release, Run, Stop, Wait


@dataclass(frozen=True)
class Mind:
    """What the orders of all runners of a run follow from: as long as it is the same, so are they."""

    phase: Phase
    generation: int
    stop: Stop  # the whole order of who is not to run
    awaits_save: bool = False  # a planned change waits for the next checkpoint

    @property
    def runs(self) -> bool:
        """Whether who has a seat is to run."""
        return self.phase in (Phase.LAUNCHING, Phase.RUNNING)

    @property
    def cause(self) -> tuple[object, ...]:
        """What makes a difference to the orders."""
        return self.runs, self.phase in FINAL, self.generation, self.stop, self.awaits_save


def order(mind: Mind, assignment: Assignment | None) -> Order:
    """The whole order for a runner that is not past; `assignment` is that of its seat."""
    if mind.phase in FINAL:
        return Release()
    if mind.generation == NO_GENERATION:
        return Wait()
    if mind.runs and assignment is not None:
        return Run(assignment=assignment, awaits_save=mind.awaits_save)
    return mind.stop


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
