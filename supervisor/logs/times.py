"""When the bytes of a log file were read: an index beside the file, which itself stays as the rank wrote it.

`rank-00011.err.times` holds records of 16 bytes, `<offset> <time>`, both u64 and little-endian: from that offset on,
the bytes were read at that time (ns since 1970) or up to 10 ms later. With its highest bit set the time is not known:
then it is the one before. Offsets and, unless the clock is set back, times go up. What stands before the first record,
in a file without an index, or in one whose index is damaged, has no time; nothing else comes of it.

Offsets are those of that file. Where the stream did not begin with it, the first record is a header instead: an offset
with its highest bit set, which is the place in the stream of the file's first byte.

A stream gets at most 100 records (1.6 kB) a second, and one a byte.

A line's time is that of its last byte, which is when a follower saw it.
"""

import contextlib
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from supervisor.logs.paths import parts
from supervisor.shell.clock import wall_s

MARK_EVERY_S = 0.01

_RECORD = struct.Struct("<QQ")
_UNKNOWN = _HEADER = 1 << 63
_BLOCK_RECORDS = 4096


def times_path(path: Path) -> Path:
    """Where the index of a log file lies, or, where that is gzipped, of the file that it was."""
    return path.with_name(f"{path.name.removesuffix('.gz')}.times")


def file_start(live: Path) -> int:
    """The place in its stream of the first byte of the file at `live`, or of the one that is to be made there.

    Blocking; raises OSError where the disk does. While it is rotated, that of the file before or of the next one.
    An index that a full disk has not taken, or that is another file's, does not say it: then it is where the newest
    rotated file ends.
    """
    with Times(live) as times:
        start = times.start
    older = parts(live)
    if not older or (start is not None and start > older[-1].start):
        return start or 0
    newest = older[-1]
    return newest.start + (unzipped_size(newest.path) if newest.is_gz else newest.path.stat().st_size)


def unzipped_size(path: Path) -> int:
    """What the last bytes of a gzipped file say (RFC 1952, 2.3.1: modulo 2**32)."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return int.from_bytes(os.pread(file.fileno(), 4, max(size - 4, 0)), "little")


def is_in_place(path: Path, fd: int) -> bool:
    """Whether the open file is still the one at this path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def open_for_append(path: Path, mode: int, flags: int) -> int:
    """A descriptor of the file at `path`, which is made if need be, with this mode whatever the process's umask is."""
    flags |= os.O_APPEND | os.O_CREAT
    try:
        fd = os.open(path, flags | os.O_EXCL, mode & 0o600)
    except FileExistsError:
        return os.open(path, flags, 0o600)
    with contextlib.suppress(OSError):  # a file system without modes
        os.fchmod(fd, mode)
    return fd


class Marker:
    """Decides for one stream which of its pieces get a record."""

    def __init__(self) -> None:
        self._marked_s = 0.0

    def mark(self) -> float | None:
        """The time now, if the piece that was just read is to be marked with it."""
        now_s = wall_s()
        if abs(now_s - self._marked_s) < MARK_EVERY_S:  # the clock may have been set back
            return None
        self._marked_s = now_s
        return now_s


