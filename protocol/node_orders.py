"""The host's side of the links to its nodes: what is wanted of each, and what each reports. (A node's side: node.py.)

The link is level-triggered (docs/protocol.md, "The fleet"): an order is everything that is wanted of a node, a report
everything that the node knows.

- A report with a lower number than an earlier one of its connection was overtaken, and says nothing.
- The end of a runner is handed on once, and named as settled only when what follows from it is on disk; for as long as
  the node tells of it.
- A start that failed is handed on once, over all connections of one start of the node's supd.
- Of the runs whose files could go on a node, those that the coordinator does not know are named; nothing else of that
  is kept.
- Whatever changes in an order is pushed at once; whoever misses that gets the same as the answer to its next report.

What a node reports cannot make this machine raise, nor grow beyond its limits.
"""

from collections.abc import Callable

from protocol.dataclass import dataclass, field
from protocol.messages.fleet import NodeOrder, NodeReport, RunnerBuried

SETTLING_MAX = 100
"""Ends of runners of one node that are on their way to the disk; of more nothing is taken in until some are there."""


@dataclass(frozen=True)
class Wanted:
    """These nodes, and no others, are to have a runner for the run."""

    run: str
    nodes: frozenset[str]


@dataclass(frozen=True)
class Admitted:
    """A node has come in by a new connection, on which it counts its reports anew."""

    node: str
    start: tuple[str, int]  # identity and incarnation: tell one supd there from the next


@dataclass(frozen=True)
class Reported:
    """A node has reported, on its newest connection."""

    node: str
    report: NodeReport


@dataclass(frozen=True)
class Settled:
    """What follows from the end of this runner is on disk."""

    node: str
    incarnation: str


@dataclass(frozen=True)
class Forgotten:
    """The fleet knows this node no more."""

    node: str


Event = Wanted | Admitted | Reported | Settled | Forgotten


@dataclass(frozen=True)
class Order:
    """Send the node its order (`order_for`), if it has a connection."""

    node: str


@dataclass(frozen=True)
class Gone:
    """Tell the run that this runner is gone, what it knew last first; exactly one Settled follows."""

    node: str
    buried: RunnerBuried


@dataclass(frozen=True)
class Failed:
    """Tell the run that no runner could be started for it."""

    node: str
    run: str
    reason: str


Effect = Order | Gone | Failed


@dataclass(frozen=False)
class _Side:
    """What is kept in mind of a node."""

    start: tuple[str, int]
    number: int = 0  # of its newest report on this connection
    failed: int = 0  # number of the newest failure that was handed on
    settled: set[str] = field(default_factory=set)  # of the buried ones in its newest report
    settling: set[str] = field(default_factory=set)
    runners: tuple[str, ...] | None = None  # that may be alive there, by its newest report; None: it has not told
    old: tuple[str, ...] = ()  # runs whose files could go there, by its newest report


class NodeOrders:
    """State machine of all nodes' orders: no IO, no clock. `epoch` is the coordinator's; `is_forgotten(run)` says
    whether it knows nothing of a run, and never will again."""

    def __init__(self, epoch: int, is_forgotten: Callable[[str], bool] = lambda run: False) -> None:
        self.epoch = epoch
        self._is_forgotten = is_forgotten
        self._sides: dict[str, _Side] = {}  # of the nodes in the fleet's table, which has a limit
        self._wants: dict[str, frozenset[str]] = {}  # run -> nodes
        self._wanted: dict[str, dict[str, None]] = {}  # node -> runs, in the order in which they were wanted there

    def handle(self, event: Event) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order."""
        match event:
            case Wanted(run, nodes):
                return self._on_wanted(run, nodes)
            case Admitted(node, start):
                return self._on_admitted(node, start)
            case Reported(node, report):
                return self._on_reported(node, report)
            case Settled(node, incarnation):
                return self._on_settled(node, incarnation)
            case Forgotten(node):
                self._sides.pop(node, None)
                return []

    def order_for(self, node: str) -> NodeOrder:
        """The whole order of a node that was admitted, whatever was sent before."""
        side = self._sides[node]
        return NodeOrder(
            number=side.number,
            epoch=self.epoch,
            wanted=tuple(self._wanted.get(node, ())),
            settled=tuple(sorted(side.settled)),
            forgotten=tuple(filter(self._is_forgotten, side.old)),
        )

    def is_overtaken(self, node: str, report: NodeReport) -> bool:
        """Whether a newer report came in before this one."""
        side = self._sides.get(node)
        return side is not None and report.number < side.number

    def runners(self, node: str) -> tuple[str, ...] | None:
        """Those that may be alive on a node, as its supd says; None: it has not said yet."""
        side = self._sides.get(node)
        return None if side is None else side.runners

    def lacks(self, node: str, incarnation: str) -> bool:
        """Whether the node's supd says that it has no such runner."""
        side = self._sides.get(node)
        return side is not None and side.runners is not None and incarnation not in side.runners

    def _on_wanted(self, run: str, nodes: frozenset[str]) -> list[Effect]:
        before = self._wants.pop(run, frozenset())
        if nodes:
            self._wants[run] = nodes
        for node in before - nodes:
            del self._wanted[node][run]
            if not self._wanted[node]:
                del self._wanted[node]
        for node in nodes - before:
            self._wanted.setdefault(node, {})[run] = None
        return [Order(node) for node in sorted(nodes ^ before) if node in self._sides]

    def _on_admitted(self, node: str, start: tuple[str, int]) -> list[Effect]:
        side = self._sides.get(node)
        if side is None:
            self._sides[node] = _Side(start)
        elif side.start == start:
            side.number, side.runners = 0, None
        else:  # the ends that are on their way are told by the new supd as well
            side.start, side.number, side.failed, side.runners = start, 0, 0, None
        return []  # its order is the answer to its first report, which comes at once

    def _on_reported(self, node: str, report: NodeReport) -> list[Effect]:
        side = self._sides.get(node)
        if side is None or self.is_overtaken(node, report):
            return []
        effects: list[Effect] = []
        side.number, side.runners, side.old = report.number, report.runners, report.old
        side.settled &= {buried.incarnation for buried in report.buried}
        for buried in report.buried:
            is_known = buried.incarnation in side.settled or buried.incarnation in side.settling
            if not is_known and len(side.settling) < SETTLING_MAX:
                side.settling.add(buried.incarnation)
                effects.append(Gone(node, buried))
        for failure in sorted(report.failures, key=lambda one: one.number):
            if failure.number > side.failed:
                side.failed = failure.number
                effects.append(Failed(node, failure.run, failure.reason))
        return [*effects, Order(node)]

    def _on_settled(self, node: str, incarnation: str) -> list[Effect]:
        side = self._sides.get(node)
        if side is None or incarnation not in side.settling:
            return []  # it has been forgotten meanwhile
        side.settling.discard(incarnation)
        side.settled.add(incarnation)
        return [Order(node)]
