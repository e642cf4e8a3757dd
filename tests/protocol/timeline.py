"""Virtual time for machines that a test holds together: what is to be done, when, and in which order."""

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

Do = Callable[[], None]


class Timeline(ABC):
    """Time passes by `run_for` only. What is due at the same time is done in order."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._queue: list[tuple[float, int, Do]] = []
        self._places = itertools.count()

    def after(self, wait_s: float, do: Do) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now_s + wait_s, next(self._places), do))

    def run_for(self, seconds: float) -> None:
        """Let time pass: what was to be done later, and the ticks of the machines."""
        end_s = self.now_s + seconds
        while due := [item for item in self._all_due() if item[0] <= end_s]:
            due_s, do = min(due, key=lambda item: item[0])
            self.now_s = max(self.now_s, due_s)
            do()
        self.now_s = end_s

    def _all_due(self) -> Iterator[tuple[float, Do]]:
        if self._queue:
            yield self._queue[0][0], lambda: heapq.heappop(self._queue)[2]()
        yield from self.due()

    @abstractmethod
    def due(self) -> Iterator[tuple[float, Do]]:
        """When which machine is to be told the time."""
