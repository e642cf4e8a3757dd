"""Reading a stream forward while it may still grow, and finding lines in it from behind.

A stream is one sequence of bytes that lies in several files (supervisor/logs/paths.py), of which the newest one is
renamed, the older ones are gzipped, and some are removed while we read. No descriptor is held between reads: a follower
costs nothing but its place in the stream. So each read finds anew which file has that place: by the name of a rotated
one, and for the newest by what is there before *and* after it is opened.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from supervisor.logs.gunzip import Gunzip
from supervisor.logs.paths import Part, part_path, parts
from supervisor.logs.times import Times, file_start, unzipped_size

T = TypeVar("T")

BLOCK_BYTES = 64 << 10
GUNZIP_BYTES = 4 << 20

LOOK_BACK_BYTES_MAX = 16 << 20
"""How far back the start of a line is looked for; of longer ones the rest is shown."""

TRIES_MAX = 100
"""A look at files that are renamed meanwhile is repeated; so often they are not."""


NO_FILE = (0, 0)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class Piece(NamedTuple):
    """What one read has brought."""

    offset: int
    data: bytes
    marks: tuple[tuple[int, float], ...] = ()  # (offset, when the bytes from there on were read; 0: not known)


class _Files(NamedTuple):
    """The files of a stream as they are now."""

    fd: int  # of the newest one, opened; -1: there is none just now
    size: int
    files: list[Part]  # in order; with `fd`, the newest one is the last

    @property
    def is_live_there(self) -> bool:
        return self.fd >= 0


class _Moved(Exception):
    """The newest file was emptied from outside, and has begun again: it is not where it was in the stream."""


class StreamTail:
    """A place in a stream that moves forward. Blocking; a stream without files (yet) has nothing to read.

    All methods raise OSError if a file is there and can't be read.
    """

    def __init__(
        self,
        live: Path,
        *,
        from_end_lines: int | None = None,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> None:
        """Stand at the first line that was read at `since_s` or later, or at the last `from_end_lines` lines where they
        begin later; an unfinished last line is one. Lines that were read at `until_s` or later are not read."""
        self.offset = 0
        self._live = live
        self._newest = (NO_FILE, 0)  # which file is the newest, and its start, as far as that is known
        self._gunzip: Gunzip | None = None
        self._end: int | None = None
        size = self._size()
        if until_s is not None:
            end = self._repeated(lambda: self._offset_at(until_s, is_start=False))
            if end is not None and end < size:
                size = self._end = self.line_start(end, 1)
        if since_s is not None:
            start = self._repeated(lambda: self._offset_at(since_s, is_start=True))
            self.offset = size if start is None or start >= size else self.line_start(start, 1)
        if from_end_lines is not None:
            self.offset = max(self.offset, self.start_of_last_lines(from_end_lines, size))

    # --- forward -------------------------------------------------------------------------------------------------

    def end(self) -> int:
        """Behind the last byte that is there to be read."""
        size = self._size()
        if size < self.offset:  # emptied from outside? Then the rest is at another place now
            self._newest = (NO_FILE, 0)
            size = self._size()
        return size if self._end is None else min(self._end, size)

    def read(self, bytes_max: int) -> Piece:
        """The next bytes, none at the end. They begin at a later place than `offset` where what is between is not kept
        any more."""
        piece = self._repeated(lambda: self._read(bytes_max))
        if piece.data:
            self.offset = piece.offset + len(piece.data)
        return piece

    def _read(self, bytes_max: int) -> Piece:
        with self._open() as now:
            first = max((number for number, file in enumerate(now.files) if file.start <= self.offset), default=0)
            for file in now.files[first:]:
                offset = max(self.offset, file.start)
                if data := self._bytes_at(now, file, offset, bytes_max):
                    return Piece(offset, data, self._marks(file, offset, offset + len(data)))
        return Piece(self.offset, b"")

    def _bytes_at(self, now: _Files, file: Part, offset: int, bytes_max: int) -> bytes:
        if file.path == self._live:
            return os.pread(now.fd, bytes_max, offset - file.start)
        if not file.is_gz:
            with open(file.path, "rb", buffering=0) as opened:
                return os.pread(opened.fileno(), bytes_max, offset - file.start)
        if self._gunzip is None or self._gunzip.path != file.path or self._gunzip.offset > offset - file.start:
            self._gunzip = Gunzip(file.path)
        while (left := offset - file.start - self._gunzip.offset) > 0:
            if not self._gunzip.read(min(left, GUNZIP_BYTES)):
                return b""
        return self._gunzip.read(bytes_max)

    # --- files ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open(self) -> Iterator[_Files]:
        now = self._find()
        try:
            yield now
        finally:
            if now.is_live_there:
                os.close(now.fd)

    def _find(self) -> _Files:
        """The start of the newest file is looked up before it is opened, and the rotated ones are listed after that:
        had it been renamed in between, a rotated one would have this start or a later one. (The newest of those is
        never gzipped or removed, and inode numbers are used again.)"""
        for _ in range(TRIES_MAX):
            try:
                which = _identity(os.stat(self._live))
                start = self._newest[1] if which == self._newest[0] else file_start(self._live)
                fd = os.open(self._live, os.O_RDONLY)
            except FileNotFoundError:
                return _Files(-1, 0, parts(self._live))
            try:
                found = os.fstat(fd)
                older = parts(self._live)
                if _identity(found) == which and not (older and older[-1].start >= start):
                    self._newest = (which, start)
                    return _Files(fd, found.st_size, [*older, Part(start, self._live, is_gz=False)])
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            self._newest = (NO_FILE, 0)
        raise OSError(f"{self._live}: its files change faster than they can be read")

    def _repeated(self, look: Callable[[], T]) -> T:
        """What `look` returns, once no file was renamed, gzipped or removed while it looked."""
        for _ in range(TRIES_MAX):
            with contextlib.suppress(FileNotFoundError, _Moved):
                return look()
        raise OSError(f"{self._live}: its files change faster than they can be read")

    def _size(self) -> int:
        with self._open() as now:
            return self._size_of(now)

    def _size_of(self, now: _Files) -> int:
        """Behind the last byte of the stream."""
        if now.is_live_there:
            return now.files[-1].start + now.size
        if not now.files:
            return self.offset
        start, path, is_gz = now.files[-1]
        with contextlib.suppress(FileNotFoundError):
            return start + (unzipped_size(path) if is_gz else os.stat(path).st_size)
        return self.offset

    # --- times ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _times(self, file: Part) -> Iterator[Times | None]:
        """The index of a file, if there is one. It is renamed after the file, so it may lie at the other name."""
        is_newest = file.path == self._live
        rotated = part_path(self._live, file.start)
        with Times(self._live if is_newest else rotated) as own:
            if (own.start or 0) == file.start:
                yield own
                return
            if is_newest and own.start is not None and own.start > file.start and not rotated.exists():
                self._newest = (NO_FILE, 0)
                raise _Moved
            with Times(rotated if is_newest else self._live) as other:
                yield other if (other.start or 0) == file.start else None

    def _marks(self, file: Part, start: int, end: int) -> tuple[tuple[int, float], ...]:
        with self._times(file) as times:
            found = times.between(start - file.start, end - file.start) if times is not None else []
        return tuple((file.start + at, time_s) for at, time_s in found)

    def _offset_at(self, time_s: float, *, is_start: bool) -> int | None:
        """Where the bytes of this time and later begin; None: there are none."""
        with self._open() as now:
            files = now.files
        for file in files:
            with self._times(file) as times:
                at = times.offset_at(time_s, is_start=is_start) if times is not None else 0 if is_start else None
            if at is not None:
                return file.start + at
        return None

    # --- backward ------------------------------------------------------------------------------------------------

    def start_of_last_lines(self, lines: int, size: int) -> int:
        """Offset of the first of the last `lines` lines of the first `size` bytes; with 0 of what a line that is being
        written has so far."""
        if size == 0:
            return 0
        if lines <= 0:
            return self.line_start(size, 1)
        # The last byte ends a line or belongs to one: either way it separates nothing.
        return self.line_start(size - 1, lines)

    def line_start(self, end: int, number: int) -> int:
        """Offset behind the newline that is the `number`th before the byte at `end`, found block by block; where there
        is none, that of the first byte."""
        stop = max(0, end + 1 - LOOK_BACK_BYTES_MAX)
        while end > stop:
            block = self._block_before(end, stop)
            if not block:
                return end
            breaks = block.count(b"\n")
            if breaks >= number:
                place = len(block)
                for _ in range(number):
                    place = block.rindex(b"\n", 0, place)
                return end - len(block) + place + 1
            number -= breaks
            end -= len(block)
        return end

    def _block_before(self, end: int, stop: int) -> bytes:
        """Bytes up to the one at `end`; b"" where those before it are not kept."""
        with self._open() as now:
            before = [file for file in now.files if file.start < end]
            if not before:
                return b""
            file = before[-1]
            # A gzipped one is read from its start each time.
            start = max(file.start, stop, end - (GUNZIP_BYTES if file.is_gz else BLOCK_BYTES))
            data = bytearray()
            try:
                while len(data) < end - start:
                    more = self._bytes_at(now, file, start + len(data), end - start - len(data))
                    if not more:
                        return b""
                    data += more
            except FileNotFoundError:  # removed since they were listed
                return b""
            return bytes(data)
