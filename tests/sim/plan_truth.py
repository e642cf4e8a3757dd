"""What operators and machines have wanted of nodes and runs, as it was accepted: what planned changes may come of."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

SLEEP_S = 2.5
"""Who was not heard for longer was cut off, or the coordinator was frozen: runners say something every second."""

WAKING_S = 1.0
"""For so long after that it is heard what is of the past."""


@dataclass(frozen=True)
class Drained:
    """A node is to be free. Times are the world's."""

    at_checkpoint: bool
    since_s: float
    go_s: float


@dataclass
class NodeWishes:
    """What is wanted of nodes."""

    drains: dict[str, Drained] = field(default_factory=dict)
    lifting: set[str] = field(default_factory=set)  # drained nodes that somebody has wanted used again, in vain or not
    undrained: dict[str, list[tuple[Drained, float]]] = field(default_factory=lambda: defaultdict(list))  # node ->
    # those that were, each with until when, the oldest first
    noticed: dict[str, str] = field(default_factory=dict)  # node -> the signal that its supd was sent, in this start
    lifted_s: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: -math.inf))  # node -> when a
    # notice may have been withdrawn last: its supd was started, an operator has had it used again, its runner said so
    told_s: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: math.inf))  # node -> of a notice

    def drain(self, node: str, wish: Drained) -> None:
        """An operator wants a node free."""
        if (before := self.drains.get(node)) is not None:
            self.undrained[node].append((before, wish.since_s))
        self.drains[node] = wish
        self.lifting.discard(node)

    def undrain(self, node: str, now_s: float) -> None:
        """An operator has it used again, whatever has spoken against it."""
        if (before := self.drains.pop(node, None)) is not None:
            self.undrained[node].append((before, now_s))
        self.noticed.pop(node, None)
        self.lifted_s[node] = now_s

    def drains_of(self, node: str, since_s: float) -> Iterator[Drained]:
        """What was wanted of a node within this time."""
        if node in self.drains:
            yield self.drains[node]
        yield from (drain for drain, until_s in self.undrained.get(node, ()) if until_s >= since_s)


@dataclass
class RunWishes:
    """What is wanted of one run."""

    saves: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # generation -> when it saved
    scale: tuple[int, int] | None = None  # accepted last
    scaled_s: float = math.inf  # when that was handed in
    scale_go_s: float = math.inf
    scales: set[tuple[int, int]] = field(default_factory=set)  # handed in since, and not known to be accepted
    scaling_s: float = math.inf  # when the last of these was
    told_s: float = -math.inf  # when its machine was handed an event last: it decides at once, and may write late
    heard_s: dict[str, float] = field(default_factory=dict)  # node -> when its runner was
    slept_s: float = -math.inf  # since when some runner was not heard for a while, the last time that one was not,
    woke_s: float = -math.inf  # and until when
    drains: frozenset[str] = frozenset()  # nodes that are to be free, as it was told last,
    drains_s: float = -math.inf  # at this time
    preempted_s: dict[str, float] = field(default_factory=dict)  # node -> when its notice came to the disk
    taken: set[int] = field(default_factory=set)  # generations with an incident on a node that was under notice
    stepped: set[int] = field(default_factory=set)  # generations that ended with a higher step, perhaps an old one
    reloaded_s: float = -math.inf  # when it was given another job last
    revisions: dict[int, int] = field(default_factory=dict)  # generation -> of its job
    waits_since_s: float | None = None  # for slots, as somebody has seen
    may_resume: bool = False  # somebody has wanted it to go on since it was held
    resumed: set[int] = field(default_factory=set)  # generations after whose failure it was let go on, with new budgets
    ends: dict[int, str] = field(default_factory=dict)  # generation -> why it ended as planned

    def hear(self, node: str, now_s: float) -> None:
        """Its machine hears a runner."""
        last_s = self.heard_s.get(node, now_s)
        if now_s > last_s + SLEEP_S:
            self.slept_s = min(last_s, self.slept_s) if now_s <= self.woke_s + WAKING_S else last_s
            self.woke_s = now_s
        self.heard_s[node] = now_s

    def has_saved_since(self, since_s: float) -> bool:
        """Whether any of its generations has saved since."""
        return any(at_s >= since_s for times in self.saves.values() for at_s in times)
