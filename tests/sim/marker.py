"""The checkpoints of one run: a file on a disk that all nodes share, and one runner's looks at it.

As in supervisor/runner/saves.py: what it holds when the ranks of a generation are spawned is none of theirs.
"""

from dataclasses import dataclass, field

from protocol.ids import NO_GENERATION
from protocol.member_events import Saved


@dataclass
class Marker:
    """The file, and when it was written for which generation."""

    step: int | None = None
    written: dict[int, list[float]] = field(default_factory=dict)  # generation -> when, by the world's clock

    def write(self, generation: int, step: int, now_s: float) -> None:
        """A rank has saved."""
        self.step = step
        self.written.setdefault(generation, []).append(now_s)


class Saves:
    """What one runner has seen of it."""

    def __init__(self, marker: Marker) -> None:
        self._marker = marker
        self._step: int | None = None
        self._generation = NO_GENERATION

    def begin(self, generation: int) -> Saved | None:
        """The ranks of a generation are about to be spawned."""
        self._generation, self._step = generation, None
        return self.look(generation, is_new=False)

    def look(self, generation: int, *, is_new: bool = True) -> Saved | None:
        """What there is to be told."""
        step = self._marker.step
        if generation != self._generation or step is None or step == self._step:
            return None
        self._step = step
        return Saved(generation, step, is_new)
