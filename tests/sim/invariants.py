"""What must hold in every fleet at every moment, against what really happens in its world (docs/protocol.md, R1-R8).

The world tells what its workers do; machines are believed in nothing. Each check says which rule it stands for.
"""

from collections.abc import Callable

from protocol.coordinator import Coordinator
from protocol.coordinator_events import (
    FINAL,
    LIVE,
    Event,
    Heard,
    Note,
    Opened,
    Phase,
    RestartRequested,
    ResumeRequested,
    RunnerFailed,
    RunnerGone,
    RunRecord,
    ScaleRequested,
    Send,
    StopRequested,
)
from protocol.ids import NO_GENERATION
from protocol.member import Member
from protocol.member_events import SETTLED
from protocol.messages.control import RunStatus
from protocol.messages.member import Answer, Assignment, Part, Release, Renewal, Run, Stop, Tell, Wait
from protocol.timing import KILL_S
from tests.sim import coverage
from tests.sim.host import Journal
from tests.sim.kernel import Clock
from tests.sim.plan_rules import PlanRules
from tests.sim.runner import Machine, Runner
from tests.sim.setup import PHASE, Setup
from tests.sim.slot_rules import SlotRules
from tests.sim.step_rules import StepRules, is_given
from tests.sim.table_rules import TableRules
from tests.sim.truth import Facts, Truth
from tests.sim.waiting_rules import WaitingRules
from tests.sim.workers import Crew, Worker

RELEASED = 2**40, 2
"""The highest level of an order."""


