"""What must hold of generations that end as planned, of nodes that are to be free or taken away, and of runs that are
held (docs/protocol.md, P1-P4)."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from protocol.coordinator import Coordinator
from protocol.coordinator_events import (
    FINAL,
    Event,
    Heard,
    Phase,
    Reloaded,
    RestartRequested,
    ResumeRequested,
    Roster,
    RunRecord,
    ScaleRequested,
)
from protocol.job import JobSpec
from protocol.planned import ON
from protocol.timing import DRIFT
from tests.sim.network import CALM
from tests.sim.plan_truth import WAKING_S, Drained, RunWishes
from tests.sim.truth import HEEDING_S, WRITING_S, Facts, Truth
from tests.sim.workers import Worker

SEEN_S = {True: 2.0, False: 7.0}
"""How much later than written a checkpoint may be told of, where all that is said is heard, or where some is lost."""

LIFTED_S = 30.0
"""How much earlier a notice may have been lifted than its node's supd, or runner, was heard to tell of it."""


def ends_as_planned(before: RunRecord, record: RunRecord) -> bool:
    """Whether a generation has just ended as planned: perhaps in the moment in which it began, of what had ended the
    one before."""
    is_another = (record.generation, record.planned) != (before.generation, before.planned)
    return record.planned != "" and is_another


