"""Checkpoints of a generation: in the marker file, and in what ranks write."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocol.job import CheckpointTable, JobSpec, ProgressTable
from protocol.member_events import Saved
from supervisor.runner.saves import Saves
from tests.protocol.build import job_spec

TIMEOUT_S = 20.0
PATTERN = r"saved step (?P<step>\d+)"


class Seen:
    """The checkpoints that are seen of one generation."""

    def __init__(self, spec: JobSpec, tasks: asyncio.TaskGroup, generation: int = 0) -> None:
        self.told: asyncio.Queue[Saved] = asyncio.Queue()
        self.saves = Saves(spec, generation, 2, tasks, self.told.put_nowait)

    def says(self, data: bytes, rank: int = 0) -> None:
        tap = self.saves.tap(rank, "out")
        assert tap is not None
        tap(data)


@asynccontextmanager
async def seen(
    *, pattern: str = "", marker: Path | None = None, ranks: str = "0", generation: int = 0
) -> AsyncIterator[Seen]:
    table = CheckpointTable(marker="latest" if marker else "", log_pattern=pattern)
    spec = job_spec(checkpoint=table, progress=ProgressTable(log_ranks=ranks))
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        made = Seen(spec, tasks, generation)
        made.saves.begin(marker)
        await made.saves.look_last(generation, TIMEOUT_S)  # what there was before is known
        yield made


# --- the marker --------------------------------------------------------------------------------------------------


async def test_what_the_marker_holds_when_the_ranks_are_spawned_is_known_and_no_save(tmp_path: Path) -> None:
    marker = tmp_path / "latest"
    marker.write_text("global_step100\n")
    async with seen(marker=marker) as watch:
        assert await watch.told.get() == Saved(0, 100, is_new=False)
        marker.write_text("global_step200\n")
        watch.saves.look(0)
        assert await watch.told.get() == Saved(0, 200, is_new=True)


async def test_a_marker_that_was_not_there_before_is_a_save(tmp_path: Path) -> None:
    async with seen(marker=tmp_path / "latest") as watch:
        (tmp_path / "latest").write_text("7")
        watch.saves.look(0)
        assert await watch.told.get() == Saved(0, 7, is_new=True)


async def test_a_look_for_another_generation_finds_nothing(tmp_path: Path) -> None:
    async with seen(marker=tmp_path / "latest", generation=3) as watch:
        (tmp_path / "latest").write_text("7")
        watch.saves.look(2)
        await watch.saves.look_last(2, TIMEOUT_S)
        assert watch.told.empty()


async def test_what_was_saved_just_before_the_end_is_told_before_it(tmp_path: Path) -> None:
    async with seen(marker=tmp_path / "latest") as watch:
        watch.saves.look(0)  # and is still reading
        (tmp_path / "latest").write_text("9")
        await watch.saves.look_last(0, TIMEOUT_S)
        assert watch.told.get_nowait() == Saved(0, 9, is_new=True)


async def test_what_was_saved_before_a_pre_signal_is_known_and_no_news(tmp_path: Path) -> None:
    async with seen(marker=tmp_path / "latest", pattern=PATTERN) as watch:
        (tmp_path / "latest").write_text("9")
        watch.says(b"saved step 8\n")
        await watch.saves.settle(0, TIMEOUT_S)
        assert [watch.told.get_nowait() for _ in range(2)] == [Saved(0, 8, is_new=False), Saved(0, 9, is_new=False)]
        (tmp_path / "latest").write_text("10")
        watch.saves.look(0)
        assert await watch.told.get() == Saved(0, 10, is_new=True)


async def test_a_marker_on_a_disk_that_hangs_holds_nobody_up_and_has_one_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stood in for by a thread that waits for a pipe."""
    readers: list[Path] = []
    hung, goes_on = os.pipe()

    def hang(path: Path, limit: int) -> bytes:
        readers.append(path)
        os.read(hung, 1)
        return b"5"

    monkeypatch.setattr("supervisor.runner.saves.read_small", hang)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        watch = Seen(job_spec(checkpoint=CheckpointTable(marker="latest")), tasks)
        watch.saves.begin(tmp_path / "latest")
        for _ in range(3):
            watch.saves.look(0)
        await watch.saves.look_last(0, patience_s=0.01)
        assert watch.told.empty()
        os.write(goes_on, b"x")
        assert await watch.told.get() == Saved(0, 5, is_new=False)
    assert len(readers) == 1
    os.close(hung)
    os.close(goes_on)


# --- log_pattern -------------------------------------------------------------------------------------------------


async def test_a_line_that_matches_is_a_save_of_its_step_each_time() -> None:
    async with seen(pattern=PATTERN) as watch:
        watch.says(b"step 41\nsaved step 40\nstep 42\nsaved st")
        watch.saves.look(0)
        assert watch.told.get_nowait() == Saved(0, 40, is_new=True)
        watch.saves.look(0)
        assert watch.told.empty()
        watch.says(b"ep 50\n")
        watch.saves.look(0)
        assert watch.told.get_nowait() == Saved(0, 50, is_new=True)


async def test_lines_of_the_ranks_that_progress_log_ranks_names_count_and_of_no_others() -> None:
    async with seen(pattern=PATTERN, ranks="1") as watch:
        assert watch.saves.tap(0, "out") is None
        watch.says(b"saved step 3\n", rank=1)
        watch.saves.look(0)
        assert watch.told.get_nowait() == Saved(0, 3, is_new=True)


async def test_several_ranks_that_tell_of_a_save_at_once_are_one() -> None:
    async with seen(pattern=PATTERN, ranks="all") as watch:
        for rank in (0, 1):
            watch.says(b"saved step %d\n" % (8 + rank), rank=rank)
        watch.saves.look(0)
        assert watch.told.get_nowait() == Saved(0, 9, is_new=True)
        assert watch.told.empty()


async def test_nothing_is_listened_to_without_a_pattern() -> None:
    async with seen(ranks="all") as watch:
        assert watch.saves.tap(0, "out") is None
