"""Reading a log file forward while it may still grow, and finding lines in it from behind.

No descriptor is held between reads: a follower costs nothing but its place in the file, and a file that was
removed and made again is simply read from its start.
"""

import contextlib
import os
from pathlib import Path

BLOCK_BYTES = 64 << 10

LOOK_BACK_BYTES_MAX = 16 << 20
"""How far back the start of a line is looked for; of longer ones the rest is shown."""


class FileTail:
    """A place in a file that moves forward. Blocking; a file that is not there (yet) has nothing to read.

    All methods raise OSError if the file is there and can't be read.
    """

    def __init__(
        self, path: Path, *, from_end_lines: int | None = None, start: int | None = 0, end: int | None = None
    ) -> None:
        """Stand where the line with the byte at `start` begins (None: at the end), or at the last `from_end_lines`
        lines where they begin later; an unfinished last line is one. The line with the byte at `end` is not read."""
        self._path = path
        self._inode = 0  # 0: not seen yet
        self.offset = 0
        self._end = end
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            self._seek(file.fileno(), from_end_lines, start)

    def unread_bytes(self) -> int:
        """How much is there to be read now. A file that is new at its path, or shorter than what was read of it,
        starts again."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return 0
        if found.st_size < self.offset or self._inode not in (0, found.st_ino):
            self.offset = 0
        self._inode = found.st_ino
        return max((found.st_size if self._end is None else min(self._end, found.st_size)) - self.offset, 0)

    def read(self, bytes_max: int) -> bytes:
        """The next bytes; b"" at the end."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), bytes_max, self.offset)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data

    def _seek(self, fd: int, from_end_lines: int | None, start: int | None) -> None:
        end = os.fstat(fd).st_size
        if self._end is not None and self._end < end:
            end = self._end = _behind_break(fd, self._end, 1)
        self.offset = end if start is None or start >= end else _behind_break(fd, start, 1)
        if from_end_lines is not None:
            self.offset = max(self.offset, _start_of_last_lines(fd, from_end_lines, end))


def _start_of_last_lines(fd: int, lines: int, size: int) -> int:
    """Offset of the first of the last `lines` lines of the first `size` bytes."""
    if lines <= 0 or size == 0:
        return size
    # The last byte ends a line or belongs to one: either way it separates nothing.
    return _behind_break(fd, size - 1, lines)


def _behind_break(fd: int, end: int, number: int) -> int:
    """Offset behind the newline that is the `number`th before the byte at `end`, found block by block; 0: none."""
    stop = max(0, end + 1 - LOOK_BACK_BYTES_MAX)
    while end > stop:
        start = max(stop, end - BLOCK_BYTES)
        block = os.pread(fd, end - start, start)
        breaks = block.count(b"\n")
        if breaks >= number:
            place = len(block)
            for _ in range(number):
                place = block.rindex(b"\n", 0, place)
            return start + place + 1
        number -= breaks
        end = start
    return stop
