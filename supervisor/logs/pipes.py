"""Reading the workers' pipes, at a pace: a read costs about the same whether it brings a line or a thousand.

A pipe that has been quiet is read `SETTLE_S` after something has come. From then on it is read every `PACE_S`, not
watched, until a read finds it empty. So a rank that writes now and then is heard at once, and one that floods does not
wake us (and is not held up by that) for every line. A pipe that fills up within that time is read more often.
"""

import asyncio
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable

from protocol.dataclass import dataclass

PACE_S = 0.005
"""The most that a rank which goes on writing waits to be read; at 200 MB/s a pipe of 1 MiB is full then."""

SETTLE_S = 0.001
"""`python -u` writes a line and its end apart: by then there are both, and nobody has to look at the line twice."""

FULL_PACE_S = 0.001
"""The same while there is a pipe that was half full or more: its rank may be held up soon."""

READ_BYTES = 512 << 10
"""The most that is read at once."""

TURN_BYTES = 1 << 20
"""After so much it is the loop's turn: ranks that flood their output must not starve what else it has to do."""


@dataclass(frozen=False, eq=False)
class Pipe:
    """The read end of a worker's pipe."""

    fd: int  # -1: at its end, closed
    full_bytes: int  # a read of so much means that it fills up too quickly
    take: Callable[[bytes], None]  # is given all that is read, piece by piece
    is_watched: bool = False  # to be read as soon as there is something in it

    def unread_bytes(self) -> int:
        """What is in the pipe now (FIONREAD)."""
        if self.fd < 0:
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, b"\0" * 4))
        return int(count)


class Pipes:
    """Reads any number of pipes, in the running loop. A pipe's `take` may call `pause`, and raises nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipes: set[Pipe] = set()
        self._due: deque[Pipe] = deque()  # to be read in the round that is under way, or in the next one
        self._read: list[Pipe] = []  # in the round under way, and not empty
        self._pace_s = PACE_S
        self._timer: asyncio.Handle | None = None  # None: all pipes are quiet, or it is paused
        self._is_paused = False

    def add(self, fd: int, take: Callable[[bytes], None]) -> Pipe:
        """Read this one, too, from now on."""
        os.set_blocking(fd, False)
        capacity_bytes = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        pipe = Pipe(fd, min(capacity_bytes // 2, READ_BYTES), take)
        self._pipes.add(pipe)
        if not self._is_paused:
            self._watch(pipe)
        return pipe

    def read(self, pipe: Pipe, bytes_max: int = READ_BYTES) -> int:
        """Read it at once, once; how much there was. At its end it is closed."""
        if pipe.fd < 0:
            return 0
        try:
            data = os.read(pipe.fd, bytes_max)
        except BlockingIOError:
            return 0
        if data:
            pipe.take(data)
        else:
            self.close(pipe)
        return len(data)

    def close(self, pipe: Pipe) -> None:
        """Close it, whatever it holds."""
        if pipe.fd >= 0:
            self._unwatch(pipe)
            self._pipes.discard(pipe)
            os.close(pipe.fd)
            pipe.fd = -1

    def pause(self) -> None:
        """Leave all pipes to fill up; only `read` reads them now."""
        self._is_paused = True
        self._due.clear()
        self._read.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pipe in self._pipes:
            self._unwatch(pipe)

    def resume(self) -> None:
        """Read them again."""
        self._is_paused = False
        for pipe in self._pipes:
            self._watch(pipe)

    def _on_readable(self, pipe: Pipe) -> None:
        self._unwatch(pipe)
        self._due.append(pipe)
        if self._timer is None:
            self._timer = self._loop.call_later(SETTLE_S, self._go_on)

    def _go_on(self) -> None:
        """Read what is due, as far as one turn goes."""
        turn_bytes = 0
        while self._due and turn_bytes < TURN_BYTES:
            pipe = self._due.popleft()
            count = self.read(pipe)
            if self._is_paused:
                return
            turn_bytes += count
            if count >= pipe.full_bytes:
                self._pace_s = FULL_PACE_S
            if count == READ_BYTES:
                self._due.append(pipe)
            elif count:
                self._read.append(pipe)
            elif pipe.fd >= 0:
                self._watch(pipe)
        if self._due:
            self._timer = self._loop.call_soon(self._go_on)
        elif self._read:
            self._due.extend(self._read)
            self._read.clear()
            self._timer = self._loop.call_later(self._pace_s, self._go_on)
            self._pace_s = PACE_S
        else:
            self._timer = None
            self._pace_s = PACE_S

    def _watch(self, pipe: Pipe) -> None:
        if not pipe.is_watched:
            self._loop.add_reader(pipe.fd, self._on_readable, pipe)
            pipe.is_watched = True

    def _unwatch(self, pipe: Pipe) -> None:
        if pipe.is_watched:
            self._loop.remove_reader(pipe.fd)
            pipe.is_watched = False
