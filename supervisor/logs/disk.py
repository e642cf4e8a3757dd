"""The one thread that waits for the disk of the logs, and what waits for it."""

import contextvars
import threading
from collections.abc import Callable

from protocol.dataclass import dataclass, field
from supervisor.logs.log_file import LogFile

SLICE_BYTES = 1 << 20
"""The most that is written for one file before it is the next one's turn."""


@dataclass(frozen=False)
class _Batch:
    """What waits for one file."""

    data: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, float]] = field(default_factory=list)  # (place in `data`, when it was read)

    def cut(self, count: int) -> "_Batch":
        """Take the first `count` bytes off."""
        first = _Batch(self.data[:count], [mark for mark in self.marks if mark[0] < count])
        del self.data[:count]
        self.marks = [(at - count, read_s) for at, read_s in self.marks if at >= count]
        return first


class DiskThread:
    """Appends what it is given to files, in the order given for each file, all files in turn.

    The queue is not limited here: `put` says when it holds more than `bytes_max`, and the caller then holds back.
    Once it holds less than half of that, `on_room` is called, once, in this thread.
    """

    def __init__(self, bytes_max: int, on_room: Callable[[], None]) -> None:
        self.queued_bytes = 0  # this and the next are read without the lock: each is one number
        self.handled_bytes = 0  # stands still while the disk hangs
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._room_awaited = False
        self._pending: dict[LogFile, _Batch] = {}
        self._closing: dict[LogFile, Callable[[], None]] = {}
        self._stopped = False
        self._changed = threading.Condition()
        context = contextvars.copy_context()  # our log says which run it is
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="log-disk", daemon=False)
        self._thread.start()

    def put(self, file: LogFile, data: bytes, read_s: float | None = None) -> bool:
        """Queue `data`, read at `read_s` if that is to be kept, for `file`.

        Returns whether the queue is full now, in which case `on_room` will follow.
        """
        with self._changed:
            batch = self._pending.setdefault(file, _Batch())
            if read_s is not None:
                batch.marks.append((len(batch.data), read_s))
            batch.data += data
            self.queued_bytes += len(data)
            is_full = self.queued_bytes > self._bytes_max
            self._room_awaited |= is_full
            self._changed.notify()
        return is_full

    def close(self, file: LogFile, on_closed: Callable[[], None]) -> None:
        """Close `file` behind everything queued for it; `on_closed` is then called in this thread."""
        with self._changed:
            self._pending.setdefault(file, _Batch())
            self._closing[file] = on_closed
            self._changed.notify()

    def stop(self, timeout_s: float) -> None:
        """End the thread behind everything queued; wait for that for at most `timeout_s`."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            file, batch = job
            file.write(batch.data, batch.marks)
            on_closed = self._handled(file, len(batch.data))
            if on_closed is not None:
                file.close()
                on_closed()

    def _next(self) -> tuple[LogFile, _Batch] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._stopped)
            if not self._pending:
                return None
            file = next(iter(self._pending))
            batch = self._pending.pop(file)
            if len(batch.data) > SLICE_BYTES:
                self._pending[file] = batch  # behind all others
                batch = batch.cut(SLICE_BYTES)
            return file, batch

    def _handled(self, file: LogFile, count: int) -> Callable[[], None] | None:
        """Take `count` off the queue; what is to be called once `file` is closed, if that is due now."""
        with self._changed:
            self.queued_bytes -= count
            self.handled_bytes += count
            has_room = self._room_awaited and self.queued_bytes < self._bytes_max // 2
            self._room_awaited &= not has_room
            on_closed = None if file in self._pending else self._closing.pop(file, None)
        if has_room:
            self._on_room()
        return on_closed
