"""A stream's file on a disk: it swallows every error of that, and rotates.

A disk may be full, read-only or silent for minutes. The worst that comes of it is output that is missing,
and then the file itself says how much, at the place where it is missing.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from protocol.job import LogsTable
from supervisor.logs.paths import gz_path, part_path
from supervisor.logs.stamps import Stamper
from supervisor.logs.times import TimesFile, file_start, is_in_place, open_for_append, times_path
from supervisor.shell.clock import boot_s, utc_text, wall_s

log = structlog.get_logger()

RETRY_AFTER_S = 1.0
"""How long a file that could not be written is left alone; output of that time is dropped."""

ROTATE_AGAIN_S = 60.0
"""How long a full file that cannot be renamed goes on before that is tried again."""

WARN_EVERY_S = 600.0
"""How often our log says of a file that it cannot be written, at most; what is missing at its end it says anyway."""

CHECK_EVERY_S = 0.1
"""How often an open file is compared with what lies at its path (see `LogFile`)."""

OVER_BYTES_MAX = 1 << 20
"""How far a file may grow beyond its limit to end with its line."""


DEFAULT_SETTINGS = LogsTable()


def notice(lost_bytes: int, reason: str, *, mid_line: bool) -> bytes:
    """The line that stands in a file for output that is missing there, until now."""
    until = utc_text(wall_s())
    return f"{chr(10) if mid_line else ''}[supd: {lost_bytes} bytes not written until {until}: {reason}]\n".encode()


class LogFile:
    """One stream's file, appended to, with its index of times. Blocking: only the disk thread may call it.

    It is opened when it is first written, and opened again when it was removed or renamed from outside; a new one goes
    on in the stream where the old one ended. `prepare` makes its folder; `on_rotated` is told the path.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[], None],
        settings: LogsTable = DEFAULT_SETTINGS,
        umask: int = 0o077,
        on_rotated: Callable[[Path], None] = lambda _path: None,
    ) -> None:
        self._path = path
        self._prepare = prepare
        self._max_bytes = settings.max_file_bytes
        self._on_rotated = on_rotated
        self._mode = 0o666 & ~umask
        self._times = TimesFile(times_path(path), self._mode)
        self._stamper = Stamper() if settings.timestamps else None
        self._fd = -1
        self._is_known = False  # what lies there; the next two say it
        self._is_astray = False  # the open one is not in its place, and another one could not be opened so far
        self._start = 0  # of the file in the stream
        self._size = 0  # of the file
        self._read_s = 0.0  # when the last bytes were, or up to 10 ms earlier
        self._mid_line = False
        self._lost_bytes = 0  # since the last notice
        self._told_bytes = 0  # of those, by a notice that the disk took only in part
        self._reason = ""
        self._warn_at_s = 0.0
        self._notice_rest = b""  # of a notice that the disk took only in part
        self._retry_at_s = 0.0
        self._rotate_at_s = 0.0
        self._check_at_s = 0.0

    def write(self, data: bytes | bytearray, marks: Sequence[tuple[int, float]] = ()) -> None:
        """Append `data`, or count what the disk did not take. Empty data makes the file.

        `marks` say from which byte of `data` on what was read when (s since 1970).
        """
        now_s = boot_s()
        if self._stamper is not None:
            data, marks = self._stamper.stamp(data, marks)
        at = 0
        while now_s >= self._retry_at_s:
            if at < len(data) and self._is_full() and now_s >= self._rotate_at_s:
                self._rotate(now_s)
            end = self._end_in_file(data, at)
            piece = data if end - at == len(data) else data[at:end]
            self._append(piece, [(mark - at, read_s) for mark, read_s in marks if at <= mark < end], now_s)
            at = end
            if at == len(data):
                return
        self._lost_bytes += len(data) - at

    def close(self) -> None:
        """Write a notice that is still owed, if the disk takes it now, else say it in our log; and close."""
        self._retry_at_s = 0.0
        self.write(b"")
        if self._lost_bytes or self._notice_rest:
            lost = self._lost_bytes + self._told_bytes
            log.error("output_missing", path=str(self._path), bytes=lost, error=self._reason)
        self._times.close()
        self._close()
        self._is_known = False

    def _append(self, data: bytes | bytearray, marks: Sequence[tuple[int, float]], now_s: float) -> None:
        head = self._notice_rest
        if self._lost_bytes:
            head += notice(self._lost_bytes, self._reason, mid_line=self._mid_line and not head)
        buffer = memoryview(head + data if head else data)
        written = 0
        start: int | None = None
        try:
            self._open(now_s)
            start = self._size_now()
            if self._lost_bytes:
                self._times.lose(start)  # their marks, too
            elif data and start == 0 and self._read_s and not (marks and marks[0][0] == 0):
                marks = [(0, self._read_s), *marks]  # the one before ends in the middle of what was read then
            # In front of the bytes, so that who follows them never takes them for as old as those before.
            self._times.note([(start + len(head) + at, read_s) for at, read_s in marks])
            while written < len(buffer):
                written += os.write(self._fd, buffer[written:])
        except OSError as exc:
            self._warn(now_s, exc)
            if start is not None:
                self._times.take_back(start + written)
            self._reason = os.strerror(exc.errno) if exc.errno else str(exc)
            self._retry_at_s = now_s + RETRY_AFTER_S
        if written:
            self._notice_rest = head[written:]
            self._told_bytes = self._told_bytes + self._lost_bytes if self._notice_rest else 0
            self._lost_bytes = 0
            self._mid_line = buffer[written - 1] != ord("\n")
            self._size += written
        if marks:
            self._read_s = marks[-1][1]
        self._lost_bytes += len(buffer) - max(written, len(head))

    def _warn(self, now_s: float, exc: OSError) -> None:
        if now_s >= self._warn_at_s:
            self._warn_at_s = now_s + WARN_EVERY_S
            log.warning("output_lost", path=str(self._path), bytes=self._lost_bytes, error=repr(exc))

    # --- rotation ------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        over_bytes = self._size - self._max_bytes
        return over_bytes >= 0 and (not self._mid_line or over_bytes >= OVER_BYTES_MAX)

    def _end_in_file(self, data: bytes | bytearray, at: int) -> int:
        """Up to where `data` from `at` on belongs into this file."""
        end = at + self._max_bytes - self._size
        if end > len(data) or self._is_full():  # and could not be rotated
            return len(data)
        end_max = end + OVER_BYTES_MAX
        line_end = data.find(b"\n", max(end - 1, at), end_max) + 1
        return line_end or min(end_max, len(data))

    def _rotate(self, now_s: float) -> None:
        """Give the file the name of its place in the stream; what follows makes a new one."""
        try:
            if not is_in_place(self._path, self._fd):
                return  # it was removed or renamed from outside, and another one is due
            self._make_part(self._start)
        except OSError as exc:
            log.warning("rotation_failed", path=str(self._path), error=repr(exc))
            self._rotate_at_s = now_s + ROTATE_AGAIN_S
            return
        finally:
            self._check_at_s = 0.0
        self._start += self._size
        self._size = 0
        self._close()
        self._on_rotated(self._path)

    def _make_part(self, start: int) -> None:
        """Let the file at the path, whose first byte is that one of the stream, be a rotated one."""
        part = part_path(self._path, start)
        if part.exists() or gz_path(part).exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(part))
        self._path.rename(part)
        with contextlib.suppress(OSError):  # without it the times of the part are not known
            times_path(self._path).rename(times_path(part))

    # --- the file ------------------------------------------------------------------------------------------------

    def _open(self, now_s: float) -> None:
        if self._fd >= 0 and now_s < self._check_at_s:
            return
        self._times.close_if_removed()
        start, is_new = self._start, True
        if self._fd >= 0:
            if is_in_place(self._path, self._fd):
                if self._is_astray:  # the index was begun for another file, which could not be made
                    self._times.begin(start, is_new=file_start(self._path) != start)
                    self._is_astray = False
                self._check_at_s = now_s + CHECK_EVERY_S
                return
            start += self._size
            self._is_astray = True  # until there is another one: this one may come back, as behind a mount
        elif not self._is_known:
            start = file_start(self._path)
            is_new = not self._path.exists()
        self._prepare()
        if is_new:
            start = max(start, self._set_aside())
        self._times.begin(start, is_new=is_new)
        fd = open_for_append(self._path, self._mode, os.O_WRONLY)
        self._mid_line &= self._fd < 0
        self._close()  # only now: the new file must not get the inode number by which readers know the old one
        self._fd = fd
        self._check_at_s = now_s + CHECK_EVERY_S
        self._is_known, self._is_astray = True, False
        self._start, self._size = start, os.fstat(fd).st_size
        self._mid_line |= self._size > 0

    def _set_aside(self) -> int:
        """Where a new file is due and there is one with output, as when a mount went away: that keeps its place in the
        stream, as a rotated one. Returns where it ends."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return 0
        if size == 0:
            return 0
        start = file_start(self._path)
        try:
            self._make_part(start)
        except OSError as exc:  # what is there is read once more, then
            log.warning("rotation_failed", path=str(self._path), error=repr(exc))
            return 0
        self._on_rotated(self._path)
        return start + size

    def _size_now(self) -> int:
        """The size of the open file; one that was emptied from outside begins again, as a new one would."""
        size = os.fstat(self._fd).st_size
        if size == 0 and self._size:
            self._start += self._size
            self._times.begin(self._start, is_new=True)
        self._size = size
        return size

    def _close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # an error of a write behind our back; there is nothing to count it by
                os.close(self._fd)
            self._fd = -1
