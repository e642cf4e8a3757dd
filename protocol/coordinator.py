"""One run's membership, rendezvous, generation and restart policy: the fleet's decisions about it.

    FORMING ──enough nodes offer──▶ LAUNCHING ──all ranks started──▶ RUNNING
       ▲                              │                               │
       │                              └── failure, loss, operator ────┤──── every rank ended with 0 ──▶ SUCCEEDED
       │                                                              ▼
       ├──────────────── BACKOFF ◀──── the policy says "again" ── STOPPING ── it says no ──▶ FAILED
       │                                                              ├────── told to stop ──▶ STOPPED
       └──────── an operator resumes it ── HELD ◀── it is to ask ─────┘

PREEMPTED is the end where nodes are taken away, and too few are left (life.py).

Which nodes these are is decided by rendezvous.py, what a generation ended of by case.py. The rules it keeps
(docs/protocol.md): R1 the next generation begins only when every runner of this one has reported that its tree is
gone, or is proven gone. R3 the past and strangers change nothing and are answered with the present order. R4 a
generation ends once and is charged once: what ends between the opening of the incident and the last "stopped" belongs
to it. R8 what was accepted, and a generation with its full assignment, is persisted before anything is sent.

A runner never makes this machine raise: what it says is checked against what was assigned, and ignored else.
"""

from protocol import notes, orders, verdict
from protocol.case import failed_at_s
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
    Reloaded,
    RestartRequested,
    ResumeRequested,
    Roster,
    RunnerFailed,
    RunnerGone,
    ScaleRequested,
    Send,
    StopRequested,
    Testified,
    Tick,
)
from protocol.generation import Generation
from protocol.member_events import SETTLED
from protocol.messages.control import Incident
from protocol.messages.member import Answer, Part, Release, Renewal
from protocol.planned import Planned
from protocol.takeover import Takeover, slots_of