class PlanRules:
    """Holds each record of a run against the one before it, and against what operators and machines have wanted."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._clock = facts.clock

    # --- what is wanted ------------------------------------------------------------------------------------------

    def on_event(self, run: str, machine: Coordinator, event: Event) -> None:
        """A machine is about to be handed an event."""
        truth = self._facts.runs[run]
        truth.wishes.told_s = self._clock.now_s
        match event:
            case Heard(node):
                truth.wishes.hear(node, self._clock.now_s)
            case Roster(nodes):
                truth.wishes.drains = frozenset(node.name for node in nodes if node.drain is not None)
                truth.wishes.drains_s = self._clock.now_s
            case ScaleRequested(nnodes):
                truth.wishes.scales.add(nnodes)
                truth.wishes.scaling_s = self._clock.now_s
            case Reloaded():
                truth.asked_restart.add(machine.generation)
                truth.gathers_since_s = truth.wishes.reloaded_s = self._clock.now_s
                truth.wishes.may_resume = True
            case RestartRequested():
                truth.wishes.may_resume = True
            case ResumeRequested():
                truth.wishes.may_resume = True
                if machine.phase is Phase.HELD:
                    truth.wishes.resumed.add(machine.generation)
            case _:
                pass

    def on_told(self, run: str, event: ScaleRequested | ResumeRequested) -> None:
        """R8: what an operator was told is on disk."""
        wishes, record = self._facts.runs[run].wishes, self._facts.record_of(run)
        if isinstance(event, ScaleRequested) and record.phase not in FINAL:
            assert record.nnodes == event.nnodes, f"R8: {event} was accepted, and on disk is {record.nnodes}"
            wishes.scale, wishes.scales = event.nnodes, set()
            wishes.scaled_s, wishes.scale_go_s = wishes.scaling_s, wishes.scaling_s + event.deadline_s

    # --- each step -----------------------------------------------------------------------------------------------

    def check(self, run: str, before: RunRecord, record: RunRecord) -> None:
        """It is one that may be taken, for a reason that is true."""
        wishes, spec = self._facts.runs[run].wishes, self._facts.spec_of(run, record)
        if ends_as_planned(before, record):
            self._check_reason(run, record, spec)
            wishes.ends[record.generation] = record.planned
            self._check_free(before, record, spec)
        is_over = before.phase is Phase.STOPPING and record.phase is not Phase.STOPPING
        if is_over and before.restart is not None and not self._has_overtaken(run, before, record):
            assert record.phase is not Phase.BACKOFF, f"a wait after what was wanted: {before.restart}"
            is_same = replace(record.ledger, time_s=0.0) == replace(before.ledger, time_s=0.0)
            assert is_same, f"charged for {before.restart}: {before.ledger} and {record.ledger}"
        self._check_notices(before, record, wishes)
        if wishes.scale is not None and record.phase not in FINAL:
            known = {wishes.scale, *wishes.scales}
            assert record.nnodes in known, f"scaled to {known}, and on disk is {record.nnodes}"
        if before.phase is Phase.HELD and record.phase is not Phase.HELD:
            is_asked = wishes.may_resume or self._facts.runs[run].asked_stop
            assert is_asked, f"{run} was held, and goes on by itself: {record.phase}"
        if record.phase is Phase.HELD:
            assert spec.restart.on_budget_spent == "hold", f"{run} is held, and its job does not want that"
            wishes.may_resume &= before.phase is Phase.HELD
        if record.made_no_progress or (record.phase is Phase.HELD and "no progress:" in record.reason):
            assert any(wishes.saves.values()), f"{run} has made no progress, and nobody knows how far it was"

    def _has_overtaken(self, run: str, before: RunRecord, record: RunRecord) -> bool:
        """Whether a later generation, of which the coordinator knew nothing, was taken over and has failed, all in this
        moment: what was wanted of the earlier one is over with that, and does not pay for this failure."""
        incident = record.incident
        if incident is None or incident.generation <= before.generation:
            return False
        assert incident.generation in self._facts.runs[run].seats, f"R6: nobody has begun what has failed: {incident}"
        return True

    def _check_reason(self, run: str, record: RunRecord, spec: JobSpec) -> None:
        """R6: what was planned was wanted, and had its safe point or its time."""
        whys = {why: self._named(why, record) for why in record.planned.split("; ")}
        freed = {node for why, nodes in whys.items() if "is to be free" in why for node in nodes}
        for why, nodes in whys.items():
            if "will be taken away" in why:
                self._clock.seen["planned: nodes are taken away"] += 1
                for node in nodes:
                    was_told = self._facts.nodes.told_s[node] < float("inf") and node in record.preempted
                    assert was_told, f"R6: {why}, and nobody has said so"
            elif "is to be free" in why:
                self._clock.seen["planned: drain"] += 1
                assert any(self._may_leave(run, node, record, spec) for node in nodes), f"R6: {why}: too early"
                if all(self._waits_for_a_spare(run, node) for node in nodes):
                    left, least = self._left(record, freed), min((spec.topology.nnodes[0], *(record.nnodes or ())[:1]))
                    assert len(left) >= least, f"{why}: and only {left} are left"
            elif "to become" in why:
                self._clock.seen["planned: scale"] += 1
                assert self._may_scale(run, record), f"R6: {why}: too early"
            else:
                self._clock.seen["planned: grow"] += 1
                assert "join" in why, f"R6: planned, and nobody knows it: {why}"
                assert self._may_grow(run, record, spec), f"R6: {why}: too early"

    @staticmethod
    def _named(why: str, record: RunRecord) -> list[str]:
        """The nodes of the generation of which a reason speaks."""
        words = set(re.findall(r"\w+", why))
        return [seat.node for seat in record.seats if seat.node in words]

    def _may_leave(self, run: str, node: str, record: RunRecord, spec: JobSpec) -> bool:
        for drain in self._known_drains(run, node):
            if self._is_past(drain.since_s, drain.go_s):
                return True
            has_saved = self._has_saved(run, record.generation, drain.since_s)
            if drain.at_checkpoint and spec.checkpoint.is_watched and has_saved:
                return True
        return False

    def _waits_for_a_spare(self, run: str, node: str) -> bool:
        return all(drain.at_checkpoint for drain in self._known_drains(run, node))

    def _known_drains(self, run: str, node: str) -> Iterator[Drained]:
        """What may have been wanted of a node in the roster that a run was told last."""
        return self._facts.nodes.drains_of(node, self._facts.runs[run].wishes.drains_s - HEEDING_S)

    def _left(self, record: RunRecord, freed: Collection[str]) -> list[str]:
        """The nodes that might be used once these are free, as far as operators and machines have said. Who has ranks
        and is to be free as well is the last resort (P3): the others can go while it stays."""
        stays = {seat.node for seat in record.seats}.difference(freed)
        drains = self._facts.nodes.drains.items()
        out = {node for node, drain in drains if drain.since_s < self._clock.now_s - HEEDING_S and node not in stays}
        return [node for node in self._facts.could if node not in out and node not in record.preempted]

    def _may_scale(self, run: str, record: RunRecord) -> bool:
        wishes = self._facts.runs[run].wishes
        if wishes.scales or wishes.scale is None:  # one of which it is not known when it was accepted
            return True
        is_due = self._is_past(wishes.scaled_s, wishes.scale_go_s)
        return is_due or self._has_saved(run, record.generation, wishes.scaled_s)

    def _may_grow(self, run: str, record: RunRecord, spec: JobSpec) -> bool:
        launched_s, topology = self._facts.runs[run].launched_s[record.generation], spec.topology
        lived_s = self._clock.now_s - launched_s + WRITING_S
        if topology.extra_nodes != "grow" or lived_s < topology.grow_min_interval_s / (1 + DRIFT):
            return False
        if not spec.checkpoint.is_watched:
            return topology.grow_without_checkpoint
        return self._has_saved(run, record.generation, launched_s)

    def _has_saved(self, run: str, generation: int, since_s: float) -> bool:
        wishes = self._facts.runs[run].wishes
        if self._clock.now_s <= wishes.woke_s + WAKING_S:  # what was said meanwhile is heard now
            since_s = min(since_s, wishes.slept_s)
        since_s -= SEEN_S[self._facts.setup.weather is CALM]  # what was seen since counts
        return any(at_s >= since_s for at_s in wishes.saves[generation])

    def _is_past(self, since_s: float, go_s: float) -> bool:
        return self._clock.now_s >= since_s + (go_s - since_s) / (1 + DRIFT) - 0.01

    def _check_free(self, before: RunRecord, record: RunRecord, spec: JobSpec) -> None:
        """Nobody pays for what was planned, but as `count_membership` says."""
        if before.phase not in ON:
            return
        was, now = (replace(one.ledger, time_s=0.0, used=0, stamps=()) for one in (before, record))
        assert was == now, f"{record.planned} has changed {before.ledger} to {record.ledger}"
        spent = record.ledger.used - before.ledger.used
        is_membership = "join" in record.planned or "to become" in record.planned
        may_spend = spec.restart.count_membership and is_membership
        assert spent == int(may_spend), f"{spent} restarts are charged for: {record.planned}"

    def _check_notices(self, before: RunRecord, record: RunRecord, wishes: RunWishes) -> None:
        """A notice that was accepted holds until it is lifted."""
        if record.incident is not None and record.incident.node in record.preempted:
            wishes.taken.add(record.incident.generation)
        for node in record.preempted.keys() - before.preempted.keys():
            wishes.preempted_s[node] = self._clock.now_s
        for node in before.preempted.keys() - record.preempted.keys():
            lifted_s, since_s = self._facts.nodes.lifted_s[node], wishes.preempted_s.pop(node, -LIFTED_S)
            assert lifted_s >= since_s - LIFTED_S, f"{node} was given notice, which is forgotten: nobody has lifted it"

    # --- a generation begins -------------------------------------------------------------------------------------

    def check_seats(self, truth: Truth, before: RunRecord, record: RunRecord, spec: JobSpec) -> None:
        """Nodes that are to be free get no work but as the last resort; those that are taken away get none."""
        truth.wishes.revisions[record.generation] = record.revision
        nodes = [seat.node for seat in record.seats]
        had_seats = {seat.node for seat in before.seats}
        self._check_excluded(truth.failed_starts, nodes, before, record, spec)
        for node in nodes:
            assert node not in record.preempted, f"{node} has ranks, and was given notice"
            drain = self._facts.nodes.drains.get(node)
            if drain is None or node not in truth.wishes.drains:
                continue
            is_left = not drain.at_checkpoint and truth.wishes.told_s > drain.go_s + WRITING_S
            is_last_resort = node in had_seats and len(nodes) <= spec.topology.nnodes[0] and not is_left
            assert is_last_resort, f"{node} has ranks, and is to be free"
            self._clock.seen["taken: last resort"] += 1

    def _check_excluded(
        self, failed: Counter[str], nodes: list[str], before: RunRecord, record: RunRecord, spec: JobSpec
    ) -> None:
        """Who has had so many incidents within the hour is left out for a while, where others are enough."""
        facts, after = self._facts, spec.restart.exclude_node_after
        troubles = {name: node.troubles for name, node in facts.journal.nodes.items()}
        out = {name for name, times in troubles.items() if 0 < after <= len(times)}
        known = {name for name in out if troubles[name][after - 1] < self._clock.now_s - HEEDING_S}
        left_out = {before.without, *out, *facts.spared(record)}
        fit = [n for n in facts.could if n not in left_out and not failed[n]]
        are_enough = sum(map(facts.is_steady, fit)) >= spec.topology.nnodes[0] and facts.is_steady(facts.host)
        used = sorted(known.intersection(nodes))
        self._clock.seen["taken: node that is excluded"] += bool(used)
        assert not (used and are_enough), f"{used} had {after} incidents or more, and {fit} were enough"

    def on_spawned(self, worker: Worker) -> None:
        """Its runner serves the job of which the generation is."""
        least = self._facts.runs[worker.run].wishes.revisions.get(worker.generation, 0)
        revision = worker.crew.revision
        assert revision >= least, f"rank {worker.rank} of revision {revision}, and the job is {least}"

    # --- in calm -------------------------------------------------------------------------------------------------

    def owes(self, run: str, record: RunRecord) -> Iterable[str]:
        """Nodes that a run is to leave, and could, and has not left."""
        facts, spec = self._facts, self._facts.spec_of(run, record)
        left = [node for node in facts.could if not self._may_miss(run, node, record, spec)]
        for seat in record.seats:
            drain = facts.nodes.drains.get(seat.node)
            is_due = drain is not None and (not drain.at_checkpoint or len(left) >= spec.topology.nnodes[0])
            if is_due or facts.nodes.noticed.get(seat.node) in spec.preemption.signals:
                yield seat.node

    def _may_miss(self, run: str, node: str, record: RunRecord, spec: JobSpec) -> bool:
        """Whether a run may do without a node, or have to; also where others have its slots, or wait for them (A2)."""
        facts, kept = self._facts, self._facts.journal.nodes.get(node)
        others = (other.phase for name, other in facts.journal.runs.items() if name != run)
        if facts.setup.slots is not None and any(phase not in FINAL for phase in others):
            return True
        is_troubled = spec.restart.exclude_node_after > 0 and kept is not None and bool(kept.troubles)
        is_unfit = facts.runs[run].failed_starts[node] > 0 or bool(facts.setup.digests)
        return node in facts.nodes.drains or node in record.preempted or is_troubled or is_unfit
