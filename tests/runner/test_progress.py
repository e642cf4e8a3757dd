"""Progress that ranks show in their output and in a file."""

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.job import ProgressTable
from protocol.member_events import NOTHING, Sample
from supervisor.runner.log_search import KEPT_BYTES, LINE_BYTES_MAX, Tail
from supervisor.runner.progress import (
    GIVEN_UP,
    MISSING_READS,
    NO_FILE,
    NO_MATCH,
    NO_STEP,
    UNMATCHED_LINES,
    Progress,
)

UNSEEN = Sample(count=1, is_done=True, remark=GIVEN_UP)
"""Of a rank whose pattern was given up: it counts as begun, and no limit of [hang] can pass."""

PATTERN = r"step (?P<step>\S+)(?: of (?P<total>\d+))?(?: loss (?P<loss>\S+))?"


def watching(pattern: str = PATTERN, *, ranks: str = "0", size: int = 2, source: str = "auto") -> Progress:
    return Progress(ProgressTable(log_pattern=pattern, log_ranks=ranks, source=source), size)


def says(progress: Progress, *data: bytes, rank: int = 0, stream: str = "out") -> None:
    tap = progress.tap(rank, stream)
    assert tap is not None
    for piece in data:
        tap(piece)


def remarks(progress: Progress) -> dict[int, str]:
    return {rank: sample.remark for rank, sample in progress.look().items() if sample.remark}


# --- lines -------------------------------------------------------------------------------------------------------


@given(st.lists(st.text("ab\r\n", max_size=30), max_size=20))
def test_lines_are_whole_and_in_order_however_they_come_in_pieces(pieces: list[str]) -> None:
    tail = Tail()
    taken: list[bytes] = []
    for piece in pieces:
        tail.feed(piece.encode())
        taken += reversed(tail.take()[0])
    *whole, _rest = "".join(pieces).replace("\r", "\n").split("\n")
    assert [line.decode() for line in taken] == [line for line in whole if line]


def test_of_a_flood_the_newest_lines_are_kept_and_none_without_its_beginning() -> None:
    tail = Tail()
    for number in range(100_000):
        tail.feed(b"line %d\n" % number)
    lines, is_torn = tail.take()
    assert is_torn
    assert len(lines) > 1000
    assert lines == [b"line %d" % number for number in range(99_999, 99_999 - len(lines), -1)]
    tail.feed(b"x" * 3 * KEPT_BYTES + b"\nlast\n")
    assert tail.take() == ([b"last"], True)
    assert tail.take() == ([], False)


def test_an_endless_line_is_cut_and_holds_little_memory() -> None:
    tail = Tail()
    for _ in range(100):
        tail.feed(b"y" * 1000)
        assert tail.take() == ([], False)
    tail.feed(b"\nstep 5\n")
    assert tail.take() == ([b"step 5", b"y" * LINE_BYTES_MAX], False)


# --- log_pattern -------------------------------------------------------------------------------------------------


def test_the_newest_line_that_shows_a_step_counts() -> None:
    progress = watching()
    says(progress, b"step 1 of 90 loss 2.5\nstep 2 of 90 lo", b"ss 2.25\nsaved\nste", b"p 3 of 90\n")
    assert progress.look() == {0: Sample(count=1, step=3, total_steps=90)}
    says(progress, b"step 4 loss 1.5\n")
    assert progress.look() == {0: Sample(count=2, step=4, total_steps=90, loss=1.5)}
    assert progress.look() == {0: Sample(count=2, step=4, total_steps=90, loss=1.5)}


def test_a_progress_bar_shows_its_step_without_a_newline() -> None:
    progress = watching(r"(?P<step>\d+)/(?P<total>\d+) \[")
    says(progress, b"\r 1%| 1/100 [00:01", b"\r 2%| 2/100 [00:02", b"\r 3%| 3/", stream="err")
    assert progress.look() == {0: Sample(count=1, step=2, total_steps=100)}


@pytest.mark.parametrize("step", ["1,234", "-5", "x", "9" * 19, "1.5", "٣"])
def test_a_step_that_is_no_number_changes_nothing(step: str) -> None:
    progress = watching()
    says(progress, f"step 7 loss 1\nstep {step} loss 2\n".encode())
    assert progress.look() == {0: Sample(count=1, step=7, loss=1.0)}


