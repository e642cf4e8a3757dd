"""supervisor/daemon/growth.py"""

import asyncio
import os
from pathlib import Path

import pytest

from protocol.messages.control import LogSelection
from supervisor.daemon import generation_reader, growth, logs_service
from supervisor.daemon.growth import Growth
from tests.daemon.serving import wait_for
from tests.daemon.test_logs_service import following, write


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def rings(bell: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await bell.wait()
    bell.clear()


async def test_a_bell_rings_when_a_file_is_made_written_or_renamed(tmp_path: Path) -> None:
    watching, bell = Growth(), asyncio.Event()
    assert await watching.listen(tmp_path, bell)
    try:
        (tmp_path / "a").write_bytes(b"x")
        await rings(bell)
        with (tmp_path / "a").open("ab", buffering=0) as file:
            file.write(b"y")
            await rings(bell)
        (tmp_path / "a").rename(tmp_path / "b")
        await rings(bell)
    finally:
        watching.leave(bell)


async def test_an_index_of_times_rings_no_bell(tmp_path: Path) -> None:
    watching, bell = Growth(), asyncio.Event()
    await watching.listen(tmp_path, bell)
    try:
        (tmp_path / "a.times").write_bytes(b"x")
        await asyncio.sleep(3 * growth.PAUSE_S)
        assert not bell.is_set()
    finally:
        watching.leave(bell)


async def test_those_who_listen_share_one_watch_and_one_descriptor_and_the_last_one_closes_it(tmp_path: Path) -> None:
    before = open_files()
    watching, bells = Growth(), [asyncio.Event() for _ in range(50)]
    async with asyncio.TaskGroup() as group:
        for bell in bells:
            group.create_task(watching.listen(tmp_path, bell))
    assert watching.listeners(tmp_path) == 50
    assert open_files() <= before + 1
    for bell in bells[10:]:
        watching.leave(bell)
    (tmp_path / "a").write_bytes(b"x")
    for bell in bells[:10]:
        await rings(bell)
        watching.leave(bell)
    assert not any(bell.is_set() for bell in bells[10:])
    assert watching.listeners(tmp_path) == 0
    assert open_files() <= before


async def test_a_folder_that_is_not_there_or_goes_away_leaves_the_others_alone(tmp_path: Path) -> None:
    watching, bell = Growth(), asyncio.Event()
    folder = tmp_path / "later"
    try:
        assert not await watching.listen(folder, bell)
        folder.mkdir()
        assert await watching.listen(folder, bell)
        assert await watching.listen(tmp_path, bell)
        folder.rmdir()
        await rings(bell)
        folder.mkdir()
        await rings(bell)
        await wait_for("the end of the watch to be heard", lambda: len(watching._watched) == 1)
        assert await watching.listen(folder, bell)
        (folder / "a").write_bytes(b"x")
        await rings(bell)
    finally:
        watching.leave(bell)


async def test_a_follower_is_told_of_what_is_written_and_does_not_wait_for_its_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (generation_reader, logs_service):
        monkeypatch.setattr(module, "POLL_S", 1000.0)
    write(tmp_path, 0, 0, "out", b"before\n")
    async with following(tmp_path, LogSelection()) as follower:
        assert await follower.next() == (0, 0, "out", b"before\n")
        for number in range(3):
            write(tmp_path, 0, 0, "out", b"%d\n" % number)
            assert await follower.next() == (0, 0, "out", b"%d\n" % number)
        follower.is_over = True
