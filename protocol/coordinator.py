"""One run's membership, rendezvous, generation and restart policy: the fleet's decisions about it.

    FORMING ──every node offers──▶ LAUNCHING ──all ranks started──▶ RUNNING
       ▲                              │                               │
       │                              └── failure, loss, operator ────┤──── every rank ended with 0 ──▶ SUCCEEDED
       │                                                              ▼
       └──────────────── BACKOFF ◀──── the policy says "again" ── STOPPING ── it says no ──▶ FAILED
                                                                      └────── told to stop ──▶ STOPPED

The rules it keeps (docs/protocol.md): R1 the next generation begins only when every runner of this one has
reported that its tree is gone, or is proven gone. R3 the past and strangers change nothing and are answered
with the present order. R4 a generation ends once and is charged once: what ends between the opening of the
incident and the last "stopped" belongs to it. R8 what was accepted, and a generation with its full assignment,
is persisted before anything is sent.

A runner never makes this machine raise: its messages are checked against what was assigned, and ignored else.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from protocol import verdict
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.messages.control import Incident, Outcome
from protocol.messages.member import Answer, Assignment, Order, Part, Release, Renewal, Run, Stop, Wait
from protocol.restart import Again, Failure, GiveUp, Ledger, decide

RUNNER_ATTEMPTS_MAX = 5
"""How often in a row a runner may fail to start before the run fails; the waits between are 1 s."""

RUNNER_RETRY_S = 1.0


class Phase(enum.StrEnum):
    """What the coordinator is doing with the run."""

    FORMING = "forming"
    LAUNCHING = "launching"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


FINAL = {Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED}
LIVE = {Phase.LAUNCHING, Phase.RUNNING, Phase.STOPPING}
"""Phases in which workers of the generation may be alive."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place in a generation."""

    node: str
    incarnation: str  # of the runner it was given to
    assignment: Assignment


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything durable about a run but its job; persisted whole at each change."""

    version: int = 1
    phase: Phase = Phase.FORMING
    generation: int = NO_GENERATION
    seats: tuple[Seat, ...] = ()
    has_started: bool = False  # all ranks of some generation have started
    ledger: Ledger = Ledger()
    backoff_s: float = 0.0
    restart_reason: str = ""  # for the next generation
    stop: Stop | None = None  # an operator's, accepted
    restart: str | None = None  # an operator's reason, accepted, for the generation that is live
    incidents: int = 0
    incident: Incident | None = None  # the last one
    incident_is_open: bool = False
    reason: str = ""  # of the final state


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """The run is accepted, or read back from the journal: begin, or go on."""


@dataclass(frozen=True)
class Heard:
    """A runner's renewal. Node and incarnation are those of its connection, or of the record it left."""

    node: str
    incarnation: str
    renewal: Renewal


@dataclass(frozen=True)
class RunnerGone:
    """Proof: this runner and its guard are gone, and its tree was swept."""

    node: str
    incarnation: str


@dataclass(frozen=True)
class RunnerFailed:
    """A runner could not be started."""

    node: str
    reason: str


@dataclass(frozen=True)
class StopRequested:
    """The operator wants the run to end."""

    grace_s: float | None
    now: bool
    by: str


