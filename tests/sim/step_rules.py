"""What must hold of every step of a run, as it comes to the disk (docs/protocol.md, R1-R8)."""

import msgspec

from protocol.case import INFRASTRUCTURE
from protocol.coordinator_events import FINAL, Phase, RunRecord, Seat
from protocol.ids import NO_GENERATION
from protocol.job import TopologyTable
from protocol.messages.member import Assignment
from protocol.pool import ATTEMPTS_MAX
from protocol.restart import CAUSE_IN_A_ROW_MAX
from protocol.timing import DRIFT
from tests.sim.network import CALM
from tests.sim.plan_rules import PlanRules, ends_as_planned
from tests.sim.setup import OFF_S
from tests.sim.slot_rules import SlotRules
from tests.sim.truth import HELPED_S, NOTICED_S, WRITING_S, Facts, Truth, world_size

TOLD_S = 7.0
"""How much later than written a checkpoint may be told of."""

LAST_CALL_LEAST_S = 2.0
"""Where a job waits for less at last call, a node may miss it."""

TELLING_S = 0.3
"""How long it takes until the end of a rank is told, where nothing but loss happens to what is said."""

QUIET_S = 12.0
"""What has happened earlier than so long ago ends no lease any more."""


def _core(seat: Seat) -> tuple[object, ...]:
    """What a seat is, but for its witnesses."""
    return seat.node, seat.incarnation, msgspec.structs.replace(seat.assignment, witnesses=())


def is_given(assignment: Assignment, given: Assignment) -> bool:
    """Whether it is what was given out. Where only others have named its runner, not all witnesses need be known."""
    are_same = msgspec.structs.replace(assignment, witnesses=given.witnesses) == given
    return are_same and set(assignment.witnesses) <= set(given.witnesses)


