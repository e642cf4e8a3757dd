"""supervisor/daemon/disk_room.py"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor.daemon import disk_room
from supervisor.daemon.disk_room import DiskRoom
from supervisor.shell.config import Config, load_config
from tests.daemon.serving import wait_for


def config(folder: Path, state: str) -> Config:
    (folder / "supd.toml").write_text(f'[state]\ndir = "."\n{state}\n')
    return load_config(folder / "supd.toml", {"HOME": "/"})


async def seen(room: DiskRoom, is_enough: Callable[[list[str]], bool]) -> list[str]:
    """The log events of a watch until they are enough."""
    with capture_logs() as logs:
        watch = asyncio.get_running_loop().create_task(room.run())
        await wait_for("it", lambda: is_enough([entry["event"] for entry in logs]))
        watch.cancel()
        await asyncio.wait({watch})
    return [entry["event"] for entry in logs]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_room, "LOOK_EVERY_S", 0.0)


async def test_a_disk_that_stays_too_full_is_told_of_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "large").write_bytes(os.urandom(2 << 20))
    (tmp_path / "logs" / "a@1").mkdir()
    looks: list[None] = []

    def is_live(_run: str) -> bool:
        looks.append(None)
        return True

    room = DiskRoom(config(tmp_path, 'max_disk = "1MiB"\nmin_free = "0%"'), is_live)
    assert await seen(room, lambda _events: len(looks) > 20) == ["disk_too_full"]
    monkeypatch.setattr(disk_room, "TELL_AGAIN_S", 0.0)
    room = DiskRoom(config(tmp_path, 'max_disk = "1MiB"\nmin_free = "0%"'), is_live)
    assert set(await seen(room, lambda events: len(events) > 1)) == {"disk_too_full"}


async def test_a_folder_that_cannot_be_looked_at_is_told_of_and_looked_at_again(tmp_path: Path) -> None:
    room = DiskRoom(config(tmp_path, 'min_free = "0%"'), lambda _run: False)
    events = await seen(room, lambda events: len(events) > 1)
    assert set(events) == {"disk_room_unseen"}
