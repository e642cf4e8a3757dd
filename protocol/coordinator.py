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

from collections.abc import Callable

from protocol import notes, orders, verdict
from protocol.case import ended_at_s, failure_of
from protocol.coordinator_events import (
    LIVE,
    Ask,
    Effect,
    Event,
    Heard,
    NodeLost,
    Note,
    Opened,
    Persist,
    Phase,
    RestartRequested,
    Roster,
    RunnerFailed,
    RunnerGone,
    RunRecord,
    Send,
    StopRequested,
    Testified,
    Tick,
)
from protocol.generation import Generation
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.member_events import SETTLED
from protocol.messages.control import Incident, Outcome
from protocol.messages.member import Answer, Part, Renewal
from protocol.rendezvous import Go, Hopeless
from protocol.restart import Again, GiveUp, decide
from protocol.run_state import RunState
from protocol.seating import seats_for
from protocol.takeover import Takeover, slots_of
from protocol.text import one_line
from protocol.timing import DEFAULTS, Timing


class Coordinator(RunState):
    """State machine of one run: no IO, no clock, no randomness of its own.

    `draw` gives a number from [0, 1) for the jitter of backoffs; `record` is what the journal holds of the run, or a
    fresh one; with `allow_mixed` nodes need not run the same. `timing` holds for the generations to come; with
    `keeps_isolated` their leases never end.
    """

    def __init__(
        self,
        spec: JobSpec,
        record: RunRecord,
        epoch: int,
        draw: Callable[[], float],
        *,
        allow_mixed: bool = False,
        timing: Timing = DEFAULTS,
        keeps_isolated: bool = False,
    ) -> None:
        super().__init__(spec, record, epoch, timing, allow_mixed=allow_mixed)
        self.keeps_isolated = keeps_isolated
        self._draw = draw
        self._asides: list[Note] = []  # of the event that is being handled

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order.

        `now_s` and `deadline_s` are boot-time seconds of this node. What changed durably is persisted first, once.
        New orders then go to every runner; whoever misses that gets the same with the answer to its next renewal.
        """
        if self.is_final:  # nothing changes any more; who still speaks is told so
            return [self._answer_heard(event)] if isinstance(event, Heard) else []
        before, self._asides = self.record(), []
        if self.counts_leases:
            self.current.leases.see_clock(now_s)
        match event:
            case Opened():
                self._on_opened(now_s)
            case Roster(nodes):
                self.rendezvous.see(nodes)
                self._form_if_forming(now_s)
            case Heard():
                self._on_heard(event, now_s)
            case Testified(_, incarnation, testimony):
                self.current.leases.testify(incarnation, testimony, now_s)
            case RunnerGone(node, incarnation):
                self._on_runner_gone(node, incarnation, now_s)
            case RunnerFailed(node, reason):
                self._on_runner_failed(node, reason, now_s)
            case NodeLost(node, by):
                self._on_node_lost(node, by, now_s)
            case StopRequested():
                self._on_stop_requested(event, now_s)
            case RestartRequested():
                self._on_restart_requested(event, now_s)
            case Tick():
                self._on_tick(now_s)
        self._see_takeover(now_s)
        asks = self._see_silence(now_s)
        self._check()
        after = self.record()
        is_news = orders.cause(after) != orders.cause(before)
        answers = [self._push(*who) for who in self.roll.runners.items()] if is_news else []
        if isinstance(event, Heard) and not (is_news and self.roll.has(event.node, event.incarnation)):
            answers += [] if self.ignores(event) else [self._answer_heard(event)]
        persisted = [Persist(after)] if after != before else []
        return [*persisted, *self._asides, *self.rendezvous.new_wants(self.not_asked), *answers, *asks]

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None: never."""
        forming_s = self.rendezvous.deadline_s if self.phase is Phase.FORMING and self.takeover is None else None
        silence_s = self.current.leases.deadline_s if self.counts_leases else None
        takeover_s = self.takeover.due_s if self.takeover is not None else None
        due = (self.backoff_until_s, self.finish_by_s, forming_s, silence_s, takeover_s)
        return min((d for d in due if d is not None), default=None)

    # --- runners -------------------------------------------------------------------------------------------------

    def _on_opened(self, now_s: float) -> None:
        self.current.leases.begin(now_s, gone=self.current.gone)
        if self.takeover is not None:
            self.takeover = Takeover(self.takeover.generation, now_s + self.timing.ttl_s)
        if self.phase is Phase.BACKOFF:
            # How much of the wait had passed is not known: the boot-time clock does not outlive a boot.
            self.backoff_until_s = now_s + self.backoff_s
        if self.phase is Phase.FORMING:
            self._begin_forming(now_s)

    def _on_heard(self, event: Heard, now_s: float) -> None:
        node, incarnation, renewal = event.node, event.incarnation, event.renewal
        if not self.speaks_for(event):
            return
        if self.is_seated(node, incarnation):
            self.current.leases.hear(node, now_s, is_direct=not event.via)
        if self.roll.hear(node, incarnation, renewal, event.via, now_s):
            self._take_in(node, incarnation, renewal, now_s)

    def _on_runner_gone(self, node: str, incarnation: str, now_s: float) -> None:
        if self.roll.is_past(incarnation):
            return  # told again by a node that does not know yet that it is settled
        was_lost = self.rendezvous.find(node)  # its supd tells of it: nobody is silent there any more
        was_heard = self.roll.bury(node, incarnation)
        if was_heard:
            self.rendezvous.forget(node)
        if self.is_seated(node, incarnation):
            self._lose(node, now_s)
        elif not was_heard and not was_lost:  # what cannot even begin must not be started for ever
            self._on_runner_failed(node, "it ended before it reported", now_s)

    def _lose(self, node: str, now_s: float) -> None:
        """The runner that was seated here is gone, and so is everything it had started."""
        if self.phase not in LIVE or node in self.current.lost:
            return
        why = "is gone, and its ranks with it"
        found = verdict.runner_lost(self.case.number + 1, self.generation, node, why)
        self._blame(found, notes.runner_lost(found), node, now_s)
        self.current.lose(node, now_s)
        self._see_whether_all_gone(now_s)

    def _lapse(self, node: str, why: str, now_s: float) -> None:
        """Nothing of this generation runs on this node any more; of its runner nothing is known (L7)."""
        found = verdict.node_lost(self.case.number + 1, self.generation, node, why)
        self._blame(found, notes.node_lost(found), node, now_s)
        self.current.lapse(node, now_s)
        self._miss(node)
        self._see_whether_all_gone(now_s)

    def _miss(self, node: str) -> None:
        """Nobody waits for a runner on this node, and who speaks for it next may be another one."""
        self.roll.drop(node)
        self.rendezvous.lose(node)

    def _blame(self, found: Incident, note: Note, node: str, now_s: float) -> None:
        """The generation ends of this, if ranks were lost, and if it does not end of something else already."""
        if node in self.current.gone or self.current.finished_on(node):
            return
        self._asides.append(note)
        if self.phase is Phase.STOPPING:
            self._asides += self.case.lose(node, found, self.parts.get(node), now_s)
        else:
            self._open_incident(found, now_s)

    def _see_silence(self, now_s: float) -> list[Ask]:
        """Who is silent, and who is lost (L6, L7)."""
        if not self.counts_leases:
            return []
        generation = self.current
        seen = generation.leases.look(now_s, generation.gone, self.epoch)
        for node, before, state in seen.changed:
            silent_s = generation.leases.silent_s(node, now_s)
            self._asides.append(notes.silence(node, before, state, silent_s, generation.number))
        for node in seen.lost:
            if self.current is generation:
                silent_s = generation.leases.silent_s(node, now_s)
                self._lapse(node, f"was silent for {silent_s:.1f} s, and no witness has given it its word", now_s)
        return seen.asks

    def _on_runner_failed(self, node: str, reason: str, now_s: float) -> None:
        if node in self.roll.runners:
            return
        self._note("runner.failed", f"no runner could be started on {node}: {reason}", node=node)
        if self.rendezvous.fail(node, reason):
            self._form_if_forming(now_s)
            self._tell_unfit(node)

    # --- reports -------------------------------------------------------------------------------------------------

    def _take_in(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        is_unfit = self.rendezvous.hear(node, renewal.offer if renewal.part in SETTLED else None, now_s)
        self._asides += notes.fenced(node, renewal, self.fenced) if self.rendezvous.knows(node) else ()
        if renewal.generation > self.generation:
            self._hear_ahead(node, incarnation, renewal, now_s)
        elif self.phase is Phase.FORMING:
            if self.rendezvous.may_decide():
                self._form(now_s)
        else:
            self._take_part(node, incarnation, renewal, now_s)
        if is_unfit:
            self._tell_unfit(node)

    def _take_part(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        """What a runner has said of the generation that is live, if it has."""
        if self.phase in LIVE and self.current.concerns(node, incarnation, renewal):
            self.current.take_in(node, renewal, now_s)
            self.has_started |= self.current.reports.all_started
            self._judge(node, renewal, now_s)

    def _tell_unfit(self, node: str) -> None:
        """The run goes on without a node; where it cannot, that is what it failed of."""
        if not self.is_final:
            self._asides.append(notes.unfit(node, self.rendezvous.unfit[node]))

    def _hear_ahead(self, node: str, incarnation: str, renewal: Renewal, now_s: float) -> None:
        """A runner ahead of us is believed (R3), and what it runs is not touched (R6)."""
        if self.takeover is None or self.takeover.generation < renewal.generation:
            self.takeover = Takeover(renewal.generation, now_s + self.timing.ttl_s)
        if renewal.generation == self.takeover.generation:
            self.takeover.hear(node, incarnation, renewal)

    def _see_takeover(self, now_s: float) -> None:
        """Take a generation over once all have told, or it is known who has not; of a run that is to end, what is known
        after a while. Time alone never begins the next one: who is heard of by nobody may run it."""
        if (found := self.sifted(now_s)) is None:
            return
        is_enough = found.is_known or (found.has_seats and self.stop is not None)
        if found.is_whole or (found.is_late(now_s) and is_enough):
            self._take_over(found, now_s)
        elif self.stop is not None and found.is_late(now_s) and (self.stop.now or not self.roll.busy):
            self.case.close()
            self._end(Phase.STOPPED, self.reason)

    def _take_over(self, found: Takeover, now_s: float) -> None:
        seats = found.seats()
        self.takeover, self.current = None, Generation(found.generation, seats.values())
        self.current.leases.begin(now_s)
        self.case.close()
        self.restart = self.backoff_until_s = self.finish_by_s = None
        self.phase = Phase.LAUNCHING if self.stop is None else Phase.STOPPING
        self.rendezvous.slots = slots_of(seats)
        self.rendezvous.rest()
        self._asides.append(notes.taken_over(self.seats))
        for seat in self.current.seating:
            if self.roll.is_past(seat.incarnation):
                self._lose(seat.node, now_s)
        for node, renewal in found.parts.items():
            self._take_part(node, self.roll.runners.get(node, ""), renewal, now_s)

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
        self._asides += notes.unwitnessed(node, renewal, self.current)
        if renewal.part in (Part.STOPPED, Part.FINISHED):
            self.current.end_on(node)
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

    def _on_node_lost(self, node: str, by: str, now_s: float) -> None:
        self._note("operator.node_lost", f"{by} says that nothing runs on {node} any more", node=node, by=by)
        if self.takeover is not None and self.takeover.is_known:
            self._take_over(self.takeover, now_s)
        if self.phase in LIVE and node in self.current.alive:
            self._lapse(node, f"is lost, as {by} says", now_s)
        else:
            self._miss(node)
            self._form_if_forming(now_s)

    def _on_stop_requested(self, event: StopRequested, now_s: float) -> None:
        self._note("operator.stopped", f"stop requested by {event.by}, {orders.manner(event)}", by=event.by)
        self.reason = self.reason or f"stopped by {event.by}"
        if self.phase not in LIVE and self.takeover is None:
            self._end(Phase.STOPPED, self.reason)
            return
        self.stop = orders.tighter(self.stop, event, self.generation, self.spec.stop.grace_s)
        if self.phase in LIVE:
            self.phase, self.finish_by_s = Phase.STOPPING, None

    def _on_restart_requested(self, event: RestartRequested, now_s: float) -> None:
        if self.stop is not None or self.refuses_restart:  # the shell says so
            return
        if self.takeover is not None:  # the operator's word that nobody runs what nobody has told of
            self.current, self.takeover = Generation(self.takeover.generation + 1, ()), None
            self.case.close()
            self.phase, self.restart, self.finish_by_s = Phase.FORMING, None, None
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
            self.restart_reason = "" if self.generation == NO_GENERATION else why
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
        """Begin the next generation if enough nodes offer themselves, and none is being taken over."""
        if self.takeover is not None:
            return
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
        seats = seats_for(
            self.generation + 1,
            offers,
            self.roll.runners,
            self.restart_reason,
            self.timing,
            has_witnesses=not self.keeps_isolated,
        )
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
            grace = orders.grace(self.stop, self.spec.stop.grace_s)
            self._asides.append(notes.ended(self.generation, self.parts.values(), self.current.lasted_s(now_s), grace))
            self._after_generation(now_s)

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
            self.current,
            chooses_port=self.chooses_port,
            has_ever_started=self.has_started,
            saved_step=self.saved_step,
            now_s=now_s,
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
        self.phase, self.reason, self.takeover = phase, reason, None
        self.backoff_until_s = self.finish_by_s = None
        self.rendezvous.rest()
        self.current.keep(*self.parts)
        self._note(f"job.{Outcome(phase.value)}", reason)

    # --- what is said --------------------------------------------------------------------------------------------

    def _answer_heard(self, event: Heard) -> Send:
        """By the way that it came. Who is no runner of this run, or no longer, gets the number that it gave."""
        node, incarnation = event.node, event.incarnation
        known = self.roll.newest[node].number if self.roll.has(node, incarnation) else 0  # of a run that is over: old
        return self._answer(node, incarnation, max(known, event.renewal.number), event.via)

    def _push(self, node: str, incarnation: str) -> Send:
        """Unasked, by the way that the newest renewal came."""
        return self._answer(node, incarnation, self.roll.newest[node].number, self.roll.via[node])

    def _answer(self, node: str, incarnation: str, number: int, via: str) -> Send:
        answer = Answer(number=number, epoch=self.epoch, order=self.order_for(node, incarnation))
        return Send(node, incarnation, answer, via)

    def _note(self, kind: str, text: str, **detail: str | int | float | bool | None) -> None:
        self._asides.append(Note(kind, text, None if self.generation == NO_GENERATION else self.generation, detail))

    def _check(self) -> None:
        assert self.current.gone <= self.seats.keys(), "a stranger takes part"
        assert len(self.roll.runners) == len(self.roll.newest), "a runner without a word of it"
        if self.phase in LIVE:
            assert self.seats, "live without a seat"
        if self.case.is_open:
            assert self.phase is Phase.STOPPING, "an incident outlived its generation"
