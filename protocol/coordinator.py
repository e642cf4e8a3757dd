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

A runner never makes this machine raise: what it says is checked against what was assigned, and ignored else.
"""

from collections import deque
from collections.abc import Callable

from protocol import notes, reports, verdict
from protocol.coordinator_events import (
    FINAL,
    LIVE,
    Effect,
    EnsureRunner,
    Event,
    Heard,
    Note,
    Opened,
    Persist,
    Phase,
    RestartRequested,
    RunnerFailed,
    RunnerGone,
    RunRecord,
    Send,
    StopRequested,
    Tick,
)
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.member_events import SETTLED
from protocol.messages.control import Incident, Outcome
from protocol.messages.member import Answer, Order, Part, Release, Renewal, Run, Stop, Wait
from protocol.pace import Pace
from protocol.restart import Again, Failure, GiveUp, decide
from protocol.runner_starts import RunnerStarts
from protocol.seating import fits, is_sound, lost_its_port, seats_for
from protocol.text import one_line

GENERATION_MAX = 2**31 - 1
"""Above this a generation is nonsense; the limit keeps the next one encodable."""

PAST_RUNNERS_MAX = 64
"""How many runners that are gone are remembered, to tell what they said late from the present."""


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
        self.stalled = record.stalled
        self.reason = record.reason
        self.runners: dict[str, str] = {}  # node -> incarnation of its runner
        self.heard_s: dict[str, float] = {}  # node -> when its runner reported last
        self.launched_s: float | None = None  # when this generation was; None: by an earlier coordinator
        self.newest: dict[str, Renewal] = {}  # node -> that runner's newest renewal
        self.parts = dict(record.last_parts)  # node -> the seated runner's newest renewal of this generation
        self.gone: set[str] = set()  # nodes where nothing of this generation is alive
        self.past: deque[str] = deque(maxlen=PAST_RUNNERS_MAX)  # incarnations that are proven gone
        self.counted: dict[str, str] = {}  # node -> what has been told of how its ranks were counted
        self.pace = Pace()  # of this generation's steps
        self.backoff_until_s: float | None = None
        self.finish_by_s: float | None = None
        self._draw = draw
        self._starts = RunnerStarts()
        self._asides: list[Note | EnsureRunner] = []  # of the event that is being handled

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order.

        `now_s` and `deadline_s` are boot-time seconds of this node. What changed durably is persisted first, once,
        and then told to every runner; whoever misses that gets the same with the answer to its next renewal.
        """
        before, self._asides = self.record(), []
        match event:
            case Opened():
                self._on_opened(now_s)
            case Heard(node, incarnation, renewal):
                self.heard_s[node] = now_s
                self._on_heard(node, incarnation, renewal, now_s)
            case RunnerGone(node, incarnation):
                self._on_runner_gone(node, incarnation, now_s)
            case RunnerFailed(node, reason):
                self._on_runner_failed(node, reason, now_s)
            case StopRequested():
                self._on_stop_requested(event)
            case RestartRequested():
                self._on_restart_requested(event)
            case Tick():
                self._on_tick(now_s)
        self._check()
        after = self.record()
        if after.generation != before.generation:
            self.launched_s = now_s
        told = dict.fromkeys(self.runners.items(), 0) if after != before else {}
        if isinstance(event, Heard):
            told.setdefault((event.node, event.incarnation), event.renewal.number)
        persisted = [Persist(after)] if after != before else []
        return [*persisted, *self._asides, *(self._answer(*who, number) for who, number in told.items())]

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None: never."""
        due = [d for d in (self.backoff_until_s, self.finish_by_s, self._starts.retry_at_s) if d is not None]
        return min(due, default=None)

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in FINAL

    def order_for(self, node: str, incarnation: str) -> Order:
        """The whole order for a runner, whatever was sent before."""
        if self.is_final or incarnation in self.past:
            return Release()
        if self.generation == NO_GENERATION:
            return Wait()
        seat = self.seats.get(node)
        if self.phase in (Phase.LAUNCHING, Phase.RUNNING) and seat is not None and seat.incarnation == incarnation:
            return Run(assignment=seat.assignment)
        if self.phase is Phase.STOPPING and self.stop is not None:
            return Stop(generation=self.generation, grace_s=self.stop.grace_s, now=self.stop.now)
        return Stop(generation=self.generation)

    # --- runners -------------------------------------------------------------------------------------------------

    def _on_opened(self, now_s: float) -> None:
        if self.phase is Phase.BACKOFF:
            # How much of the wait had passed is not known: the boot-time clock does not outlive a boot.
            self.backoff_until_s = now_s + self.backoff_s
        if not self.is_final and self.phase not in LIVE:
            self._ensure_runners()  # else the runners are asked first (R6): they report, or are proven gone

    def _on_heard(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        if self.is_final or node not in self.nodes or incarnation in self.past:
            return
        if renewal.generation > max(self.generation, GENERATION_MAX):
            return
        if self.runners.get(node) != incarnation:
            self._meet(node, incarnation, now_s)
        known = self.newest.get(node)
        if known is None or renewal.number >= known.number:
            self.newest[node] = renewal
            self._take_in(node, incarnation, renewal, now_s)

    def _meet(self, node: str, incarnation: str, now_s: float) -> None:
        """A runner is heard for the first time. There is one per run and node (its lock): all others are gone."""
        seat = self.seats.get(node)
        known = {self.runners.get(node), seat.incarnation if seat is not None else None}
        self.past.extend(sorted(other for other in known if other is not None and other != incarnation))
        self.runners[node] = incarnation
        self.newest.pop(node, None)
        self._starts.has_come(node)
        if seat is not None and seat.incarnation != incarnation:
            self._lose(node, "was replaced by a new one", now_s)

    def _on_runner_gone(self, node: str, incarnation: str, now_s: float) -> None:
        self.past.append(incarnation)
        seat = self.seats.get(node)
        is_seated = seat is not None and seat.incarnation == incarnation
        was_heard = is_seated or self.runners.get(node) == incarnation
        if self.runners.get(node) == incarnation:
            del self.runners[node]
            self.newest.pop(node, None)
        if is_seated:
            self._lose(node, "is gone, and its ranks with it", now_s)
        if self.is_final or self.phase in LIVE:
            return
        if was_heard:
            self._ensure_runners()
        else:  # what cannot even begin must not be started for ever
            self._on_runner_failed(node, "it ended before it reported", now_s)

    def _lose(self, node: str, why: str, now_s: float) -> None:
        """The runner that was seated here is gone, and so is everything it had started."""
        if self.phase not in LIVE or node in self.gone:
            return
        part = self.parts.get(node)
        if part is None or part.part is not Part.FINISHED:
            self._note("runner.lost", f"the runner on {node} {why}", node=node)
            if self.phase is not Phase.STOPPING:
                self._open_incident(verdict.runner_lost(self.incidents + 1, self.generation, node, why))
        self.gone.add(node)
        self._see_whether_all_gone(now_s)

    def _on_runner_failed(self, node: str, reason: str, now_s: float) -> None:
        if self.is_final or node not in self.nodes or node in self.runners:
            return
        are_too_many = self._starts.has_failed(node)
        self._note("runner.failed", f"no runner could be started on {node}: {reason}", node=node)
        if are_too_many and self.phase not in LIVE:
            self._end(Phase.FAILED, f"no runner could be started on {node}: {reason}")
        else:
            self._starts.retry_after(now_s)

    def _ensure_runners(self) -> None:
        wanted = [EnsureRunner(node) for node in self.nodes if node not in self.runners]
        self._asides += [effect for effect in wanted if effect not in self._asides]

    # --- reports -------------------------------------------------------------------------------------------------

    def _take_in(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        if renewal.generation > self.generation:
            self._believe(renewal.generation)
        elif self.phase is Phase.FORMING:
            self._form()
        elif self.phase in LIVE and self._is_present(node, incarnation, renewal):
            self.parts[node] = renewal
            if (step := reports.last_step(self.parts)) is not None:
                self.pace.saw(*step, now_s)
            self.has_started |= reports.all_started(self.seats, self.parts)
            self._judge(node, renewal, now_s)

    def _believe(self, generation: int) -> None:
        """A runner ahead of us is believed (R3): the next generation is above the highest seen."""
        self.generation = generation
        self.parts, self.gone, self.pace, self.stalled = {}, set(), Pace(), ()
        if self.phase in (Phase.LAUNCHING, Phase.RUNNING):
            self.phase, self.restart = Phase.STOPPING, "a runner was ahead of its coordinator"

    def _is_present(self, node: str, incarnation: str, renewal: Renewal) -> bool:
        """Whether this is about the present generation, from the runner that has the seat, and can be true."""
        seat = self.seats.get(node)
        if seat is None or seat.incarnation != incarnation or renewal.generation != self.generation:
            return False
        return fits(seat, renewal)

    def _judge(self, node: str, renewal: Renewal, now_s: float) -> None:
        if self.phase is Phase.STOPPING:
            self._correct_cause(node, renewal)
        elif (found := verdict.incident(self.incidents + 1, node, renewal)) is not None:
            self._open_incident(found)
        elif renewal.part in (Part.STOPPING, Part.STOPPED):
            why = "was told to end by somebody else"
            self._open_incident(verdict.runner_lost(self.incidents + 1, self.generation, node, why))
        else:
            self.stalled, told = notes.of_stalls(node, self.stalled, renewal)
            self._asides += told
            self._see_progress(now_s)
        if renewal.part in (Part.STOPPED, Part.FINISHED):
            self.gone.add(node)
            self._see_whether_all_gone(now_s)

    def _correct_cause(self, node: str, renewal: Renewal) -> None:
        """The first report is often a victim's: what the same runner says later of the cause replaces it (R4)."""
        if self.incident_is_open and self.incident is not None and self.incident.node == node:
            found = verdict.incident(self.incident.number, node, renewal)
            if found is not None and found != self.incident:
                note = notes.corrected(self.incident, found)
                self.incident = found
                self._asides += [note] if note else []

    def _see_progress(self, now_s: float) -> None:
        if reports.all_finished(self.seats, self.parts):
            self._succeed()
            return
        if self.phase is Phase.LAUNCHING and reports.all_launched(self.seats, self.parts):
            self.phase = Phase.RUNNING
            self._note("generation.ready", f"generation {self.generation}: every rank has started")
        limit_s = self.spec.stop.finish_timeout_s
        if limit_s is not None and reports.any_ended(self.parts) and self.finish_by_s is None:
            self.finish_by_s = now_s + limit_s

    # --- operator and time ---------------------------------------------------------------------------------------

    def _on_stop_requested(self, event: StopRequested) -> None:
        if self.is_final:
            return
        how = "now" if event.now else "with the job's grace" if event.grace_s is None else f"grace {event.grace_s:g} s"
        self._note("operator.stopped", f"stop requested by {event.by}, {how}", by=event.by)
        self.reason = self.reason or f"stopped by {event.by}"
        if self.phase not in LIVE:
            self._end(Phase.STOPPED, self.reason)
            return
        # A second stop can only bring the end nearer, whichever of the two a runner hears.
        earlier = self.stop or Stop(generation=self.generation, grace_s=event.grace_s)
        grace_s = min(earlier.grace_s, event.grace_s, key=self._grace_s)
        self.stop = Stop(generation=self.generation, grace_s=grace_s, now=earlier.now or event.now)
        self.phase, self.finish_by_s = Phase.STOPPING, None

    def _on_restart_requested(self, event: RestartRequested) -> None:
        if self.is_final or self.stop is not None:
            return
        asked, reason = f"restart requested by {event.by}", one_line(event.reason)
        why = reason or asked
        self._note("operator.restarted", f"{asked}: {reason}" if reason else asked, by=event.by)
        if self.phase in LIVE:
            # Also while a failure is being handled: a restart that was accepted comes, whatever the policy says.
            self.phase, self.finish_by_s, self.restart = Phase.STOPPING, None, why
        elif self.generation != NO_GENERATION:
            self.restart_reason = why
            self._begin_forming()  # it comes anyway: at once then

    def _on_tick(self, now_s: float) -> None:
        if self.backoff_until_s is not None and now_s >= self.backoff_until_s:
            self._begin_forming()
        if self.finish_by_s is not None and now_s >= self.finish_by_s:
            self._on_finish_timeout(self.spec.stop.finish_timeout_s or 0.0)
        if self._starts.is_due(now_s):
            self._ensure_runners()

    def _on_finish_timeout(self, limit_s: float) -> None:
        self.finish_by_s = None
        for node, seat in self.seats.items():
            late = reports.unended(seat, self.parts)
            if late:  # else only what they have left behind is being ended, and that ends by itself
                self._open_incident(verdict.unfinished(self.incidents + 1, self.generation, node, late, limit_s))
                return

    # --- the life of a generation --------------------------------------------------------------------------------

    def _begin_forming(self) -> None:
        self.phase, self.backoff_until_s, self.restart = Phase.FORMING, None, None
        self._form()
        if self.phase is Phase.FORMING:
            self._ensure_runners()

    def _form(self) -> None:
        """Begin the next generation if every node offers itself."""
        offers = {n: r.offer for n, r in self.newest.items() if r.offer is not None and r.part in SETTLED}
        problem = next((f"{node}: {offer.problem}" for node, offer in offers.items() if offer.problem), None)
        if problem is not None:
            self._end(Phase.FAILED, problem)
        if problem is not None or not all(node in offers and is_sound(offers[node]) for node in self.nodes):
            return
        seats = seats_for(self.generation + 1, {n: offers[n] for n in self.nodes}, self.runners, self.restart_reason)
        first = seats[self.nodes[0]].assignment
        is_given = self.spec.rendezvous.master_port != "auto"
        if not is_given and any(seat.assignment.master_port == first.master_port for seat in self.seats.values()):
            return  # the last generation's: the next offer has another
        self.phase, self.generation = Phase.LAUNCHING, first.generation
        self.seats, self.parts, self.gone, self.pace, self.stalled = seats, {}, set(), Pace(), ()
        self._asides.append(notes.launched(seats))
        for node in self.nodes:
            how = one_line(offers[node].note)
            if how and how != self.counted.get(node):
                self.counted[node] = how
                self._note("ranks.counted", f"{node}: {how}", node=node)

    def _open_incident(self, incident: Incident) -> None:
        """The generation ends because of this; whatever ends from here on belongs to it (R4)."""
        self.phase, self.finish_by_s = Phase.STOPPING, None
        self.incident_is_open = True
        self.incidents, self.incident = incident.number, incident
        self._asides.append(notes.opened(incident))

    def _see_whether_all_gone(self, now_s: float) -> None:
        if self.phase is Phase.STOPPING and self.gone >= set(self.seats):  # R1
            self._note_end_of_generation(now_s)
            self._after_generation(now_s)

    def _note_end_of_generation(self, now_s: float) -> None:
        is_now = self.stop is not None and self.stop.now
        grace = "no grace" if is_now else f"grace {self._grace_s(self.stop.grace_s if self.stop else None):g} s"
        ran_s = self._ran_s(now_s) if self.launched_s is None else now_s - self.launched_s
        self._asides.append(notes.ended(self.generation, self.parts.values(), ran_s, grace))

    def _after_generation(self, now_s: float) -> None:
        was_incident, self.incident_is_open = self.incident_is_open, False
        if reports.all_finished(self.seats, self.parts):
            self._succeed()
        elif self.stop is not None:
            self._end(Phase.STOPPED, self.reason)
        elif self.restart is not None:
            self.restart_reason = self.restart
            self._begin_forming()
        else:
            assert was_incident, "a generation ended without a cause"
            self._decide(now_s)

    def _decide(self, now_s: float) -> None:
        assert self.incident is not None
        is_hang = self.incident.cause == "hang"
        failure = Failure(
            is_infrastructure=self.incident.cause == "runner-lost",
            lost_its_port=self._lost_its_port(self.incident.rank),
            exit_code=None if is_hang else self.incident.exit_code,  # that was our doing
            ends_run=is_hang and self.spec.hang.action == "fail",
            has_ever_started=self.has_started,
            had_started=reports.all_started(self.seats, self.parts),
            ran_s=self._ran_s(now_s),
            saved_step=self.saved_step,
        )
        decision, self.ledger = decide(self.spec.restart, self.ledger, failure, self._draw())
        match decision:
            case GiveUp(why):
                self._end(Phase.FAILED, f"{self.incident.summary}; {why}")
            case Again(delay_s, charged, why):
                self.restart_reason = one_line(self.incident.summary)
                when = f"in {delay_s:.1f} s" if delay_s else "at once"
                self._note("restart.decided", f"{why}, {when}", delay_s=round(delay_s, 3), charged=charged)
                if delay_s:
                    self.phase, self.backoff_s, self.backoff_until_s = Phase.BACKOFF, delay_s, now_s + delay_s
                    self._ensure_runners()
                else:
                    self._begin_forming()

    def _succeed(self) -> None:
        self._end(Phase.SUCCEEDED, "every rank ended with 0")

    def _end(self, phase: Phase, reason: str) -> None:
        self.phase, self.reason = phase, reason
        self.backoff_until_s = self.finish_by_s = self._starts.retry_at_s = None
        self._note(f"job.{Outcome(phase.value)}", reason)

    # --- what is derived -----------------------------------------------------------------------------------------

    @property
    def saved_step(self) -> int | None:
        """The last checkpoint that any runner has seen."""
        seen = reports.saved_step((*self.parts.values(), *self.newest.values()))
        return self.ledger.saved_step if seen is None else seen

    def _lost_its_port(self, culprit: int | None) -> bool:
        """Whether rank 0 found the port taken that we had chosen for it; one that the job names is its own affair."""
        node, seat = next(iter(self.seats.items()))
        return self.spec.rendezvous.master_port == "auto" and lost_its_port(culprit, seat, self.parts.get(node))

    def _ran_s(self, now_s: float) -> float:
        """The longest life of a rank; where nobody is left to tell, the time since the launch."""
        known_s = reports.longest_life_s(self.parts)
        return known_s if known_s is not None else 0.0 if self.launched_s is None else now_s - self.launched_s

    def _grace_s(self, grace_s: float | None) -> float:
        return self.spec.stop.grace_s if grace_s is None else grace_s

    def _answer(self, node: str, incarnation: str, number: int) -> Send:
        """`number` is used for those who are no runner of this run, or no longer."""
        if self.runners.get(node) == incarnation:
            number = self.newest[node].number
        order = self.order_for(node, incarnation)
        return Send(node, incarnation, Answer(number=number, epoch=self.epoch, order=order))

    def _note(self, kind: str, text: str, **detail: str | int | float | bool | None) -> None:
        self._asides.append(Note(kind, text, None if self.generation == NO_GENERATION else self.generation, detail))

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
            stalled=self.stalled,
            reason=self.reason,
            last_parts={n: verdict.without_tails(part) for n, part in self.parts.items()} if self.is_final else {},
        )

    def _check(self) -> None:
        assert self.gone <= set(self.seats), "a stranger takes part"
        assert set(self.runners) == set(self.newest), "a runner without a word of it"
        if self.phase in LIVE:
            assert self.seats, "live without a seat"
        if self.incident_is_open:
            assert self.phase is Phase.STOPPING, "an incident outlived its generation"
