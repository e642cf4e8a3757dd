"""One run's membership, rendezvous, generation and restart policy: the fleet's decisions about it.

    FORMING ──enough nodes offer──▶ LAUNCHING ──all ranks started──▶ RUNNING
       ▲                              │                               │
       │                              └── failure, loss, operator ────┤──── every rank ended with 0 ──▶ SUCCEEDED
       │                                                              ▼
       └──────────────── BACKOFF ◀──── the policy says "again" ── STOPPING ── it says no ──▶ FAILED
                                                                      └────── told to stop ──▶ STOPPED

Which nodes these are is decided by rendezvous.py, what a generation ended of by case.py. The rules it keeps
(docs/protocol.md): R1 the next generation begins only when every runner of this one has reported that its tree is
gone, or is proven gone. R3 the past and strangers change nothing and are answered with the present order. R4 a
generation ends once and is charged once: what ends between the opening of the incident and the last "stopped" belongs
to it. R8 what was accepted, and a generation with its full assignment, is persisted before anything is sent.

A runner never makes this machine raise: what it says is checked against what was assigned, and ignored else.
"""

from collections.abc import Callable, Mapping

from protocol import notes, orders, verdict
from protocol.case import Case, ended_at_s, failure_of
from protocol.coordinator_events import (
    FINAL,
    LIVE,
    Effect,
    Event,
    Heard,
    Note,
    Opened,
    Persist,
    Phase,
    RestartRequested,
    Roster,
    RunnerFailed,
    RunnerGone,
    RunRecord,
    Seat,
    Send,
    StopRequested,
    Tick,
)
from protocol.generation import NOBODY, Generation
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.member_events import SETTLED
from protocol.messages.control import Incident, Outcome
from protocol.messages.member import Answer, Order, Part, Release, Renewal
from protocol.rendezvous import Before, Go, Hopeless, Rendezvous
from protocol.reports import saved_step
from protocol.restart import Again, GiveUp, decide
from protocol.roll import Roll
from protocol.seating import seats_for
from protocol.text import one_line

GENERATION_MAX = 2**31 - 1
"""Above this a generation is nonsense; the limit keeps the next one encodable."""


