"""Reading a log file forward while it may still grow.

No descriptor is held between reads: a follower costs nothing but its place in the file, and a file that was
removed and made again is simply read from its start.
"""

import os
from pathlib import Path

BLOCK_BYTES = 64 << 10

LOOK_BACK_BYTES_MAX = 16 << 20
"""How far back the last lines are looked for; of longer ones the rest is shown."""


class FileTail:
    """A place in a file that moves forward. Blocking; a file that is not there (yet) has nothing to read.

    All methods raise OSError if the file is there and can't be read.
    """

    def __init__(self, path: Path, *, from_end_lines: int | None = None) -> None:
        """Start at the first byte, or at the last `from_end_lines` lines (an unfinished last line is one)."""
        self._path = path
        self._inode = 0  # 0: not seen yet
        self.offset = 0
        if from_end_lines is not None:
            self.offset = self._start_of_last_lines(from_end_lines)

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
        return found.st_size - self.offset

    def read(self, bytes_max: int) -> bytes:
        """The next bytes; b"" at the end."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), bytes_max, self.offset)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data

    def _start_of_last_lines(self, lines: int) -> int:
        try:
            with open(self._path, "rb", buffering=0) as file:
                return _start_of_last_lines(file.fileno(), lines)
        except FileNotFoundError:
            return 0


def _start_of_last_lines(fd: int, lines: int) -> int:
    """Offset of the first of the last `lines` lines, found from the end, block by block."""
    size = os.fstat(fd).st_size
    if lines <= 0 or size == 0:
        return size
    end = size - 1  # the last byte ends a line or belongs to one: either way it separates nothing
    stop = max(0, size - LOOK_BACK_BYTES_MAX)
    while end > stop:
        start = max(stop, end - BLOCK_BYTES)
        block = os.pread(fd, end - start, start)
        breaks = block.count(b"\n")
        if breaks >= lines:
            place = len(block)
            for _ in range(lines):
                place = block.rindex(b"\n", 0, place)
            return start + place + 1
        lines -= breaks
        end = start
    return stop
