"""What must hold where several runs share the nodes (docs/protocol.md, A1-A4)."""

from collections import Counter
from collections.abc import Mapping

from protocol.coordinator_events import FINAL, LIVE, Phase, RunRecord
from protocol.job import JobSpec
from tests.sim.truth import HEEDING_S, Facts
from tests.sim.workers import Worker

FAIR_S = 10.0
"""Who waits for slots for so long, where nothing happens, has been told of all that is free."""


class SlotRules:
    """Sees the ranks that are there, the generations that begin, and the runs that wait."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._setup = facts.setup
        self._clock = facts.clock

    def on_spawned(self, worker: Worker) -> None:
        """A1: no slot is used by two runs, and none that the node does not have."""
        slots = self._setup.slots
        if slots is None:
            return
        who, devices = f"rank {worker.rank} of {worker.run} on {worker.node}", worker.assignment.devices
        assert devices is not None, f"A1: {who} has no slot, and there is a limit"
        assert len(devices) == worker.assignment.nproc, f"A1: {who} has {devices}"
        others = {w.run: w for w in self._living_on(worker.node) if w.run != worker.run}
        for other in others.values():
            both = set(devices) & set(other.assignment.devices or ())
            assert not both, f"A1: {who} and generation {other.generation} of {other.run} have {sorted(both)}"
        assert set(devices) <= set(slots), f"A1: {who} has {devices} of {slots}"
        if self._setup.max_jobs:
            assert len(others) < self._setup.max_jobs, f"{who} beside {sorted(others)}: {self._setup.max_jobs} at most"
        self._clock.seen["shared: node"] += bool(others)

    def _living_on(self, node: str) -> list[Worker]:
        runs = self._facts.runs.values()
        return [w for truth in runs for w in truth.living if w.node == node and self._facts.can_run(w)]

    def check_turn(self, run: str, before: RunRecord, record: RunRecord) -> None:
        """A2: nobody who has had nothing yet gets what an earlier run waits for that could use it."""
        if self._setup.slots is None or before.seats:
            return
        accepted = [*self._facts.journal.runs]
        for earlier in accepted[: accepted.index(run)]:
            since_s = self._facts.runs[earlier].wishes.waits_since_s
            is_waiting = self._facts.record_of(earlier).phase is Phase.FORMING and since_s is not None
            is_waiting &= not self._facts.runs[earlier].wanted  # else it has just got what it needs
            if not is_waiting or since_s is None or since_s > self._facts.runs[run].accepted_s - HEEDING_S:
                continue
            could = self._could(earlier, self._facts.record_of(earlier))
            table = self._facts.spec_of(earlier, self._facts.record_of(earlier)).topology
            if len(could) < table.nnodes[0]:
                continue  # it waits for nodes
            mine = [seat.node for seat in record.seats if seat.node in could and self._facts.is_steady(seat.node)]
            taken = [node for node in mine if not self._has_left(node, int(table.nproc_per_node))]
            assert not taken, f"A2: {run} gets {taken}, and {earlier} has waited for them for longer"

    def _has_left(self, node: str, need: int) -> bool:
        """Whether ranks leave so many slots of a node free."""
        used = {
            run: int(self._facts.spec_of(run, record).topology.nproc_per_node)
            for run, record in ((run, self._facts.record_of(run)) for run in self._facts.journal.runs)
            if record.phase in LIVE and any(seat.node == node for seat in record.seats)
        }
        return self._is_within(used, need)

    def _is_within(self, used: Mapping[str, int], need: int) -> bool:
        """Whether a node on which runs use so many slots has room for one more."""
        is_few = not self._setup.max_jobs or len(used) < self._setup.max_jobs
        return is_few and len(self._setup.slots or ()) - sum(used.values()) >= need

    def _could(self, run: str, record: RunRecord) -> set[str]:
        """The nodes that a run could use, whatever is free there."""
        facts = self._facts
        left_out = {record.without, *facts.nodes.drains, *record.preempted}
        is_unfit = facts.runs[run].failed_starts
        kept = facts.journal.nodes
        troubled = {name for name in kept if kept[name].troubles}
        lifted_s, now_s = facts.nodes.lifted_s, self._clock.now_s
        troubled |= {
            name for name in facts.setup.names if lifted_s[name] > now_s - HEEDING_S
        }  # not every run knows yet
        return {node for node in facts.could if node not in left_out | troubled and not is_unfit[node]}

    def on_looked(self, run: str, *, is_pending: bool) -> None:
        """Somebody has looked at a run, which waits for slots, or does not."""
        wishes = self._facts.runs[run].wishes
        if not is_pending:
            wishes.waits_since_s = None
        elif wishes.waits_since_s is None:
            wishes.waits_since_s = self._clock.now_s
            self._clock.seen["taken: run that waits for slots"] += 1

    def is_starved(self, run: str) -> bool:
        """Whether a run has waited for slots for long, while what it needs is free, and nobody before it waits."""
        record, spec = self._facts.record_of(run), self._facts.spec_of(run, self._facts.record_of(run))
        accepted = [*self._facts.journal.runs]
        earlier = [self._facts.record_of(other).phase for other in accepted[: accepted.index(run)]]
        if any(phase not in FINAL and phase not in (Phase.RUNNING, Phase.HELD) for phase in earlier):
            return False
        room = [node for node in self._could(run, record) if self._has_room(run, node, spec)]
        return len(room) >= spec.topology.nnodes[0]

    def _has_room(self, run: str, node: str, spec: JobSpec) -> bool:
        """Whether enough slots of a node are nobody's, as far as can be known: who is not over keeps spares too."""
        used = Counter[str]()
        for other in self._facts.journal.runs:
            record = self._facts.record_of(other)
            if other == run or record.phase in FINAL:
                continue
            topology = self._facts.spec_of(other, record).topology
            _, most = record.nnodes or topology.nnodes  # also while there are too few for what is wanted
            has_spares = most > len(record.seats)
            has_seat = any(seat.node == node for seat in record.seats)
            is_settled = record.phase in LIVE and not has_spares
            if has_seat or not is_settled:
                used[other] = int(topology.nproc_per_node)
        return self._is_within(used, int(spec.topology.nproc_per_node))