class TimesFile:
    """The index of one file that is being written. Blocking: only the disk thread may call it.

    It raises nothing: what the disk does not take is told from then on as a time that is not known.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._path = path
        self._mode = mode
        self._fd = -1
        self._start = 0  # of the file in its stream
        self._begins = False  # the index that lies there, if any, is of another file
        self._last_offset = -1  # of all records
        self._last_ns = 0
        self._noted: list[tuple[int, int]] = []  # by the last call
        self._lost_from: int | None = None  # bytes from there on have no record of their own

    def begin(self, start: int, *, is_new: bool) -> None:
        """From here on it is of a file whose first byte is that one of the stream; a new one is made after this."""
        self.close()
        self._start, self._begins, self._lost_from, self._noted = start, is_new, None, []
        if is_new and start:
            try:
                self._open()
            except OSError:  # the next note tries again
                self.close()

    def note(self, marks: Sequence[tuple[int, float]]) -> None:
        """Append a record for each (offset, time), before the bytes themselves are written."""
        records = [(offset, round(time_s * 1e9) & ~_UNKNOWN) for offset, time_s in marks]
        self._noted = []
        if not records and self._lost_from is None:
            return
        try:
            self._open()
            if self._lost_from is not None and (not records or self._lost_from < records[0][0]):
                records.insert(0, (self._lost_from, self._last_ns | _UNKNOWN))
            if records[0][0] <= self._last_offset:  # it was cut short from outside
                self._clear()
            data = b"".join(_RECORD.pack(*record) for record in records)
            if os.write(self._fd, data) < len(data):
                raise OSError("torn")
        except OSError:
            self.close()  # opening it again cuts off what is torn
            if records:
                self.lose(records[0][0])
            return
        self._noted = records
        self._last_offset, self._last_ns = records[-1][0], records[-1][1] & ~_UNKNOWN
        self._lost_from = None

    def lose(self, offset: int) -> None:
        """It is not known when the bytes from `offset` on were read."""
        if self._lost_from is None:
            self._lost_from = offset

    def take_back(self, offset: int) -> None:
        """The disk has taken the bytes only up to `offset`; what `note` has said of later ones is void."""
        void = sum(noted >= offset for noted, _ in self._noted)
        if void:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - void * _RECORD.size)
            self.close()

    def close_if_removed(self) -> None:
        """Let go of an index that was removed or renamed from outside; the next record begins another."""
        if self._fd >= 0 and not is_in_place(self._path, self._fd):
            self.close()

    def close(self) -> None:
        """Close; the next record opens it again."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._fd = open_for_append(self._path, self._mode, os.O_RDWR | os.O_NONBLOCK)
        size = os.fstat(self._fd).st_size
        if self._begins or size == 0:
            self._clear()
            return
        if size % _RECORD.size:
            size -= size % _RECORD.size
            os.ftruncate(self._fd, size)
        self._last_offset, self._last_ns = -1, 0
        if size:
            last, ns = _RECORD.unpack(os.pread(self._fd, _RECORD.size, size - _RECORD.size))
            if not last & _HEADER:
                self._last_offset, self._last_ns = last, ns & ~_UNKNOWN

    def _clear(self) -> None:
        self._last_offset, self._last_ns = -1, 0
        os.ftruncate(self._fd, 0)
        if self._start and os.write(self._fd, _RECORD.pack(self._start | _HEADER, 0)) < _RECORD.size:
            raise OSError("torn")
        self._begins = False


# --- reading -----------------------------------------------------------------------------------------------------


class Times:
    """The index of the log file at `path`, open for reading. Blocking; one that is not there holds nothing.

    Whatever lies there, nothing is raised: at worst, times are wrong or not known.
    """

    def __init__(self, path: Path) -> None:
        self.start: int | None = None  # the place of the file in its stream, where that did not begin with it
        self._fd = -1
        self._count = 0
        self._data_from = 0
        with contextlib.suppress(OSError):
            self._fd = os.open(times_path(path), os.O_RDONLY | os.O_NONBLOCK)
            found = os.fstat(self._fd)
            if stat.S_ISREG(found.st_mode):
                self._count = found.st_size // _RECORD.size
        first, _ = self._record(0) if self._count else (0, 0)
        if first & _HEADER:
            self.start = first & ~_HEADER
            self._data_from = _RECORD.size
            self._count -= 1

    def __enter__(self) -> "Times":
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def between(self, start: int, end: int) -> list[tuple[int, float]]:
        """(offset, time) of the bytes from `start` to `end`, the first one not before `start`; time 0: not known."""
        marks: list[tuple[int, float]] = []
        covering = max(self._first(0, start + 1) - 1, 0)
        for offset, ns in islice(self._from(covering), end - start + 1):  # a damaged one may not go up
            if offset >= end:
                break
            mark = (max(offset, start), 0.0 if ns & _UNKNOWN else ns / 1e9)
            while marks and marks[-1][0] >= mark[0]:
                marks.pop()
            marks.append(mark)
        return marks

    def offset_at(self, time_s: float, *, is_start: bool) -> int | None:
        """Where the bytes of this time and later begin; None: there are none.

        Bytes of which it is not known whether they are later count as later for a start, and else as earlier.
        """
        number = self._first(1, round(time_s * 1e9))
        if is_start and number == 0:
            return 0
        if is_start and self._record(number - 1)[1] & _UNKNOWN:
            number -= 1
        return self._record(number)[0] if number < self._count else None

    def _first(self, column: int, value: int) -> int:
        """The number of the first record that has at least `value` in this column (0: offset, 1: time)."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._record(middle)[column] & ~_UNKNOWN < value:
                low = middle + 1
            else:
                high = middle
        return low

    def _record(self, number: int) -> tuple[int, int]:
        for record in self._records(number, 1):
            return record
        return 0, 0  # it was cut off under us

    def _from(self, number: int) -> Iterator[tuple[int, int]]:
        for block in range(number, self._count, _BLOCK_RECORDS):
            yield from self._records(block, _BLOCK_RECORDS)

    def _records(self, number: int, count: int) -> Iterator[tuple[int, int]]:
        data = b""
        with contextlib.suppress(OSError):
            data = os.pread(self._fd, count * _RECORD.size, self._data_from + number * _RECORD.size)
        return _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size])
