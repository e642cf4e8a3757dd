"""What ranks show of their progress without `supd.beat`: in their output (`progress.log_pattern`), in `progress.file`.

Bytes are only kept as they pass by. The pattern is tried at a look, on the newest whole lines, and a user's pattern
costs a look at most twice `MATCH_BUDGET_S`: one that takes longer over a single line is given up for this generation.
What a look has no time or place for counts as a sign of a rank that has shown its step before: a flood is no hang.
A step behind column 2000 of its line is not seen.
"""

import asyncio
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from protocol.job import ProgressTable
from protocol.member_events import NOTHING, Sample
from protocol.signs import file_ranks, log_ranks
from supervisor.shell.clock import boot_s
from supervisor.shell.files import read_small

log = structlog.get_logger()

KEPT_BYTES = 32 << 10
"""Of each stream, between two looks."""

LINE_BYTES_MAX = 2000

MATCH_BUDGET_S = 0.05
"""After so long a look begins with no further line; and as long as a single line may take."""

FILE_BYTES_MAX = 4096

GIVEN_UP = "progress.log_pattern was given up: it takes too long, or `regex` does not understand it"

NO_MATCH = "progress.log_pattern has matched no line yet"

UNMATCHED_LINES = 10
"""After so many lines without a match it is said: the first ones of a program seldom show a step."""

NO_FILE = "progress.file cannot be read, or is not there yet"

MISSING_READS = 60
"""After so many reads, about one a second, it is said: the first step of a program may take its time."""

NO_STEP = "progress.file holds no step: it is to be a number, or a JSON object with `step`"

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


@dataclass
class _Output:
    """The output of one rank that is looked at."""

    tails: dict[str, Tail] = field(default_factory=dict)  # by stream
    sample: Sample = NOTHING
    unmatched: int = 0  # lines that were looked at before the first one that shows a step

    def missed(self) -> None:
        """Some of it was not searched: that counts where it has shown a step before."""
        if self.sample.count:
            self.sample = replace(self.sample, count=self.sample.count + 1)


@dataclass
class _File:
    """The progress file of one rank."""

    path: Path
    content: bytes | None = None  # when it was read last
    is_known: bool = False  # has been read
    missing: int = 0  # times in a row that it could not be read
    sample: Sample = NOTHING

    def saw(self, content: bytes | None) -> None:
        """It has been read: `content` is None where it cannot be."""
        self.missing = self.missing + 1 if content is None else 0
        if self.missing >= MISSING_READS:
            self.sample = replace(self.sample, remark=NO_FILE)
        elif self.sample.remark == NO_FILE:
            self.sample = replace(self.sample, remark="")
        if not self.is_known:
            self.is_known, self.content = True, content
        elif content is not None and content != self.content:
            self.content = content
            self.sample = _of_file(content, self.sample)


