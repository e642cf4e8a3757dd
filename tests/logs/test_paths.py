"""supervisor/logs/paths.py"""

import os
import stat
from pathlib import Path

import pytest

from supervisor.logs.paths import (
    Part,
    generation_dir,
    generations,
    gz_path,
    make_generation_dir,
    part_path,
    parts,
    stream_path,
    streams,
)


def test_a_file_is_found_where_the_documents_say(tmp_path: Path) -> None:
    assert stream_path(tmp_path, 2, 11, "err") == tmp_path / "gen-0002" / "rank-00011.err"
    assert stream_path(tmp_path, 12345, 123456, "out") == tmp_path / "gen-12345" / "rank-123456.out"


def test_listings_are_in_order_of_number_and_skip_what_is_not_ours(tmp_path: Path) -> None:
    for generation in (10000, 9, 0):
        make_generation_dir(tmp_path, generation)
    (tmp_path / "gen-0003.bak").mkdir()
    for rank, name in ((100000, "out"), (2, "err"), (2, "out")):
        stream_path(tmp_path, 9, rank, name).touch()
    (generation_dir(tmp_path, 9) / "core").touch()
    assert generations(tmp_path) == [0, 9, 10000]
    assert streams(tmp_path, 9) == [(2, "out"), (2, "err"), (100000, "out")]
    assert (generations(tmp_path / "none"), streams(tmp_path, 1)) == ([], [])


def test_latest_points_at_the_newest_generation_only(tmp_path: Path) -> None:
    for generation in (0, 2, 1):
        make_generation_dir(tmp_path, generation)
        make_generation_dir(tmp_path, generation)
    assert os.readlink(tmp_path / "latest") == "gen-0002"
    assert not (tmp_path / ".latest").is_symlink()


def test_rotated_files_are_found_in_order_of_the_stream_and_are_no_streams_of_their_own(tmp_path: Path) -> None:
    make_generation_dir(tmp_path, 0)
    live, other = stream_path(tmp_path, 0, 3, "err"), stream_path(tmp_path, 0, 3, "out")
    first, second, third = (part_path(live, start) for start in (0, 200_000_123, 10**12))
    assert second.name == "rank-00003.err.000000200000123"
    for path in (live, gz_path(first), gz_path(second), second, third, part_path(other, 7)):
        path.touch()
    others = (f"{second.name}.times", f"{live.name}.times", f"{live.name}.1", f".{third.name}.gz", "rank-00003.error")
    for name in others:
        (live.parent / name).touch()
    assert parts(live) == [Part(0, gz_path(first), True), Part(200_000_123, second, False), Part(10**12, third, False)]
    assert streams(tmp_path, 0) == [(3, "out"), (3, "err")]  # the first one has no file but a rotated one
    assert parts(stream_path(tmp_path, 1, 0, "out")) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o700), (0o022, 0o755), (0o007, 0o770)])
def test_folders_have_the_permissions_that_the_submitters_umask_leaves(tmp_path: Path, umask: int, mode: int) -> None:
    run = tmp_path / "logs" / "run"
    run.mkdir(parents=True, mode=0o700)  # by supd
    for generation in (0, 1):
        make_generation_dir(run, generation, umask)
    folders = (run, generation_dir(run, 0), generation_dir(run, 1))
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [mode] * 3
    run.chmod(0o711)  # by its owner
    make_generation_dir(run, 2, umask)
    assert stat.S_IMODE(run.stat().st_mode) == 0o711
