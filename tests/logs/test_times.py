"""supervisor/logs/times.py"""

import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.logs import times
from supervisor.logs.times import MARK_EVERY_S, Marker, Times, TimesFile, times_path

RECORD_BYTES = 16


def index(path: Path, *notes: list[tuple[int, float]]) -> TimesFile:
    """An index of the log file `path`, written note by note."""
    file = TimesFile(times_path(path))
    for marks in notes:
        file.note(marks)
    return file


def between(path: Path, start: int = 0, end: int = 1 << 40) -> list[tuple[int, float]]:
    with Times(path) as found:
        return found.between(start, end)


def offset_at(path: Path, time_s: float, *, is_start: bool) -> int | None:
    with Times(path) as found:
        return found.offset_at(time_s, is_start=is_start)


def test_an_index_is_records_of_two_little_endian_numbers_for_its_owner_only(tmp_path: Path) -> None:
    index(tmp_path / "rank.out", [(0, 1.5), (300, 2.0)]).close()
    found = tmp_path / "rank.out.times"
    assert struct.unpack("<4Q", found.read_bytes()) == (0, 1_500_000_000, 300, 2_000_000_000)
    assert found.stat().st_mode & 0o777 == 0o600


def test_bytes_have_the_time_of_the_last_record_at_or_before_them(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    index(path, [(10, 1.0)], [(20, 2.0), (30, 3.0)])
    assert between(path) == [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert between(path, 0, 10) == []
    assert between(path, 10, 20) == [(10, 1.0)]
    assert between(path, 15, 21) == [(15, 1.0), (20, 2.0)]
    assert between(path, 99, 100) == [(99, 3.0)]
    assert between(tmp_path / "none") == []


def test_a_time_is_found_where_its_bytes_begin(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    index(path, [(10, 1.0), (20, 2.0), (30, 3.0)])
    for is_start in (True, False):
        assert offset_at(path, 1.5, is_start=is_start) == 20
        assert offset_at(path, 2.0, is_start=is_start) == 20
        assert offset_at(path, 3.1, is_start=is_start) is None
    # What stands before the first record may be as late as that.
    assert offset_at(path, 0.5, is_start=True) == 0
    assert offset_at(path, 0.5, is_start=False) == 10
    assert offset_at(tmp_path / "none", 1.0, is_start=True) == 0
    assert offset_at(tmp_path / "none", 1.0, is_start=False) is None


def test_bytes_whose_time_was_lost_have_none_and_are_in_every_time_that_they_may_be_of(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    file = index(path, [(0, 1.0)])
    file.lose(10)
    file.note([(20, 3.0)])
    assert between(path) == [(0, 1.0), (10, 0.0), (20, 3.0)]
    assert offset_at(path, 1.0, is_start=True) == 0
    assert offset_at(path, 2.0, is_start=True) == 10
    assert offset_at(path, 2.0, is_start=False) == 20
    file.lose(30)
    file.note([])
    assert between(path, 30) == [(30, 0.0)]
    assert offset_at(path, 9.0, is_start=True) == 30


def test_what_was_said_of_bytes_that_the_disk_did_not_take_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    file = index(path, [(0, 1.0)], [(10, 2.0), (20, 3.0), (30, 4.0)])
    file.take_back(20)
    assert between(path) == [(0, 1.0), (10, 2.0)]
    file.note([(25, 5.0)])
    assert between(path) == [(0, 1.0), (10, 2.0), (25, 5.0)]


def test_the_index_of_a_file_that_begins_again_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    file = index(path, [(0, 1.0), (500, 2.0)])
    file.note([(0, 3.0)])
    assert between(path) == [(0, 3.0)]
    file.close()
    index(path, [(0, 4.0)], [(7, 5.0)])
    assert between(path) == [(0, 4.0), (7, 5.0)]


def test_an_index_that_was_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    file = index(path, [(0, 1.0)])
    times_path(path).unlink()
    file.close_if_removed()
    file.note([(5, 2.0)])
    assert between(path) == [(5, 2.0)]


def test_a_torn_record_is_cut_off_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    index(path, [(0, 1.0), (10, 2.0)]).close()
    os.truncate(times_path(path), RECORD_BYTES + 7)
    assert between(path) == [(0, 1.0)]
    index(path, [(20, 3.0)])
    assert between(path) == [(0, 1.0), (20, 3.0)]


def test_a_disk_that_takes_no_index_costs_times_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    times_path(path).mkdir()
    file = index(path, [(0, 1.0)], [(10, 2.0)])
    assert between(path) == []
    times_path(path).rmdir()
    file.note([(20, 3.0)])
    assert between(path) == [(0, 0.0), (20, 3.0)]


@given(st.binary(max_size=200), st.integers(0, 100), st.integers(0, 100), st.floats(-1e10, 1e10))
def test_no_index_at_all_can_do_harm(content: bytes, start: int, length: int, time_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank"
        times_path(path).write_bytes(content)
        marks = between(path, start, start + length)
        assert [offset for offset, _ in marks] == sorted({offset for offset, _ in marks})
        assert all(start <= offset < start + length and 0 <= time_s < 1e10 for offset, time_s in marks)
        for is_start in (True, False):
            assert (offset_at(path, time_s, is_start=is_start) or 0) >= 0
        file = index(path, [(50, 1.0)], [(60, 2.0)])
        file.close()
        assert between(path, 60, 70) == [(60, 2.0)]


@given(st.lists(st.floats(-2, 2) | st.floats(0, 0.02), max_size=50))
def test_a_piece_has_its_own_time_unless_the_last_mark_is_ten_milliseconds_old_at_most(
    pieces: list[float],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        now_s = 1000.0
        patch.setattr(times, "wall_s", lambda: now_s)
        marker = Marker()
        marked_s = 0.0
        for passed_s in pieces:
            now_s += passed_s
            mark_s = marker.mark()
            assert mark_s == (now_s if abs(now_s - marked_s) >= MARK_EVERY_S else None)
            marked_s = mark_s or marked_s
