"""A stream as dated blocks of whole lines: what is merged with the other ranks' in the order of time.

A block is what was read at one time. What belongs to the block before (a traceback that took a little longer) has
its key, so that nothing comes in between.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from supervisor.logs.reader import Piece, StreamTail
from supervisor.shell.clock import boot_s, wall_s

CHUNK_BYTES = 64 << 10
"""The most in one block, and the longest line that stays in one piece."""

UNFINISHED_AFTER_S = 0.5
"""A follower sees a line that does not end (a progress bar, a prompt) after so long."""

GAP_S = 0.05
"""Indented lines, and what follows them, belong to what was read so shortly before …"""

TOGETHER_S = 1.0
"""… and to what is not older than this: there are programs that indent every line."""

RECENT_S = 1.0
"""Only of what was read so shortly before, the rest may still be written."""

BLOCK_HOLD_S = 0.05
"""How long other ranks' lines wait for the end of a block (a traceback) that is being written."""

RECENT_BYTES = 4 << 10
"""Of what was read at one time only the end is searched for such lines: in a flood it would cost more than all else."""

TRACEBACK = b"Traceback (most recent call last)"

_INDENTS = (b" ", b"\t")


class Block(NamedTuple):
    """Lines of one stream."""

    key_s: float  # its place among other streams' blocks: never goes down in one stream
    data: bytes
    read_s: float  # when its lines were read; 0: not known
    offset: int  # of its first byte in the stream
    removed_bytes: int = 0  # before it, that are not kept any more
    skipped_lines: int = 0  # before it, that were left out


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
        recent = lines[-RECENT_BYTES:]
        self._is_indented |= is_indented or b"\n " in recent or b"\n\t" in recent
        self._read_s = read_s
        return self._key_s


class BlockReader:
    """One stream, read up to what it held at the last look. Blocking; raises OSError if a file can't be read."""

    def __init__(
        self,
        live: Path,
        *,
        tail_lines: int | None,
        since_s: float | None = None,
        until_s: float | None = None,
        known_bytes: int | None = None,
        before_lines: int = 0,
        pick: Callable[[Block], Iterable[Block]] | None = None,
    ) -> None:
        """With `since_s` and `until_s` only lines of that time; `tail_lines`: only the last ones of those; with
        `known_bytes` instead all that stands behind these. `pick` is called for each block, from `before_lines` lines
        before that on, and returns what is wanted of it."""
        self.blocks: deque[Block] = deque()
        self._unfinished = b""
        self._marks: list[tuple[int, float]] = []  # of the unfinished line
        self._unfinished_since_s = 0.0
        self._keys = Keys()
        self._pick = pick
        self._removed_bytes = self._skipped_lines = 0  # before the next block
        if known_bytes is None:
            self._tail = StreamTail(live, from_end_lines=tail_lines, since_s=since_s, until_s=until_s)
        else:
            self._tail = StreamTail(live, until_s=until_s)
            self._tail.offset = known_bytes
        self.begin = self._tail.offset  # of what is wanted
        if before_lines:
            self._tail.offset = self._tail.start_of_last_lines(before_lines, self.begin)
        self._at = self._tail.offset  # behind what was read
        self._end = self._at  # of what there is to be read now

    def look(self) -> None:
        """See how much there is to be read now."""
        self._end = self._tail.end()

    @property
    def unread_bytes(self) -> int:
        """What the last look has found, and is not read yet; what is removed meanwhile counts as well."""
        return max(self._end - self._tail.offset, 0)

    @property
    def has_more(self) -> bool:
        """Whether there is something left to be read, or to be ended."""
        return self.unread_bytes > 0 or bool(self._unfinished)

    @property
    def lacks_block(self) -> bool:
        """Whether there is none at hand, and there may be one."""
        return not self.blocks and self.unread_bytes > 0

    def fill(self, bytes_max: int) -> int:
        """Read on once; returns how many bytes that has brought."""
        piece = self._tail.read(min(self.unread_bytes, bytes_max))
        if piece.data:
            self._take(piece)
        else:
            self._end = self._tail.offset
        return len(piece.data)

    def has_waited(self) -> bool:
        """Whether there is an unfinished line that has stood for long enough."""
        return bool(self._unfinished) and boot_s() - self._unfinished_since_s >= UNFINISHED_AFTER_S

    def end_line(self) -> None:
        """Make a block of the unfinished line as it is; what follows counts as a new one."""
        if self._unfinished:
            unfinished, self._unfinished = self._unfinished, b""
            self._split(unfinished, self._at - len(unfinished))

    def skip(self, lines: int, bytes_max: int) -> bool:
        """Go ahead to the last `lines` lines, and count those that are left out, in at most `bytes_max` at once.
        Returns whether that is done: else it is to be called again."""
        stop = self._tail.start_of_last_lines(lines, self._end)
        self._unfinished, self._marks = b"", []  # a part of the first line that is left out
        while self._tail.offset < stop and bytes_max > 0:
            place = self._tail.offset
            piece = self._tail.read(min(stop - place, CHUNK_BYTES))
            if not piece.data:
                break
            self._removed_bytes += piece.offset - place
            self._skipped_lines += piece.data.count(b"\n")
            bytes_max -= len(piece.data)
        self._at = self._tail.offset
        return bytes_max > 0

    def _take(self, piece: Piece) -> None:
        if piece.offset > self._at:
            self.end_line()
            self._removed_bytes += piece.offset - self._at
        start = piece.offset - len(self._unfinished)
        self._at = piece.offset + len(piece.data)
        self._marks += piece.marks
        chunks, unfinished = cut_lines(self._unfinished + piece.data)
        if chunks or not self._unfinished:
            self._unfinished_since_s = boot_s()
        self._unfinished = unfinished
        for chunk in chunks:
            self._split(chunk, start)
            start += len(chunk)

    def _split(self, data: bytes, offset: int) -> None:
        """Make blocks of `data`, which stands at `offset`, where the time of its lines changes."""
        starts = [0]
        read_s = [0.0]
        end = offset + len(data)
        for at, time_s in self._marks:
            if at >= end:
                break
            start = data.rfind(b"\n", 0, max(at - offset, 0)) + 1
            if start == starts[-1]:
                read_s[-1] = time_s
            elif time_s != read_s[-1]:
                starts.append(start)
                read_s.append(time_s)
        # Of what follows: the one that covers its first byte, and the later ones.
        number = bisect_right(self._marks, end, key=itemgetter(0))
        self._marks = self._marks[max(number - 1, 0) :]
        for begin, behind, time_s in zip(starts, [*starts[1:], len(data)], read_s, strict=True):
            lines = data[begin:behind]
            key_s = self._keys.of(lines, time_s)
            block = Block(key_s, lines, time_s, offset + begin, self._removed_bytes, self._skipped_lines)
            self._removed_bytes = self._skipped_lines = 0
            self.blocks.extend((block,) if self._pick is None else self._pick(block))


def is_in_progress(lines: bytes, read_s: float) -> bool:
    """Whether lines that were read then end in the middle of what is kept together and may still be written: indented,
    or with what announces indented ones."""
    last = lines[lines.rfind(b"\n", 0, len(lines) - 1) + 1 :]
    return (last.startswith(_INDENTS) or TRACEBACK in last) and wall_s() - read_s < RECENT_S


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