@dataclass(frozen=True)
class RestartRequested:
    """The operator wants a new generation."""

    reason: str
    by: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Opened | Heard | RunnerGone | RunnerFailed | StopRequested | RestartRequested | Tick

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Put the record into the journal; a barrier before any send."""

    record: RunRecord


@dataclass(frozen=True)
class Send:
    """Give a runner its whole order."""

    node: str
    incarnation: str
    answer: Answer


@dataclass(frozen=True)
class EnsureRunner:
    """See that this node has a runner for the run; one that is there is fine."""

    node: str


@dataclass(frozen=True)
class Note:
    """Something users see in `supctl events` (types: docs/events.md)."""

    kind: str
    text: str
    generation: int | None
    detail: dict[str, str | int | float | bool | None]


Effect = Persist | Send | EnsureRunner | Note


class Coordinator:
    """State machine of one run: no IO, no clock, no randomness of its own.

    `nodes` are the nodes the run has; `draw` gives a number from [0, 1) for the jitter of backoffs;
    `record` is what the journal holds of the run, or a fresh one.
    """

    def __init__(
        self, spec: JobSpec, nodes: tuple[str, ...], record: RunRecord, epoch: int, draw: Callable[[], float]
    ) -> None:
        self.spec = spec
        self.nodes = nodes
        self.epoch = epoch
        self.phase = record.phase
        self.generation = record.generation
        self.seats = {seat.node: seat for seat in record.seats}
        self.has_started = record.has_started
        self.ledger = record.ledger
        self.backoff_s = record.backoff_s
        self.restart_reason = record.restart_reason
        self.stop = record.stop
        self.restart = record.restart
        self.incidents = record.incidents
        self.incident = record.incident
        self.incident_is_open = record.incident_is_open
        self.reason = record.reason
        self.runners: dict[str, str] = {}  # node -> incarnation of the runner heard last
        self.newest: dict[str, Renewal] = {}  # node -> that runner's newest renewal
        self.parts: dict[str, Renewal] = {}  # node -> the seated runner's newest renewal of this generation
        self.gone: set[str] = set()  # nodes where nothing of this generation is alive
        self.backoff_until_s: float | None = None
        self.finish_by_s: float | None = None
        self._draw = draw
        self._runner_attempts = 0
        self._runner_retry_at_s: float | None = None

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order.

        `now_s` and `deadline_s` are boot-time seconds of this node.
        """
        match event:
            case Opened():
                effects = self._on_opened(now_s)
            case Heard(node, incarnation, renewal):
                effects = self._on_heard(node, incarnation, renewal, now_s)
            case RunnerGone(node, incarnation):
                effects = self._on_runner_gone(node, incarnation, now_s)
            case RunnerFailed(node, reason):
                effects = self._on_runner_failed(node, reason, now_s)
            case StopRequested():
                effects = self._on_stop_requested(event)
            case RestartRequested():
                effects = self._on_restart_requested(event, now_s)
            case Tick():
                effects = self._on_tick(now_s)
        self._check()
        return effects

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None: never."""
        due = [d for d in (self.backoff_until_s, self.finish_by_s, self._runner_retry_at_s) if d is not None]
        return min(due, default=None)

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in FINAL

    def order_for(self, node: str, incarnation: str) -> Order:
        """The whole order for a runner, whatever was sent before."""
        if self.is_final:
            return Release()
        if self.generation == NO_GENERATION:
            return Wait()
        seat = self.seats.get(node)
        if self.phase in (Phase.LAUNCHING, Phase.RUNNING) and seat is not None and seat.incarnation == incarnation:
            return Run(assignment=seat.assignment)
        if self.phase is Phase.STOPPING and self.stop is not None:
            return Stop(generation=self.generation, grace_s=self.stop.grace_s, now=self.stop.now)
        return Stop(generation=self.generation)

    # --- events --------------------------------------------------------------------------------------------------

    def _on_opened(self, now_s: float) -> list[Effect]:
        if self.is_final:
            return []
        if self.phase is Phase.BACKOFF:
            # How much of the wait had passed is not known: the boot-time clock does not outlive a boot.
            self.backoff_until_s = now_s + self.backoff_s
        if self.phase in LIVE:
            return []  # the runners are asked first (R6): those that are there report, those gone are proven gone
        return [EnsureRunner(node) for node in self.nodes]

    def _on_heard(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> list[Effect]:
        if node not in self.nodes:
            return []  # a stranger
        effects: list[Effect] = []
        if self.runners.get(node) != incarnation:
            self.runners[node] = incarnation
            self.newest.pop(node, None)
            self._runner_attempts = 0
        seat = self.seats.get(node)
        if self.phase in LIVE and seat is not None and seat.incarnation != incarnation and node not in self.gone:
            # There is one runner per run and node (its lock): a new one proves that the seated one is gone.
            effects += self._lose(node, "was replaced by a new one", now_s)
        known = self.newest.get(node)
        if known is None or renewal.number >= known.number:
            self.newest[node] = renewal
            effects += self._take_in(node, incarnation, renewal, now_s)
        if not any(isinstance(e, Send) and e.node == node for e in effects):
            effects.append(self._answer(node))
        return effects

    def _take_in(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> list[Effect]:
        if renewal.generation > self.generation:
            return self._believe(renewal.generation)
        if self.phase is Phase.FORMING:
            return self._form()
        seat = self.seats.get(node)
        is_seated = seat is not None and seat.incarnation == incarnation and renewal.generation == self.generation
        if self.phase not in LIVE or not is_seated:
            return []
        self.parts[node] = renewal
        if self.phase is Phase.STOPPING:
            return self._see_whether_gone(node, renewal, now_s)
        found = verdict.incident(self.incidents + 1, node, renewal)
        if found is None and renewal.part in (Part.STOPPING, Part.STOPPED):
            found = verdict.runner_lost(self.incidents + 1, self.generation, node, "was told to end by somebody else")
        if found is not None:
            return [*self._open_incident(found), *self._see_whether_gone(node, renewal, now_s)]
        return self._see_progress(now_s)

    def _believe(self, generation: int) -> list[Effect]:
        """A runner ahead of us is believed (R3): the next generation is above the highest seen."""
        self.generation = generation
        if self.phase in (Phase.LAUNCHING, Phase.RUNNING):
            self.phase = Phase.STOPPING
        return [self._persist(), *self._push()]

    def _see_progress(self, now_s: float) -> list[Effect]:
        parts = [self.parts.get(node) for node in self.seats]
        if all(p is not None and p.part is Part.FINISHED for p in parts):
            self.gone = set(self.seats)
            return self._end(Phase.SUCCEEDED, "every rank ended with 0")
        effects: list[Effect] = []
        started = (Part.RUNNING, Part.FINISHED)
        if self.phase is Phase.LAUNCHING and all(p is not None and p.part in started for p in parts):
            self.phase, self.has_started = Phase.RUNNING, True
            effects += [self._persist(), self._note("generation.ready", "every rank has started")]
        limit_s = self.spec.stop.finish_timeout_s
        any_ended = any(r.exit is not None for p in parts if p is not None for r in p.ranks)
        if limit_s is not None and any_ended and self.finish_by_s is None:
            self.finish_by_s = now_s + limit_s
        return effects

    def _on_runner_gone(self, node: str, incarnation: str, now_s: float) -> list[Effect]:
        if self.runners.get(node) == incarnation:
            del self.runners[node]
            self.newest.pop(node, None)
        seat = self.seats.get(node)
        if self.phase in LIVE and seat is not None and seat.incarnation == incarnation and node not in self.gone:
            return self._lose(node, "is gone, and its ranks with it", now_s)
        if not self.is_final and node in self.nodes and node not in self.runners:
            return [EnsureRunner(node)]
        return []

    def _lose(self, node: str, why: str, now_s: float) -> list[Effect]:
        effects: list[Effect] = [self._note("runner.lost", f"the runner on {node} {why}", node=node)]
        if self.phase is not Phase.STOPPING:
            effects += self._open_incident(verdict.runner_lost(self.incidents + 1, self.generation, node, why))
        self.gone.add(node)
        return effects + self._see_whether_all_gone(now_s)

    def _on_runner_failed(self, node: str, reason: str, now_s: float) -> list[Effect]:
        if self.is_final or node in self.runners:
            return []
        self._runner_attempts += 1
        note = self._note("runner.failed", f"no runner could be started on {node}: {reason}", node=node)
        if self._runner_attempts >= RUNNER_ATTEMPTS_MAX and self.phase not in LIVE:
            return [note, *self._end(Phase.FAILED, f"no runner could be started on {node}: {reason}")]
        self._runner_retry_at_s = now_s + RUNNER_RETRY_S
        return [note]

    def _on_stop_requested(self, event: StopRequested) -> list[Effect]:
        if self.is_final:
            return []
        how = "now" if event.now else "with the job's grace" if event.grace_s is None else f"grace {event.grace_s:g} s"
        note = self._note("operator.stopped", f"stop requested by {event.by}, {how}", by=event.by)
        self.stop = Stop(generation=self.generation, grace_s=event.grace_s, now=event.now)
        if self.phase not in LIVE:
            return [note, *self._end(Phase.STOPPED, f"stopped by {event.by}")]
        self.reason = f"stopped by {event.by}"
        self.phase = Phase.STOPPING
        return [self._persist(), note, *self._push()]

    def _on_restart_requested(self, event: RestartRequested, now_s: float) -> list[Effect]:
        if self.is_final or self.stop is not None:
            return []
        why = event.reason or f"restart requested by {event.by}"
        note = self._note("operator.restarted", f"restart requested by {event.by}: {why}", by=event.by)
        if self.phase is Phase.BACKOFF:  # it comes anyway: at once then
            return [note, *self._begin_forming(now_s)]
        if self.phase not in (Phase.LAUNCHING, Phase.RUNNING):
            return [note]  # it is on its way
        self.restart = why
        self.phase = Phase.STOPPING
        return [self._persist(), note, *self._push()]

    def _on_tick(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.backoff_until_s is not None and now_s >= self.backoff_until_s:
            effects += self._begin_forming(now_s)
        if self.finish_by_s is not None and now_s >= self.finish_by_s:
            effects += self._on_finish_timeout()
        if self._runner_retry_at_s is not None and now_s >= self._runner_retry_at_s:
            self._runner_retry_at_s = None
            effects += [EnsureRunner(node) for node in self.nodes if node not in self.runners]
        return effects

    def _on_finish_timeout(self) -> list[Effect]:
        limit_s = self.spec.stop.finish_timeout_s
        self.finish_by_s = None
        if self.phase not in (Phase.LAUNCHING, Phase.RUNNING) or limit_s is None:
            return []
        node = next(iter(self.seats))
        missing = tuple(r.rank for p in self.parts.values() for r in p.ranks if r.exit is None)
        return self._open_incident(verdict.unfinished(self.incidents + 1, self.generation, node, missing, limit_s))

    # --- the life of a generation --------------------------------------------------------------------------------

    def _begin_forming(self, now_s: float) -> list[Effect]:
        self.phase, self.backoff_until_s = Phase.FORMING, None
        missing = [EnsureRunner(node) for node in self.nodes if node not in self.runners]
        return [*(self._form() or [self._persist()]), *missing]

    def _form(self) -> list[Effect]:
        """Begin the next generation if every node offers itself."""
        offers = {}
        for node in self.nodes:
            newest = self.newest.get(node)
            if newest is None or newest.offer is None or newest.part not in (Part.IDLE, Part.STOPPED):
                return []
            if newest.offer.problem:
                return self._end(Phase.FAILED, f"{node}: {newest.offer.problem}")
            offers[node] = newest.offer
        self.generation += 1
        self.phase = Phase.LAUNCHING
        self.parts, self.gone = {}, set()
        self.restart, self.finish_by_s = None, None
        first = offers[self.nodes[0]]
        world_size = sum(offer.slots for offer in offers.values())
        first_rank = 0
        self.seats = {}
        for node_rank, node in enumerate(self.nodes):
            assignment = Assignment(
                generation=self.generation,
                node_rank=node_rank,
                nnodes=len(self.nodes),
                first_rank=first_rank,
                nproc=offers[node].slots,
                world_size=world_size,
                master_addr=first.address,
                master_port=first.port,
                restart_reason=self.restart_reason,
            )
            self.seats[node] = Seat(node=node, incarnation=self.runners[node], assignment=assignment)
            first_rank += offers[node].slots
        many = "s" if len(self.nodes) > 1 else ""
        note = self._note(
            "generation.launched",
            f"{world_size} ranks on {len(self.nodes)} node{many}, master {first.address}:{first.port}",
            ranks=world_size,
            nodes=len(self.nodes),
            master=f"{first.address}:{first.port}",
        )
        return [self._persist(), note, *self._push()]

    def _open_incident(self, incident: Incident) -> list[Effect]:
        """The generation ends because of this; whatever ends from here on belongs to it (R4)."""
        self.phase = Phase.STOPPING
        self.finish_by_s = None
        self.incidents, self.incident, self.incident_is_open = incident.number, incident, True
        note = self._note(
            "incident.opened",
            incident.summary,
            number=incident.number,
            cause=incident.cause,
            node=incident.node,
            rank=incident.rank,
            pid=incident.pid,
            exit_code=incident.exit_code,
            signal=incident.signal,
        )
        return [self._persist(), note, *self._push()]

    def _see_whether_gone(self, node: str, renewal: Renewal, now_s: float) -> list[Effect]:
        if renewal.part in (Part.STOPPED, Part.FINISHED):
            self.gone.add(node)
        return self._see_whether_all_gone(now_s)

    def _see_whether_all_gone(self, now_s: float) -> list[Effect]:
        if self.phase is not Phase.STOPPING or not self.gone >= set(self.seats):
            return []
        stuck = sum(len(p.stuck_pids) for p in self.parts.values())
        left = f", {stuck} processes still wait for the kernel" if stuck else ""
        note = self._note("generation.ended", f"ran {self._ran_s():.1f} s{left}", ran_s=round(self._ran_s(), 3))
        return [note, *self._after_generation(now_s)]

    def _after_generation(self, now_s: float) -> list[Effect]:
        was_incident, self.incident_is_open = self.incident_is_open, False
        parts = [self.parts.get(node) for node in self.seats]
        if all(p is not None and p.part is Part.FINISHED for p in parts):
            return self._end(Phase.SUCCEEDED, "every rank ended with 0")
        if self.stop is not None:
            return self._end(Phase.STOPPED, self.reason)
        if not was_incident:
            self.restart_reason = self.restart or "restarted"
            return self._begin_forming(now_s)
        assert self.incident is not None
        failure = Failure(
            is_infrastructure=self.incident.cause == "runner-lost",
            exit_code=self.incident.exit_code,
            has_ever_started=self.has_started,
            ran_s=self._ran_s(),
            saved_step=self.saved_step,
        )
        decision, self.ledger = decide(self.spec.restart, self.ledger, failure, self._draw())
        match decision:
            case GiveUp(why):
                return self._end(Phase.FAILED, f"{self.incident.summary}; {why}")
            case Again(delay_s, charged, why):
                self.restart_reason = self.incident.summary
                in_words = f" in {delay_s:.1f} s" if delay_s else ""
                note = self._note("restart.decided", f"{why}{in_words}", delay_s=round(delay_s, 3), charged=charged)
                if not delay_s:
                    return [note, *self._begin_forming(now_s)]
                self.phase, self.backoff_s, self.backoff_until_s = Phase.BACKOFF, delay_s, now_s + delay_s
                return [self._persist(), note]

    def _end(self, phase: Phase, reason: str) -> list[Effect]:
        self.phase, self.reason = phase, reason
        self.incident_is_open = False
        self.backoff_until_s = self.finish_by_s = self._runner_retry_at_s = None
        return [self._persist(), self._note(f"job.{Outcome(phase.value)}", reason), *self._push()]

    # --- what is derived -----------------------------------------------------------------------------------------

    @property
    def saved_step(self) -> int | None:
        """The last checkpoint that any runner has seen."""
        seen = [p.saved_step for p in (*self.parts.values(), *self.newest.values()) if p.saved_step is not None]
        return max(seen, default=self.ledger.saved_step)

    def _ran_s(self) -> float:
        return max((r.exit.ran_s for p in self.parts.values() for r in p.ranks if r.exit is not None), default=0.0)

    def _answer(self, node: str) -> Send:
        incarnation = self.runners[node]
        number = self.newest[node].number if node in self.newest else 0
        answer = Answer(number=number, epoch=self.epoch, order=self.order_for(node, incarnation))
        return Send(node, incarnation, answer)

    def _push(self) -> list[Effect]:
        """Everyone's order, now; whoever misses it gets the same with its next answer."""
        return [self._answer(node) for node in self.runners]

    def _note(self, kind: str, text: str, **detail: str | int | float | bool | None) -> Note:
        return Note(kind, text, None if self.generation == NO_GENERATION else self.generation, detail)

    def record(self) -> RunRecord:
        """Everything durable, as it stands."""
        return RunRecord(
            phase=self.phase,
            generation=self.generation,
            seats=tuple(self.seats.values()),
            has_started=self.has_started,
            ledger=self.ledger,
            backoff_s=self.backoff_s,
            restart_reason=self.restart_reason,
            stop=self.stop,
            restart=self.restart,
            incidents=self.incidents,
            incident=self.incident,
            incident_is_open=self.incident_is_open,
            reason=self.reason,
        )

    def _persist(self) -> Persist:
        return Persist(self.record())

    def _check(self) -> None:
        assert self.gone <= set(self.seats), "a stranger takes part"
        if self.phase in LIVE:
            assert self.seats, "live without a seat"
        if self.incident_is_open:
            assert self.phase is Phase.STOPPING, "an incident outlived its generation"