def test_a_loss_that_is_no_number_takes_the_last_one_back() -> None:
    progress = watching()
    says(progress, b"step 7 loss 1\n")
    progress.look()
    says(progress, b"step 8 loss n/a\n")
    assert progress.look() == {0: Sample(count=2, step=8)}


@pytest.mark.parametrize(("loss", "shown"), [("nan", "nan"), ("inf", "inf"), ("-Infinity", "-inf"), ("1e999", "inf")])
def test_a_loss_that_is_not_finite_is_one(loss: str, shown: str) -> None:
    progress = watching()
    says(progress, f"step 8 loss {loss}\n".encode())
    assert f"{progress.look()[0].loss}" == shown


def test_a_pattern_that_matches_none_of_many_lines_is_told_until_it_does() -> None:
    progress = watching(ranks="all")
    says(progress, b"loading\n" * (UNMATCHED_LINES - 1))
    says(progress, b"step 1\n" + b"saved\n" * 2 * UNMATCHED_LINES, rank=1)
    assert remarks(progress) == {}
    says(progress, b"loading\n")
    assert remarks(progress) == {0: NO_MATCH}
    assert progress.look()[0] == NOTHING, "a remark is no sign of life"
    says(progress, b"step 1\n")
    assert (remarks(progress), progress.look()[0]) == ({}, Sample(count=1, step=1))


def test_colours_are_no_part_of_a_line() -> None:
    progress = watching()
    says(progress, b"\x1b[1;32mstep\x1b[0m \x1b[38:5:1m7\x1b[m of 90\n")
    assert progress.look() == {0: Sample(count=1, step=7, total_steps=90)}


def test_only_the_chosen_ranks_are_listened_to() -> None:
    progress = watching(ranks="!0", size=3)
    assert progress.tap(0, "out") is None
    says(progress, b"step 1\n", rank=2)
    assert progress.look() == {2: Sample(count=1, step=1)}
    assert watching(ranks="5", size=3).tap(1, "out") is None  # it is not there, and nobody minds


@pytest.mark.parametrize("source", ["client", "file", "none"])
def test_output_is_not_looked_at_where_the_step_comes_from_elsewhere(source: str) -> None:
    assert watching(source=source).tap(0, "out") is None
    assert Progress(ProgressTable(), 1).tap(0, "out") is None


def test_a_pattern_that_takes_too_long_is_given_up_and_holds_nobody_up() -> None:
    progress = watching(r"(?P<step>\d+)(x|xx)+[yz]", ranks="all", size=8)
    for rank in range(8):
        says(progress, (b"1" + b"x" * 1000 + b"\n") * 50, rank=rank)
    progress.look()
    for rank in range(8):
        says(progress, b"1xxy\n", rank=rank)
    assert progress.look() == dict.fromkeys(range(8), UNSEEN)
    assert remarks(progress) == dict.fromkeys(range(8), GIVEN_UP)


def test_a_rank_that_has_shown_something_keeps_it_when_the_pattern_is_given_up() -> None:
    progress = watching(r"(?P<step>\d+)(x|xx)+[yz]")
    says(progress, b"7xxy\n")
    progress.look()
    says(progress, b"1" + b"x" * 1000 + b"\n")
    assert progress.look() == {0: replace(UNSEEN, step=7)}


def test_a_pattern_that_only_the_job_files_check_understands_shows_nothing() -> None:
    progress = watching(r"(?P<step>\d+)a{e<x}")  # `regex` reads {e...} as a limit of errors, `re` as it stands
    says(progress, b"1a{e<x}\n")
    assert progress.look() == {0: UNSEEN}


def test_ranks_that_one_look_has_no_time_for_come_first_at_the_next() -> None:
    size = 64
    progress = watching(r"(?P<step>\d+)( *x)*y", ranks="all", size=size)
    for rank in range(size):
        says(progress, b"%d xy\n" % rank + (b"5" + b" x" * 900 + b"\n") * 30, rank=rank)
    seen: set[int] = set()
    for _ in range(size):
        for rank in range(size):
            says(progress, b"%d xy\n" % rank, rank=rank)
        seen |= progress.look().keys()
    assert seen == set(range(size))