class StepRules:
    """Holds each record of a run against the one before it, and against what has really happened."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._clock = facts.clock
        self._setup = facts.setup
        self._plans = PlanRules(facts)
        self._slots = SlotRules(facts)

    def check(self, run: str, before: RunRecord, record: RunRecord) -> None:
        """R2, R4, R6, R8: the step is one that it may take, for a reason that is true."""
        truth = self._facts.runs[run]
        self._plans.check(run, before, record)
        if record.ledger.step != before.ledger.step:
            self._facts.runs[run].wishes.stepped.add(record.generation)
        assert before.phase not in FINAL, f"a run that was {before.phase} goes on"
        if before.generation < record.generation and self._is_recalled(truth, record):
            truth.recall(record.generation)
            self._check_taken_over(truth, record)
            return
        if before.generation < record.generation and before.generation < truth.put_back:
            if self._is_new(run, truth, record):
                self._check_generation(run, truth, before, record)
            else:
                self._check_taken_over(truth, record)
            return
        if record.generation != before.generation:
            self._check_generation(run, truth, before, record)
        self._check_incident(truth, before, record)
        is_same = record.generation == before.generation and record.phase in (Phase.LAUNCHING, Phase.RUNNING)
        why = record.incident.summary if record.incident is not None else record.restart or record.reason
        is_same |= before.generation == NO_GENERATION  # a coordinator without a journal has not heard of any yet
        assert is_same or not self._facts.must_go_on, f"R6: generation {before.generation} ends: {why}"
        if record.phase is Phase.STOPPING and before.phase is not Phase.STOPPING:
            has_cause = record.incident_is_open or truth.asked_stop or record.generation in truth.asked_restart
            has_cause |= record.generation in truth.wishes.ends
            assert has_cause, f"R6: generation {record.generation} is ended without a cause"
        if record.phase is Phase.HELD and before.phase is not Phase.HELD:
            self._check_refusal(truth, before, record)
        if record.phase in FINAL:
            self._check_end(run, truth, before, record)
        self._check_losses(run, before, record)

    def _is_new(self, run: str, truth: Truth, record: RunRecord) -> bool:
        """Whether a generation has begun, in the same moment in which an earlier one was taken over. It may have a
        number that was given out before, where only the journal knew of that: nothing runs that has it."""
        number, given = record.generation, list(truth.seats.get(record.generation, {}).values())
        if not record.seats or list(map(_core, record.seats)) == list(map(_core, given)):
            return False
        if number <= truth.put_back and record.phase is not Phase.LAUNCHING:
            return False
        if number <= truth.put_back:
            self._clock.seen["taken: number of a generation that was lost with the journal"] += 1
            ranks = [worker.rank for worker in self._facts.running(run, number)]
            assert not ranks, f"R1: generation {number} begins again, and ranks {ranks} of it run"
            truth.put_back = number - 1
            truth.forget(number)
        return True

    @staticmethod
    def _is_recalled(truth: Truth, record: RunRecord) -> bool:
        """Whether a generation is taken over that was forgotten, and runs: ranks of an earlier number began meanwhile,
        by a coordinator that had not heard of it."""
        known = truth.forgotten.get(record.generation)
        return known is not None and list(map(_core, record.seats)) == list(map(_core, known.seats.values()))

    def _check_taken_over(self, truth: Truth, record: RunRecord) -> None:
        """R2, R6: a coordinator that was behind takes the generation over that runs, as it was given out; or, where
        nothing runs that it could know of, it has a number that nobody had."""
        if not record.seats:
            self._clock.seen["taken: number of a generation of which nothing is known"] += 1
            assert record.generation > truth.put_back, f"R3: generation {record.generation} again"
            truth.put_back = record.generation
            return
        self._clock.seen["taken: generation of a runner that was ahead"] += 1
        assert record.generation <= truth.put_back, f"R3: generation {record.generation} is taken over, and never was"
        given = truth.seats[record.generation]
        for seat in record.seats:
            true = given.get(seat.node)
            assert true is not None, f"R2: {seat.node} had no seat in generation {record.generation}"
            is_same = seat.incarnation == true.incarnation and is_given(seat.assignment, true.assignment)
            assert is_same, f"R2: taken over as {seat}, and given out as {true}"

    def _check_losses(self, run: str, before: RunRecord, record: RunRecord) -> None:
        """R1: who is lost runs nothing; and what a generation has ended of is gone when the next one may begin."""
        facts, number = self._facts, before.generation
        if record.generation == number:
            for node in set(record.lapsed) - set(before.lapsed):
                self._clock.seen["taken: node that is lost"] += 1
                ranks = [worker.rank for worker in facts.running(run, number, node)]
                assert not ranks, f"R1: {node} is lost, and ranks {ranks} of generation {number} run there"
        if before.phase is Phase.STOPPING and record.phase in (Phase.FORMING, Phase.BACKOFF, Phase.LAUNCHING):
            ranks = [worker.rank for worker in facts.running(run, number)]
            assert not ranks, f"R1: generation {number} is over, and ranks {ranks} of it run"

    # --- a generation begins -------------------------------------------------------------------------------------

    def _check_generation(self, run: str, truth: Truth, before: RunRecord, record: RunRecord) -> None:
        number, spec = record.generation, self._facts.spec_of(run, record)
        last = max(before.generation, truth.put_back)  # it may have heard of that one in the same moment
        steps = (1, 2) if before.generation < last else (1,)  # one may be left out where nobody knows what had it
        assert number - last in steps, f"R3: generation {number} after {last}"
        assert not truth.told_stop, f"R8: generation {number} begins after a stop was accepted"
        self._check_again(truth, before, record)
        if before.generation == last:
            self._check_slots(before, record)
        self._check_digests(record)
        self._check_last_call(truth, before, record, spec.topology)
        self._check_seats(truth, before, record, spec.topology)
        self._plans.check_seats(truth, before, record, spec)
        self._slots.check_turn(run, before, record)
        truth.seats[number] = {seat.node: seat for seat in record.seats}
        truth.launched_s[number] = self._clock.now_s
        truth.without, truth.must_leave, truth.put_back = None, "", NO_GENERATION

    def _check_again(self, truth: Truth, before: RunRecord, record: RunRecord) -> None:
        """R4: there is a cause, and from the second failure in a row on there was a wait."""
        last = before.generation
        if last == NO_GENERATION or before.generation <= truth.put_back:
            return  # what that one ended of was not told to this coordinator
        was_asked = last in truth.asked_restart or last in truth.wishes.ends
        was_taken = last in truth.wishes.taken
        had_incident = record.incident is not None and record.incident.generation == last
        assert had_incident or was_asked, f"R4: generation {record.generation} has no cause"
        if last in truth.wishes.resumed:  # all counts are as at the start, that of this failure too
            truth.streak, truth.failed_s = 0, self._clock.now_s
            return
        if was_asked or was_taken:
            return
        table = self._setup.spec.restart
        may_be_stable = self._clock.now_s - truth.launched_s[last] + WRITING_S >= table.stable_after_s
        may_be_stable |= truth.wishes.has_saved_since(truth.failed_s - TOLD_S)  # that is progress
        may_be_stable |= last in truth.wishes.stepped and any(truth.wishes.saves.values())
        truth.failed_s = self._clock.now_s
        streak = 0 if may_be_stable else truth.streak
        truth.streak = streak + 1
        least_s = min(table.backoff_s * 2.0 ** (streak - 1), table.backoff_max_s) / 2 if streak else 0.0
        waited_s = self._clock.now_s - truth.ended_s
        assert waited_s >= least_s / (1 + DRIFT) - 0.01, (
            f"failure {streak + 1} in a row, and a wait of {waited_s:.1f} s"
        )

    def _check_seats(self, truth: Truth, before: RunRecord, record: RunRecord, table: TopologyTable) -> None:
        """R2: the ranks are distinct, contiguous, and agree."""
        seats, number = record.seats, record.generation
        assert table.nnodes[0] <= len(seats) <= table.nnodes_wanted, (
            f"{len(seats)} nodes for {table.nnodes}, {table.extra_nodes}"
        )
        first, next_rank = seats[0].assignment, 0
        for place, seat in enumerate(seats):
            given = seat.assignment
            assert self._facts.may_have(seat.node), f"{seat.node} has ranks, and the job excludes it"
            is_told = truth.without in (None, before.without)  # else by a later wish, which is on its way to the disk
            assert seat.node != before.without or not is_told, f"{seat.node} has ranks, and was to be left out"
            assert seat.node != truth.must_leave or truth.untold, f"R8: {seat.node} has ranks, and was to be left out"
            assert seat.incarnation not in truth.orders or truth.orders[seat.incarnation] < (2**40, 0), (
                f"R3: {seat.incarnation} has ranks, and was released"
            )
            assert (given.generation, given.node_rank, given.nnodes) == (number, place, len(seats)), f"R2: {given}"
            assert given.first_rank == next_rank, f"R2: ranks are not contiguous: {given}"
            assert given.nproc > 0, f"R2: {seat.node} has a seat and no rank"
            same = (first.world_size, first.master_addr, first.master_port)
            assert (given.world_size, given.master_addr, given.master_port) == same, f"R2: {given} beside {first}"
            next_rank += given.nproc
        assert next_rank == first.world_size, f"R2: {next_rank} ranks in a world of {first.world_size}"
        assert first.master_addr == f"10.0.0.{seats[0].node}", f"R2: {first.master_addr} is not {seats[0].node}"
        if before.seats and before.generation >= truth.put_back:
            assert first.master_port != before.seats[0].assignment.master_port, "R2: the last generation's port"

    def _check_slots(self, before: RunRecord, record: RunRecord) -> None:
        """A node keeps its place; who is new has the lowest one that is free."""
        nodes = [seat.node for seat in record.seats]
        slots = [record.slots[node] for node in nodes]
        assert slots == sorted(set(slots)), f"ranks are not in the order of slots {slots}"
        assert len(set(record.slots.values())) == len(record.slots), f"a slot is held twice: {record.slots}"
        kept = {node: before.slots[node] for node in nodes if node in before.slots}
        for node, slot in kept.items():
            assert record.slots[node] == slot, f"{node} had slot {slot}, and has {record.slots[node]}"
        free = [slot for slot in range(len(nodes) + len(before.slots)) if slot not in kept.values()]
        new = sorted(record.slots[node] for node in nodes if node not in kept)
        assert new == free[: len(new)], f"slots {new} were given out, and {free[: len(new)]} were free"

    def _check_digests(self, record: RunRecord) -> None:
        kinds = {self._setup.digests.get(seat.node, "one") for seat in record.seats}
        assert len(kinds) == 1 or self._setup.allow_mixed, f"nodes run {sorted(kinds)} together"

    def _check_last_call(self, truth: Truth, before: RunRecord, record: RunRecord, table: TopologyTable) -> None:
        """No generation is smaller than the job wants while a node is there that nothing has happened to."""
        setup, facts = self._setup, self._facts
        rivals = [node for node in facts.could if node in before.slots or facts.is_steady(node)]
        is_rough = setup.weather is not CALM or setup.start_fails > 0 or setup.slow_write > 0
        is_rough |= "stranger" in setup.every_s
        are_disturbed = (is_rough and facts.has_faults) or setup.twin or setup.digests
        is_full = len(record.seats) >= table.nnodes_wanted or len(rivals) > table.nnodes[1]
        if are_disturbed or is_full or not facts.is_steady(facts.host):
            return
        is_reloaded = self._clock.now_s < truth.wishes.reloaded_s + NOTICED_S
        if is_reloaded or setup.spec.rendezvous.last_call_s < LAST_CALL_LEAST_S:
            return
        left_out = {before.without, truth.without, *(seat.node for seat in record.seats)}
        left_out |= {seat.node for seat in before.seats if self._is_silent(before, seat)}
        left_out |= self._facts.spared(record)
        missing = [node for node in facts.could if facts.is_steady(node) and node not in left_out]
        assert not missing, f"generation {record.generation} did not wait for {missing} (last call)"

    def _is_silent(self, before: RunRecord, seat: Seat) -> bool:
        """Whether the node was lost, and its dead runner is not swept yet, so that nobody there can be heard (L7)."""
        newest = [r for r in self._facts.runners.values() if r.incarnation == seat.incarnation]
        return seat.node in before.lapsed and any(not runner.is_alive for runner in newest)

    # --- it ends -------------------------------------------------------------------------------------------------

    def _check_incident(self, truth: Truth, before: RunRecord, record: RunRecord) -> None:
        """R4: one a generation, charged once. R6: it has a cause, and that is true."""
        incident = record.incident
        assert record.incidents - before.incidents in (0, 1), "R4: two incidents at once"
        if record.incidents > before.incidents:
            assert incident is not None
            assert before.incident is None or before.incident.generation < incident.generation, (
                f"R4: a second incident of generation {incident.generation}"
            )
        if incident is not None and (incident != before.incident or before.incident_is_open):
            self._check_cause(truth, record)
        was_resumed = before.phase is Phase.HELD and record.phase is not Phase.HELD
        is_apart = was_resumed or ends_as_planned(before, record)  # it is no failure of which that comes
        if (spent := record.ledger.used - before.ledger.used) != 0 and not is_apart:
            assert spent == 1, f"R4: {spent} restarts are charged at once"
            assert before.generation not in truth.charged, f"R4: generation {before.generation} is charged twice"
            assert incident is not None
            table = self._setup.spec.restart
            is_infra = incident.cause in INFRASTRUCTURE and not table.count_membership
            assert not is_infra, f"R4: {incident.cause} is charged"
            truth.charged.add(before.generation)
            has_limit = table.max_restarts >= 0 and not table.restart_window_s
            is_within = not has_limit or record.ledger.used <= table.max_restarts
            assert is_within, f"restart {record.ledger.used} of {table.max_restarts}"
        elif before.incident_is_open and not record.incident_is_open and record.phase in (Phase.BACKOFF, Phase.FORMING):
            table = self._setup.spec.restart
            is_charged = before.restart is None and incident is not None and incident.cause not in INFRASTRUCTURE
            is_free = incident is not None and incident.exit_code in table.always_on_exit
            is_free |= incident is not None and incident.node in before.preempted
            is_free |= record.ledger.infra_used > before.ledger.infra_used  # a node that could not spawn
            assert not is_charged or is_free, f"R4: generation {before.generation} failed, and nobody is charged"

    def _check_cause(self, truth: Truth, record: RunRecord) -> None:
        incident = record.incident
        assert incident is not None
        harmed = truth.harmed[incident.generation]
        nodes = truth.seats[incident.generation]
        assert incident.node in nodes, f"R4: {incident.summary}: {incident.node} has no seat"
        seat = nodes[incident.node]
        match incident.cause:
            case "runner-lost":
                is_true = seat.incarnation in truth.lost_runners or incident.generation < truth.put_back
                is_true |= incident.generation in truth.elders  # an older coordinator may have ended it
                assert is_true, f"R6: {incident.summary}, and it lives"
            case "node-lost":
                if incident.node not in self._facts.declared:
                    self._check_is_disturbed(incident.summary)
            case "fenced":
                self._check_is_disturbed(incident.summary)
                is_true = (incident.generation, incident.node) in truth.fenced
                assert is_true, f"R6: {incident.summary}, and its ranks were left alone"
            case "finish-timeout":
                ranks = truth.spawned[incident.generation].values()
                assert any(worker.exit is not None for worker in ranks), f"R6: {incident.summary}"
                truth.late_ends.add(incident.generation)
            case _:
                assert incident.rank in harmed, f"R6: {incident.summary}, which did not fail by itself ({harmed})"
                is_over = not record.incident_is_open and self._setup.program.unspawnable == 0
                is_over &= incident.generation not in truth.late_ends  # it is told how the late one ended, then
                if is_over and self._facts.is_clear(truth, incident.generation):
                    is_first = harmed[incident.rank] <= min(harmed.values()) + TELLING_S
                    assert is_first, f"R4: {incident.summary}, but {harmed} failed before"

    def _check_is_disturbed(self, summary: str) -> None:
        """R6: where nothing happens, and what is said is heard, no lease ends."""
        shaken_s = max(self._facts.shaken_s.values())
        is_calm = self._setup.weather is CALM and shaken_s + QUIET_S < self._clock.now_s
        assert not is_calm, f"R6: {summary}, and nothing has happened since {shaken_s:.1f}"

    # --- the run ends --------------------------------------------------------------------------------------------

    def _check_end(self, run: str, truth: Truth, before: RunRecord, record: RunRecord) -> None:
        """The final state is true."""
        ranks = truth.spawned[record.generation]
        ends = {worker.exit for worker in ranks.values()}
        match record.phase:
            case Phase.SUCCEEDED:
                is_true = ends == {(0, None)} and len(ranks) == world_size(record)
                assert is_true, f"it has succeeded, and its ranks ended with {ends}"
            case Phase.STOPPED:
                assert truth.asked_stop, "it is stopped, and nobody asked for that"
            case Phase.PREEMPTED:
                is_true = self._setup.spec.preemption.then == "exit" and bool(record.preempted)
                assert is_true, f"it is over for a notice that nobody has given: {record.reason}"
            case Phase.FAILED:
                assert not truth.told_stop, "R8: a stop was accepted, and the run failed"
                if record.lacked_nodes:
                    self._check_lack(run, truth, record, {before.without, truth.without})
                elif record.incident is not None and record.reason.startswith(f"{record.incident.summary}; "):
                    self._check_refusal(truth, before, record)
                else:
                    self._check_hopeless(truth, record)
            case _:
                raise AssertionError(record.phase)
        assert record.phase is Phase.FAILED or not record.lacked_nodes, "it lacked nodes, and that did not matter"

    def _check_refusal(self, truth: Truth, before: RunRecord, record: RunRecord) -> None:
        """The policy wants no other generation, and says why."""
        assert record.generation not in truth.told_restart, (
            f"R8: a restart of generation {record.generation} was accepted, and the run failed: {record.reason}"
        )
        table, incident = self._setup.spec.restart, record.incident
        assert incident is not None, f"it failed without an incident: {record.reason}"
        is_new = incident.generation == record.generation or truth.put_back == record.generation
        assert is_new, f"it failed of what was long ago: {record.reason}"
        never_started = not record.has_started and table.on_startup_failure == "fail"
        is_held = record.phase is Phase.HELD
        is_limit = is_held is (table.on_budget_spent == "hold")
        may_exceed = table.restart_window_s > 0 or table.count_membership  # operators scale whatever is left of it
        used, infra_used = before.ledger.used, before.ledger.infra_used
        reasons = {
            '"never"': table.policy == "never",
            "never_on_exit": incident.exit_code in table.never_on_exit,
            "never started": never_started and incident.cause not in INFRASTRUCTURE,
        }
        limits = {
            "of one cause": record.incidents > CAUSE_IN_A_ROW_MAX,
            "no progress": record.incidents >= table.no_progress_limit > 0,
            "; restart budget spent": used >= table.max_restarts >= 0 and (may_exceed or used == table.max_restarts),
            "infrastructure restart budget spent": infra_used >= table.max_infra_restarts >= 0,
        }
        reasons = ({} if is_held else reasons) | (limits if is_limit else {})
        true = [word for word, is_so in reasons.items() if word in record.reason and is_so]
        assert true, f"it failed, and that is not why: {record.reason}"

    def _check_hopeless(self, truth: Truth, record: RunRecord) -> None:
        """A node cannot run it, or not what the others run."""
        if "would not run the same" in record.reason:
            are_mixed = self._setup.digests and not self._setup.allow_mixed
            assert are_mixed, f"they would run the same, or need not: {record.reason}"
            return
        node = record.reason.partition(":")[0]
        could_not_start = truth.failed_starts[node] >= ATTEMPTS_MAX and "no runner could be started" in record.reason
        assert node in self._setup.broken or could_not_start, f"nothing is wrong with it: {record.reason}"

    def _check_lack(self, run: str, truth: Truth, record: RunRecord, left_out: set[str | None]) -> None:
        """Who lacked nodes did so for as long as the job waits, and until now, or nearly: as many as it needs would
        have been enough at any moment."""
        waited_s = self._clock.now_s - truth.gathers_since_s
        limit_s = self._setup.spec.rendezvous.join_timeout_s
        assert waited_s >= limit_s / (1 + DRIFT) - 0.01, (
            f"it lacked nodes for {waited_s:.1f} s, and waits for {limit_s:g} s"
        )
        if self._facts.quiet_since_s is None:
            return
        quiet_s = self._clock.now_s - self._facts.quiet_since_s
        left_out |= self._facts.nodes.drains.keys() | record.preempted.keys() | self._facts.just_lifted
        could = [node for node in self._facts.could if node not in left_out]
        is_true = len(could) < self._facts.spec_of(run, record).topology.nnodes[0]
        recovery_s = max(self._setup.away_s[1], OFF_S[1]) + 10.0 + (25.0 if "stranger" in self._setup.every_s else 0.0)
        recovery_s += 2 * HELPED_S if self._facts.wiped else 0.0
        assert is_true or quiet_s < recovery_s, f"it lacked nodes, and {could} were there: {record.reason}"
