"""supervisor/daemon/generation_reader.py and log_choice.py: what a follower is sent of streams that go on."""

import asyncio
import errno
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import Refused
from protocol.job import LogsTable
from protocol.messages.control import LogChunk, LogPlace, LogSelection
from supervisor.daemon import generation_reader, log_choice, log_window
from supervisor.logs.blocks import BlockReader
from supervisor.logs.log_file import LogFile
from supervisor.logs.paths import make_generation_dir, part_path, stream_path
from supervisor.shell.clock import wall_s
from tests.daemon.serving import wait_for
from tests.daemon.test_logs_service import Told, following, merge_one, read_past, told, write, write_at

ALL = LogSelection(chooser="all", tail_lines=None)
TRACEBACK = b"Traceback (most recent call last):\n"


async def read(logs_dir: Path, selection: LogSelection, **options: Any) -> list[LogChunk]:
    chunks = []

    async def send(chunk: LogChunk) -> None:
        chunks.append(chunk)

    await merge_one(logs_dir, selection, Told([]), send, **options)
    return chunks


# --- choosing ----------------------------------------------------------------------------------------------------


async def test_each_node_sees_for_itself_which_of_its_ranks_are_meant(tmp_path: Path) -> None:
    for generation, first in ((0, 4), (1, 2)):
        for rank in (first, first + 1):
            write(tmp_path, generation, rank, "out", b"hello\n")

    async def ranks(chooser: str) -> list[tuple[int, int, int]]:
        selection = LogSelection(chooser=chooser, all_generations=True)
        return [(c.generation, c.rank, c.local_rank) for c in await read_past(tmp_path, selection)]

    assert await ranks("local:1") == [(0, 5, 1), (1, 3, 1)]
    assert await ranks("gpu-01") == [(0, 4, 0), (0, 5, 1), (1, 2, 0), (1, 3, 1)]
    assert await ranks("gpu-02") == await ranks("gpu-02/local:0") == []
    assert await ranks("gpu-01/local:0,5") == [(0, 4, 0), (0, 5, 1), (1, 2, 0)]


async def test_a_selection_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="write them like"):
        log_choice.Choice(LogSelection(chooser="0;1"))
    with pytest.raises(Refused, match="write them like"):
        log_choice.paths(tmp_path, LogSelection(chooser="0;1"), "gpu-01")


def test_the_files_of_a_stream_are_named_in_its_order(tmp_path: Path) -> None:
    make_generation_dir(tmp_path, 0)
    live = stream_path(tmp_path, 0, 3, "err")
    file = LogFile(live, lambda: None, LogsTable(max_file_bytes=4))
    for _ in range(3):
        file.write(b"line\n")
    file.close()
    rotated = [str(part_path(live, 0)), str(part_path(live, 5))]
    assert log_choice.paths(tmp_path, LogSelection(chooser="3"), "gpu-01") == (*rotated, str(live))


# --- coming back -------------------------------------------------------------------------------------------------


async def test_known_streams_go_on_and_the_others_begin_at_their_start(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "out", b"long ago\n")
    write(tmp_path, 1, 0, "out", b"known\nnew\n")
    write(tmp_path, 1, 1, "out", b"never\nheard\n")
    write(tmp_path, 2, 0, "out", b"next\n")
    known = (LogPlace(generation=1, rank=0, stream="out", offset=6),)
    selection = LogSelection(chooser="all", tail_lines=1, all_generations=True)
    chunks = [c for c in await read(tmp_path, selection, known=known) if c.generation > 0]
    assert [(c.rank, c.offset, c.data) for c in chunks] == [
        (0, 6, b"new\n"),
        (1, 0, b"never\nheard\n"),
        (0, 0, b"next\n"),
    ]


