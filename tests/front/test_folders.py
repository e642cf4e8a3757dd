"""supervisor/front/folders.py: of a suprun nothing is left, however it has ended."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from supervisor.front import ahead, folders
from supervisor.front.folders import HELD, make_folders, remove


@pytest.fixture
def bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders in the place of /dev/shm and /tmp, which every suprun uses."""
    memory, temporary = tmp_path / "memory", tmp_path / "temporary"
    for base in (memory, temporary):
        base.mkdir()
    monkeypatch.setattr(folders, "IN_MEMORY", memory)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return [memory, temporary]


def there(bases: list[Path]) -> list[Path]:
    """What all supruns have."""
    return [path for base in bases for path in base.glob("*/*")]


def kill(folder: Path) -> None:
    """As where its suprun is killed: nobody has the lock any more."""
    (folder / HELD).rename(folder / "was")
    (folder / HELD).touch(0o600)


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_suprun_leaves_nothing_of_itself_or_of_one_that_was_killed(bases: list[Path], has_memory: bool) -> None:
    killed = make_folders(None)
    assert [folder.parent.parent for folder in killed] == bases
    if not has_memory:
        bases[0].rename(bases[0].with_name("gone"))
    own = make_folders(None)
    assert own[0].parent.parent == bases[0 if has_memory else 1]
    for folder in filter(Path.exists, killed):
        kill(folder)
    remove(*own)
    assert there(bases) == []


def test_output_of_a_killed_suprun_is_removed_where_its_state_is_gone(bases: list[Path]) -> None:
    state, output = make_folders(None)
    kill(output)
    state.rename(bases[0] / "another-machine")
    remove(*make_folders(None))
    assert not output.exists()


def test_state_and_output_of_a_suprun_that_lives_are_left_alone(bases: list[Path]) -> None:
    living = make_folders(None)
    remove(*make_folders(None))
    assert sorted(there(bases)) == sorted(living)


def test_output_is_left_alone_while_a_guard_of_a_killed_suprun_lives(bases: list[Path]) -> None:
    state, output = make_folders(None)
    (state / folders.RUNNERS).mkdir()
    with (state / folders.RUNNERS / "f00d.lock").open("w") as guards:
        fcntl.flock(guards, fcntl.LOCK_EX)
        kill(state)
        kill(output)
        remove(*make_folders(None))
        assert sorted(there(bases)) == sorted((state, output))


def test_nothing_is_left_of_folders_that_cannot_be_made(bases: list[Path]) -> None:
    with pytest.raises(OSError, match="too long"):
        make_folders(Path("/" + 5000 * "x"))
    assert there(bases) == []


def test_nothing_is_left_where_the_first_runner_cannot_be_begun(
    bases: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "no descriptor is left")

    monkeypatch.setattr(os, "pipe", exhausted)
    with pytest.raises(OSError, match="no descriptor"):
        ahead.begin(None)
    assert there(bases) == []
