from pathlib import Path

import pytest

from supervisor.daemon import beats_dir

TMPFS = "tmpfs {} tmpfs rw,nosuid,nodev 0 0\n"
DISK = "/dev/sda1 {} ext4 rw 0 0\n"


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev/shm, which other tests and the user's own supd use."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(beats_dir, "SHARED_MEMORY", folder)
    return folder


def mounted(tmp_path: Path, *lines: str) -> Path:
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\n" + "".join(line.format(tmp_path / "shm") for line in lines))
    return mounts


def test_pages_are_made_in_memory_where_that_is_mounted_and_ours(tmp_path: Path, shared_memory: Path) -> None:
    chosen = beats_dir.choose(tmp_path / "run", "f00d", mounted(tmp_path, DISK, TMPFS))
    assert (chosen.parent.parent, chosen.name) == (shared_memory, "f00d")
    assert chosen.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("lines", [(), (DISK,), (TMPFS, DISK)])
def test_pages_are_made_in_the_runs_folder_where_no_memory_is_mounted(
    tmp_path: Path, shared_memory: Path, lines: tuple[str, ...]
) -> None:
    run_dir = tmp_path / "run"
    assert beats_dir.choose(run_dir, "f00d", mounted(tmp_path, *lines)) == run_dir / "f00d.beats"
    assert not [*shared_memory.iterdir()]


@pytest.mark.usefixtures("shared_memory")
def test_pages_are_made_in_the_runs_folder_where_our_name_in_memory_is_taken(tmp_path: Path) -> None:
    mounts, run_dir = mounted(tmp_path, TMPFS), tmp_path / "run"
    beats_dir.choose(run_dir, "f00d", mounts).parent.chmod(0o777)
    assert beats_dir.choose(run_dir, "f00d", mounts) == run_dir / "f00d.beats"


def test_what_a_killed_runner_has_left_is_removed_wherever_it_was(tmp_path: Path, shared_memory: Path) -> None:
    run_dir = tmp_path / "run"
    folders = [beats_dir.choose(run_dir, "f00d", mounted(tmp_path, line)) for line in (TMPFS, DISK)]
    other = beats_dir.choose(run_dir, "cafe", mounted(tmp_path, TMPFS))
    for folder in (*folders, other):
        folder.mkdir(parents=True)
        (folder / "gen-0000-rank-00000").write_bytes(b"")
    beats_dir.remove(run_dir, "f00d")
    assert [folder.exists() for folder in folders] == [False, False]
    assert other.exists()
    beats_dir.remove(None, "cafe")
    assert not other.exists()
    assert [*shared_memory.glob("*/*")] == []
