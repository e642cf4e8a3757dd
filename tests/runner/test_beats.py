"""Heartbeat pages as the runner makes and reads them; the writer's side: tests/worker."""

import os
import resource
import shutil
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor.runner.beats import Pages, package_dir
from supervisor.worker import page
from supervisor.worker.beat import Writer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where pages are made; not there yet."""
    return tmp_path / "shm/supd-1000/f00d"


@pytest.fixture
def pages(folder: Path) -> Pages:
    return Pages(folder)


def overwrite(path: Path, content: bytes) -> None:
    """The file stays the same one, and has another size."""
    path.write_bytes(content)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_every_rank_has_a_page_of_its_own_that_only_its_user_may_touch(pages: Pages, folder: Path) -> None:
    await pages.create(0, [4, 5])
    first, second = Path(pages.path(4)), Path(pages.path(5))
    assert first != second
    assert [mode(path) for path in (first, second, folder, folder.parent)] == [0o600, 0o600, 0o700, 0o700]
    Writer(str(second)).beat(7)
    beats = [pages.read(rank) for rank in (4, 5)]
    assert [(beat.count, beat.step, beat.pid) for beat in beats if beat] == [(0, None, 0), (1, 7, os.getpid())]
    assert (pages.path(6), pages.read(6)) == ("", None)
    pages.remove()


async def test_nothing_of_a_generation_is_in_the_pages_of_the_next(pages: Pages, folder: Path) -> None:
    await pages.create(0, [0])
    late = Writer(pages.path(0))
    late.beat(1)
    await pages.close(0)
    assert (pages.path(0), pages.read(0), os.listdir(folder)) == ("", None, [])
    await pages.create(1, [0])
    late.beat(2)  # into a file that is no more
    beat = pages.read(0)
    assert beat is not None
    assert (beat.count, beat.step) == (0, None)
    await pages.close(0)  # said again, late: it is not about this one
    assert pages.read(0) is not None
    pages.remove()


async def test_no_descriptor_is_left_open_behind_a_generation(pages: Pages) -> None:
    await pages.create(0, [0])  # the thread is there from now on
    await pages.close(0)
    before = os.listdir("/proc/self/fd")
    await pages.create(1, range(8))
    await pages.close(1)
    assert os.listdir("/proc/self/fd") == before


async def test_the_end_of_the_runner_takes_the_folder_with_it(pages: Pages, folder: Path) -> None:
    await pages.create(0, [0])
    pages.remove()
    assert os.listdir(folder.parent) == [], "the folder above is other runners' too"
    Pages(folder).remove()  # that never had a generation


async def test_folders_that_were_swept_away_are_made_again(pages: Pages, folder: Path) -> None:
    """systemd-logind's RemoveIPC, at the end of the user's last login."""
    await pages.create(0, [0])
    Writer(pages.path(0)).beat(1)
    shutil.rmtree(folder.parent)
    assert (beat := pages.read(0)) is not None
    assert beat.step == 1, "an open page lives on"
    await pages.create(1, [0])
    assert (beat := pages.read(0)) is not None
    assert beat.step is None
    pages.remove()


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * page.SIZE, b"\xff" * 4096, bytes(page.SIZE)])
async def test_whatever_a_worker_does_to_its_file_reading_goes_on(pages: Pages, content: bytes) -> None:
    await pages.create(0, [0, 1])
    overwrite(Path(pages.path(0)), content)
    assert (pages.read(0) is None) == (len(content) < page.SIZE)
    os.unlink(pages.path(0))
    os.mkdir(pages.path(0))
    assert (pages.read(0) is None) == (len(content) < page.SIZE)
    assert pages.read(1) is not None
    await pages.close(0)
    pages.remove()


# --- where no page can be made -----------------------------------------------------------------------------------


async def without_pages(pages: Pages) -> str:
    """Try to make some; the reason why there are none."""
    with capture_logs() as logs:
        await pages.create(0, [0, 1])
    assert [pages.path(rank) for rank in (0, 1)] == ["", ""]
    assert [pages.read(rank) for rank in (0, 1)] == [None, None]
    await pages.close(0)
    (told,) = logs
    assert (told["event"], told["log_level"], told["made"]) == ("heartbeats_unmade", "warning", 0)
    return str(told["error"])


async def test_ranks_start_without_pages_where_no_byte_can_be_written(pages: Pages) -> None:
    """A full file system; a limit on the size of files stands in for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        reason = await without_pages(pages)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in reason


async def test_ranks_start_without_pages_where_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be" in await without_pages(Pages(tmp_path / "file/supd-1000/f00d"))


@pytest.mark.parametrize("open_one", ["supd-1000", "supd-1000/f00d"])
async def test_no_page_is_made_where_others_could_put_theirs_in_its_place(tmp_path: Path, open_one: str) -> None:
    (tmp_path / "supd-1000/f00d").mkdir(parents=True)
    for private in ("supd-1000", "supd-1000/f00d"):
        (tmp_path / private).chmod(0o700)
    (tmp_path / open_one).chmod(0o777)
    assert "open to others" in await without_pages(Pages(tmp_path / "supd-1000/f00d"))


async def test_a_runner_that_was_told_of_no_folder_makes_no_pages() -> None:
    pages = Pages(None)
    await pages.create(0, [0])
    assert (pages.path(0), pages.read(0)) == ("", None)
    await pages.close(0)
    pages.remove()


# --- import supd -------------------------------------------------------------------------------------------------


def test_the_package_is_alone_in_its_folder_and_newly_linked_by_each_runner(tmp_path: Path) -> None:
    folder = Path(package_dir(tmp_path))
    assert folder.is_relative_to(tmp_path)
    assert os.listdir(folder) == ["supd"]
    (folder / "supd").unlink()
    (folder / "supd").symlink_to("/of/a/supd/that/was/removed")
    assert package_dir(tmp_path) == str(folder)
    assert os.listdir(folder) == ["supd"]
    assert (folder / "supd/__init__.py").is_file()


def test_ranks_start_without_the_package_where_it_cannot_be_linked(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert package_dir(tmp_path / "gone") == ""
    assert [told["event"] for told in logs] == ["package_unlinked"]
