"""What of a merged stream has to wait: for lines that may come before it, or for the rest of a traceback."""

import heapq
import math
from collections.abc import Iterator

from protocol.messages.control import LogChunk
from supervisor.logs.blocks import BLOCK_HOLD_S, is_in_progress
from supervisor.shell.clock import boot_s, wall_s

WINDOW_BYTES_MAX = 16 << 20
"""What a window holds; above that the oldest lines go out before their time."""


class Window:
    """Lines wait until they are so old (`supctl logs --merge-window`), and come out in the order of time."""

    def __init__(self, window_s: float) -> None:
        """With 0 it is not used."""
        self.is_open = window_s > 0
        self._window_s = window_s
        self._lines: list[tuple[int, float, int, LogChunk]] = []  # heap: generation, key, count
        self._count = 0
        self._bytes = 0

    def put(self, chunk: LogChunk, key_s: float) -> None:
        """Lines of one place in time, by our clock; of a stream, those behind the ones before."""
        self._count += 1
        self._bytes += len(chunk.data)
        heapq.heappush(self._lines, (chunk.generation, key_s, self._count, chunk))

    def due(self, *, is_over: bool) -> Iterator[tuple[LogChunk, float]]:
        """What has waited for long enough; with `is_over` all that is left."""
        while self._lines and (is_over or self.due_in_s() <= 0):
            _, key_s, _, chunk = heapq.heappop(self._lines)
            self._bytes -= len(chunk.data)
            yield chunk, key_s

    def due_in_s(self) -> float:
        """Until something is due."""
        if not self._lines:
            return math.inf
        return 0.0 if self._bytes > WINDOW_BYTES_MAX else self._lines[0][1] + self._window_s - wall_s()

    def until_s(self) -> float | None:
        """Up to when (s since 1970) events may be told; None: all of them."""
        return wall_s() - self._window_s if self.is_open else None


class Hold:
    """Other sources' lines wait for the end of a block that is being written, and not for another one behind it."""

    def __init__(self) -> None:
        self._number: int | None = None  # of the source whose block it is
        self._until_s = 0.0
        self._has_held = False  # since all lines were sent

    def see(self, number: int, chunk: LogChunk, *, is_all: bool) -> None:
        """This was sent of a source, and `is_all` that it has handed in."""
        read_s = chunk.times[-1][1] if chunk.times else 0.0
        is_open = is_all and is_in_progress(chunk.data, read_s)
        if not is_open and self._number == number:
            self._number = None
        elif is_open and not self._has_held:
            self._number, self._has_held = number, True
            self._until_s = boot_s() + BLOCK_HOLD_S

    def number(self) -> int | None:
        """The source that is waited for."""
        if self._number is not None and boot_s() >= self._until_s:
            self._number = None
        return self._number

    def release(self) -> None:
        """All lines that have waited are sent."""
        self._has_held = self._number is not None

    def left_s(self) -> float:
        """How long it may last."""
        return math.inf if self.number() is None else max(self._until_s - boot_s(), 0)
