"""A coordinator under test, with short ways to tell it things and to look at what it does."""

from collections.abc import Mapping

from protocol.coordinator import Coordinator
from protocol.coordinator_events import (
    Ask,
    Effect,
    Event,
    Heard,
    Note,
    Opened,
    Persist,
    Roster,
    RosterNode,
    RunnerFailed,
    RunnerGone,
    RunRecord,
    Send,
    Testified,
    Tick,
    Want,
)
from protocol.job import JobSpec, RestartTable
from protocol.messages.member import Answer, Assignment, Order, Part, RankReport, Renewal, Testimony
from protocol.timing import DEFAULTS, Timing
from tests.protocol.build import exited, job_spec, offer, rank, renewal

PATIENT = RestartTable(max_restarts=3, backoff_s=5.0)
"""Restarts three times, and not after a failure before the start."""


class Fleet:
    """The coordinator of one run; `numbers` are those of each runner's renewals."""

    def __init__(
        self,
        *nodes: str,
        spec: JobSpec | None = None,
        record: RunRecord | None = None,
        epoch: int = 1,
        timing: Timing = DEFAULTS,
        keeps_isolated: bool = False,
    ) -> None:
        self.nodes = nodes or ("a",)
        self.spec = spec or job_spec(restart=PATIENT, nnodes=(len(self.nodes), len(self.nodes)))
        self.epoch = epoch
        self.record = record or RunRecord()  # what the journal has
        self.keeps_isolated = keeps_isolated
        self.coordinator = Coordinator(
            self.spec, self.record, epoch, lambda: 0.5, timing=timing, keeps_isolated=keeps_isolated
        )
        self.numbers: dict[str, int] = {}
        self.last: dict[str, Renewal] = {}  # of the runners that are alive

    def at(self, now_s: float, event: Event) -> list[Effect]:
        """Hand in one event; what is persisted is kept."""
        effects = self.coordinator.handle(event, now_s)
        for effect in effects:
            if isinstance(effect, Persist):
                self.record = effect.record
        return effects

    def opens(self, now_s: float, *away: str) -> list[Effect]:
        """The run is taken up, and every node of the fleet but these answers."""
        return [*self.at(now_s, Opened()), *self.sees(now_s, *away)]

    def sees(self, now_s: float, *away: str, may_come: bool = False) -> list[Effect]:
        """The fleet's nodes as they stand: all answer but these."""
        nodes = (
            RosterNode(n, n not in away, may_come=may_come and n in away, joined=i) for i, n in enumerate(self.nodes)
        )
        return self.at(now_s, Roster(tuple(nodes)))

    def hears(
        self,
        now_s: float,
        runner: str,
        part: Part,
        generation: int = 0,
        *ranks: RankReport,
        via: str = "",
        **more: object,
    ) -> list[Effect]:
        """A renewal of `runner`, called by its node and a number: "a1" is the first runner of node a."""
        number = self.numbers[runner] = self.numbers.get(runner, 0) + 1
        self.last[runner] = renewal(number, part, generation, *ranks, **{"epoch": self.epoch, **more})
        return self.at(now_s, Heard(runner[0], runner, self.last[runner], via))

    def renews(self, now_s: float, runner: str, via: str = "") -> list[Effect]:
        """It says again what it has said last."""
        last = self.last[runner]
        more = {name: getattr(last, name) for name in ("offer", "fenced_s", "assignment")}
        return self.hears(now_s, runner, last.part, last.generation, *last.ranks, via=via, **more)

    def testifies(self, now_s: float, ask: Ask, word_s: float | None = None) -> list[Effect]:
        """A witness answers: it gave the runner its last word so long ago."""
        asked = ask.question
        told = Testimony(**{name: getattr(asked, name) for name in asked.__struct_fields__}, word_s=word_s)
        return self.at(now_s, Testified(ask.incarnation[0], ask.incarnation, told))

    def passes(
        self, from_s: float, until_s: float, silent: str = "", mute: str = "", via: Mapping[str, str] | None = None
    ) -> list[Effect]:
        """Time passes, with a look each 0.3 s. Every runner that is alive renews each second, but those on `silent`
        nodes; those in `via` by way of that witness only. Each answers questions at once, but those on `silent` and
        `mute` nodes."""
        done: list[Effect] = []
        via = via or {}
        for tenth in range(1, round((until_s - from_s) * 10) + 1):
            now_s = round(from_s + tenth / 10, 6)
            effects: list[Effect] = []
            for runner in [r for r in self.last if r[0] not in silent and tenth % 10 == 0]:
                effects += self.renews(now_s, runner, via.get(runner, ""))
            if (due_s := self.coordinator.deadline_s) is not None and now_s >= due_s:
                effects += self.at(now_s, Tick())
            asked = [e for e in effects if isinstance(e, Ask) and e.incarnation[0] not in silent + mute]
            for ask in asked:
                effects += self.testifies(now_s, ask)
            done += effects
        return done

    def given(self, node: str) -> Assignment:
        """The assignment of its seat."""
        return self.coordinator.seats[node].assignment

    def offers(self, now_s: float, runner: str, generation: int = -1, port: int = 4000) -> list[Effect]:
        """A runner with nothing to do offers two ranks."""
        part = Part.IDLE if generation < 0 else Part.STOPPED
        return self.hears(now_s, runner, part, generation, offer=offer(port=port))

    def gone(self, now_s: float, runner: str) -> list[Effect]:
        """Proof that a runner is gone."""
        self.last.pop(runner, None)
        return self.at(now_s, RunnerGone(runner[0], runner))

    def no_runner(self, now_s: float, node: str) -> list[Effect]:
        """A runner could not be started."""
        return self.at(now_s, RunnerFailed(node, "no room"))

    def restarted(self, now_s: float) -> "Fleet":
        """After a kill -9: what the journal has, what runners say again, and proof for those that are gone."""
        fleet = Fleet(
            *self.nodes, spec=self.spec, record=self.record, epoch=self.epoch + 1, keeps_isolated=self.keeps_isolated
        )
        fleet.numbers, fleet.last = self.numbers, self.last
        fleet.opens(now_s)
        for seat in self.record.seats:
            if seat.incarnation not in fleet.last:
                fleet.gone(now_s, seat.incarnation)
        for runner, report in fleet.last.items():
            fleet.at(now_s, Heard(runner[0], runner, report))
        return fleet

    @property
    def phase(self) -> str:
        return self.coordinator.phase.value


