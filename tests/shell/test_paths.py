"""Where supd's files are."""

import os
import stat
from pathlib import Path

import pytest

from protocol.errors import ConfigInvalid
from supervisor.shell.config import load_config
from supervisor.shell.paths import (
    default_control_path,
    ensure_private_dir,
    home,
    host_name,
)

ROOT = Path(__file__).parents[2]
UID = os.getuid()


def test_the_control_socket_is_in_the_runtime_folder(tmp_path: Path) -> None:
    assert default_control_path({"XDG_RUNTIME_DIR": str(tmp_path)}, UID) == tmp_path / "supd" / "control.sock"


def test_a_runtime_folder_that_is_unset_relative_absent_a_file_or_anothers_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fallback = Path(f"/tmp/supd-{UID}/control.sock")
    assert default_control_path({}, UID) == fallback
    for unusable in ("", ".", str(tmp_path / "absent"), str(tmp_path / "file")):
        assert default_control_path({"XDG_RUNTIME_DIR": unusable}, UID) == fallback
    anothers = default_control_path({"XDG_RUNTIME_DIR": str(tmp_path)}, UID + 1)
    assert anothers == Path(f"/tmp/supd-{UID + 1}/control.sock")


def test_a_temporary_folder_that_is_not_there_is_not_used(tmp_path: Path) -> None:
    assert default_control_path({"TMPDIR": str(tmp_path)}, 7) == tmp_path / "supd-7" / "control.sock"
    for unusable in ("", "tmp", str(tmp_path / "absent")):
        assert default_control_path({"TMPDIR": unusable}, 7) == Path("/tmp/supd-7/control.sock")


def test_relative_xdg_paths_are_ignored_as_the_specification_says() -> None:
    environ = {"HOME": "/home/me", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}
    assert load_config(None, environ).state_dir == Path("/home/me/.local/state/supd", host_name())
    environ["XDG_STATE_HOME"] = "/state"
    assert load_config(None, environ).state_dir == Path("/state/supd", host_name())


def test_the_home_folder_is_known_without_HOME() -> None:
    assert home({"HOME": "relative"}).is_absolute()


def test_a_private_folder_is_made_with_all_above_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    ensure_private_dir(folder)
    ensure_private_dir(folder)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_private_folder_is_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        ensure_private_dir(tmp_path / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_a_folder_that_is_open_to_others_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ConfigInvalid, match=r"/open is open to others \(mode 0750\)\n.*chmod 700"):
        ensure_private_dir(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_a_private_folder_may_be_a_symbolic_link_of_ours(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    ensure_private_dir(tmp_path / "link")


def test_what_is_no_folder_or_cannot_be_made_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    with pytest.raises(ConfigInvalid, match=r"/file is a file, and no folder"):
        ensure_private_dir(tmp_path / "file")
    with pytest.raises(ConfigInvalid, match=r"/file/below cannot be made: Not a directory"):
        ensure_private_dir(tmp_path / "file" / "below")
    with pytest.raises(ConfigInvalid, match=r"/dangling cannot be used: No such file"):
        ensure_private_dir(tmp_path / "dangling")


def test_nobody_is_told_to_close_a_folder_with_files_of_others(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir(0o755)
    (folder / "thesis.tex").touch()
    with pytest.raises(ConfigInvalid, match="open to others") as caught:
        ensure_private_dir(folder)
    assert "chmod" not in str(caught.value)
    (folder / "lock").touch()
    with pytest.raises(ConfigInvalid, match="chmod 700"):
        ensure_private_dir(folder)


@pytest.mark.skipif(UID != 0, reason="only root can make another user's folder")
def test_another_users_folder_or_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(0o700)
    os.chown(tmp_path / "theirs", 4711, 4711)
    (tmp_path / "mine").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "link", 4711, 4711, follow_symlinks=False)
    for path in (tmp_path / "theirs", tmp_path / "link"):
        with pytest.raises(ConfigInvalid, match="belongs to uid 4711"):
            ensure_private_dir(path)
