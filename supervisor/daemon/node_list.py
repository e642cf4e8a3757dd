"""The nodes of the fleet as people see them, gpu-2 before gpu-10: what the node table knows, and the runs there."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from protocol.absence import node_state
from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.fleet_events import NodeRecord
from protocol.messages.control import NodeState, NodeStatus
from protocol.pool import natural
from protocol.rendezvous import Rendezvous
from protocol.tables import did_you_mean
from supervisor.daemon.run import Run

REASONS_MAX = 3
"""Of how many runs the reasons are told."""

NO_LIMITS: Mapping[str, int | None] = {}


class NodeTable(Protocol):
    """The nodes of the fleet."""

    def status(self) -> Sequence[NodeStatus]:
        """All of them, `ready` or `unreachable`, without their runs. With a thousand it takes long."""

    def record_of(self, node: str) -> NodeRecord | None:
        """What is known of one: where it is reached, how far its clock is off; None: no node has that name."""


def with_runs(
    nodes: Iterable[NodeStatus],
    runs: Iterable[Run],
    now_s: float,
    trouble: str = "",
    free: Mapping[str, int | None] = NO_LIMITS,
) -> tuple[NodeStatus, ...]:
    """The same in the order of their names, with the runs that have ranks there, or for which it stands by, and in the
    worst state of all that is known of it, with the reason. A node that only stands by is `standby`. `trouble` is that
    of the coordinator's disk, which is the host's; `free` are the slots of each node that no run has."""
    seated: dict[str, list[str]] = defaultdict(list)
    spare: dict[str, list[str]] = defaultdict(list)
    leases: dict[str, list[tuple[str, str]]] = defaultdict(list)  # what runs say: state, and why
    for run in runs:
        for node in run.machine.seats:
            seated[node].append(run.job.run)
        for node in run.machine.seats.keys() | run.machine.rendezvous.lapsed:
            state, why = node_state(run.machine, node, now_s)
            if state:
                leases[node].append((state, f"{run.job.run}: {why}"))
        for node, state, why in _exclusions(run.machine.rendezvous, now_s):
            leases[node].append((state, f"{run.job.run}: {why}"))
        for node in run.machine.rendezvous.spares(run.machine.seats):
            spare[node].append(run.job.run)
    return tuple(
        replace(
            node,
            state=gravest(
                NodeState.STANDBY
                if node.state == NodeState.READY and spare[node.node] and not seated[node.node]
                else node.state,
                *(state for state, _ in leases[node.node]),
            ),
            runs=tuple(seated[node.node]),
            spare_of=tuple(spare[node.node]),
            free_slots=free.get(node.node),
            note="; ".join(filter(None, (node.note, *_reasons(leases[node.node]), trouble if node.is_host else ""))),
        )
        for node in sorted(nodes, key=lambda node: natural(node.node))
    )


def _exclusions(rendezvous: Rendezvous, now_s: float) -> Iterator[tuple[str, str, str]]:
    """Nodes that a run does without for a while, or would."""
    for node, why in rendezvous.exclusions.texts(now_s).items():
        if rendezvous.uses(node):
            yield node, NodeState.READY, f"uses it for want of another one, {why}"
        elif rendezvous.may_use(node):
            yield node, NodeState.EXCLUDED, f"does without it for {why}"


def gravest(*states: str) -> NodeState:
    """The one of these that an operator has to know first."""
    return NodeState(max(states, key=_gravity))


def _reasons(leases: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Why its state is that, as its runs say; of many some of the gravest."""
    by_gravity = sorted(leases, key=lambda lease: _gravity(lease[0]), reverse=True)
    return tuple(why for _, why in by_gravity[:REASONS_MAX])


def _gravity(state: str) -> int:
    return tuple(NodeState).index(NodeState(state))


def named(nodes: Iterable[NodeStatus], name: str) -> NodeStatus:
    """The node of this name; raises Refused (exit 3)."""
    known = {node.node: node for node in nodes}
    if name not in known:
        near = did_you_mean(name, known, "{}")
        message = f"there is no node {name} in the fleet" + (f"; {near}" if near else "")
        raise Refused("F112", message, hint="supctl nodes", exit_code=ExitCode.NOT_FOUND)
    return known[name]
