"""For how long a job does without a node on which incidents begin again and again. Pure: all of it follows from when
they were, whichever runs they were of, so that a node's past counts for every job.

A node is excluded when `exclude_node_after` incidents began there within an hour, for 15 minutes; if it comes to that
again, for twice as long each time, a day at most. Afterwards it is on parole: looked at anew, and taken last for an
hour. What is forgotten of its past (30 days, 50 incidents), or by `supctl undrain`, makes it shorter again.
"""

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from protocol.coordinator_events import RosterNode

WITHIN_S = 3600.0
"""Incidents that are further apart say nothing together."""

EXCLUDE_S = 900.0
"""How long the first time."""

EXCLUDE_MAX_S = 86400.0
"""How long at most."""

PAROLE_S = 3600.0
"""For so long after that a node is taken only where no other one is left."""


CULPRITS_MAX = 100
"""Of so many causes a run remembers the node."""


class Exclusion(NamedTuple):
    """The last time that a node was excluded, or is. Times are those of the incidents' clock."""

    until_s: float
    incidents: int  # that brought it about
    times: int  # its number on this node: 1, 2, 3 …

    def holds(self, now_s: float) -> bool:
        """Whether it is not over."""
        return now_s < self.until_s

    def text(self, now_s: float) -> str:
        """`15 min more, 2 incidents within an hour`."""
        left_min = max(1, round((self.until_s - now_s) / 60))
        return f"{left_min} min more, {self.incidents} incidents within an hour"

    @property
    def turns_s(self) -> tuple[float, float]:
        """When it ends, and when that is forgotten."""
        return self.until_s, self.until_s + PAROLE_S

    def is_on_parole(self, now_s: float) -> bool:
        """Whether it has been over for a short time only."""
        return self.until_s <= now_s < self.until_s + PAROLE_S


def exclusion(troubles: Iterable[float], after: int) -> Exclusion | None:
    """The last exclusion that follows from incidents at these times, the oldest first, where `after` of them within an
    hour are too many (0: never). None: there was none. What happens while it is excluded, to other jobs, adds
    nothing."""
    if after <= 0:
        return None
    last: Exclusion | None = None
    recent: list[float] = []
    for at_s in troubles:
        if last is not None and last.holds(at_s):
            continue
        recent = [other_s for other_s in recent if at_s - other_s < WITHIN_S] + [at_s]
        if len(recent) >= after:
            times = 1 if last is None else last.times + 1
            last = Exclusion(at_s + cool_down_s(times), len(recent), times)
            recent = []
    return last


def cool_down_s(times: int) -> float:
    """How long the exclusion of this number, from 1, lasts."""
    return min(EXCLUDE_MAX_S, EXCLUDE_S * 2.0 ** min(times - 1, 60))


class Exclusions:
    """The nodes that one job does without for a while, or takes last. Times are boot-time seconds of the coordinator's
    node."""

    def __init__(self, after: int) -> None:
        self.after = after  # `exclude_node_after`
        self.now_s = -math.inf
        self._known: dict[str, Exclusion] = {}  # node -> its last one, if that makes a difference
        self._told: dict[str, tuple[float, ...]] = {}  # node -> its troubles, as the fleet knows them
        self._own: dict[str, tuple[float, ...]] = {}  # the same of this run, of which the fleet has not told yet

    def see(self, nodes: Iterable[RosterNode]) -> None:
        """The nodes of the fleet."""
        told = {node.name: node.troubles for node in nodes if node.troubles}
        for name in [name for name in self._own if told.get(name, ()) != self._told.get(name, ())]:
            known_s = self._told.get(name, (-math.inf,))[-1]
            new = sum(1 for at_s in told.get(name, ()) if at_s > known_s)
            self._own[name] = self._own[name][new:] if new else ()  # an operator has lifted all of it
        self._told = told
        self._judge()

    def blame(self, node: str) -> None:
        """An incident of this run began there: it counts at once."""
        self._own[node] = (*self._own.get(node, ()), self.now_s)
        self._judge()

    def _judge(self) -> None:
        names = self._told.keys() | self._own.keys()
        found = {n: exclusion((*self._told.get(n, ()), *self._own.get(n, ())), self.after) for n in names}
        self._known = {n: one for n, one in found.items() if one is not None and self.now_s < one.turns_s[-1]}

    def texts(self, now_s: float) -> dict[str, str]:
        """Those that are excluded, each with for how long and why."""
        return {name: one.text(now_s) for name, one in self._known.items() if one.holds(now_s)}

    def look(self, now_s: float) -> bool:
        """What time it is; returns whether that makes a difference."""
        before_s, self.now_s = self.now_s, now_s
        return any(before_s < turn_s <= now_s for one in self._known.values() for turn_s in one.turns_s)

    @property
    def deadline_s(self) -> float | None:
        """When time alone makes the next difference; None: never."""
        turns = (turn_s for one in self._known.values() for turn_s in one.turns_s)
        return min((turn_s for turn_s in turns if turn_s > self.now_s), default=None)

    @property
    def all(self) -> dict[str, Exclusion]:
        """The nodes that are excluded now."""
        return {name: one for name, one in self._known.items() if one.holds(self.now_s)}

    def holds(self, node: str) -> bool:
        """Whether it is excluded."""
        return node in self._known and self._known[node].holds(self.now_s)

    def is_on_parole(self, node: str) -> bool:
        """Whether it was, a short time ago."""
        return node in self._known and self._known[node].is_on_parole(self.now_s)


class Culprits:
    """Which node each failure of one run's program is put down to. A program that fails wherever it is says nothing
    about nodes: one that runs on a single node, or fails of the same cause on another one. So a crash loop costs its
    run one node at most."""

    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}  # cause -> the node that is to blame, the newest last

    def blames(self, cause: str, node: str, nodes: Collection[str]) -> bool:
        """Whether a failure of this cause on `node` counts against it, in a generation with ranks on `nodes`."""
        if len(nodes) < 2 or self._node_of.get(cause, node) != node:
            return False
        self._node_of.pop(cause, None)
        self._node_of[cause] = node
        if len(self._node_of) > CULPRITS_MAX:
            del self._node_of[next(iter(self._node_of))]
        return True
