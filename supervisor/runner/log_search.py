"""A pattern of the job, tried on what ranks write: for the steps they show, and for the checkpoints they tell of.

Bytes are only kept as they pass by. The pattern is tried at a look, on the newest whole lines, and a user's pattern
costs a look at most twice `MATCH_BUDGET_S`: one that takes longer over a single line is given up for this generation.
A step behind column 2000 of its line is not seen.
"""

import itertools
import re
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import structlog

from protocol.dataclass import dataclass
from supervisor.shell.clock import boot_s

log = structlog.get_logger()

KEPT_BYTES = 32 << 10
"""Of each stream, between two looks."""

LINE_BYTES_MAX = 2000

MATCH_BUDGET_S = 0.05
"""After so long a look begins with no further line; and as long as a single line may take."""

_COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")  # ECMA-48, SGR
_NUMBER = re.compile("[0-9]{1,18}")
_NUMBER_MAX = 10**18 - 1


class Tail:
    """The newest whole lines of one stream; a progress bar's `\\r` ends a line, too."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._is_torn = False  # the first line has lost its beginning
        self.has_news = False  # has got bytes since they were last taken

    def feed(self, data: bytes) -> None:
        """Take in the next bytes; cheap, whatever comes."""
        self._bytes += data
        self.has_news = True
        surplus = len(self._bytes) - KEPT_BYTES
        if surplus > 0:
            del self._bytes[:surplus]
            self._is_torn = True

    def take(self) -> tuple[list[bytes], bool]:
        """The lines that have become whole since the last call, newest first; and whether others were lost before them.

        A line has at most 2000 bytes; what is behind them is cut off.
        """
        *lines, rest = bytes(self._bytes).replace(b"\r", b"\n").split(b"\n")
        is_torn = self._is_torn and self.has_news
        self._is_torn = self._is_torn and not lines
        if is_torn:
            del lines[:1]  # without its beginning
        self._bytes = bytearray(b"" if self._is_torn else rest[:LINE_BYTES_MAX])
        self.has_news = False
        return [line[:LINE_BYTES_MAX] for line in reversed(lines) if line], is_torn


@dataclass(frozen=True)
class Finding:
    """What a look has found in the output of one rank since the last one."""

    matches: tuple[dict[str, Any], ...] = ()  # of each stream the newest line that shows a step; standard output last
    lines: int = 0  # that were whole
    has_missed: bool = False  # some were not searched: there were too many, or no time


class Search:
    """Lives in the loop; made anew for the next generation."""

    def __init__(self, key: str, pattern: str, ranks: Collection[int]) -> None:
        """`pattern` has a group `step`; `key` is what the job calls it, and `ranks` are listened to."""
        self._key = key
        self._source = pattern
        self._ranks = ranks
        self._pattern: Any = None  # a regex.Pattern: like `re`'s, but a search can be given a time limit
        self._tails: dict[int, dict[str, Tail]] = {}  # by rank and stream
        self._due: deque[int] = deque()  # ranks; whoever waits longest to be looked at is first

    def tap(self, rank: int, stream: str) -> Callable[[bytes], None] | None:
        """What is to be given the bytes of this stream as they come; None where nobody looks at them."""
        if rank not in self._ranks:
            return None
        if not self._tails:
            self._pattern = self._compiled()
        if rank not in self._tails:
            self._tails[rank] = {}
            self._due.append(rank)
        return self._tails[rank].setdefault(stream, Tail()).feed

    @property
    def is_given_up(self) -> bool:
        """Whether there is output to be looked at, and the pattern is of no use for that."""
        return bool(self._tails) and self._pattern is None

    def look(self) -> dict[int, Finding]:
        """What there is anew, by rank."""
        give_up_s = boot_s() + MATCH_BUDGET_S
        left = len(self._due)
        found: dict[int, Finding] = {}
        while left and self._pattern is not None and boot_s() < give_up_s:
            found[self._due[0]] = self._look_at(self._tails[self._due[0]], give_up_s)
            self._due.rotate(-1)
            left -= 1
        for rank in itertools.islice(self._due, left):  # they come first at the next look
            if any(tail.has_news for tail in self._tails[rank].values()):
                found[rank] = Finding(has_missed=True)
        return found

    def _look_at(self, tails: dict[str, Tail], give_up_s: float) -> Finding:
        matches: list[dict[str, Any]] = []
        count, has_missed = 0, False
        for stream in sorted(tails):  # err before out: what both show, standard output shows last
            lines, is_torn = tails[stream].take()
            match, is_searched = self._newest(lines, give_up_s)
            matches += [] if match is None else [match]
            count += len(lines)
            has_missed |= is_torn or not is_searched
        return Finding(tuple(matches), count, has_missed)

    def _newest(self, lines: list[bytes], give_up_s: float) -> tuple[dict[str, Any] | None, bool]:
        """The first of these lines, newest first, that shows a step; and whether all were searched up to there."""
        for place, line in enumerate(lines):
            if place and (self._pattern is None or boot_s() >= give_up_s):
                return None, False
            found = self._search(line)
            if found is not None and whole(found["step"]) is not None:
                return found.groupdict(), True
        return None, True

    def _search(self, line: bytes) -> Any:
        try:
            return self._pattern.search(_COLOUR.sub(b"", line).decode(errors="replace"), timeout=MATCH_BUDGET_S)
        except (TimeoutError, MemoryError) as exc:
            self._drop(exc, line)
            return None

    def _compiled(self) -> Any:
        import regex  # only where a job has a pattern: it takes 10 ms

        try:
            return regex.compile(self._source)
        except (
            regex.error,
            ValueError,
            OverflowError,
            RecursionError,
            MemoryError,
        ) as exc:  # what `re` accepts, and this does not
            self._drop(exc, b"")
            return None

    def _drop(self, exc: Exception, line: bytes) -> None:
        self._pattern = None
        shown = line[:200].decode(errors="replace")
        log.warning("log_pattern_dropped", key=self._key, error=repr(exc), line=shown)


def whole(value: object) -> int | None:
    """A step: digits, or a whole number that a message can carry; 5.0 is one."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX:
        return value
    return None
