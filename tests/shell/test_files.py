"""supervisor/shell/files.py: whole or not at all."""

import os
from pathlib import Path

import pytest

from supervisor.shell.files import read_small, write_whole


def test_a_file_is_replaced_whole_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_whole(path, b"a long first content")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["record"]


def test_what_a_killed_writer_left_half_done_is_never_read_and_hinders_nobody(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_whole(path, b"old")
    (tmp_path / "record.new").write_bytes(b"half of a much longer con")
    assert read_small(path, 100) == b"old"
    write_whole(path, b"new")
    assert read_small(path, 100) == b"new"


def test_a_file_that_cannot_be_written_is_an_error_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_whole(path, b"old")
    (tmp_path / "record.new").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"


def test_reading_stops_at_the_limit_and_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_small(tmp_path / "file", 4) == b"0123"
    assert read_small(tmp_path / "missing", 4) is None
    assert read_small(tmp_path, 4) is None


def test_what_is_no_regular_file_is_not_read_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_small(tmp_path / "pipe", 4) is None
    assert read_small(Path("/dev/zero"), 4) is None
    assert read_small(Path("/proc/self/status"), 4) == b"Name"


def test_what_cannot_be_read_leaves_nothing_open(tmp_path: Path) -> None:
    """A runner looks at its marker every second, for days."""
    before = sorted(os.listdir("/proc/self/fd"))
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "missing"):
        assert read_small(path, 4) is None
    assert sorted(os.listdir("/proc/self/fd")) == before
