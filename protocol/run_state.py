"""What the coordinator of a run knows of it: what is kept, and what follows from that.

What it decides: coordinator.py.
"""

import math
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from protocol import orders
from protocol.answers import Answers
from protocol.case import Case
from protocol.coordinator_events import FINAL, LIVE, Heard, Phase, RunRecord, Seat
from protocol.generation import NOBODY, Generation
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.member_events import SETTLED
from protocol.messages.member import Assignment, Order, Release, Renewal, Stop, Tell
from protocol.planning import Plans
from protocol.rendezvous import Before, Rendezvous
from protocol.reports import saved_step
from protocol.roll import Roll
from protocol.takeover import Takeover
from protocol.text import one_line
from protocol.timing import Timing

GENERATION_MAX = 2**31 - 3
"""Above this a generation is nonsense; the limit keeps the next two encodable."""


class RunState:
    """One run. `record` is what the journal holds of it, or a fresh one; `timing` holds for the generations to come;
    with `allow_mixed` nodes need not run the same."""

    def __init__(self, spec: JobSpec, record: RunRecord, epoch: int, timing: Timing, *, allow_mixed: bool) -> None:
        self.spec = spec
        self.timing = timing
        self.epoch = epoch  # the shell may raise it
        self.phase = record.phase
        self.rendezvous = Rendezvous(spec, record.slots, allow_mixed=allow_mixed)
        self.rendezvous.lapsed.update(record.lapsed)
        self.rendezvous.awaited = frozenset(record.awaited)
        if record.phase is not Phase.HELD:
            self.rendezvous.leaving.seated = frozenset(seat.node for seat in record.seats)
        self.nnodes = record.nnodes  # as an operator has scaled it
        self.nnodes_replaced, self.nnodes_before = record.nnodes_replaced, record.nnodes_before
        if record.nnodes is not None:
            self.rendezvous.scale(record.nnodes, record.nnodes_before)
        self.rendezvous.ignorant = {seat.node for seat in record.seats if _has_all(seat.assignment)}
        self.scale_left_s = record.scale_left_s
        self.scale_s: float | None = None  # when a scale comes without a checkpoint
        self.preempted = record.preempted
        self.rendezvous.give_notice(self.preempted)
        self.noticed = record.noticed
        self.revision = record.revision
        self.planned = record.planned
        self.plans, self.answers = Plans(), Answers()
        self.looked_at: tuple[object, ...] | None = None  # what the plans followed from at the last look
        self.opened_s = 0.0
        self.current = Generation(  # the newest one
            record.generation,
            record.seats,
            lost=record.lost,
            lapsed=record.lapsed,
            stalled=record.stalled,
            parts=record.last_parts,
            known_s=record.known_s,
        )
        # Of a generation that is newer still; None: there is none that anybody knows of.
        newer = max(record.generation, record.newer)
        self.takeover = Takeover(newer, math.inf) if record.is_taken_over else None
        self.roll = Roll()
        self.case = Case(record.incidents, record.incident, is_open=record.incident_is_open)
        self.has_started = record.has_started
        self.ledger = record.ledger
        self.backoff_s = record.backoff_s
        self.restart_reason = record.restart_reason
        self.stop = record.stop
        self.restart = record.restart
        self.without = record.without
        self.reason = record.reason
        self.lacked_nodes = record.lacked_nodes
        self.made_no_progress = record.made_no_progress
        self.counted: dict[str, str] = {}  # node -> what has been told of how its ranks were counted
        self.fenced: dict[str, int] = {}  # node -> the generation of which was told that its runner has ended its ranks
        self.backoff_until_s: float | None = None
        self.finish_by_s: float | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in FINAL

    @property
    def generation(self) -> int:
        """The number of the newest one; NO_GENERATION before the first."""
        return self.current.number

    @property
    def seats(self) -> Mapping[str, Seat]:
        """By node: its place in the newest generation."""
        return self.current.seats

    @property
    def parts(self) -> Mapping[str, Renewal]:
        """By node: the seated runner's newest renewal of this generation."""
        return self.current.reports.parts

    @property
    def incarnations(self) -> set[str]:
        """Of the runners that are not proven gone."""
        return {self.seats[node].incarnation for node in self.current.alive} | set(self.roll.runners.values())

    def is_seated(self, node: str, incarnation: str) -> bool:
        """Whether this runner has a place in the newest generation."""
        seat = self.seats.get(node)
        return seat is not None and seat.incarnation == incarnation

    @property
    def counts_leases(self) -> bool:
        """Whether silence means anything: while a newer generation is taken over nothing is known of that one."""
        return self.phase in LIVE and self.takeover is None

    def order_for(self, node: str, incarnation: str) -> Order:
        """The whole order for a runner, whatever was sent before."""
        if self.roll.is_past(incarnation):
            return Release()
        newest = self.roll.newest[node] if self.roll.has(node, incarnation) else None
        if newest is not None and newest.generation > self.generation and not self.is_final:
            if self.stop is None:
                return Tell()
            return replace(self.stop, generation=newest.generation, reason=one_line(self.reason))
        seat = self.seats[node] if self.is_seated(node, incarnation) else None
        if newest is not None and newest.part in SETTLED and self._is_done_with(node, incarnation, newest, seat):
            return Release()
        return orders.order(self.mind, seat.assignment if seat is not None else None)

    def _is_done_with(self, node: str, incarnation: str, newest: Renewal, seat: Seat | None) -> bool:
        """Whether a runner that runs nothing is to make room: its job is of the past, its node is to be free, or it was
        told so before."""
        is_awaited = seat is not None and self.phase in LIVE and newest.generation != self.generation
        is_past = newest.revision < self.revision or self.roll.is_released(node, incarnation)
        return not is_awaited and (is_past or self.rendezvous.lets_go(node))

    @property
    def mind(self) -> orders.Mind:
        """What the orders of all runners follow from."""
        stop = Stop(generation=self.generation)
        if self.phase is Phase.STOPPING:
            asked = self.stop or stop
            stop = Stop(
                generation=self.generation,
                grace_s=asked.grace_s,
                now=asked.now,
                pre_wait_s=self.pre_wait_s if self.pre_wait_s < self.spec.stop.pre_wait_s else None,
                is_answered=self.answers.is_complete,
                reason="" if self.case.is_open else one_line(self.reason or self.restart or ""),
            )
        return orders.Mind(self.phase, self.generation, stop, self.plans.awaits_save)

    @property
    def taken(self) -> list[str]:
        """The nodes of the newest generation that are taken away."""
        return [node for node in self.preempted if node in self.seats]

    @property
    def pre_wait_s(self) -> float:
        """How long the ranks have to answer the pre-signal; where a node is taken away, the grace has to fit in."""
        stop, lead_time_s = self.spec.stop, self.spec.preemption.lead_time_s
        if not lead_time_s or not self.taken:
            return stop.pre_wait_s
        return min(stop.pre_wait_s, max(0.0, lead_time_s - stop.grace_s))

    @property
    def refuses_restart(self) -> bool:
        """Whether something may run of which nobody has told yet: then nothing can be begun anew."""
        return self.takeover is not None and (self.takeover.due_s is not None or bool(self.busy_ahead))

    @property
    def busy_ahead(self) -> list[str]:
        """Nodes whose runner may run something newer than what is known, as it has said last."""
        return [node for node in sorted(self.roll.busy) if self.roll.newest[node].generation > self.generation]

    def speaks_for(self, event: Heard) -> bool:
        """Whether this is the node's runner. Another one is a stranger until the one before is proven gone: it may come
        from a second state folder, and then it proves nothing. But one that is ahead of us was given what it runs; and
        one that has a place is the node's though another one was heard first, which has nothing to do.
        A witness only speaks for who has a place in a generation, and only one that has a place itself."""
        node, incarnation = event.node, event.incarnation
        if self.roll.is_past(incarnation):
            return False
        is_named = self.takeover is not None and self.takeover.speaks_for(node, incarnation)
        if event.via and not (self.is_seated(node, incarnation) or is_named):
            return False
        if event.via and not (self._may_speak_for_others(event.via) and self._is_witnessed(event)):
            return False
        if event.renewal.generation > max(self.generation, GENERATION_MAX):
            return False
        is_behind = event.renewal.generation <= self.generation
        if not is_behind and self.is_stranger(node):
            return False
        if is_behind and self.phase in LIVE and node in self.current.alive and not self.is_seated(node, incarnation):
            return False
        is_expected = is_named or (is_behind and self._is_counted(node, incarnation))
        return self.roll.has_room_for(node, incarnation) or (is_expected and node not in self.roll.busy)

    def ignores(self, event: Heard) -> bool:
        """Whether silence is counted of this runner, and what it says does not end it: then it must not be answered, or
        its lease would go on while it is taken for lost (L7)."""
        return self._is_counted(event.node, event.incarnation) and not self.speaks_for(event)

    def _is_counted(self, node: str, incarnation: str) -> bool:
        return self.phase in LIVE and node in self.current.alive and self.is_seated(node, incarnation)

    def is_stranger(self, node: str) -> bool:
        """Whether nothing newer can run on this node than what is known to run: the fleet does not know it."""
        return self.phase in LIVE and self.current.is_seen and not self.rendezvous.knows(node)

    def sifted(self, now_s: float) -> Takeover | None:
        """What is taken over; it is dropped where only strangers have told of it."""
        found = self.takeover
        if found is not None and found.parts and all(map(self.is_stranger, found.parts)):
            self.takeover = None
            for node in found.parts:
                self.roll.drop(node)
                self.rendezvous.forget(node)
            self.current.leases.see_clock(now_s)
        return self.takeover

    def _is_witnessed(self, event: Heard) -> bool:
        """Whether a witness can know it: not that something still runs where it is over, which is of the past."""
        is_over = self.phase not in LIVE or event.node in self.current.gone
        return not is_over or event.renewal.part in SETTLED or event.renewal.generation > self.generation

    def _may_speak_for_others(self, incarnation: str) -> bool:
        """Whether this runner can be anybody's witness."""
        is_taken_over = self.takeover is not None and self.takeover.has(incarnation)
        return is_taken_over or incarnation in self.current.incarnations

    @property
    def not_asked(self) -> frozenset[str] | None:
        """Nodes that are not asked for a runner: the seated one may be alive, and is heard first, or is proven gone
        (R6). None: no node is."""
        if self.is_final or self.stop is not None:
            return None
        return self.current.alive if self.phase in LIVE else NOBODY

    @property
    def chooses_port(self) -> bool:
        """Whether rank 0 gets a port of ours; one that the job names is the job's own affair."""
        return self.spec.rendezvous.master_port == "auto"

    @property
    def must_not(self) -> Before:
        """What the next generation has to keep clear of."""
        port = self.current.master_port if self.chooses_port else None
        is_patient = bool(self.taken) and self.spec.preemption.then == "wait-for-nodes"
        return Before(is_none=not self.seats, port=port, busy=self.busy, is_patient=is_patient)

    @property
    def busy(self) -> Collection[str]:
        """Nodes where something may be alive, by what was heard last; not where its lease is over (L7)."""
        lapsed = [n for n in self.roll.busy & self.current.lapsed if self.roll.has(n, self.seats[n].incarnation)]
        past = {n for n in lapsed if self.roll.newest[n].generation <= self.generation}
        return self.roll.busy - past if past else self.roll.busy

    @property
    def saved_step(self) -> int | None:
        """The last checkpoint that was seen in this generation, else the highest that any runner knows of."""
        if self.current.saves.step is not None:
            return self.current.saves.step
        seen = saved_step((*self.parts.values(), *self.roll.newest.values()))
        if seen is not None:
            return seen
        given = (seat.assignment.resume_step for seat in self.current.seating[:1])
        return max((step for step in (self.ledger.saved_step, *given) if step is not None), default=None)

    def record(self) -> RunRecord:
        """Everything durable, as it stands."""
        return RunRecord(
            phase=self.phase,
            generation=self.generation,
            known_s=self.current.known_s,
            seats=self.current.seating,
            has_started=self.has_started,
            ledger=self.ledger,
            backoff_s=self.backoff_s,
            restart_reason=self.restart_reason,
            stop=self.stop,
            restart=self.restart,
            incidents=self.case.number,
            incident=self.case.incident,
            incident_is_open=self.case.is_open,
            lost=tuple(sorted(self.current.lost)),
            lapsed=tuple(sorted(self.current.lapsed)),
            slots=self.rendezvous.slots,
            without=self.without,
            lacked_nodes=self.lacked_nodes,
            made_no_progress=self.made_no_progress,
            nnodes=self.nnodes,
            nnodes_replaced=self.nnodes_replaced,
            nnodes_before=self.nnodes_before,
            scale_left_s=self.scale_left_s,
            preempted=self.preempted,
            noticed=self.noticed,
            revision=self.revision,
            awaited=tuple(sorted(self.rendezvous.awaited)),
            planned=self.planned,
            stalled=self.current.stalled,
            reason=self.reason,
            last_parts=self.current.last_parts,
            is_taken_over=self.takeover is not None,
            newer=self.takeover.generation if self.takeover is not None else NO_GENERATION,
        )


def _has_all(given: Assignment) -> bool:
    """Whether a runner was given more than it has ranks for: it may know of no allotment, until it says otherwise."""
    return given.devices is None or len(given.devices) > given.nproc
