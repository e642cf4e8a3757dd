"""The runners of a run that are heard: one a node, and what each has said last. Pure."""

from protocol.member_events import SETTLED
from protocol.messages.fleet import NODES_MAX
from protocol.messages.member import Renewal

PAST_MAX = 4 * NODES_MAX
"""How many runners that are gone are remembered, to tell what they said late from the present."""


class Roll:
    """Which runner speaks for which node."""

    def __init__(self) -> None:
        self.runners: dict[str, str] = {}  # node -> incarnation of its runner
        self.newest: dict[str, Renewal] = {}  # node -> that runner's newest renewal
        self.busy: set[str] = set()  # nodes on which something of a generation may be alive, by that renewal
        self.heard_s: dict[str, float] = {}  # node -> when that was heard
        self.via: dict[str, str] = {}  # node -> the witness that has passed it on; "": none, it was said to us
        self._released: dict[str, str] = {}  # node -> its runner, once that was told to end: it may have heard that
        self._past: dict[str, None] = {}  # incarnations that are proven gone, the oldest first

    def has(self, node: str, incarnation: str) -> bool:
        """Whether this one speaks for the node."""
        return self.runners.get(node) == incarnation

    def is_past(self, incarnation: str) -> bool:
        """Whether this one is proven gone."""
        return incarnation in self._past

    def has_room_for(self, node: str, incarnation: str) -> bool:
        """Whether this one speaks for the node, or can: nobody else does, and the table is not full."""
        return self.has(node, incarnation) or (node not in self.runners and len(self.runners) < NODES_MAX)

    def hear(self, node: str, incarnation: str, renewal: Renewal, via: str, now_s: float) -> bool:
        """Take in what the runner of a node says; False where it has said something newer before."""
        if node in self.runners and not self.has(node, incarnation):
            self.drop(node)  # what another one has said under this name is nothing of this one's
        self.runners[node], self.heard_s[node] = incarnation, now_s
        known = self.newest.get(node)
        if known is not None and renewal.number < known.number:
            return False
        self.newest[node], self.via[node] = renewal, via
        if renewal.part in SETTLED:
            self.busy.discard(node)
        else:
            self.busy.add(node)
        return True

    def release(self, node: str, incarnation: str) -> None:
        """It is told to end, whatever is wanted of its node from now on."""
        self._released[node] = incarnation

    def is_released(self, node: str, incarnation: str) -> bool:
        """Whether it was told to end."""
        return self._released.get(node) == incarnation

    def bury(self, node: str, incarnation: str) -> bool:
        """It is proven gone; returns whether it spoke for the node."""
        self._past[incarnation] = None
        if len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]
        return self.has(node, incarnation) and self.drop(node)

    def drop(self, node: str) -> bool:
        """Nobody speaks for the node any more, until somebody is heard; returns whether somebody did."""
        self.newest.pop(node, None)
        self.busy.discard(node)
        self.heard_s.pop(node, None)
        self.via.pop(node, None)
        self._released.pop(node, None)
        return self.runners.pop(node, None) is not None