async def test_who_comes_back_in_the_middle_of_a_traceback_is_sent_the_rest_of_it_and_no_more(tmp_path: Path) -> None:
    error = TRACEBACK + b"  line 1\n  line 2\nValueError\n"
    write_at(tmp_path, 0, 7, "err", (1.0, b"fine\n"), (2.0, error), (3.0, b"fine\n"), (4.0, b"ERROR again\n"))
    place = 5 + error.index(b"  line 2")
    known = (LogPlace(generation=0, rank=7, stream="err", offset=place),)
    chunks = await read(tmp_path, LogSelection(), known=known)
    assert [(c.offset, c.data) for c in chunks] == [
        (place, b"  line 2\nValueError\n"),
        (5 + len(error) + 5, b"ERROR again\n"),
    ]


async def test_a_follower_sees_each_line_once_however_often_the_file_is_rotated(tmp_path: Path) -> None:
    make_generation_dir(tmp_path, 0)
    files = [
        LogFile(stream_path(tmp_path, 0, rank, "out"), lambda: None, LogsTable(max_file_bytes=500)) for rank in (0, 1)
    ]
    lines = [b"line %d\n" % number for number in range(3000)]

    def flood() -> None:
        for number, line in enumerate(lines):
            for file in files:
                file.write(line, [(0, 1.0 + number)])

    async with following(tmp_path, ALL) as follower:
        await asyncio.to_thread(flood)
        follower.is_over = True
    for rank in (0, 1):
        assert b"".join(c.data for c in follower.chunks if c.rank == rank) == b"".join(lines)
    for file in files:
        file.close()


# --- what cannot be read -----------------------------------------------------------------------------------------


async def test_a_stream_that_can_be_read_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        write(tmp_path, 0, rank, "out", b"one\n")
    broken: set[int] = {1}
    read_of, look_of = BlockReader.fill, BlockReader.look

    def fails(reader: BlockReader) -> bool:
        return any(f"rank-0000{rank}" in str(reader._tail._live) for rank in broken)

    def fill(reader: BlockReader, bytes_max: int) -> int:
        if fails(reader):
            raise OSError(errno.EIO, "Input/output error")
        return read_of(reader, bytes_max)

    def look(reader: BlockReader) -> None:
        look_of(reader)
        if fails(reader) and reader.has_more and reader.unread_bytes > 8:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(BlockReader, "fill", fill)
    monkeypatch.setattr(BlockReader, "look", look)
    async with following(tmp_path, ALL) as follower:
        assert await follower.next() == (0, 0, "out", b"one\n")
        write(tmp_path, 0, 1, "out", b"two, longer\n")
        write(tmp_path, 0, 0, "out", b"two\n")
        assert await follower.next() == (0, 0, "out", b"two\n")
        broken.clear()
        assert await follower.next() == (0, 1, "out", b"one\ntwo, longer\n")
        follower.is_over = True


# --- too slow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("may_skip", [True, False])
async def test_a_follower_that_is_too_slow_is_taken_ahead_if_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_skip: bool
) -> None:
    monkeypatch.setattr(generation_reader, "BEHIND_BYTES_MAX", 100_000)
    past = b"".join(b"past %06d\n" % number for number in range(20_000))
    lines = [b"line %06d\n" % number for number in range(50_000)]
    write(tmp_path, 0, 0, "out", past)
    selection = LogSelection(chooser="all", tail_lines=None, may_skip=may_skip)
    async with following(tmp_path, selection) as follower:
        await wait_for("the past, none of which is left out", lambda: follower.sent_bytes == len(past))
        follower.take(False)
        write(tmp_path, 0, 0, "out", b"".join(lines[:100]))
        await follower.is_full.wait()
        write(tmp_path, 0, 0, "out", b"".join(lines[100:]))
        follower.take(True)
        await wait_for("the last line", lambda: follower.last.endswith(lines[-1]))
        follower.is_over = True
    chunks = follower.chunks
    assert sum(c.skipped_lines + c.data.count(b"\n") for c in chunks) == 20_000 + 50_000
    skipped = [c for c in chunks if c.skipped_lines]
    assert len(skipped) == may_skip
    for before, behind in pairwise(chunks):
        gap = behind.offset - before.offset - len(before.data)
        assert gap == behind.skipped_lines * len(lines[0])
    if may_skip:
        first = int(skipped[0].data.split()[1])
        assert first == 50_000 - generation_reader.AHEAD_LINES


