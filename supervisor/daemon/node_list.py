"""The nodes of the fleet as people see them, gpu-2 before gpu-10: what the node table knows, and the runs there."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.fleet_events import NodeRecord
from protocol.messages.control import NodeStatus
from protocol.rendezvous import natural
from protocol.tables import did_you_mean
from supervisor.daemon.jobs import Run


class NodeTable(Protocol):
    """The nodes of the fleet."""

    def status(self) -> Sequence[NodeStatus]:
        """All of them, `ready` or `unreachable`, without their runs. With a thousand it takes long."""

    def record_of(self, node: str) -> NodeRecord | None:
        """What is known of one: where it is reached, how far its clock is off; None: no node has that name."""


def with_runs(nodes: Iterable[NodeStatus], runs: Iterable[Run], trouble: str = "") -> tuple[NodeStatus, ...]:
    """The same in the order of their names, with the runs that have ranks there, or for which it stands by. A node
    that only stands by is `standby`. `trouble` is that of the coordinator's disk, which is the host's."""
    seated: dict[str, list[str]] = defaultdict(list)
    spare: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for node in run.machine.seats:
            seated[node].append(run.job.run)
        for node in run.machine.rendezvous.spares(run.machine.seats):
            spare[node].append(run.job.run)
    return tuple(
        replace(
            node,
            state="standby" if node.state == "ready" and spare[node.node] and not seated[node.node] else node.state,
            runs=tuple(seated[node.node]),
            spare_of=tuple(spare[node.node]),
            note="; ".join(filter(None, (node.note, trouble if node.is_host else ""))),
        )
        for node in sorted(nodes, key=lambda node: natural(node.node))
    )


def named(nodes: Iterable[NodeStatus], name: str) -> NodeStatus:
    """The node of this name; raises Refused (exit 3)."""
    known = {node.node: node for node in nodes}
    if name not in known:
        near = did_you_mean(name, known, "{}")
        message = f"there is no node {name} in the fleet" + (f"; {near}" if near else "")
        raise Refused("F112", message, hint="supctl nodes", exit_code=ExitCode.NOT_FOUND)
    return known[name]