def test_a_step_that_is_lost_in_a_flood_is_a_sign_of_a_rank_that_has_shown_one_before() -> None:
    """A rank that trains and prints a lot does not hang."""
    progress = watching()
    flood = b"a line without one\n" * 3000
    says(progress, flood)
    assert progress.look() == {0: NOTHING}
    says(progress, b"step 7\n")
    progress.look()
    says(progress, b"step 8\n" + flood)
    assert progress.look() == {0: Sample(count=2, step=7)}
    assert progress.look() == {0: Sample(count=2, step=7)}
    says(progress, b"step 9\n" + b"a line without one\n" * 1000)  # over a hundred lines, and all there
    assert progress.look() == {0: Sample(count=3, step=9)}


def test_what_a_look_has_no_time_for_is_a_sign_of_a_rank_that_has_shown_a_step_before() -> None:
    size = 64
    progress = watching(r"(?P<step>\d+)( *x)*y", ranks="all", size=size)
    for rank in range(size):
        says(progress, b"1 xy\n", rank=rank)
    while len(progress.look()) < size:
        pass
    before = progress.look()
    for rank in range(size):
        says(progress, b"2 xy\n" + (b"5" + b" x" * 900 + b"\n") * 30, rank=rank)
    after = progress.look()
    assert {rank for rank in range(size) if after[rank] == before[rank]} == set()


@given(st.binary(max_size=5000))
def test_no_output_makes_it_raise(data: bytes) -> None:
    progress = watching()
    says(progress, data)
    for sample in progress.look().values():
        assert sample.step is not None or sample.remark == NO_MATCH


# --- file --------------------------------------------------------------------------------------------------------


async def with_file(path: Path, **table: Any) -> Progress:
    """Its ranks are about to be spawned."""
    progress = Progress(ProgressTable(file=str(path), **table), 2)
    progress.add_file(0, path)
    progress.add_file(1, path)
    await progress.refresh_file()
    return progress


async def test_a_file_with_a_number_is_rank_0s_step(tmp_path: Path) -> None:
    path = tmp_path / "step"
    progress = await with_file(path)
    await progress.refresh_file()
    assert progress.look() == {}
    path.write_text("40\n")
    await progress.refresh_file()
    await progress.refresh_file()
    assert progress.look() == {0: Sample(count=1, step=40)}