async def test_what_is_not_kept_any_more_is_counted(tmp_path: Path) -> None:
    make_generation_dir(tmp_path, 0)
    live = stream_path(tmp_path, 0, 0, "out")
    file = LogFile(live, lambda: None, LogsTable(max_file_bytes=10))
    for number in range(4):
        file.write(b"0123456 %d\n" % number, [(0, 1.0 + number)])
    file.close()
    part_path(live, 10).unlink()
    chunks = await read_past(tmp_path, ALL)
    assert [(c.offset, c.removed_bytes, c.data) for c in chunks] == [
        (0, 0, b"0123456 0\n"),
        (20, 10, b"0123456 2\n0123456 3\n"),
    ]
    part_path(live, 0).unlink()
    assert [(c.offset, c.removed_bytes) for c in await read_past(tmp_path, ALL)] == [(20, 20)]
    assert [(c.offset, c.removed_bytes) for c in await read_past(tmp_path, LogSelection(tail_lines=1))] == [(30, 0)]


# --- a traceback that is being written ---------------------------------------------------------------------------


async def test_other_ranks_lines_wait_for_the_end_of_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (generation_reader, log_window):
        monkeypatch.setattr(module, "BLOCK_HOLD_S", 1000.0)
    async with following(tmp_path, ALL) as follower:
        write_at(tmp_path, 0, 1, "out", (wall_s(), b"before\n"))
        assert await follower.next() == (0, 1, "out", b"before\n")
        begin_s = wall_s()
        write_at(tmp_path, 0, 0, "err", (begin_s, TRACEBACK))
        assert await follower.next() == (0, 0, "err", TRACEBACK)
        write_at(tmp_path, 0, 1, "out", (begin_s + 0.001, b"meanwhile\n"))
        write_at(tmp_path, 0, 2, "out", (begin_s + 0.002, b"here too\n"))
        write_at(tmp_path, 0, 0, "err", (begin_s + 0.01, b"  line\n"))
        assert await follower.next() == (0, 0, "err", b"  line\n")
        write_at(tmp_path, 0, 0, "err", (begin_s + 0.02, b"ValueError\n"))
        assert await follower.next() == (0, 0, "err", b"ValueError\n")
        assert {await follower.next(), await follower.next()} == {
            (0, 1, "out", b"meanwhile\n"),
            (0, 2, "out", b"here too\n"),
        }
        follower.is_over = True


async def test_they_do_not_wait_for_long(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "out", b"")
    async with following(tmp_path, ALL) as follower:
        write_at(tmp_path, 0, 0, "err", (wall_s(), TRACEBACK))
        assert await follower.next() == (0, 0, "err", TRACEBACK)
        write_at(tmp_path, 0, 1, "out", (wall_s(), b"meanwhile\n"))
        assert await follower.next() == (0, 1, "out", b"meanwhile\n")
        follower.is_over = True


async def test_a_traceback_of_the_past_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (generation_reader, log_window):
        monkeypatch.setattr(module, "BLOCK_HOLD_S", 1000.0)
    write_at(tmp_path, 0, 0, "err", (10.0, TRACEBACK))
    write_at(tmp_path, 0, 1, "out", (20.0, b"later\n"))
    async with following(tmp_path, ALL) as follower:
        assert await follower.next() == (0, 0, "err", TRACEBACK)
        assert await follower.next() == (0, 1, "out", b"later\n")
        follower.is_over = True
    assert told(follower.chunks) == [(0, 0, "err", TRACEBACK), (0, 1, "out", b"later\n")]
