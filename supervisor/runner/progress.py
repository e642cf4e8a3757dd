"""What ranks show of their progress without `supd.beat`: in their output (`progress.log_pattern`), in `progress.file`.

How the pattern is tried: log_search.py. What a look has no time or place for counts as a sign of a rank that has shown
its step before: a flood is no hang.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.dataclass import dataclass
from protocol.job import ProgressTable
from protocol.member_events import NOTHING, Sample
from protocol.signs import file_ranks, log_ranks
from supervisor.runner.log_search import Finding, Search, whole
from supervisor.shell.files import read_small

FILE_BYTES_MAX = 4096

GIVEN_UP = "progress.log_pattern was given up: it takes too long, or `regex` does not understand it"

NO_MATCH = "progress.log_pattern has matched no line yet"

UNMATCHED_LINES = 10
"""After so many lines without a match it is said: the first ones of a program seldom show a step."""

NO_FILE = "progress.file cannot be read, or is not there yet"

MISSING_READS = 60
"""After so many reads, about one a second, it is said: the first step of a program may take its time."""

NO_STEP = "progress.file holds no step: it is to be a number, or a JSON object with `step`"


@dataclass(frozen=False)
class _Output:
    """The output of one rank that is looked at."""

    sample: Sample = NOTHING
    unmatched: int = 0  # lines that were looked at before the first one that shows a step

    def saw(self, finding: Finding) -> None:
        """It has been looked at. What was not searched counts where it has shown a step before."""
        for groups in finding.matches:
            count = self.sample.count + 1
            self.sample = replace(_with_rest(self.sample, groups), count=count, step=whole(groups["step"]))
        self.unmatched += finding.lines
        if not self.sample.count and self.unmatched >= UNMATCHED_LINES:
            self.sample = replace(NOTHING, remark=NO_MATCH)
        if finding.has_missed and self.sample.count and not finding.matches:
            self.sample = replace(self.sample, count=self.sample.count + 1)


@dataclass(frozen=False)
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
        self._search = Search("progress.log_pattern", table.log_pattern, log_ranks(table, world_size))
        self._outputs: dict[int, _Output] = {}
        self._files: dict[int, _File] = {}
        self._reading: asyncio.Future[None] | None = None

    def tap(self, rank: int, stream: str) -> Callable[[bytes], None] | None:
        """What is to be given the bytes of this stream as they come; None where nobody looks at them."""
        feed = self._search.tap(rank, stream)
        if feed is not None:
            self._outputs.setdefault(rank, _Output())
        return feed

    def add_file(self, rank: int, path: Path) -> None:
        """`rank` has this `progress.file`; what it holds when it is first read shows nothing."""
        if rank in file_ranks(self._table, [rank]):
            self._files[rank] = _File(path)

    def look(self) -> dict[int, Sample]:
        """What has been shown so far, by rank: of its output where that shows something, else of its file."""
        for rank, finding in self._search.look().items():
            self._outputs[rank].saw(finding)
        by_output = {rank: output.sample for rank, output in self._outputs.items()}
        by_file = {rank: file.sample for rank, file in self._files.items()}
        if self._search.is_given_up:
            return {rank: _unseen(sample) for rank, sample in by_output.items()} | _begun(by_file)
        remarks = {rank: sample for rank, sample in [*by_output.items(), *by_file.items()] if sample.remark}
        return remarks | _begun(by_file) | _begun(by_output)

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


def _of_file(content: bytes, before: Sample) -> Sample:
    """A number, or a JSON object with `step`, `total` and `loss`, as `json.dump` writes it: with NaN and Infinity.

    Half a file and other nonsense is a sign of a rank that has shown its step before.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    values = value if isinstance(value, dict) else {"step": value}
    step = whole(values.get("step"))
    if step is None:
        remark = NO_STEP if content else before.remark  # an empty one is just being written
        return replace(before, count=before.count + 1 if before.count else 0, remark=remark)
    return replace(_with_rest(before, values), count=before.count + 1, step=step)


def _with_rest(before: Sample, values: dict[str, Any]) -> Sample:
    """With `total` and `loss` where they are given; a loss that is no number takes the last one back."""
    total, loss = whole(values.get("total")), values.get("loss")
    return replace(
        before,
        remark="",
        total_steps=before.total_steps if total is None else total,
        loss=before.loss if loss is None else _number(loss),
    )


def _number(value: object) -> float | None:
    """Also what is not finite: a loss of nan is worth seeing."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
