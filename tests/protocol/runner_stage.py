"""A runner's machine under test, with short ways to hand it things and to look at what it does."""

from msgspec.structs import replace

from protocol.job import CheckpointTable, RestartTable, StopTable
from protocol.member import Member
from protocol.member_events import (
    Cleared,
    Effect,
    Event,
    Exited,
    Launched,
    Linked,
    Offered,
    Persist,
    Renew,
    Wrote,
)
from protocol.messages.member import Assignment, Order, Part, RankExit, Renewal, Run, SpawnFailure, Stop
from tests.protocol.build import answered, assignment, exited, job_spec, offer

TERM, KILL, USR1 = 15, 9, 10
NO_FILE = SpawnFailure(rank=1, path="/no", reason="No such file")


class Stage:
    """One member, and a short way to hand it things."""

    def __init__(
        self,
        stop: StopTable | None = None,
        restart: RestartTable | None = None,
        checkpoint: CheckpointTable | None = None,
    ) -> None:
        spec = job_spec(
            stop=stop or StopTable(grace_s=30.0),
            restart=restart or RestartTable(start_after_s=10.0),
            checkpoint=checkpoint or CheckpointTable(),
        )
        self.member = Member(spec, 0.0, orphan_wait_s=3600.0, linger_s=60.0)

    def at(self, now_s: float, event: Event) -> list[Effect]:
        return self.member.handle(event, now_s)

    def told(self, now_s: float, order: Order) -> list[Effect]:
        return self.at(now_s, answered(order))

    def exits(self, now_s: float, number: int, exit: RankExit, *, ended_s: float | None = None) -> list[Effect]:
        event = Exited(self.member.generation, number, exit, now_s if ended_s is None else ended_s)
        return self.at(now_s, event)

    @property
    def part(self) -> Part:
        return self.member.part


def idle(
    stop: StopTable | None = None,
    restart: RestartTable | None = None,
    checkpoint: CheckpointTable | None = None,
) -> Stage:
    """Linked, and has offered its node."""
    stage = Stage(stop, restart, checkpoint)
    stage.at(0.0, Linked(up=True))
    stage.at(0.0, Offered(offer()))
    return stage


def launched(stop: StopTable | None = None, generation: int = 0, checkpoint: CheckpointTable | None = None) -> Stage:
    """Two ranks are spawned at 1.0."""
    stage = idle(stop, checkpoint=checkpoint)
    stage.told(1.0, Run(assignment=assignment(generation)))
    stage.at(1.0, Launched(generation, (100, 101)))
    return stage


def running(stop: StopTable | None = None, generation: int = 0, checkpoint: CheckpointTable | None = None) -> Stage:
    """Both ranks have started at 2.0."""
    stage = launched(stop, generation, checkpoint)
    stage.at(2.0, Wrote(generation, 0))
    stage.at(2.0, Wrote(generation, 1))
    assert stage.part is Part.RUNNING
    return stage


def stopped(generation: int = 0) -> Stage:
    """Generation 0 was stopped, ended at 6.0."""
    stage = running(generation=generation)
    stage.told(5.0, Stop(generation=generation))
    stage.exits(6.0, 0, exited(signal=TERM))
    stage.exits(6.0, 1, exited(signal=TERM))
    stage.at(6.0, Cleared(generation))
    assert stage.part is Part.STOPPED
    return stage


def finished() -> Stage:
    """Both ranks ended with 0, all is gone at 6.0."""
    stage = running()
    stage.exits(5.0, 0, exited(0))
    stage.exits(5.0, 1, exited(0))
    stage.at(6.0, Cleared(0))
    assert stage.part is Part.FINISHED
    return stage


def kept(report: Renewal, given: Assignment | None = None) -> Persist:
    """A report on its way to the disk, with the assignment that it is about: by default that of generation 0."""
    return Persist(replace(report, assignment=given or assignment()))


def renewed(effects: list[Effect]) -> Renewal:
    """The only report among the effects."""
    [found] = [effect.renewal for effect in effects if isinstance(effect, Renew)]
    return found


def without_reports(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Persist | Renew)]
