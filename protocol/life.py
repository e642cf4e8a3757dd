"""The life of a run's generations: how one is begun, ends of something, and is followed by the next, or by none.

What leads to that (reports, silence, operators, time): coordinator.py.
"""

from collections.abc import Callable

from msgspec.structs import replace

from protocol import notes, orders, restart
from protocol.case import INFRASTRUCTURE, failure_of, is_nodes_fault
from protocol.coordinator_events import LIVE, Blame, Note, Phase, RunRecord
from protocol.exclusion import Culprits
from protocol.generation import Generation
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.messages.control import Incident, Outcome
from protocol.rendezvous import Go, Hopeless
from protocol.restart import MAX_RESTARTS, Again, GiveUp, decide
from protocol.run_state import RunState
from protocol.seating import seats_for
from protocol.text import one_line, some_of
from protocol.timing import DEFAULTS, Timing

NOTE_TIME_S = 600.0
"""How often the run's own time is noted: so much of it is lost with supd, where no generation has become stable."""


class Life(RunState):
    """One run, as far as its generations come and go. `asides` are what is told of the event that is being handled;
    the rest as in Coordinator."""

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
        self.asides: list[Note | Blame] = []
        self._culprits = Culprits()
        self._noted_s: float | None = None  # when the run's own time was noted last
        self._excluded: dict[str, tuple[int, bool]] = {}  # node -> which time, and whether it is used, as told

    def begin_forming(self, now_s: float) -> None:
        """Gather nodes for the next generation, from now on."""
        self.phase, self.backoff_until_s, self.restart = Phase.FORMING, None, None
        self.planned = ""
        if self.stop is None:  # else it is why the run ends, once what is taken over has told
            self.reason = ""
        self.rendezvous.begin(self.without, now_s)
        self.form(now_s)

    def form_if_forming(self, now_s: float) -> None:
        """See whether the next generation can begin, where one is gathered for."""
        if self.phase is Phase.FORMING:
            self.form(now_s)

    def form(self, now_s: float) -> None:
        """Begin the next generation if enough nodes offer themselves, and none is being taken over. A coordinator
        that has just begun is told of the nodes of the fleet next: before that it cannot say that there are too few."""
        if self.takeover is not None or not self.rendezvous.seen:
            return
        if self.taken and self.spec.preemption.then == "exit" and not self.rendezvous.may_go_on():
            self._end_preempted()
            return
        match self.rendezvous.decide(self.must_not, now_s):
            case Hopeless(reason, lacks_nodes):
                self.lacked_nodes = lacks_nodes
                self.end(Phase.FAILED, reason)
            case Go(nodes, slots):
                self._launch(nodes, slots, now_s)
            case _:  # go on waiting
                pass

    def _end_preempted(self) -> None:
        step = self.saved_step
        saved = "no checkpoint was seen" if step is None else f"the last checkpoint that was seen is of step {step}"
        least, are = self.rendezvous.least, "is" if len(self.taken) == 1 else "are"
        self.end(Phase.PREEMPTED, f"{some_of(self.taken)} {are} taken away, and the job wants {least} nodes; {saved}")

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
            devices={node: self.rendezvous.devices(node) for node in nodes},
            resume_step=self.saved_step,
        )
        self.note_time(now_s)
        known_s = self.ledger.time_s
        self.current = Generation(self.generation + 1, seats.values(), launched_s=now_s, known_s=known_s)
        self.phase, self.without = Phase.LAUNCHING, ""
        self.rendezvous.launch(self.seats, slots)
        self.see_scale(now_s)
        self.asides += [notes.launched(self.seats, heirs), *notes.counted(self.generation, offers, self.counted)]

    def see_scale(self, now_s: float) -> None:
        """An operator's scale is done with a generation of so many nodes; with another one its time begins anew."""
        least, most = self.rendezvous.nnodes
        if least <= len(self.seats) <= most:
            self.scale_left_s = self.scale_s = None
            self.scale(None)
        elif self.scale_left_s is not None:
            self.scale_s = now_s + self.scale_left_s

    def scale(self, before: tuple[int, int] | None) -> None:
        """The run is on `nnodes` nodes from now on; or, until there has been such a generation, on those `before`."""
        self.nnodes_before = before
        if self.nnodes is not None:
            self.rendezvous.scale(self.nnodes, before)

    def open_incident(self, incident: Incident, ended_s: float) -> None:
        """The generation ends because of this; whatever ends from here on belongs to it (R4)."""
        self.phase, self.finish_by_s = Phase.STOPPING, None
        self.asides.append(self.case.open(incident, ended_s))

    def see_whether_all_gone(self, now_s: float) -> None:
        """Go on to what follows, once nothing of a generation that ends is alive anywhere."""
        if self.phase is Phase.STOPPING and self.current.is_gone:  # R1
            grace = orders.grace(self.stop, self.spec.stop.grace_s)
            lasted_s = self.current.lasted_s(now_s, self.run_s(now_s))
            self.asides.append(notes.ended(self.generation, self.parts.values(), lasted_s, grace))
            self._after_generation(now_s)

    def _after_generation(self, now_s: float) -> None:
        was_incident = self.case.close()
        if was_incident:
            self._blame_root()
        if self.current.reports.all_finished:
            self.succeed()
        elif self.stop is not None:
            self.end(Phase.STOPPED, self.reason)
        elif self.restart is not None:
            self.restart_reason = self.restart
            self.begin_forming(now_s)
        elif self._was_taken:
            self.restart_reason = one_line(self.case.incident.summary if self.case.incident is not None else "")
            self.note("restart.decided", "the node was under notice: not charged, at once", delay_s=0.0, charged=False)
            self.begin_forming(now_s)
        else:
            assert was_incident, "a generation ended without a cause"
            self._decide(now_s)

    @property
    def _was_taken(self) -> bool:
        """Whether the incident is that a node went which was to be taken away, or the signal that tells of that."""
        incident = self.case.incident
        if incident is None or incident.node not in self.taken:
            return False
        return incident.cause in INFRASTRUCTURE or incident.signal in self.spec.preemption.signals

    def _decide(self, now_s: float) -> None:
        incident = self.case.incident
        assert incident is not None
        self.note_time(now_s)
        failure = failure_of(
            incident,
            self.spec,
            self.current,
            chooses_port=self.chooses_port,
            has_ever_started=self.has_started,
            saved_step=self.saved_step,
            run_s=self.ledger.time_s,
        )
        decision, self.ledger = decide(self.spec.restart, self.ledger, failure, self._draw())
        match decision:
            case GiveUp():
                reason = f"{incident.summary}; {decision.why}"
                if decision.is_held:
                    self.phase, self.reason, self.restart_reason = Phase.HELD, reason, one_line(incident.summary)
                    self.rendezvous.part()
                    self.asides.append(notes.held(self.generation, self.spec.restart, self.ledger, decision, reason))
                else:
                    self.made_no_progress = decision.made_no_progress
                    self.end(Phase.FAILED, reason)
            case Again(delay_s):
                self.restart_reason = one_line(incident.summary)
                self.asides.append(notes.decided(self.generation, self.spec.restart, self.ledger, decision))
                if delay_s:
                    self.phase, self.backoff_s, self.backoff_until_s = Phase.BACKOFF, delay_s, now_s + delay_s
                else:
                    self.begin_forming(now_s)

    def _blame_root(self) -> None:
        """Tell on which node the incident began, where that says something about the node: a port that somebody else
        has taken does not, nor does a program that wants to be restarted, or fails wherever it is."""
        incident = self.case.incident
        assert incident is not None
        is_port = self.chooses_port and self.current.has_lost_its_port(incident.rank)
        is_wanted = incident.cause == "exit" and incident.exit_code in self.spec.restart.always_on_exit
        if not incident.is_root or is_port or is_wanted:
            return
        is_nodes = is_nodes_fault(incident, self.current)
        if is_nodes or self._culprits.blames(incident.cause_key or incident.cause, incident.node, self.seats):
            self.asides.append(Blame(incident.node))
            self.rendezvous.blame(incident.node)

    def resume(self, by: str, now_s: float) -> None:
        """An operator lets a run go on that is held; of another one the shell says so."""
        if self.phase is Phase.HELD:
            self.ledger = restart.resumed(self.ledger)
            self.note("operator.resumed", f"resumed by {by}: its budgets are as at its start", by=by)
            self.begin_forming(now_s)

    def see_exclusions(self) -> None:
        """Tell once of each node that the run does without for a while, and of each that has come back from that."""
        excluded = self.rendezvous.exclusions
        if not self._excluded and not excluded.all:
            return  # as nearly always
        now = {node: one for node, one in excluded.all.items() if self.rendezvous.may_use(node)}
        for node, one in now.items():
            is_used = self.rendezvous.uses(node)
            if self._excluded.get(node) != (one.times, is_used):
                self.asides.append(notes.excluded(node, one, excluded.now_s, is_used=is_used))
        back = {node for node in self._excluded if node not in now and excluded.is_on_parole(node)}
        told = {node for node in back if self.rendezvous.offers_soundly(node)}
        self.asides += map(notes.paroled, sorted(told))
        kept = {node: self._excluded[node] for node in back - told}
        self._excluded = kept | {node: (one.times, self.rendezvous.uses(node)) for node, one in now.items()}

    # --- the run's own time, and who pays for changes of membership ----------------------------------------------

    def run_s(self, now_s: float) -> float:
        """For how long coordinators have had this run, in seconds: a window of time that passes while none is away."""
        return self.ledger.time_s + (0.0 if self._noted_s is None else max(0.0, now_s - self._noted_s))

    def pass_time(self, now_s: float) -> None:
        """Note that time now and then, for where it outlives this coordinator: while something follows from it, and
        once a generation has become stable."""
        if self._noted_s is None:
            self._noted_s = now_s
        table, is_live = self.spec.restart, self.phase in LIVE
        is_due = now_s - self._noted_s >= NOTE_TIME_S and (is_live or table.restart_window_s > 0)
        if is_due or (is_live and self._is_stable(self.run_s(now_s)) and not self._is_stable(self.ledger.time_s)):
            self.note_time(now_s)

    def _is_stable(self, run_s: float) -> bool:
        return self.current.known_for_s(run_s) >= self.spec.restart.stable_after_s

    def note_time(self, now_s: float) -> None:
        """Have it in the next record."""
        self.ledger, self._noted_s = replace(self.ledger, time_s=self.run_s(now_s)), now_s

    def can_pay(self, now_s: float) -> bool:
        """Whether `max_restarts` has a restart left, for a change of membership that is charged."""
        return not restart.budget_of(self.spec.restart, self.ledger, MAX_RESTARTS, self.run_s(now_s)).is_spent

    def pay(self, now_s: float) -> None:
        """Charge a change of membership."""
        self.note_time(now_s)
        self.ledger = restart.charge(self.spec.restart, self.ledger, self.ledger.time_s)

    # --- its end -------------------------------------------------------------------------------------------------

    def succeed(self) -> None:
        """Every rank has done its work."""
        self.end(Phase.SUCCEEDED, "every rank ended with 0")

    def end(self, phase: Phase, reason: str) -> None:
        """The run is over, for this reason."""
        self.phase, self.reason, self.takeover = phase, reason, None
        self.backoff_until_s = self.finish_by_s = None
        self.rendezvous.rest()
        self.current.keep(*self.parts)
        self.note(f"job.{Outcome(phase.value)}", reason)

    def note(self, kind: str, text: str, **detail: str | int | float | bool | None) -> None:
        """Something users see in `supctl events`."""
        self.asides.append(Note(kind, text, None if self.generation == NO_GENERATION else self.generation, detail))
