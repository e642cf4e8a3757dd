"""The file that tells ranks of a planned stop."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from protocol.member_events import Announce
from supervisor.runner import stop_file
from supervisor.runner.beats import Pages
from supervisor.runner.stop_file import StopFile
from supervisor.shell.clock import boot_s, wall_s

TIMEOUT_S = 20.0


async def test_it_says_why_and_when_in_seconds_since_1970_and_the_newest_word_stands(tmp_path: Path) -> None:
    path, now_s, now_wall_s = tmp_path / "stop.json", boot_s(), wall_s()
    async with asyncio.TaskGroup() as tasks:
        file = StopFile(tasks)
        await file.write(path, Announce(0, "drain of a", now_s + 60.0, now_s + 90.0))
        told = json.loads(path.read_text())
        assert told["reason"] == "drain of a"
        assert told["signal_at"] == pytest.approx(now_wall_s + 60.0, abs=5.0)
        assert told["deadline"] - told["signal_at"] == pytest.approx(30.0, abs=0.01)
        await file.write(path, Announce(0, "drain of a", now_s, now_s + 30.0))
        assert json.loads(path.read_text())["deadline"] == pytest.approx(told["deadline"] - 60.0, abs=5.0)


async def test_it_is_beside_the_pages_of_its_generation_and_removed_with_them(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "shm" / "f00d")
    assert not pages.stop_file
    await pages.create(3, [0])
    path = pages.stop_file
    assert path is not None
    assert path.parent == Path(pages.path(0)).parent
    assert not path.exists(), "nobody has stopped anything"
    async with asyncio.TaskGroup() as tasks:
        await StopFile(tasks).write(path, Announce(3, "scale", 1.0, 2.0))
    assert path.exists()
    await pages.close(3)
    assert os.listdir(path.parent) == []
    assert Pages(None).stop_file is None


async def test_a_disk_that_hangs_keeps_no_signal_from_the_ranks_and_gets_the_newest_word_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stood in for by a thread that waits for a pipe."""
    written: list[bytes] = []
    hung, goes_on = os.pipe()

    def hang(path: Path, content: bytes) -> None:
        os.read(hung, 1)
        written.append(content)

    monkeypatch.setattr(stop_file, "write_whole", hang)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        file = StopFile(tasks)
        for reason in ("first", "second", "third"):
            await file.write(tmp_path / "stop.json", Announce(0, reason, 1.0, 2.0))
        assert written == []
        os.write(goes_on, b"xx")
    assert [json.loads(content)["reason"] for content in written] == ["first", "third"]
    os.close(hung)
    os.close(goes_on)


async def test_a_folder_that_is_gone_costs_nothing_but_the_file(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        await StopFile(tasks).write(tmp_path / "gone" / "stop.json", Announce(0, "drain", 1.0, 2.0))
