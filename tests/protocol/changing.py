"""A run on nodes that come, go, and save checkpoints, with short ways to bring that about."""

from typing import Any

from protocol.coordinator_events import Draining, Effect, Roster, RosterNode
from protocol.job import CheckpointTable, JobSpec, StopTable, TopologyTable
from protocol.messages.member import Part
from tests.protocol.build import job_spec, offer, rank
from tests.protocol.fleet import PATIENT, Fleet, started

SAVES = CheckpointTable(marker="/ckpt/latest")
ASKS = StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=30.0)


def spec_of(least: int, most: int, *, grow: bool = False, grow_s: float = 0.0, **tables: Any) -> JobSpec:
    """A job of two ranks a node that saves checkpoints, unless `tables` say otherwise."""
    topology = TopologyTable(
        nproc_per_node=2,
        nnodes=(least, most),
        extra_nodes="grow" if grow else "standby",
        grow_min_interval_s=grow_s,
        grow_without_checkpoint=tables.pop("grow_without_checkpoint", False),
    )
    return job_spec(topology=topology, **{"restart": PATIENT, "checkpoint": SAVES} | tables)


def drain(at_checkpoint: bool = True, go_s: float = 1800.0) -> Draining:
    """Of operator me, who swaps a NIC."""
    return Draining(at_checkpoint=at_checkpoint, go_s=go_s, by="me", reason="swap NIC")


class Changing(Fleet):
    """Its nodes run generation 0 of `spec`: those that the job wants, since 10 s. The others stand by."""

    def __init__(self, spec: JobSpec, nodes: str, *, seated: str) -> None:
        super().__init__(*nodes, spec=spec)
        self.facts: dict[str, dict[str, Any]] = {node: {} for node in nodes}
        self.saves: dict[str, tuple[int, int | None]] = {}
        self.opens(0.0)
        self.roster(0.0)
        for node in sorted(nodes, key=lambda node: node not in seated):
            self.offers(1.0, f"{node}1")
        self.begins(10.0, seated)

    def roster(self, now_s: float, **facts: dict[str, Any]) -> list[Effect]:
        """The fleet as it stands; `facts` of single nodes have changed."""
        for node, changed in facts.items():
            self.facts[node] |= changed
        nodes = (RosterNode(n, **{"is_up": True, "joined": i} | self.facts[n]) for i, n in enumerate(self.nodes))
        return self.at(now_s, Roster(tuple(nodes)))

    def joins(self, now_s: float, node: str) -> list[Effect]:
        """A node comes to the fleet, and offers itself."""
        self.nodes, self.facts = (*self.nodes, node), {**self.facts, node: {}}
        return [*self.roster(now_s), *self.offers(now_s, f"{node}1")]

    def begins(self, now_s: float, nodes: str) -> list[Effect]:
        """The ranks of the newest generation start on these nodes, which are all that it has."""
        assert (self.phase, set(self.coordinator.seats)) == ("launching", set(nodes))
        effects: list[Effect] = []
        for node in nodes:
            effects += self.says(now_s, node)
        assert self.phase == "running"
        return effects

    def says(self, now_s: float, node: str, *, answers: bool = False, **more: Any) -> list[Effect]:
        """The runner of a node that has ranks: they run. It saw as many checkpoints, the last of this step."""
        generation = self.coordinator.generation
        ranks = started(self.given(node).node_rank)
        if answers:
            ranks = tuple(rank(r.rank, first=ranks[0].rank, has_answered=True) for r in ranks)  # type: ignore[assignment]
        saves, step = self.saves.get(f"{node}{generation}", (0, None))
        runner = self.coordinator.seats[node].incarnation
        return self.hears(
            now_s, runner, Part.RUNNING, generation, *ranks, **{"saves": saves, "saved_step": step} | more
        )

    def save(self, now_s: float, node: str, step: int) -> list[Effect]:
        """The runner of a node has seen another checkpoint."""
        key = f"{node}{self.coordinator.generation}"
        self.saves[key] = self.saves.get(key, (0, None))[0] + 1, step
        return self.says(now_s, node)

    def stands_by(self, now_s: float, *nodes: str) -> list[Effect]:
        """The runners of these nodes offer themselves, as they do each second."""
        effects: list[Effect] = []
        for node in nodes:
            runner = self.coordinator.roll.runners.get(node, f"{node}1")
            port = 4000 + self.coordinator.generation + 1
            effects += self.hears(now_s, runner, Part.STOPPED, self.coordinator.generation, offer=offer(port=port))
        return effects

    def ends(self, now_s: float, *nodes: str) -> list[Effect]:
        """Nothing of the generation is left on these nodes; they offer themselves."""
        return self.stands_by(now_s, *nodes)

    @property
    def plan(self) -> str:
        return "; ".join(change.text for change in self.coordinator.plans.changes)