def forming(*nodes: str, spec: JobSpec | None = None, keeps_isolated: bool = False) -> Fleet:
    fleet = Fleet(*nodes, spec=spec, keeps_isolated=keeps_isolated)
    fleet.opens(0.0)
    return fleet


def launching(*nodes: str, spec: JobSpec | None = None, keeps_isolated: bool = False) -> Fleet:
    fleet = forming(*nodes, spec=spec, keeps_isolated=keeps_isolated)
    for node in fleet.nodes:
        fleet.offers(1.0, f"{node}1")
    assert fleet.phase == "launching"
    return fleet


def started(node_rank: int = 0) -> tuple[RankReport, RankReport]:
    """The two ranks of a node, both started."""
    first = 2 * node_rank
    return rank(first, first=first), rank(first + 1, first=first)


def running(*nodes: str, spec: JobSpec | None = None, keeps_isolated: bool = False) -> Fleet:
    fleet = launching(*nodes, spec=spec, keeps_isolated=keeps_isolated)
    for node_rank, node in enumerate(fleet.nodes):
        fleet.hears(2.0, f"{node}1", Part.RUNNING, 0, *started(node_rank))
    assert fleet.phase == "running"
    return fleet


CRASHED = (rank(0, exited(signal=11)), rank(1))
"""Rank 0 has failed, rank 1 is being stopped."""
CRASHED_AND_GONE = (rank(0, exited(signal=11)), rank(1, exited(signal=15, order=1, by_us=True)))
FINISHED = (rank(0, exited(0)), rank(1, exited(0, order=1)))


def stopping(*nodes: str, spec: JobSpec | None = None) -> Fleet:
    """An incident is open: rank 0 on the first node has failed."""
    fleet = running(*nodes, spec=spec)
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    assert fleet.phase == "stopping"
    return fleet


def backoff() -> Fleet:
    """After a second failure: 3.75 s from 21.0 on."""
    fleet = stopping()
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    fleet.offers(6.5, "a1", 0, port=4001)
    fleet.hears(10.0, "a1", Part.RUNNING, 1, *started())
    fleet.hears(20.0, "a1", Part.STOPPING, 1, *CRASHED)
    fleet.hears(21.0, "a1", Part.STOPPED, 1, *CRASHED_AND_GONE)
    assert fleet.phase == "backoff"
    return fleet


# --- looking at effects ----------------------------------------------------------------------------------------------


def orders(effects: list[Effect]) -> dict[str, Order]:
    """Runner -> the order it is sent."""
    return {e.incarnation: e.answer.order for e in effects if isinstance(e, Send)}


def notes(effects: list[Effect]) -> list[str]:
    return [e.kind for e in effects if isinstance(e, Note)]


def noted(effects: list[Effect], kind: str) -> list[Note]:
    return [e for e in effects if isinstance(e, Note) and e.kind == kind]


def asks(effects: list[Effect]) -> list[Ask]:
    return [e for e in effects if isinstance(e, Ask)]


def wanted_runners(effects: list[Effect]) -> list[str]:
    """The nodes that are asked for a runner, as they were told last."""
    wants = [sorted(e.nodes) for e in effects if isinstance(e, Want)]
    return wants[-1] if wants else []


def persisted(effects: list[Effect]) -> list[RunRecord]:
    return [e.record for e in effects if isinstance(e, Persist)]


def answer(order: Order, number: int, epoch: int = 1, runner: str = "a1") -> Send:
    return Send(runner[0], runner, Answer(number=number, epoch=epoch, order=order))


def is_sent_after_persisting(effects: list[Effect]) -> bool:
    """R8: nothing is sent before what it rests on is on disk."""
    kinds = [type(e) for e in effects]
    return Persist not in kinds or Send not in kinds or kinds.index(Persist) < kinds.index(Send)