class Progress:
    """What the ranks of one generation have shown. Lives in the loop; made anew for the next generation."""

    def __init__(self, table: ProgressTable, world_size: int) -> None:
        self._table = table
        self._pattern: Any = None  # a regex.Pattern: like `re`'s, but a search can be given a time limit
        self._chosen = log_ranks(table, world_size)  # ranks whose output is looked at
        self._outputs: dict[int, _Output] = {}
        self._due: deque[int] = deque()  # ranks; whoever waits longest to be looked at is first
        self._files: dict[int, _File] = {}
        self._reading: asyncio.Future[None] | None = None

    def tap(self, rank: int, stream: str) -> Callable[[bytes], None] | None:
        """What is to be given the bytes of this stream as they come; None where nobody looks at them."""
        if rank not in self._chosen:
            return None
        if not self._outputs:
            self._pattern = _compiled(self._table.log_pattern)
        if rank not in self._outputs:
            self._outputs[rank] = _Output()
            self._due.append(rank)
        return self._outputs[rank].tails.setdefault(stream, Tail()).feed

    def add_file(self, rank: int, path: Path) -> None:
        """`rank` has this `progress.file`; what it holds when it is first read shows nothing."""
        if rank in file_ranks(self._table, [rank]):
            self._files[rank] = _File(path)

    def look(self) -> dict[int, Sample]:
        """What has been shown so far, by rank: of its output where that shows something, else of its file."""
        self._match()
        by_output = {rank: output.sample for rank, output in self._outputs.items()}
        by_file = {rank: file.sample for rank, file in self._files.items()}
        if self._outputs and self._pattern is None:
            return {rank: _unseen(sample) for rank, sample in by_output.items()} | _begun(by_file)
        remarks = {rank: sample for rank, sample in [*by_output.items(), *by_file.items()] if sample.remark}
        return remarks | _begun(by_file) | _begun(by_output)

    # --- output --------------------------------------------------------------------------------------------------

    def _match(self) -> None:
        give_up_s = boot_s() + MATCH_BUDGET_S
        left = len(self._due)
        while left and self._pattern is not None and boot_s() < give_up_s:
            self._match_one(self._outputs[self._due[0]], give_up_s)
            self._due.rotate(-1)
            left -= 1
        for rank in itertools.islice(self._due, left):  # they come first at the next look
            if any(tail.has_news for tail in self._outputs[rank].tails.values()):
                self._outputs[rank].missed()

    def _match_one(self, output: _Output, give_up_s: float) -> None:
        before, has_missed = output.sample, False
        for stream in sorted(output.tails):  # err before out: what both show, standard output shows last
            lines, is_torn = output.tails[stream].take()
            found, is_searched = self._newest(lines, output.sample, give_up_s)
            output.sample = found
            output.unmatched += len(lines)
            has_missed |= is_torn or not is_searched
        if not output.sample.count and output.unmatched >= UNMATCHED_LINES:
            output.sample = replace(NOTHING, remark=NO_MATCH)
        if output.sample is before and has_missed:
            output.missed()

    def _newest(self, lines: list[bytes], before: Sample, give_up_s: float) -> tuple[Sample, bool]:
        """The sample after these lines, newest first, of which one that shows a step counts; and whether that is known.

        It is not where the time was up before all lines were searched, and none of the others shows a step.
        """
        for place, line in enumerate(lines):
            if place and (self._pattern is None or boot_s() >= give_up_s):
                return before, False
            found = self._search(line)
            if found is not None and (step := _whole(found["step"])) is not None:
                return replace(_with_rest(before, found.groupdict()), count=before.count + 1, step=step), True
        return before, True

    def _search(self, line: bytes) -> Any:
        try:
            return self._pattern.search(_COLOUR.sub(b"", line).decode(errors="replace"), timeout=MATCH_BUDGET_S)
        except (TimeoutError, MemoryError) as exc:
            log.warning("progress_pattern_dropped", error=repr(exc), line=line[:200].decode(errors="replace"))
            self._pattern = None
            return None

    # --- files ---------------------------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        """Whether files are being read; for ever, where their file system hangs."""
        return self._reading is not None

    async def refresh_file(self) -> None:
        """Read the files anew, in a thread; what is there now has been seen when it returns.

        Call it in a task of its own: a file system that hangs holds up nothing else then.
        """
        if self._reading is not None:
            await asyncio.wait({self._reading})  # it may have passed by a file that was not yet as it is now
        if self._reading is not None:
            await asyncio.wait({self._reading})  # somebody else has waited, too, and begun anew
            return
        self._reading = reading = asyncio.get_running_loop().create_future()
        try:
            await self._read_files()
        finally:
            self._reading = None
            reading.set_result(None)

    async def _read_files(self) -> None:
        files = list(self._files.values())
        contents = await asyncio.to_thread(lambda: [read_small(file.path, FILE_BYTES_MAX) for file in files])
        for file, content in zip(files, contents, strict=True):
            file.saw(content)


def _begun(samples: Mapping[int, Sample]) -> dict[int, Sample]:
    return {rank: sample for rank, sample in samples.items() if sample.count}


def _unseen(sample: Sample) -> Sample:
    """Of a rank whose output is looked at no more: it has begun, as far as we know, and nothing is expected of it."""
    return replace(sample, count=max(sample.count, 1), is_done=True, remark=GIVEN_UP)


def _compiled(pattern: str) -> Any:
    import regex  # only where a job has a pattern: it takes 10 ms

    try:
        return regex.compile(pattern)
    except (
        regex.error,
        ValueError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as exc:  # what `re` accepts, and this does not
        log.warning("progress_pattern_dropped", error=repr(exc), line="")
        return None


def _of_file(content: bytes, before: Sample) -> Sample:
    """A number, or a JSON object with `step`, `total` and `loss`, as `json.dump` writes it: with NaN and Infinity.

    Half a file and other nonsense is a sign of a rank that has shown its step before.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    values = value if isinstance(value, dict) else {"step": value}
    step = _whole(values.get("step"))
    if step is None:
        remark = NO_STEP if content else before.remark  # an empty one is just being written
        return replace(before, count=before.count + 1 if before.count else 0, remark=remark)
    return replace(_with_rest(before, values), count=before.count + 1, step=step)


def _with_rest(before: Sample, values: dict[str, Any]) -> Sample:
    """With `total` and `loss` where they are given; a loss that is no number takes the last one back."""
    total, loss = _whole(values.get("total")), values.get("loss")
    return replace(
        before,
        remark="",
        total_steps=before.total_steps if total is None else total,
        loss=before.loss if loss is None else _number(loss),
    )


def _whole(value: object) -> int | None:
    """A step: digits, or a whole number that a message can carry; 5.0 is one."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX:
        return value
    return None


def _number(value: object) -> float | None:
    """Also what is not finite: a loss of nan is worth seeing."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
