"""supervisor/logs/keeper.py: real files, a real thread."""

import functools
import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.job import LogsTable
from supervisor.logs import keeper as keeper_module
from supervisor.logs import marks
from supervisor.logs.keeper import Keeper, surplus_generations, surplus_parts
from supervisor.logs.paths import Part, generations, gz_path, make_generation_dir, part_path, parts
from supervisor.logs.times import times_path
from tests.e2e.supd import wait_for

SETTINGS = LogsTable(keep_files=3, keep_generations=4)
STEP = 1000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], Keeper]]:
    made = []

    def new() -> Keeper:
        made.append(Keeper(tmp_path, SETTINGS, "n1"))
        return made[-1]

    yield new
    for keeper in made:
        keeper.stop(10)


def rotated(live: Path, number: int) -> Path:
    """One more rotated file, with its index, as the disk thread leaves it."""
    live.parent.mkdir(exist_ok=True)
    part = part_path(live, number * STEP)
    part.write_bytes(content(number))
    times_path(part).write_bytes(b"\0" * 16)
    return part


def content(number: int) -> bytes:
    return b"%d\n" % number * (STEP // 2)


def test_of_rotated_files_the_first_and_the_newest_stay() -> None:
    files = [Part(start, Path(str(start)), False) for start in range(6)]
    assert [part.start for part in surplus_parts(files, 3)] == [1, 2, 3]
    assert [part.start for part in surplus_parts(files, 2)] == [1, 2, 3, 4]
    assert surplus_parts(files[:3], 3) == surplus_parts(files[:1], 2) == surplus_parts([], 2) == []


@pytest.mark.parametrize(
    ("there", "failed", "keep", "surplus"),
    [
        (range(4), (), 4, []),
        (range(6), (), 4, [1, 2]),
        (range(6), (1,), 4, [2, 3]),
        (range(6), (0, 1, 2, 3, 5), 4, [1, 4]),
        (range(6), (1, 2), 2, [1, 2, 3, 4]),
        ([7], (), 2, []),
    ],
)
def test_of_generations_the_first_and_the_last_stay_then_failed_ones_then_newer_ones(
    there: list[int], failed: tuple[int, ...], keep: int, surplus: list[int]
) -> None:
    assert surplus_generations(there, failed, keep) == surplus


def test_all_rotated_files_but_the_newest_are_gzipped_and_surplus_ones_go(
    tmp_path: Path, make: Callable[[], Keeper]
) -> None:
    live = tmp_path / "gen-0000" / "rank-00000.out"
    keeper = make()
    for number in range(6):
        rotated(live, number).chmod(0o640)
        os.utime(part_path(live, number * STEP), (number, number))
        keeper.on_rotated(live)
    kept = [(0, True), (4 * STEP, True), (5 * STEP, False)]
    wait_for("the keeper", lambda: [(part.start, part.is_gz) for part in parts(live)] == kept)
    for number in (0, 4):
        gz = gz_path(part_path(live, number * STEP))
        assert gzip.decompress(gz.read_bytes()) == content(number)
        assert (gz.stat().st_mode & 0o777, gz.stat().st_mtime) == (0o640, number)
    assert part_path(live, 5 * STEP).read_bytes() == content(5)
    keeper.stop(10)
    names = {path.name for path in live.parent.iterdir()}
    assert names == {part.path.name for part in parts(live)} | {
        times_path(part_path(live, part.start)).name for part in parts(live)
    }


def test_surplus_generations_go_and_failed_ones_last(tmp_path: Path, make: Callable[[], Keeper]) -> None:
    keeper = make()
    for generation in range(7):
        keeper.on_generation(generation)
        make_generation_dir(tmp_path, generation)
        if generation in (1, 3):
            keeper.on_failed(generation)
            wait_for("the mark", functools.partial(marks.has_failed, tmp_path, generation))
    keeper.on_generation(6)
    wait_for("the keeper", lambda: generations(tmp_path) == [0, 1, 3, 6])


def test_whether_a_run_has_ended_here_can_be_seen(tmp_path: Path, make: Callable[[], Keeper]) -> None:
    first = make()
    first.stop(10)
    assert marks.ended_s(tmp_path, "n1") is not None
    make()
    wait_for("the next one to begin", lambda: marks.was_cut_off(tmp_path, "n1"))
    assert marks.ended_s(tmp_path, "n1") is None


def test_what_a_killed_keeper_has_left_half_done_is_done(tmp_path: Path, make: Callable[[], Keeper]) -> None:
    live = tmp_path / "gen-0000" / "rank-00000.out"
    for number in range(2):
        rotated(live, number)
    unfinished = live.with_name(f".{gz_path(part_path(live, 0)).name}")
    unfinished.write_bytes(b"half of i")
    gz_path(part_path(live, 0)).write_bytes(gzip.compress(content(0)))  # and the plain one was about to go
    (tmp_path / ".gen-0001").mkdir()
    assert not parts(live)[0].is_gz
    make().on_rotated(live)
    wait_for("the keeper", lambda: parts(live)[0].is_gz)
    assert gzip.decompress(parts(live)[0].path.read_bytes()) == content(0)
    assert not unfinished.exists()
    assert not (tmp_path / ".gen-0001").exists()


def test_an_error_of_the_disk_costs_no_more_than_room(
    tmp_path: Path, make: Callable[[], Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, other = tmp_path / "gen-0000" / "rank-00000.out", tmp_path / "gen-0000" / "rank-00001.out"
    keeper = make()
    for number in range(2):
        rotated(live, number)
        rotated(other, number)
    gz_path(part_path(live, 0)).mkdir()  # in the way
    (gz_path(part_path(live, 0)) / "x").touch()
    keeper.on_rotated(live)
    keeper.on_rotated(other)
    wait_for("the keeper", lambda: parts(other)[0].is_gz)
    assert part_path(live, 0).read_bytes() == content(0)


def test_a_run_that_ends_waits_for_no_file_to_be_gzipped(
    tmp_path: Path, make: Callable[[], Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "PIECE_BYTES", 1)
    live = tmp_path / "gen-0000" / "rank-00000.out"
    for number in range(3):
        rotated(live, number).write_bytes(b"x" * (1 << 20))
    keeper = make()
    keeper.on_rotated(live)
    wait_for("it to begin", lambda: list(live.parent.glob(".rank-*")))
    keeper.stop(10)
    assert marks.ended_s(tmp_path, "n1") is not None
    assert [part.is_gz for part in parts(live)] == [False] * 3
    assert list(live.parent.glob(".rank-*")) == []