class Coordinator(Planned):
    """State machine of one run: no IO, no clock, no randomness of its own.

    `draw` gives a number from [0, 1) for the jitter of backoffs; `record` is what the journal holds of the run, or a
    fresh one; with `allow_mixed` nodes need not run the same. `timing` holds for the generations to come; with
    `keeps_isolated` their leases never end.
    """

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order.

        `now_s` and `deadline_s` are boot-time seconds of this node. What changed durably is persisted first, once.
        New orders then go to every runner; whoever misses that gets the same with the answer to its next renewal.
        """
        if self.is_final:  # nothing changes any more; who still speaks is told so
            return [self._answer_heard(event)] if isinstance(event, Heard) else []
        before, cause, self.asides = self.record(), self.mind.cause, []
        self.rendezvous.look(now_s)
        self.pass_time(now_s)
        if self.counts_leases:
            self.current.leases.see_clock(now_s)
        self._heed(event, now_s)
        self._see_takeover(now_s)
        asks = self._see_silence(now_s)
        self.see_exclusions()
        self.see_changes(now_s)
        self.see_answers(now_s)
        self._check()
        after = self.record()
        is_news = self.mind.cause != cause
        answers = [self._push(*who) for who in self.roll.runners.items()] if is_news else []
        if isinstance(event, Heard) and not (is_news and self.roll.has(event.node, event.incarnation)):
            answers += [] if self.ignores(event) else [self._answer_heard(event)]
        persisted = [Persist(after)] if after != before else []
        return [*persisted, *self.asides, *self.rendezvous.new_wants(self.not_asked), *answers, *asks]

    def _heed(self, event: Event, now_s: float) -> None:
        match event:
            case Opened():
                self._on_opened(now_s)
            case Roster(nodes):
                self.rendezvous.see(nodes)
                self.see_nodes()
                self.form_if_forming(now_s)
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
                self.on_restart_requested(event, now_s)
            case ScaleRequested():
                self.on_scale_requested(event, now_s)
            case Reloaded():
                self.on_reloaded(event, now_s)
            case ResumeRequested(by):
                self.resume(by, now_s)
            case Tick():
                self._on_tick(now_s)

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None: never."""
        if self.is_final:
            return None
        forming_s = self.rendezvous.deadline_s if self.phase is Phase.FORMING and self.takeover is None else None
        silence_s = self.current.leases.deadline_s if self.counts_leases else None
        takeover_s = self.takeover.due_s if self.takeover is not None else None
        parole_s = self.rendezvous.exclusions.deadline_s
        due = (self.backoff_until_s, self.finish_by_s, forming_s, silence_s, takeover_s, parole_s, *self.planned_due_s)
        return min((d for d in due if d is not None), default=None)

    # --- runners -------------------------------------------------------------------------------------------------

    def _on_opened(self, now_s: float) -> None:
        self.current.leases.begin(now_s, gone=self.current.gone)
        self.opened_s = now_s
        if self.scale_left_s is not None:
            self.scale_s = now_s + self.scale_left_s
        if self.takeover is not None:
            self.takeover = Takeover(self.takeover.generation, now_s + self.timing.ttl_s)
        if self.phase is Phase.BACKOFF:
            # How much of the wait had passed is not known: the boot-time clock does not outlive a boot.
            self.backoff_until_s = now_s + self.backoff_s
        if self.phase is Phase.FORMING:
            self.begin_forming(now_s)

    def _on_heard(self, event: Heard, now_s: float) -> None:
        node, incarnation, renewal = event.node, event.incarnation, event.renewal
        if not self.speaks_for(event):
            return
        if self.is_seated(node, incarnation):
            self.current.leases.hear(node, now_s, is_direct=not event.via)
        if event.via and renewal.epoch < self.epoch:
            return  # it may be old, whatever its number: it is answered, and what it says next is news
        if self.roll.hear(node, incarnation, renewal, event.via, now_s):
            self._take_in(event, now_s)

    def _on_runner_gone(self, node: str, incarnation: str, now_s: float) -> None:
        if self.roll.is_past(incarnation):
            return  # told again by a node that does not know yet that it is settled
        was_lost = self.rendezvous.find(node)  # its supd tells of it: nobody is silent there any more
        was_heard = self.roll.bury(node, incarnation)
        if was_heard or self.is_seated(node, incarnation):
            self.rendezvous.bury(node)
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
        self.see_whether_all_gone(now_s)

    def _lapse(self, node: str, why: str, now_s: float) -> None:
        """Nothing of this generation runs on this node any more; of its runner nothing is known (L7)."""
        found = verdict.node_lost(self.case.number + 1, self.generation, node, why)
        self._blame(found, notes.node_lost(found), node, now_s)
        self.current.lapse(node, now_s)
        self._miss(node)
        self.see_whether_all_gone(now_s)

    def _miss(self, node: str) -> None:
        """Nobody waits for a runner on this node, and who speaks for it next may be another one."""
        self.roll.drop(node)
        self.rendezvous.lose(node)

    def _blame(self, found: Incident, note: Note, node: str, now_s: float) -> None:
        """The generation ends of this, if ranks were lost, and if it does not end of something else already."""
        if node in self.current.gone or self.current.finished_on(node):
            return
        self.asides.append(note)
        if self.phase is Phase.STOPPING:
            self.asides += self.case.lose(node, found, self.parts.get(node), now_s)
        else:
            self.open_incident(found, now_s)

    def _see_silence(self, now_s: float) -> list[Ask]:
        """Who is silent, and who is lost (L6, L7)."""
        if not self.counts_leases:
            return []
        generation = self.current
        seen = generation.leases.look(now_s, generation.gone, self.epoch)
        for node, before, state in seen.changed:
            silent_s = generation.leases.silent_s(node, now_s)
            self.asides.append(notes.silence(node, before, state, silent_s, generation.number))
        for node in seen.lost:
            if self.current is generation:
                silent_s = generation.leases.silent_s(node, now_s)
                self._lapse(node, f"was silent for {silent_s:.1f} s, and no witness has given it its word", now_s)
        return seen.asks

    def _on_runner_failed(self, node: str, reason: str, now_s: float) -> None:
        if node in self.roll.runners:
            return
        self.note("runner.failed", f"no runner could be started on {node}: {reason}", node=node)
        if self.rendezvous.fail(node, reason):
            self.form_if_forming(now_s)
            self._tell_unfit(node)

    # --- reports -------------------------------------------------------------------------------------------------

    def _take_in(self, event: Heard, now_s: float) -> None:
        node, incarnation, renewal = event.node, event.incarnation, event.renewal
        is_past = renewal.revision < self.revision or self.roll.is_released(node, incarnation)
        offers = renewal.part in SETTLED and not is_past
        is_unfit = self.rendezvous.hear(node, renewal.offer if offers else None, now_s)
        if renewal.notice or node in self.noticed:
            self.see_notice(node, incarnation, renewal, now_s)
        self.asides += notes.fenced(node, renewal, self.fenced) if self.rendezvous.knows(node) else ()
        if renewal.generation > self.generation:
            self._hear_ahead(node, incarnation, renewal, now_s)
        elif self.phase is Phase.FORMING:
            if self.rendezvous.may_decide():
                self.form(now_s)
        else:
            self._take_part(node, incarnation, renewal, now_s, is_record=event.is_record)
        if is_unfit:
            self._tell_unfit(node)

    def _take_part(
        self, node: str, incarnation: str, renewal: Renewal, now_s: float, *, is_record: bool = False
    ) -> None:
        """What a runner has said of the generation that is live, if it has."""
        if self.phase in LIVE and self.current.concerns(node, incarnation, renewal):
            self.current.take_in(node, renewal, now_s)
            self.has_started |= self.current.reports.all_started
            self.asides += self.current.resumption.see(node, renewal, self.current.pace, now_s)
            self._judge(node, renewal, now_s, is_record=is_record)

    def _tell_unfit(self, node: str) -> None:
        """The run goes on without a node; where it cannot, that is what it failed of."""
        if not self.is_final:
            self.asides.append(notes.unfit(node, self.rendezvous.unfit[node]))

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
            self.end(Phase.STOPPED, self.reason)

    def _take_over(self, found: Takeover, now_s: float) -> None:
        seats = found.seats()
        self.note_time(now_s)
        known_s = self.ledger.time_s
        self.takeover, self.current = None, Generation(found.generation, seats.values(), known_s=known_s)
        self.current.leases.begin(now_s)
        self.case.close()
        self.restart = self.backoff_until_s = self.finish_by_s = None
        self.planned = ""
        self.phase = Phase.LAUNCHING if self.stop is None else Phase.STOPPING
        self.rendezvous.launch(self.seats, slots_of(seats))
        self.see_scale(now_s)
        self.asides.append(notes.taken_over(self.seats))
        for node, renewal in found.parts.items():
            self._take_part(node, found.speakers[node], renewal, now_s)
        for seat in seats.values():  # what each has said last counts: whoever had finished is no loss
            if self.is_seated(seat.node, seat.incarnation) and self.roll.is_past(seat.incarnation):
                self._lose(seat.node, now_s)

    def _judge(self, node: str, renewal: Renewal, now_s: float, *, is_record: bool) -> None:
        if self.phase is Phase.STOPPING:
            self.asides += self.case.hear(node, renewal, now_s, is_record=is_record)
        elif (found := verdict.incident(self.case.number + 1, node, renewal)) is not None:
            self.open_incident(found, failed_at_s(found, renewal, now_s))
        elif renewal.part in (Part.STOPPING, Part.STOPPED):
            why = "was told to end by somebody else"
            self.open_incident(verdict.runner_lost(self.case.number + 1, self.generation, node, why), now_s)
        else:
            self.current.stalled, told = notes.of_stalls(node, self.current.stalled, renewal)
            self.asides += told
            self._see_progress(now_s)
        self.asides += notes.unwitnessed(node, renewal, self.current)
        if renewal.part in (Part.STOPPED, Part.FINISHED):
            self.current.end_on(node)
            self.see_whether_all_gone(now_s)

    def _see_progress(self, now_s: float) -> None:
        if self.current.reports.all_finished:
            self.succeed()
            return
        if self.phase is Phase.LAUNCHING and self.current.reports.all_launched:
            self.phase = Phase.RUNNING
            self.note("generation.ready", f"generation {self.generation}: every rank has started")
        limit_s = self.spec.stop.finish_timeout_s
        if limit_s is not None and self.current.reports.any_ended and self.finish_by_s is None:
            self.finish_by_s = now_s + limit_s

    # --- operator and time ---------------------------------------------------------------------------------------

    def _on_node_lost(self, node: str, by: str, now_s: float) -> None:
        self.note("operator.node_lost", f"{by} says that nothing of it runs on {node} any more", node=node, by=by)
        if self.takeover is not None and self.takeover.is_known:
            self._take_over(self.takeover, now_s)
        if self.phase in LIVE and node in self.current.alive:
            self._lapse(node, f"is lost, as {by} says", now_s)
        else:
            self._miss(node)
            self.form_if_forming(now_s)

    def _on_stop_requested(self, event: StopRequested, now_s: float) -> None:
        self.note("operator.stopped", f"stop requested by {event.by}, {orders.manner(event)}", by=event.by)
        if self.stop is None:  # not why it is held, but who came first
            self.reason = f"stopped by {event.by}"
        if self.phase not in LIVE and self.takeover is None:
            self.end(Phase.STOPPED, self.reason)
            return
        self.stop = orders.tighter(self.stop, event, self.generation, self.spec.stop.grace_s)
        if self.phase in LIVE:
            self.phase, self.finish_by_s = Phase.STOPPING, None

    def _on_tick(self, now_s: float) -> None:
        if self.backoff_until_s is not None and now_s >= self.backoff_until_s:
            self.begin_forming(now_s)
        else:
            self.form_if_forming(now_s)
        if self.finish_by_s is not None and now_s >= self.finish_by_s:
            self._on_finish_timeout(self.spec.stop.finish_timeout_s or 0.0, now_s)

    def _on_finish_timeout(self, limit_s: float, now_s: float) -> None:
        self.finish_by_s = None
        if (late := self.current.unended) is not None:  # else what they have left behind is ended, and ends by itself
            node, ranks = late
            found = verdict.unfinished(self.case.number + 1, self.generation, node, ranks, limit_s)
            self.open_incident(found, now_s)

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
        order = self.order_for(node, incarnation)
        if isinstance(order, Release) and self.roll.has(node, incarnation):  # it may have ended before it is needed
            self.roll.release(node, incarnation)
            self.rendezvous.forget(node)
        answer = Answer(number=number, epoch=self.epoch, order=order)
        return Send(node, incarnation, answer, via)

    def _check(self) -> None:
        assert self.current.gone <= self.seats.keys(), "a stranger takes part"
        assert len(self.roll.runners) == len(self.roll.newest), "a runner without a word of it"
        if self.phase in LIVE:
            assert self.seats, "live without a seat"
        if self.case.is_open:
            assert self.phase is Phase.STOPPING, "an incident outlived its generation"