async def test_a_file_of_json_shows_step_total_and_loss(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    progress = await with_file(path, source="file")
    path.write_text('{"step": 5, "total": 100, "loss": 2.5, "epoch": {"n": 1}}')
    await progress.refresh_file()
    assert progress.look() == {0: Sample(count=1, step=5, total_steps=100, loss=2.5)}


@pytest.mark.parametrize(
    ("content", "loss"),
    [
        ('{"step": 5, "loss": NaN}', "nan"),
        ('{"step": 5.0, "loss": -Infinity}', "-inf"),
        ('{"step": 5, "loss": 1.5, "grad": [NaN, Infinity], "note": {"a": null}}', "1.5"),
    ],
)
async def test_a_file_of_json_may_hold_what_json_dump_writes(tmp_path: Path, content: str, loss: str) -> None:
    path = tmp_path / "progress.json"
    progress = await with_file(path)
    path.write_text(content)
    await progress.refresh_file()
    sample = progress.look()[0]
    assert (sample.count, sample.step, f"{sample.loss}") == (1, 5, loss)


NONSENSE = ["4x", '{"step": ', '{"step": true}', '{"step": 1.5}', "[4]", "-4", "9" * 30, "\udcff", "[" * 4000, "NaN"]


@pytest.mark.parametrize("content", NONSENSE)
async def test_a_file_without_a_step_is_told_and_shows_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "step"
    progress = await with_file(path)
    path.write_text(content, errors="surrogateescape")
    await progress.refresh_file()
    assert (progress.look(), remarks(progress)) == ({0: NOTHING}, {0: NO_STEP})
    path.write_text("4")
    await progress.refresh_file()
    assert (progress.look(), remarks(progress)) == ({0: Sample(count=1, step=4)}, {})


async def test_a_file_that_is_not_there_for_long_is_told_until_it_is(tmp_path: Path) -> None:
    path = tmp_path / "step"
    progress = await with_file(path)
    for _ in range(MISSING_READS - 2):
        await progress.refresh_file()
    assert remarks(progress) == {}
    await progress.refresh_file()
    assert remarks(progress) == {0: NO_FILE}
    path.write_text("4")
    await progress.refresh_file()
    assert (progress.look(), remarks(progress)) == ({0: Sample(count=1, step=4)}, {})


@pytest.mark.parametrize("content", ["", *NONSENSE])
async def test_a_file_that_has_shown_a_step_and_changes_is_a_sign_whatever_it_holds(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "step"
    progress = await with_file(path)
    path.write_text("3")
    await progress.refresh_file()
    path.write_text(content, errors="surrogateescape")
    await progress.refresh_file()
    assert progress.look() == {0: Sample(count=2, step=3)}


async def test_what_the_file_held_before_the_ranks_began_is_the_pasts(tmp_path: Path) -> None:
    path = tmp_path / "step"
    path.write_text("900")
    progress = await with_file(path)
    await progress.refresh_file()
    assert progress.look() == {}
    path.write_text("400")
    await progress.refresh_file()
    assert progress.look() == {0: Sample(count=1, step=400)}


async def test_a_file_that_is_named_by_rank_is_each_ranks_own(tmp_path: Path) -> None:
    progress = Progress(ProgressTable(file="step-{rank}"), 2)
    for rank in (0, 1):
        progress.add_file(rank, tmp_path / f"step-{rank}")
    await progress.refresh_file()
    for rank in (0, 1):
        (tmp_path / f"step-{rank}").write_text(str(rank + 10))
    await progress.refresh_file()
    assert {rank: sample.step for rank, sample in progress.look().items()} == {0: 10, 1: 11}


async def test_output_wins_over_the_file_once_it_shows_something(tmp_path: Path) -> None:
    path = tmp_path / "step"
    progress = await with_file(path, log_pattern=PATTERN)
    path.write_text("3")
    await progress.refresh_file()
    assert progress.look()[0].step == 3
    says(progress, b"step 4\n")
    assert progress.look()[0].step == 4


class Waiting(PosixPath):
    """A file of a server that does not answer until it is told to."""

    def __fspath__(self) -> str:
        asked, answers = SERVERS[str(self)]
        asked.set()
        assert answers.wait(20)
        return str(self)


SERVERS: dict[str, tuple[threading.Event, threading.Event]] = {}
"""By path: it has been asked, it answers."""


def waiting(path: Path) -> tuple[Waiting, threading.Event, threading.Event]:
    asked, answers = SERVERS[str(path)] = threading.Event(), threading.Event()
    return Waiting(path), asked, answers


async def test_a_file_system_that_hangs_holds_nobody_up_but_the_reader(tmp_path: Path) -> None:
    (tmp_path / "step").write_text("7")
    path, asked, answers = waiting(tmp_path / "step")
    progress = Progress(ProgressTable(file=str(path)), 1)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
        progress.add_file(0, path)
        reading = tasks.create_task(progress.refresh_file())
        await asyncio.to_thread(asked.wait, 20)
        assert (progress.look(), progress.is_reading, reading.done()) == ({}, True, False)
        answers.set()
        await reading
        assert progress.look() == {}  # however late it comes: what the file held first is the past's
    (tmp_path / "step").write_text("8")
    await progress.refresh_file()
    assert progress.look() == {0: Sample(count=1, step=8)}


async def test_what_is_written_while_others_read_has_been_seen_when_a_refresh_is_over(tmp_path: Path) -> None:
    """Ranks that end together: each one's last step."""
    path, asked, answers = waiting(tmp_path / "step-1")
    answers.set()
    progress = Progress(ProgressTable(file="step-{rank}"), 2)
    progress.add_file(0, tmp_path / "step-0")
    progress.add_file(1, path)
    await progress.refresh_file()
    asked.clear()
    answers.clear()
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
        first = tasks.create_task(progress.refresh_file())
        await asyncio.to_thread(asked.wait, 20)  # it has passed by rank 0's file
        (tmp_path / "step-0").write_text("9")
        later = [tasks.create_task(progress.refresh_file()) for _ in range(3)]
        await asyncio.sleep(0)
        answers.set()
        await first
        await asyncio.wait(later)
        assert progress.look() == {0: Sample(count=1, step=9)}


async def test_a_pipe_in_place_of_the_file_shows_nothing_and_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    progress = await with_file(tmp_path / "pipe")
    await progress.refresh_file()
    assert (progress.look(), progress.is_reading) == ({}, False)
