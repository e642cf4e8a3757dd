"""What suprun shows: written by a thread, so that a terminal that is stopped, or a pipe that nobody reads, stops
nothing else."""

import asyncio
import contextlib
import errno
import os
import queue
import threading

STDOUT, STDERR = 1, 2

BACKLOG_BYTES = 1 << 20
"""Beyond it `room` waits."""

OWN_BACKLOG_BYTES = 2 * BACKLOG_BYTES
"""Beyond it suprun says nothing more itself."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a disk says that may have room again."""


class Console:
    """Standard output and standard error. Made in the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[int, bytes, bool]] = queue.SimpleQueue()
        self._backlog_bytes = 0
        self._lock = threading.Lock()
        self._has_room = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._has_room.set()
        self._is_empty.set()
        self._passing = 0  # characters that stand on the terminal until something else is written
        self.written_bytes = 0
        threading.Thread(target=self._work, name="console", daemon=True).start()

    def put(self, fd: int, data: bytes, *, is_passing: bool = False) -> None:
        """Write all of it, later than what was put before."""
        with self._lock:
            self._backlog_bytes += len(data)
            if self._backlog_bytes > BACKLOG_BYTES:
                self._has_room.clear()
            self._is_empty.clear()
        self._queue.put((fd, data, is_passing))

    def tell(self, text: str) -> None:
        """A line of suprun's own; left out where the console takes nothing for long."""
        if self._backlog_bytes < OWN_BACKLOG_BYTES:
            self.put(STDERR, f"suprun: {text}\n".encode(errors="replace"))

    def show(self, text: str) -> None:
        """A line of suprun's own on a terminal, in place of which stands what is written next."""
        self.put(STDERR, f"suprun: {text}".encode(errors="replace"), is_passing=True)

    async def room(self) -> None:
        """Wait until most is written."""
        await self._has_room.wait()

    @property
    def is_empty(self) -> bool:
        """Whether all is written."""
        return self._is_empty.is_set()

    async def is_stuck(self, within_s: float) -> bool:
        """Wait until all is written, at most so long; whether nothing was, and there is something to write."""
        before = self.written_bytes
        try:
            async with asyncio.timeout(within_s):
                await self._is_empty.wait()
        except TimeoutError:
            return self.written_bytes == before
        return False

    def _work(self) -> None:
        closed: set[int] = set()
        told: set[int] = set()
        while True:
            fd, data, is_passing = self._queue.get()
            self._wipe()
            trouble = 0 if fd in closed else self._write(fd, data)
            if is_passing:
                self._passing = len(data)
            if trouble and trouble not in FULL:
                closed.add(fd)  # whoever has read it is gone: the job goes on
            if trouble and fd not in told:
                told.add(fd)
                self._tell_trouble(fd, trouble)
            with self._lock:
                self._backlog_bytes -= len(data)
                backlog_bytes = self._backlog_bytes
            if backlog_bytes <= BACKLOG_BYTES // 2 or not backlog_bytes:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._on_written)

    def _wipe(self) -> None:
        if self._passing:
            self._write(STDERR, b"\r" + b" " * self._passing + b"\r")
            self._passing = 0

    def _write(self, fd: int, data: bytes) -> int:
        """All of it; returns the number of the error that has prevented that, or 0."""
        view = memoryview(data)
        while view:
            try:
                done = os.write(fd, view)
            except BlockingIOError:
                os.set_blocking(fd, True)
                continue
            except OSError as exc:
                return exc.errno or errno.EIO
            view = view[done:]
            self.written_bytes += done
        return 0

    def _tell_trouble(self, fd: int, trouble: int) -> None:
        if fd == STDOUT:
            text = f"suprun: standard output: {os.strerror(trouble)}: the job goes on, its output is lost\n"
            with contextlib.suppress(OSError):
                os.write(STDERR, text.encode())

    def _on_written(self) -> None:
        with self._lock:
            if self._backlog_bytes <= BACKLOG_BYTES // 2:
                self._has_room.set()
            if not self._backlog_bytes:
                self._is_empty.set()
