"""Which nodes of the fleet a run is to leave: those that are drained, and those that will be taken away. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping

from protocol.coordinator_events import RosterNode


class Departures:
    """Of one run; `seated` are the nodes of its newest generation, `preempted` those that were given notice, each with
    the start of its supd in which that was. Times are boot-time seconds of the coordinator's node."""

    def __init__(self) -> None:
        self.seated: Collection[str] = ()
        self.preempted: Mapping[str, str] = {}
        self._now_s = -math.inf
        self._turns_s: tuple[float, ...] = ()  # when nodes have to be left, whatever comes of it

    def see(self, nodes: Iterable[RosterNode]) -> None:
        """The nodes of the fleet."""
        drains = (node.drain for node in nodes)
        self._turns_s = tuple(drain.go_s for drain in drains if drain is not None and not drain.at_checkpoint)

    def look(self, now_s: float) -> bool:
        """What time it is; returns whether that makes a difference."""
        before_s, self._now_s = self._now_s, now_s
        return any(before_s < turn_s <= now_s for turn_s in self._turns_s)

    def is_out(self, node: RosterNode) -> bool:
        """Whether the run does without this node, come what may."""
        return self.is_under_notice(node) or (node.drain is not None and not self.is_last_resort(node))

    def is_under_notice(self, node: RosterNode) -> bool:
        """Whether it will be taken away."""
        return node.name in self.preempted and node.start in ("", self.preempted[node.name])

    def is_last_resort(self, node: RosterNode) -> bool:
        """Whether it takes part only where too few others are there: the run has not left it yet, and may wait."""
        drain = node.drain
        return drain is not None and node.name in self.seated and (drain.at_checkpoint or self._now_s < drain.go_s)

    def why(self, node: RosterNode) -> str:
        """Why the run does without this node, for people; "": it does not."""
        if self.is_under_notice(node):
            return "it was given notice"
        return what(node) if self.is_out(node) else ""


def what(node: RosterNode) -> str:
    """`is to be free (swap NIC)`: of a node with a drain."""
    reason = node.drain.reason if node.drain is not None else ""
    return f"is to be free ({reason})" if reason else "is to be free"
