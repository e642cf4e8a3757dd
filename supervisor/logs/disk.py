"""The disk side of the logs: files that swallow every error of a disk, and the one thread that waits for it.

A disk may be full, read-only or silent for minutes. The worst that comes of it is output that is missing,
and then the file itself says how much, at the place where it is missing.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from supervisor.logs.times import TimesFile, is_in_place, times_path
from supervisor.shell.clock import boot_s

log = structlog.get_logger()

RETRY_AFTER_S = 1.0
"""How long a file that could not be written is left alone; output of that time is dropped."""

CHECK_EVERY_S = 1.0
"""How often an open file is compared with what lies at its path (see `LogFile`)."""

SLICE_BYTES = 1 << 20
"""The most that is written for one file before it is the next one's turn."""


def notice(lost_bytes: int, reason: str, *, mid_line: bool) -> bytes:
    """The line that stands in a file for output that is missing there."""
    return f"{chr(10) if mid_line else ''}[supd: {lost_bytes} bytes not written: {reason}]\n".encode()


class LogFile:
    """One stream's file, appended to, with its index of times. Blocking: only the disk thread may call it.

    It is opened when it is first written, and opened again when it was removed or renamed from outside.
    `prepare` makes its folder.
    """

    def __init__(self, path: Path, prepare: Callable[[], None]) -> None:
        self._path = path
        self._prepare = prepare
        self._times = TimesFile(times_path(path))
        self._fd = -1
        self._mid_line = False
        self._lost_bytes = 0  # since the last notice
        self._reason = ""
        self._notice_rest = b""  # of a notice that the disk took only in part
        self._retry_at_s = 0.0
        self._check_at_s = 0.0

    def write(self, data: bytes | bytearray, marks: Sequence[tuple[int, float]] = ()) -> None:
        """Append `data`, or count what the disk did not take. Empty data makes the file.

        `marks` say from which byte of `data` on what was read when (s since 1970).
        """
        now_s = boot_s()
        if now_s < self._retry_at_s:
            self._lost_bytes += len(data)
            return
        head = self._notice_rest
        if self._lost_bytes:
            head += notice(self._lost_bytes, self._reason, mid_line=self._mid_line and not head)
        buffer = memoryview(head + data if head else data)
        written = 0
        start: int | None = None
        try:
            self._open(now_s)
            start = os.fstat(self._fd).st_size
            if self._lost_bytes:
                self._times.lose(start)  # their marks, too
            # In front of the bytes, so that who follows them never takes them for as old as those before.
            self._times.note([(start + len(head) + at, read_s) for at, read_s in marks])
            while written < len(buffer):
                written += os.write(self._fd, buffer[written:])
        except OSError as exc:
            if not self._lost_bytes:
                log.warning("output_lost", path=str(self._path), error=repr(exc))
            if start is not None:
                self._times.take_back(start + written)
            self._reason = os.strerror(exc.errno) if exc.errno else str(exc)
            self._retry_at_s = now_s + RETRY_AFTER_S
        if written:
            self._notice_rest, self._lost_bytes = head[written:], 0
            self._mid_line = buffer[written - 1] != ord("\n")
        self._lost_bytes += len(buffer) - max(written, len(head))

    def close(self) -> None:
        """Write a notice that is still owed, if the disk takes it now, and close."""
        self._retry_at_s = 0.0
        self.write(b"")
        self._times.close()
        self._close()

    def _open(self, now_s: float) -> None:
        if self._fd >= 0 and now_s < self._check_at_s:
            return
        self._check_at_s = now_s + CHECK_EVERY_S
        self._times.close_if_removed()
        if self._fd >= 0 and is_in_place(self._path, self._fd):
            return
        self._prepare()
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._close()  # only now: the new file must not get the inode number by which readers know the old one
        self._fd = fd
        self._mid_line = os.fstat(fd).st_size > 0

    def _close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # an error of a write behind our back; there is nothing to count it by
                os.close(self._fd)
            self._fd = -1


@dataclass(slots=True)
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
        self._thread = threading.Thread(target=self._run, name="log-disk", daemon=False)
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
