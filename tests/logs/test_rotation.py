"""supervisor/logs/log_file.py: one stream in many files."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.job import MAX_FILE_BYTES_MIN, LogsTable
from supervisor.logs import log_file
from supervisor.logs.log_file import OVER_BYTES_MAX, LogFile
from supervisor.logs.paths import part_path, parts
from supervisor.logs.reader import StreamTail
from supervisor.logs.times import Times, file_start, times_path
from tests.logs.small_disk import SmallDisk, lost_bytes, without_notices

SMALL = LogsTable(max_file_bytes=MAX_FILE_BYTES_MIN)
LINE = b"x" * 999 + b"\n"


def small_file(path: Path, umask: int = 0o077) -> LogFile:
    return LogFile(path, lambda: path.parent.mkdir(exist_ok=True), SMALL, umask)


def stream(live: Path) -> bytes:
    """All bytes of a stream; checks that each file begins where the one before has ended."""
    content = b""
    for part in parts(live):
        assert part.start == len(content)
        content += part.path.read_bytes()
    assert file_start(live) == len(content)
    return content + (live.read_bytes() if live.exists() else b"")


def test_a_file_that_is_full_goes_on_in_another_one_at_the_end_of_a_line(tmp_path: Path) -> None:
    live = tmp_path / "rank"
    file = small_file(live)
    for number in range(200):
        file.write(b"%05d" % number + LINE)
    file.close()
    assert stream(live) == b"".join(b"%05d" % number + LINE for number in range(200))
    assert [part.path.stat().st_size for part in parts(live)] == [66 * 1005] * 3
    assert live.stat().st_size == 2 * 1005


def test_a_file_is_rotated_only_when_there_is_more(tmp_path: Path) -> None:
    live = tmp_path / "rank"
    file = small_file(live)
    file.write(LINE * 66)
    file.write(b"")
    assert parts(live) == []
    file.close()
    assert (parts(live), live.read_bytes()) == ([], LINE * 66)


def test_a_line_without_an_end_is_cut_at_last(tmp_path: Path) -> None:
    live = tmp_path / "rank"
    file = small_file(live)
    size = MAX_FILE_BYTES_MIN + OVER_BYTES_MAX
    for _ in range(9):
        file.write(b"y" * (size // 3))
    file.write(b"end\n")
    file.close()
    assert stream(live) == b"y" * (size // 3 * 9) + b"end\n"
    assert [part.path.stat().st_size for part in parts(live)] == [size, size]


def test_each_file_has_its_own_index_and_the_newest_says_where_it_begins(tmp_path: Path) -> None:
    live = tmp_path / "rank"
    file = small_file(live)
    file.write(LINE * 60, [(0, 1.0), (5000, 2.0)])
    file.write(LINE * 10, [(2000, 3.0), (8000, 4.0)])
    file.write(LINE, [(0, 5.0)])
    with Times(part_path(live, 0)) as times:
        assert (times.start, times.between(0, 1 << 40)) == (None, [(0, 1.0), (5000, 2.0), (62000, 3.0)])
    with Times(live) as times:
        assert (times.start, times.between(0, 1 << 40)) == (66000, [(0, 3.0), (2000, 4.0), (4000, 5.0)])
        assert times.offset_at(4.5, is_start=True) == 4000
    file.close()
    times_path(live).unlink()
    assert file_start(live) == 66000


def test_a_writer_that_begins_anew_goes_on_in_the_stream(tmp_path: Path) -> None:
    live = tmp_path / "rank"
    for _ in range(5):
        file = small_file(live)
        file.write(LINE * 50, [(0, 1.0)])
        file.close()
    live.rename(part_path(live, file_start(live)))  # it was killed just then
    times_path(live).unlink()
    file = small_file(live)
    file.write(LINE, [(0, 2.0)])
    file.close()
    assert stream(live) == LINE * 251
    with Times(live) as times:
        assert (times.start, times.between(0, 9)) == (250_000, [(0, 2.0)])


TAKEN_AWAY: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "renamed": lambda live: live.rename(live.with_name("mine")),
    "emptied": lambda live: os.truncate(live, 0),
    "with its folder": lambda live: shutil.rmtree(live.parent),
}


@pytest.mark.parametrize("how", TAKEN_AWAY)
def test_a_file_that_was_taken_away_is_followed_by_one_that_begins_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(log_file, "CHECK_EVERY_S", 0.0)
    live = tmp_path / "gen" / "rank"
    file = small_file(live)
    file.write(LINE * 70, [(0, 1.0)])
    file.write(LINE * 3, [(0, 2.0)])
    TAKEN_AWAY[how](live)
    file.write(b"on\n", [(0, 3.0)])
    with Times(live) as times:
        assert (times.start, times.between(0, 9)) == (73_000, [(0, 3.0)])
    assert file_start(live) == 73_000
    file.write(LINE * 70, [(0, 4.0)])
    file.write(LINE)
    file.close()
    assert parts(live)[-1].start == 73_000


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_file_that_was_away_behind_a_read_only_mount_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamps: bool
) -> None:
    monkeypatch.setattr(log_file, "CHECK_EVERY_S", 0.0)
    monkeypatch.setattr(log_file, "RETRY_AFTER_S", 0.0)
    folder, hidden = tmp_path / "gen", tmp_path / "hidden"
    live = folder / "rank"
    rules = LogsTable(max_file_bytes=MAX_FILE_BYTES_MIN, timestamps=timestamps)

    def prepare() -> None:
        if hidden.exists():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        folder.mkdir(exist_ok=True)

    file = LogFile(live, prepare, rules)
    file.write(LINE * 3, [(0, 1.0)])
    folder.rename(hidden)
    for _ in range(3):
        file.write(LINE, [(0, 2.0)])
    hidden.rename(folder)
    tail = StreamTail(live)
    assert len(tail.read(1 << 20).data) == 3 * (1000 + 25 * timestamps)
    file.write(LINE * 70, [(0, 3.0)])
    file.write(b"on\n", [(0, 4.0)])
    file.close()
    content = stream(live)
    assert lost_bytes(content, os.strerror(errno.EROFS)) == 3 * (1000 + 25 * timestamps)
    assert (content.count(LINE), len(parts(live))) == (73, 1)
    assert content.endswith(tail.read(1 << 20).data + tail.read(1 << 20).data)
    assert (tail.offset, tail.read(1).data) == (len(content), b"")
    with Times(part_path(live, 0)) as times:
        assert (times.start, times.between(0, 1)) == (None, [(0, 1.0)])


def test_a_file_that_comes_back_while_another_one_is_written_keeps_its_place_in_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "CHECK_EVERY_S", 0.0)
    folder, hidden = tmp_path / "gen", tmp_path / "hidden"
    live = folder / "rank"
    file = small_file(live)
    file.write(LINE * 3, [(0, 1.0)])
    folder.rename(hidden)  # behind a mount that can be written
    file.write(b"there\n", [(0, 2.0)])
    assert (live.read_bytes(), file_start(live)) == (b"there\n", 3000)
    shutil.rmtree(folder)
    hidden.rename(folder)
    file.write(b"here\n", [(0, 3.0)])
    file.close()
    assert [(part.start, part.path.read_bytes()) for part in parts(live)] == [(0, LINE * 3)]
    assert (live.read_bytes(), file_start(live)) == (b"here\n", 3006)
    with Times(part_path(live, 0)) as times:
        assert times.between(0, 1) == [(0, 1.0)]
    tail = StreamTail(live)
    assert [tail.read(1 << 20)[:2] for _ in range(3)] == [(0, LINE * 3), (3006, b"here\n"), (3011, b"")]


def test_a_writer_that_was_killed_between_two_renames_goes_on_behind_them(tmp_path: Path) -> None:
    live = tmp_path / "rank"
    for _ in range(2):
        file = small_file(live)
        file.write(LINE * 70, [(0, 1.0)])
        file.write(LINE, [(0, 1.0)])
        file.close()
    live.rename(part_path(live, file_start(live)))  # and not its index
    assert file_start(live) == 142_000
    file = small_file(live)
    file.write(b"on\n", [(0, 2.0)])
    file.close()
    with Times(live) as times:
        assert (times.start, live.read_bytes()) == (142_000, b"on\n")


def test_a_full_file_that_cannot_be_renamed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "ROTATE_AGAIN_S", 0.0)
    live = tmp_path / "rank"
    file = small_file(live)
    file.write(LINE)
    part_path(live, 0).mkdir()  # something is in the way
    for _ in range(199):
        file.write(LINE)
    assert live.read_bytes() == LINE * 200
    part_path(live, 0).rmdir()
    file.write(LINE)
    file.close()
    assert (part_path(live, 0).read_bytes(), live.read_bytes()) == (LINE * 200, LINE)


def test_on_a_full_disk_rotated_output_is_missing_where_the_files_say_so_and_nowhere_else(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "RETRY_AFTER_S", 0.0)
    live = small_disk.folder / "rank"
    file = small_file(live)
    for number in range(2000):
        if number == 1500:
            small_disk.grow()
        file.write(b"%05d" % number + LINE, [(0, float(number + 1))])
    file.close()
    content = stream(live)
    assert len(without_notices(content)) + lost_bytes(content, small_disk.reason) == 2000 * 1005
    whole = [line for line in content.splitlines(keepends=True) if len(line) == 1005]
    assert whole == sorted(whole)
    assert whole[-500:] == [b"%05d" % number + LINE for number in range(1500, 2000)]
    if parts(live):
        with Times(live) as times:
            assert times.start == parts(live)[-1].start + parts(live)[-1].path.stat().st_size


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_submitters_umask_leaves(tmp_path: Path, umask: int, mode: int) -> None:
    file = small_file(tmp_path / "rank", umask)
    before = os.umask(0o077)
    try:
        for _ in range(3):
            file.write(LINE * 60, [(0, 1.0)])
    finally:
        os.umask(before)
    file.close()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {mode}


@settings(deadline=None, max_examples=30)  # the machine may be busy
@given(
    st.lists(
        st.tuples(st.sampled_from([b"x", b"\n", b"line\n", b"\0\xff"]), st.integers(0, 40_000)), min_size=1, max_size=12
    ),
    st.sets(st.integers(0, 11)),
)
def test_any_bytes_in_any_pieces_come_back_through_any_number_of_files(
    pieces: list[tuple[bytes, int]], begins: set[int]
) -> None:
    """Now and then the writer begins anew."""
    with tempfile.TemporaryDirectory() as folder:
        live = Path(folder) / "rank"
        file = small_file(live)
        written = b""
        for number, (unit, count) in enumerate(pieces):
            if number in begins:
                file.close()
                file = small_file(live)
            file.write(unit * count, [(0, float(number + 1))])
            written += unit * count
        file.close()
        assert stream(live) == written