class Coordinator:
    """State machine of one run: no IO, no clock, no randomness of its own.

    `draw` gives a number from [0, 1) for the jitter of backoffs; `record` is what the journal holds of the run, or a
    fresh one; with `allow_mixed` nodes need not run the same.
    """

    def __init__(
        self,
        spec: JobSpec,
        record: RunRecord,
        epoch: int,
        draw: Callable[[], float],
        *,
        allow_mixed: bool = False,
    ) -> None:
        self.spec = spec
        self.epoch = epoch
        self.phase = record.phase
        self.rendezvous = Rendezvous(spec, record.slots, allow_mixed=allow_mixed)
        self.current = Generation(  # the newest one
            record.generation, record.seats, lost=record.lost, stalled=record.stalled, parts=record.last_parts
        )
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
        self.counted: dict[str, str] = {}  # node -> what has been told of how its ranks were counted
        self.backoff_until_s: float | None = None
        self.finish_by_s: float | None = None
        self._draw = draw
        self._asides: list[Note] = []  # of the event that is being handled

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order.

        `now_s` and `deadline_s` are boot-time seconds of this node. What changed durably is persisted first, once.
        New orders then go to every runner; whoever misses that gets the same with the answer to its next renewal.
        """
        if self.is_final:  # nothing changes any more; who still speaks is told so
            return (
                [self._answer(event.node, event.incarnation, event.renewal.number)] if isinstance(event, Heard) else []
            )
        before, self._asides = self.record(), []
        match event:
            case Opened():
                self._on_opened(now_s)
            case Roster(nodes):
                self.rendezvous.see(nodes)
                self._form_if_forming(now_s)
            case Heard(node, incarnation, renewal):
                self._on_heard(node, incarnation, renewal, now_s)
            case RunnerGone(node, incarnation):
                self._on_runner_gone(node, incarnation, now_s)
            case RunnerFailed(node, reason):
                self._on_runner_failed(node, reason, now_s)
            case StopRequested():
                self._on_stop_requested(event)
            case RestartRequested():
                self._on_restart_requested(event, now_s)
            case Tick():
                self._on_tick(now_s)
        self._check()
        after = self.record()
        is_news = orders.cause(after.phase, after.generation, after.stop) != orders.cause(
            before.phase, before.generation, before.stop
        )
        told = dict.fromkeys(self.roll.runners.items(), 0) if is_news else {}
        if isinstance(event, Heard):
            told.setdefault((event.node, event.incarnation), event.renewal.number)
        persisted = [Persist(after)] if after != before else []
        answers = (self._answer(*who, number) for who, number in told.items())
        return [*persisted, *self._asides, *self.rendezvous.new_wants(self._not_asked), *answers]

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None: never."""
        forming_s = self.rendezvous.deadline_s if self.phase is Phase.FORMING else None
        due = [d for d in (self.backoff_until_s, self.finish_by_s, forming_s) if d is not None]
        return min(due, default=None)

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in FINAL

    def order_for(self, node: str, incarnation: str) -> Order:
        """The whole order for a runner, whatever was sent before."""
        if self.roll.is_past(incarnation):
            return Release()
        seat = self.seats.get(node)
        is_seated = seat is not None and seat.incarnation == incarnation
        return orders.order(self.phase, self.generation, seat.assignment if seat and is_seated else None, self.stop)

    # --- runners -------------------------------------------------------------------------------------------------

    def _on_opened(self, now_s: float) -> None:
        if self.phase is Phase.BACKOFF:
            # How much of the wait had passed is not known: the boot-time clock does not outlive a boot.
            self.backoff_until_s = now_s + self.backoff_s
        if self.phase is Phase.FORMING:
            self._begin_forming(now_s)

    def _on_heard(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        if self.roll.is_past(incarnation) or not self._speaks_for(node, incarnation):
            return
        if renewal.generation > max(self.generation, GENERATION_MAX):
            return
        if self.roll.hear(node, incarnation, renewal, now_s):
            self._take_in(node, incarnation, renewal, now_s)

    def _speaks_for(self, node: str, incarnation: str) -> bool:
        """Whether this is the node's runner. Another one is a stranger until the one before is proven gone: it may come
        from a second state folder, and then it proves nothing."""
        seat = self.seats.get(node)
        if self.phase in LIVE and seat is not None and seat.incarnation != incarnation and node in self.current.alive:
            return False
        return self.roll.has_room_for(node, incarnation)

    def _on_runner_gone(self, node: str, incarnation: str, now_s: float) -> None:
        if self.roll.is_past(incarnation):
            return  # told again by a node that does not know yet that it is settled
        seat = self.seats.get(node)
        is_seated = seat is not None and seat.incarnation == incarnation
        was_heard = self.roll.bury(node, incarnation)
        if was_heard:
            self.rendezvous.forget(node)
        if is_seated:
            self._lose(node, now_s)
        if not was_heard and not is_seated:  # what cannot even begin must not be started for ever
            self._on_runner_failed(node, "it ended before it reported", now_s)

    def _lose(self, node: str, now_s: float) -> None:
        """The runner that was seated here is gone, and so is everything it had started."""
        why = "is gone, and its ranks with it"
        if self.phase not in LIVE or node in self.current.lost:
            return
        if node not in self.current.gone and not self.current.finished_on(node):
            self._note("runner.lost", f"the runner on {node} {why}", node=node)
            if self.phase is Phase.STOPPING:
                self._asides += self.case.lose(node, why, self.parts.get(node), now_s)
            else:
                self._open_incident(verdict.runner_lost(self.case.number + 1, self.generation, node, why), now_s)
        self.current.end_on(node, by_loss=True)
        self._see_whether_all_gone(now_s)

    def _on_runner_failed(self, node: str, reason: str, now_s: float) -> None:
        if node in self.roll.runners:
            return
        self._note("runner.failed", f"no runner could be started on {node}: {reason}", node=node)
        if self.rendezvous.fail(node, reason):
            self._form_if_forming(now_s)
            self._tell_unfit(node)

    @property
    def _not_asked(self) -> frozenset[str] | None:
        """Nodes that are not asked for a runner: the seated one may be alive, and is heard first, or is proven gone
        (R6). None: no node is."""
        if self.is_final or self.stop is not None:
            return None
        return self.current.alive if self.phase in LIVE else NOBODY

    # --- reports -------------------------------------------------------------------------------------------------

    def _take_in(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        is_unfit = self.rendezvous.hear(node, renewal.offer if renewal.part in SETTLED else None, now_s)
        if renewal.generation > self.generation:
            self._believe(renewal.generation)
        elif self.phase is Phase.FORMING:
            if self.rendezvous.may_decide():
                self._form(now_s)
        elif self.phase in LIVE and self.current.concerns(node, incarnation, renewal):
            self.current.take_in(node, renewal, now_s)
            self.has_started |= self.current.reports.all_started
            self._judge(node, renewal, now_s)
        if is_unfit:
            self._tell_unfit(node)

    def _tell_unfit(self, node: str) -> None:
        """The run goes on without a node; where it cannot, that is what it failed of."""
        if not self.is_final:
            self._asides.append(notes.unfit(node, self.rendezvous.unfit[node]))

    def _believe(self, generation: int) -> None:
        """A runner ahead of us is believed (R3): the next generation is above the highest seen."""
        self.current = self.current.follow(generation)
        if self.phase in (Phase.LAUNCHING, Phase.RUNNING):
            self.phase, self.restart = Phase.STOPPING, "a runner was ahead of its coordinator"

    def _judge(self, node: str, renewal: Renewal, now_s: float) -> None:
        if self.phase is Phase.STOPPING:
            self._asides += self.case.hear(node, renewal, now_s)
        elif (found := verdict.incident(self.case.number + 1, node, renewal)) is not None:
            self._open_incident(found, ended_at_s(found, renewal, now_s))
        elif renewal.part in (Part.STOPPING, Part.STOPPED):
            why = "was told to end by somebody else"
            self._open_incident(verdict.runner_lost(self.case.number + 1, self.generation, node, why), now_s)
        else:
            self.current.stalled, told = notes.of_stalls(node, self.current.stalled, renewal)
            self._asides += told
            self._see_progress(now_s)
        if renewal.part in (Part.STOPPED, Part.FINISHED):
            self.current.end_on(node, by_loss=False)
            self._see_whether_all_gone(now_s)

    def _see_progress(self, now_s: float) -> None:
        if self.current.reports.all_finished:
            self._succeed()
            return
        if self.phase is Phase.LAUNCHING and self.current.reports.all_launched:
            self.phase = Phase.RUNNING
            self._note("generation.ready", f"generation {self.generation}: every rank has started")
        limit_s = self.spec.stop.finish_timeout_s
        if limit_s is not None and self.current.reports.any_ended and self.finish_by_s is None:
            self.finish_by_s = now_s + limit_s

    # --- operator and time ---------------------------------------------------------------------------------------

    def _on_stop_requested(self, event: StopRequested) -> None:
        how = "now" if event.now else "with the job's grace" if event.grace_s is None else f"grace {event.grace_s:g} s"
        self._note("operator.stopped", f"stop requested by {event.by}, {how}", by=event.by)
        self.reason = self.reason or f"stopped by {event.by}"
        if self.phase not in LIVE:
            self._end(Phase.STOPPED, self.reason)
            return
        self.stop = orders.tighter(self.stop, event, self.generation, self.spec.stop.grace_s)
        self.phase, self.finish_by_s = Phase.STOPPING, None

    def _on_restart_requested(self, event: RestartRequested, now_s: float) -> None:
        if self.stop is not None:
            return
        asked, reason = f"restart requested by {event.by}", one_line(event.reason)
        why = reason or asked
        how = f", without {event.without}" if event.without else ""
        text = f"{asked}{how}: {reason}" if reason else f"{asked}{how}"
        self._note("operator.restarted", text, by=event.by, without=event.without or None)
        if event.without or self.restart is None:  # a wish that was accepted is not dropped by a second one without it
            self.without = event.without
        if self.phase in LIVE:
            # Also while a failure is being handled: a restart that was accepted comes, whatever the policy says.
            self.phase, self.finish_by_s, self.restart = Phase.STOPPING, None, why
        else:
            self.restart_reason = why if self.seats else ""
            self._begin_forming(now_s)  # it comes anyway: at once then

    def _on_tick(self, now_s: float) -> None:
        if self.backoff_until_s is not None and now_s >= self.backoff_until_s:
            self._begin_forming(now_s)
        else:
            self._form_if_forming(now_s)
        if self.finish_by_s is not None and now_s >= self.finish_by_s:
            self._on_finish_timeout(self.spec.stop.finish_timeout_s or 0.0, now_s)

    def _on_finish_timeout(self, limit_s: float, now_s: float) -> None:
        self.finish_by_s = None
        if (late := self.current.unended) is not None:  # else what they have left behind is ended, and ends by itself
            node, ranks = late
            found = verdict.unfinished(self.case.number + 1, self.generation, node, ranks, limit_s)
            self._open_incident(found, now_s)

    # --- the life of a generation --------------------------------------------------------------------------------

    def _begin_forming(self, now_s: float) -> None:
        self.phase, self.backoff_until_s, self.restart = Phase.FORMING, None, None
        self.rendezvous.begin(self.without, now_s)
        self._form(now_s)

    def _form_if_forming(self, now_s: float) -> None:
        if self.phase is Phase.FORMING:
            self._form(now_s)

    def _form(self, now_s: float) -> None:
        """Begin the next generation if enough nodes offer themselves."""
        match self.rendezvous.decide(self.must_not, now_s):
            case Hopeless(reason, lacks_nodes):
                self.lacked_nodes = lacks_nodes
                self._end(Phase.FAILED, reason)
            case Go(nodes, slots):
                self._launch(nodes, slots, now_s)
            case _:  # go on waiting
                pass

    def _launch(self, nodes: tuple[str, ...], slots: dict[str, int], now_s: float) -> None:
        offers = {node: self.rendezvous.offer(node) for node in nodes}
        heirs = notes.heirs(self.rendezvous.slots, slots)
        seats = seats_for(self.generation + 1, offers, self.roll.runners, self.restart_reason)
        self.current = Generation(self.generation + 1, seats.values(), launched_s=now_s)
        self.phase, self.without = Phase.LAUNCHING, ""
        self.rendezvous.slots = slots
        self.rendezvous.rest()
        self._asides += [notes.launched(self.seats, heirs), *notes.counted(self.generation, offers, self.counted)]

    def _open_incident(self, incident: Incident, ended_s: float) -> None:
        """The generation ends because of this; whatever ends from here on belongs to it (R4)."""
        self.phase, self.finish_by_s = Phase.STOPPING, None
        self._asides.append(self.case.open(incident, ended_s))

    def _see_whether_all_gone(self, now_s: float) -> None:
        if self.phase is Phase.STOPPING and self.current.is_gone:  # R1
            self._note_end(now_s)
            self._after_generation(now_s)

    def _note_end(self, now_s: float) -> None:
        grace_s = self.spec.stop.grace_s if self.stop is None or self.stop.grace_s is None else self.stop.grace_s
        grace = "no grace" if self.stop is not None and self.stop.now else f"grace {grace_s:g} s"
        self._asides.append(notes.ended(self.generation, self.parts.values(), self.current.lasted_s(now_s), grace))

    def _after_generation(self, now_s: float) -> None:
        was_incident = self.case.close()
        if self.current.reports.all_finished:
            self._succeed()
        elif self.stop is not None:
            self._end(Phase.STOPPED, self.reason)
        elif self.restart is not None:
            self.restart_reason = self.restart
            self._begin_forming(now_s)
        else:
            assert was_incident, "a generation ended without a cause"
            self._decide(now_s)

    def _decide(self, now_s: float) -> None:
        incident = self.case.incident
        assert incident is not None
        failure = failure_of(
            incident,
            self.spec,
            lost_its_port=self._chooses_port and self.current.has_lost_its_port(incident.rank),
            has_ever_started=self.has_started,
            had_started=self.current.reports.all_started,
            ran_s=self.current.ran_s(now_s),
            saved_step=self.saved_step,
        )
        decision, self.ledger = decide(self.spec.restart, self.ledger, failure, self._draw())
        match decision:
            case GiveUp(why):
                self._end(Phase.FAILED, f"{incident.summary}; {why}")
            case Again(delay_s, charged, why):
                self.restart_reason = one_line(incident.summary)
                when = f"in {delay_s:.1f} s" if delay_s else "at once"
                self._note("restart.decided", f"{why}, {when}", delay_s=round(delay_s, 3), charged=charged)
                if delay_s:
                    self.phase, self.backoff_s, self.backoff_until_s = Phase.BACKOFF, delay_s, now_s + delay_s
                else:
                    self._begin_forming(now_s)

    def _succeed(self) -> None:
        self._end(Phase.SUCCEEDED, "every rank ended with 0")

    def _end(self, phase: Phase, reason: str) -> None:
        self.phase, self.reason = phase, reason
        self.backoff_until_s = self.finish_by_s = None
        self.rendezvous.rest()
        self.current.keep(*self.parts)
        self._note(f"job.{Outcome(phase.value)}", reason)

    # --- what is derived -----------------------------------------------------------------------------------------

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
    def _chooses_port(self) -> bool:
        """Whether rank 0 gets a port of ours; one that the job names is the job's own affair."""
        return self.spec.rendezvous.master_port == "auto"

    @property
    def must_not(self) -> Before:
        """What the next generation has to keep clear of."""
        port = self.current.master_port if self._chooses_port else None
        return Before(is_none=not self.seats, port=port, busy=self.roll.busy)

    @property
    def saved_step(self) -> int | None:
        """The last checkpoint that any runner has seen."""
        seen = saved_step((*self.parts.values(), *self.roll.newest.values()))
        return self.ledger.saved_step if seen is None else seen

    def _answer(self, node: str, incarnation: str, number: int) -> Send:
        """`number` is used for those who are no runner of this run, or no longer."""
        if self.roll.has(node, incarnation):
            number = self.roll.newest[node].number
        order = self.order_for(node, incarnation)
        return Send(node, incarnation, Answer(number=number, epoch=self.epoch, order=order))

    def _note(self, kind: str, text: str, **detail: str | int | float | bool | None) -> None:
        self._asides.append(Note(kind, text, None if self.generation == NO_GENERATION else self.generation, detail))

    def record(self) -> RunRecord:
        """Everything durable, as it stands."""
        return RunRecord(
            phase=self.phase,
            generation=self.generation,
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
            slots=self.rendezvous.slots,
            without=self.without,
            lacked_nodes=self.lacked_nodes,
            stalled=self.current.stalled,
            reason=self.reason,
            last_parts=self.current.last_parts,
        )

    def _check(self) -> None:
        assert self.current.gone <= self.seats.keys(), "a stranger takes part"
        assert len(self.roll.runners) == len(self.roll.newest), "a runner without a word of it"
        if self.phase in LIVE:
            assert self.seats, "live without a seat"
        if self.case.is_open:
            assert self.phase is Phase.STOPPING, "an incident outlived its generation"
