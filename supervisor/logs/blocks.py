"""A log file as dated blocks of whole lines: what is merged with the other ranks' in the order of time.

A block is what was read at one time. What belongs to the block before (a traceback that took a little longer) has
its key, so that nothing comes in between.
"""

from collections import deque
from pathlib import Path
from typing import NamedTuple

from supervisor.logs.reader import FileTail
from supervisor.logs.times import Times
from supervisor.shell.clock import boot_s

CHUNK_BYTES = 64 << 10
"""The most in one block, and the longest line that stays in one piece."""

UNFINISHED_AFTER_S = 0.5
"""A follower sees a line that does not end (a progress bar, a prompt) after so long."""

GAP_S = 0.05
"""Indented lines, and what follows them, belong to what was read so shortly before …"""

TOGETHER_S = 1.0
"""… and to what is not older than this: there are programs that indent every line."""

_INDENTS = (b" ", b"\t")


class Block(NamedTuple):
    """Lines of one stream."""

    key_s: float  # its place among other streams' blocks: never goes down in one stream
    data: bytes
    read_s: float  # when its lines were read; 0: not known
    offset: int  # of its first byte in the file


class Keys:
    """The places of one stream's lines among other streams' lines, for its pieces one after the other."""

    def __init__(self) -> None:
        self._key_s = 0.0
        self._read_s = 0.0
        self._is_indented = False  # a line of what is kept together is

    def of(self, lines: bytes, read_s: float) -> float:
        """The key of the next piece, whose lines were read at this time."""
        is_indented = lines.startswith(_INDENTS)
        is_close = read_s - self._read_s < GAP_S and read_s - self._key_s < TOGETHER_S
        if not (is_close and (is_indented or self._is_indented)):
            self._key_s = max(self._key_s, read_s)
            self._is_indented = False
        self._is_indented |= is_indented or b"\n " in lines or b"\n\t" in lines
        self._read_s = read_s
        return self._key_s


class BlockReader:
    """One file, read up to what it held at the last look. Blocking; raises OSError if the file can't be read."""

    def __init__(
        self,
        path: Path,
        *,
        tail_lines: int | None,
        since_s: float | None = None,
        until_s: float | None = None,
        known_bytes: int | None = None,
    ) -> None:
        """With `since_s` and `until_s` only lines of that time; `tail_lines`: only the last ones of those; with
        `known_bytes` instead all that stands behind these."""
        self.blocks: deque[Block] = deque()
        self._path = path
        self._unread_bytes = 0
        self._unfinished = b""
        self._unfinished_since_s = 0.0
        self._keys = Keys()
        with Times(path) as times:
            start = 0 if since_s is None else times.offset_at(since_s, is_start=True)
            end = None if until_s is None else times.offset_at(until_s, is_start=False)
        self._file = FileTail(path, from_end_lines=tail_lines, start=start, end=end)
        if known_bytes is not None:
            self._file.offset = known_bytes

    def look(self) -> None:
        """See how much there is to be read now."""
        self._unread_bytes = self._file.unread_bytes()

    @property
    def has_more(self) -> bool:
        """Whether there is something left to be read, or to be ended."""
        return self._unread_bytes > 0 or bool(self._unfinished)

    def fill(self, bytes_max: int) -> None:
        """Read on until there is a block, or nothing left."""
        while not self.blocks and self._unread_bytes > 0:
            data = self._file.read(min(self._unread_bytes, bytes_max))
            self._unread_bytes = self._unread_bytes - len(data) if data else 0
            self._take(data)

    def has_waited(self) -> bool:
        """Whether there is an unfinished line that has stood for long enough."""
        return bool(self._unfinished) and boot_s() - self._unfinished_since_s >= UNFINISHED_AFTER_S

    def end_line(self) -> None:
        """Make a block of the unfinished line as it is; what follows counts as a new one."""
        if self._unfinished:
            unfinished, self._unfinished = self._unfinished, b""
            self._split(unfinished, self._file.offset - len(unfinished))

    def _take(self, data: bytes) -> None:
        start = self._file.offset - len(data) - len(self._unfinished)
        chunks, unfinished = cut_lines(self._unfinished + data)
        if chunks or not self._unfinished:
            self._unfinished_since_s = boot_s()
        self._unfinished = unfinished
        for chunk in chunks:
            self._split(chunk, start)
            start += len(chunk)

    def _split(self, data: bytes, offset: int) -> None:
        """Make blocks of `data`, which stands at `offset`, where the time of its lines changes."""
        with Times(self._path) as times:
            marks = times.between(max(offset, 0), offset + len(data))
        starts = [0]
        read_s = [0.0]
        for at, time_s in marks:
            start = data.rfind(b"\n", 0, at - offset) + 1
            if start == starts[-1]:
                read_s[-1] = time_s
            else:
                starts.append(start)
                read_s.append(time_s)
        for start, end, time_s in zip(starts, [*starts[1:], len(data)], read_s, strict=True):
            lines = data[start:end]
            self.blocks.append(Block(self._keys.of(lines, time_s), lines, time_s, offset + start))


def cut_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """`data` as chunks of whole lines, and the unfinished line behind them, which is at most CHUNK_BYTES long.

    A line longer than CHUNK_BYTES comes in pieces.
    """
    chunks: list[bytes] = []
    start = 0
    while True:
        end = data.rfind(b"\n", start, start + CHUNK_BYTES) + 1
        if end == 0:
            if len(data) - start <= CHUNK_BYTES:
                return chunks, data[start:]
            end = start + CHUNK_BYTES
        chunks.append(data[start:end])
        start = end
