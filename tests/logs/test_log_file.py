"""supervisor/logs/log_file.py"""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor.logs import log_file as log_file_module
from supervisor.logs.log_file import LogFile
from supervisor.logs.paths import stream_path
from supervisor.logs.segments import LogWriter
from supervisor.logs.times import Times
from tests.logs.small_disk import SmallDisk, lost_bytes, without_notices


def log_file(path: Path) -> LogFile:
    return LogFile(path, lambda: path.parent.mkdir(exist_ok=True))


def test_a_file_exists_before_anything_is_written_to_it(tmp_path: Path) -> None:
    file = log_file(tmp_path / "gen" / "rank")
    file.write(b"")
    assert (tmp_path / "gen" / "rank").read_bytes() == b""
    file.close()


def test_a_full_disk_costs_output_and_the_file_says_exactly_how_much(small_disk: SmallDisk) -> None:
    path = small_disk.folder / "rank"
    file = log_file(path)
    block = b"0123456789abcdef" * 4096
    for _ in range(40):
        file.write(block)
    assert path.stat().st_size <= 1 << 20
    small_disk.grow()
    file.close()
    content = path.read_bytes()
    assert len(without_notices(content)) + lost_bytes(content, small_disk.reason) == 40 * len(block)
    assert content.endswith(b"]\n")


def test_on_a_full_disk_no_line_gets_the_time_of_another(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file_module, "RETRY_AFTER_S", 0.0)
    path = small_disk.folder / "rank"
    file = log_file(path)
    file.write(b"one\n", [(0, 1.0)])
    file.write(b"x" * (2 << 20), [(0, 2.0), (3 << 19, 3.0)])
    small_disk.grow()
    file.write(b"no mark\nmark\n", [(8, 4.0)])
    file.close()
    content = path.read_bytes()
    with Times(path) as times:
        marks = times.between(0, len(content))
    notice_at = content.index(b"\n[supd: ")
    assert content[notice_at:].endswith(b"]\nno mark\nmark\n")
    assert marks == [(0, 1.0), (4, 2.0), (notice_at, 0.0), (len(content) - 5, 4.0)]


def test_a_disk_that_has_room_again_is_written_again_behind_the_notice(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file_module, "RETRY_AFTER_S", 0.0)
    path = small_disk.folder / "rank"
    file = log_file(path)
    file.write(b"x" * (2 << 20))
    small_disk.grow()
    file.write(b"and on\n")
    file.close()
    content = path.read_bytes()
    assert lost_bytes(content, small_disk.reason) == 1 << 20
    assert without_notices(content) == b"x" * (1 << 20) + b"and on\n"


def test_a_notice_that_fits_only_in_part_is_completed_later(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file_module, "RETRY_AFTER_S", 0.0)
    path = small_disk.folder / "rank"
    file = log_file(path)
    file.write(b"y" * ((1 << 20) - 10))
    file.write(b"z" * 100)
    assert path.stat().st_size == 1 << 20
    with path.open("r+b") as outside:  # room for 10 bytes
        outside.truncate((1 << 20) - 10)
    file.write(b"lost, too\n")
    assert path.stat().st_size == 1 << 20
    small_disk.grow()
    file.write(b"and on\n")
    file.close()
    content = path.read_bytes()
    assert lost_bytes(content, small_disk.reason) == 90 + 10
    assert content.endswith(b"]\nand on\n")


def test_a_folder_that_cannot_be_made_costs_output_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file_module, "RETRY_AFTER_S", 0.0)
    folder = tmp_path / "gen"
    folder.write_bytes(b"a file is in the way")
    file = log_file(folder / "rank")
    file.write(b"one\n")
    file.write(b"two\n")
    folder.unlink()
    file.write(b"three\n")
    file.close()
    content = (folder / "rank").read_bytes()
    assert lost_bytes(content, "File exists") == 8
    assert without_notices(content) == b"three\n"


def test_a_file_that_was_removed_or_renamed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file_module, "CHECK_EVERY_S", 0.0)
    path = tmp_path / "gen" / "rank"
    file = log_file(path)
    file.write(b"one\n", [(0, 1.0)])
    path.rename(tmp_path / "old")
    file.write(b"two\n", [(0, 2.0)])
    assert (tmp_path / "old").read_bytes() == b"one\n"
    assert path.read_bytes() == b"two\n"
    with Times(path) as times:
        assert times.between(0, 4) == [(0, 2.0)]
    shutil.rmtree(path.parent)
    file.write(b"three\n")
    file.close()
    assert path.read_bytes() == b"three\n"


def test_what_a_full_disk_has_not_taken_at_the_end_is_told_in_our_log(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file_module, "RETRY_AFTER_S", 0.0)
    path = small_disk.folder / "rank"
    file = log_file(path)
    with capture_logs() as logs:
        for _ in range(8):
            file.write(b"x" * (1 << 18))
        file.close()
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [
        ("warning", "output_lost"),
        ("error", "output_missing"),
    ]
    assert (logs[1]["path"], logs[1]["error"]) == (str(path), small_disk.reason)
    assert logs[1]["bytes"] == (8 << 18) - path.stat().st_size


def test_what_a_notice_tells_only_in_part_is_told_in_our_log(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file_module, "RETRY_AFTER_S", 0.0)
    path = small_disk.folder / "rank"
    file = log_file(path)
    file.write(b"y" * (1 << 20))
    file.write(b"z" * 100)
    with path.open("r+b") as outside:  # room for 10 bytes
        outside.truncate((1 << 20) - 10)
    with capture_logs() as logs:
        file.write(b"lost, too\n")
        file.close()
    assert [entry["bytes"] for entry in logs if entry["event"] == "output_missing"] == [110]


async def test_a_rank_on_a_full_disk_runs_on_and_the_file_says_what_is_missing(small_disk: SmallDisk) -> None:
    writer = LogWriter(small_disk.folder)
    read_end, write_end = os.pipe()
    writer.open(0, 0, "out", read_end)
    output = b"0123456789abcdef" * (3 << 16)  # 3 MiB

    def work() -> None:
        with open(write_end, "wb") as pipe:
            pipe.write(output)

    async with asyncio.timeout(20):
        await asyncio.to_thread(work)
    await writer.drain(0)
    small_disk.grow()
    assert await writer.finish(0)
    writer.close()
    content = stream_path(small_disk.folder, 0, 0, "out").read_bytes()
    assert lost_bytes(content, small_disk.reason) > 0
    assert len(without_notices(content)) + lost_bytes(content, small_disk.reason) == len(output)