class Invariants(Facts):
    """Sees everything, and raises AssertionError where a rule is broken."""

    def __init__(self, clock: Clock, journal: Journal, setup: Setup) -> None:
        super().__init__(clock, journal, setup)
        self.table = TableRules(self)
        self.on_moment: Callable[[str, object], None] = lambda moment, whom: None
        self._steps = StepRules(self)
        self._waits = WaitingRules(self)
        self._plans = PlanRules(self)
        self._slots = SlotRules(self)

    # --- workers -------------------------------------------------------------------------------------------------

    def on_spawned(self, worker: Worker) -> None:
        """R1, R2, R3, R8: a rank is there, of the present generation, as it was given out."""
        truth, record = self.runs[worker.run], self.record_of(worker.run)
        who = f"rank {worker.rank} of generation {worker.generation} on {worker.node}"
        for other in truth.living:
            is_other = other.generation != worker.generation and self.can_run(other)
            assert not is_other, f"R1: {who} beside generation {other.generation} on {other.node}"
        present = max(record.generation, truth.put_back)
        seat = truth.seats.get(worker.generation, {}).get(worker.node)
        elders = truth.elders.get(worker.generation, {}).get(worker.node)
        is_elders = elders is not None and elders.assignment == worker.assignment
        if is_elders and (seat is None or seat.assignment != worker.assignment):
            seat = elders  # by the word of a coordinator that does not know yet that there is a newer one
        else:
            assert worker.generation == present, f"R3: {who}, in generation {present}"
            assert record.phase not in FINAL, f"R3: {who}, and the run is {record.phase}"
        is_told = (worker.incarnation, worker.generation) in truth.launchable
        assert is_told, f"R3: {who}, by the word of a coordinator that was replaced"
        assert seat is not None, f"R8: {who}: {worker.node} has no seat on disk"
        assert seat.incarnation == worker.incarnation, f"R8: {who}: that seat is not its own"
        assert is_given(worker.assignment, seat.assignment), f"R2: {who}: not what was given out"
        ranks = truth.spawned[worker.generation]
        assert worker.rank not in ranks, f"R2: {who} is there twice"
        assert worker.generation >= max(truth.spawned), f"R3: {who} after a later generation"
        self._plans.on_spawned(worker)
        self._slots.on_spawned(worker)
        ranks[worker.rank] = worker
        truth.living.append(worker)

    def on_ended(self, worker: Worker) -> None:
        """Nothing of a rank can run user code any more."""
        truth = self.runs[worker.run]
        truth.living.remove(worker)
        if worker.generation == truth.before.generation and truth.before.phase in LIVE:
            truth.ended_s = self.clock.now_s
        assert not self.must_go_on, f"R6: rank {worker.rank} of generation {worker.generation} on {worker.node} ends"

    def on_saved(self, worker: Worker) -> None:
        """A rank has written a checkpoint."""
        self.runs[worker.run].wishes.saves[worker.generation].append(self.clock.now_s)

    def on_fenced(self, crew: Crew) -> None:
        """A lease is over, as a runner or its guard sees it."""
        self.runs[crew.run].fenced.add((crew.generation, crew.node))

    def on_supd_started(self, node: str) -> None:
        """Another start of a node's supd: what the one before was sent is over."""
        self.nodes.noticed.pop(node, None)
        self.nodes.lifted_s[node] = self.clock.now_s

    def on_frozen(self, machine: Machine) -> None:
        """A whole machine stands still. What has overlapped is gone once its guards have read the clock."""
        self.clock.at(machine.thaws_s + KILL_S + 0.001, self._check_alone)

    def _check_alone(self) -> None:
        """R1: what runs is of one generation."""
        for run, truth in self.runs.items():
            where = {worker.generation: worker.node for worker in truth.living if self.can_run(worker)}
            assert len(where) < 2, f"R1: generations of {run} beside each other, on {where}"

    def on_failed(self, worker: Worker) -> None:
        """A rank has failed by itself, or could not even be spawned."""
        self.clock.tell("world", "{}: rank {} of g{} fails", worker.run, worker.rank, worker.generation)
        self.runs[worker.run].harmed[worker.generation].setdefault(worker.rank, self.clock.now_s)

    # --- runners -------------------------------------------------------------------------------------------------

    def on_runner_started(self, runner: Runner) -> None:
        """One runner a run and machine."""
        key = (runner.machine.place, runner.run)
        old = self.runners.get(key)
        assert old is None or not old.lock_is_held, f"{runner.incarnation} beside {old.incarnation} on {key[0]}"
        self.runners[key] = runner

    def on_runner_ended(self, runner: Runner) -> None:
        """It is gone, or on its way."""
        self.runs[runner.run].lost_runners.add(runner.incarnation)

    def on_reported(self, runner: Runner, renewal: Renewal) -> None:
        """R1: who says that nothing is left is right."""
        if renewal.part in (Part.STOPPED, Part.FINISHED):
            assert not runner.crew.may_run, f"R1: {runner.incarnation} is {renewal.part} and its ranks run"

    def on_part(self, runner: Runner, before: Part, after: Part) -> None:
        """A member's part of its generation has changed."""
        self.clock.seen[f"member: {before} to {after}"] += 1
        self.on_moment("runner killed after it reports another part", runner)
        if after is Part.FINISHED:
            self.on_moment("runner killed after its ranks have finished", runner)

    def on_buried(self) -> None:
        """A supd has told that a runner is gone."""
        self.on_moment("host killed after a burial", None)

    def on_ordered(self, runner: Runner, member: Member, answer: Answer) -> None:
        """An order reaches a runner: it obeys nobody after a newer coordinator has answered it."""
        newest = self.heard[runner.incarnation] = max(self.heard.get(runner.incarnation, 0), answer.epoch)
        if answer.epoch == newest and isinstance(answer.order, Run):
            self.runs[runner.run].launchable.add((runner.incarnation, answer.order.assignment.generation))
        coverage.of_answer(self.clock.seen, member, answer)

    # --- the coordinator -----------------------------------------------------------------------------------------

    def on_accepted(self, run: str) -> None:
        """A run is in the journal."""
        self.runs[run] = Truth(accepted_s=self.clock.now_s)

    def on_started(self, run: str) -> None:
        """An operator was told that a start was accepted."""
        self.started.add(run)

    def on_event(self, run: str, machine: Coordinator, event: Event) -> None:
        """A machine is about to be handed an event."""
        truth, now_s = self.runs[run], self.clock.now_s
        match event:
            case Opened():
                truth.gathers_since_s = now_s
                truth.offered.clear()
                truth.phase, truth.number = machine.phase, machine.generation
                if not machine.is_final:  # who was let go by the one before, and has not heard of that, may stay
                    truth.orders = {who: level for who, level in truth.orders.items() if level < RELEASED}
            case Heard(_, incarnation, renewal):
                self.unknown.discard(incarnation)
                if renewal.assignment is not None:
                    self._name(run, renewal.assignment)
                if renewal.offer is not None and renewal.part in SETTLED:
                    truth.offered[incarnation] = now_s, renewal.offer.port
            case RunnerFailed(node):
                truth.failed_starts[node] += 1
            case RunnerGone(node, incarnation):
                truth.failed_starts[node] += incarnation not in truth.offered
            case StopRequested():
                truth.asked_stop = True
            case RestartRequested(without=without):
                truth.asked_restart.add(machine.generation)
                truth.without, truth.untold = without, truth.untold + 1
                truth.gathers_since_s = now_s
            case _:
                pass
        self._plans.on_event(run, machine, event)
        coverage.of_event(self.clock.seen, machine, event)

    def may_wait(self, run: str) -> bool:
        """Whether other runs have what a run needs: not where all wait."""
        others = (record.phase for other, record in self.journal.runs.items() if other != run)
        have_others = any(phase not in FINAL and phase is not Phase.FORMING for phase in others)
        return have_others and self.setup.slots is not None and not self._slots.is_starved(run)

    def owes(self, run: str, record: RunRecord) -> list[str]:
        """Nodes that a run is to leave, and could, and has not left."""
        return list(self._plans.owes(run, record))

    def on_looked(self, run: str, machine: Coordinator, status: RunStatus, now_s: float) -> None:
        """Somebody has looked at a run."""
        self._slots.on_looked(run, is_pending=machine.rendezvous.lacks_slots)
        self._waits.on_looked(run, machine, status)
        self._waits.on_silence(run, machine, status, now_s)

    def on_phase(self, run: str, before: Phase, machine: Coordinator) -> None:
        """A machine has gone on to another phase."""
        truth = self.runs[run]
        is_taken_over = machine.generation != truth.number and machine.current.launched_s is None
        if not is_taken_over:
            self.clock.seen[f"coordinator: {before} to {machine.phase}"] += 1
        truth.phase, truth.number = machine.phase, machine.generation
        self.on_moment(PHASE, run)
        match machine.phase:
            case Phase.FORMING:
                self.runs[run].gathers_since_s = self.clock.now_s
            case Phase.LAUNCHING:
                self._waits.on_launched(run, machine)
            case Phase.BACKOFF:
                self.on_moment("operator stops in a backoff", run)
            case _:
                pass

    def on_noted(self, run: str, note: Note) -> None:
        """Something is told to users."""
        self.clock.tell(run, "{}: {}", note.kind, note.text)

    def on_wanted(self, run: str, machine: Coordinator, nodes: frozenset[str]) -> None:
        """Runners are asked for on nodes that the job may have, and on no more than it can use."""
        record = self.record_of(run)
        most = (record.nnodes or self.spec_of(run, record).topology.nnodes)[1]
        assert len(nodes) <= most, f"wants {sorted(nodes)} for at most {most} nodes"
        for node in nodes:
            assert self.may_have(node), f"wants a runner on {node}, which the job excludes"
        if machine.phase is Phase.FORMING:
            assert machine.without not in nodes, f"wants a runner on {machine.without}, which is to be left out"
        self.runs[run].wanted = nodes
        self.clock.tell(run, "wants {}", ",".join(sorted(nodes)) or "nothing")

    def on_sent(self, run: str, machine: Coordinator, send: Send) -> None:
        """R3: orders only go up; R8: they rest on what is on disk."""
        truth, record, order = self.runs[run], self.record_of(run), send.answer.order
        on_disk = (record.phase, record.generation, record.stop, record.restart, record.without)
        state = (machine.phase, machine.generation, machine.stop, machine.restart, machine.without)
        assert on_disk == state, f"R8: {order} is sent in {state}, and on disk is {on_disk}"
        match order:
            case Wait():
                level = (NO_GENERATION, 0)
            case Run(assignment):
                level = (assignment.generation, 0)
                who = [s.assignment for s in record.seats if (s.node, s.incarnation) == (send.node, send.incarnation)]
                assert who == [assignment], f"R2: {send.incarnation} is told to run {assignment}, and has {who}"
                assert record.phase in (Phase.LAUNCHING, Phase.RUNNING), f"R3: run, in {record.phase}"
            case Stop(generation):
                level = (generation, 1)
            case Release():
                level = RELEASED
            case Tell():
                return  # it knows better
        if send.incarnation in truth.lost_runners:
            return  # the answer to what it has left behind reaches nobody
        highest = truth.orders.get(send.incarnation, (NO_GENERATION, 0))
        assert level >= highest, f"R3: {send.incarnation} is told {order} after {highest}"
        truth.orders[send.incarnation] = level

    def on_persisted(self, run: str, record: RunRecord) -> None:
        """Each step of a run is one it may take, for a reason that is true."""
        truth = self.runs[run]
        self.on_moment("host killed after a write", None)
        before, truth.before = truth.before, record
        if record == before:
            return  # once more, by a coordinator that did not know that it had been written
        truth.history.append(record)
        self.clock.tell(run, "on disk: g{} {}", record.generation, record.phase)
        self._steps.check(run, before, record)

    def on_journal_lost(self) -> None:
        """The journal is empty: what runs is still known to its runners, and nothing else is known of any run."""
        self.is_journal_lost = True
        self.started.clear()
        self.table.on_journal_lost()
        self.unknown = {runner.incarnation for runner in self.runners.values() if runner.is_alive}
        for run in self.journal.runs:
            self.on_put_back(run, RunRecord())

    def on_taken_over(self, run: str, incarnation: str) -> None:
        """A runner has told of a run that the journal had lost."""
        self.clock.seen["taken: run that was not known"] += 1
        self.unknown.discard(incarnation)

    def _name(self, run: str, assignment: Assignment) -> None:
        """A runner has told who its witnesses are: that tells nothing of what they have launched since."""
        for witness in assignment.witnesses:
            runner = self.runners.get((witness.node, run))
            member = runner.member if runner is not None else None
            if member is None or member.generation <= assignment.generation:
                self.unknown.discard(witness.incarnation)

    def on_put_back(self, run: str, record: RunRecord) -> None:
        """The journal has an older record again: what was decided since is forgotten, and what runs is not."""
        truth = self.runs[run]
        self.aged.add(run)
        truth.put_back, truth.before = max(truth.put_back, truth.before.generation), record
        truth.streak = 0
        truth.charged = {generation for generation in truth.charged if generation < record.generation}
        truth.told_restart = {generation for generation in truth.told_restart if generation < record.generation}
        truth.orders.clear()

    def on_given_by_elder(self, run: str, record: RunRecord) -> None:
        """A coordinator beside the newest one has put that on disk: to the newest it is news, if it hears of it."""
        truth, number = self.runs.get(run), record.generation
        if truth is None or not record.seats:
            return
        given = truth.elders[number] = {seat.node: seat for seat in record.seats}
        if number > max(self.record_of(run).generation, truth.put_back):
            truth.put_back, truth.seats[number], truth.launched_s[number] = number, given, self.clock.now_s

    # --- operators -----------------------------------------------------------------------------------------------

    def on_told(self, run: str, event: Event) -> None:
        """R8: what an operator was told is on disk."""
        truth, record = self.runs[run], self.record_of(run)
        match event:
            case StopRequested(now=now):
                assert record.phase in FINAL or record.stop is not None, "R8: a stop was accepted, and is not on disk"
                truth.told_stop = record.phase not in FINAL
                if truth.told_stop and record.stop is not None:
                    assert record.stop.now or not now, "R8: a stop without grace was accepted, and is not on disk"
            case RestartRequested(without=without):
                truth.untold = 0
                if record.phase in LIVE and record.stop is None:
                    assert record.restart is not None or record.phase is Phase.LAUNCHING, "R8: a restart is not on disk"
                    if record.restart is not None:
                        truth.told_restart.add(record.generation)
                        truth.must_leave = without or truth.must_leave
                elif record.phase in (Phase.FORMING, Phase.BACKOFF):
                    truth.must_leave = without
            case ScaleRequested() | ResumeRequested():
                self._plans.on_told(run, event)
            case _:
                raise AssertionError(event)
