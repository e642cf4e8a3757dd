"""supervisor/logs/disk.py"""

import asyncio
import os
import re
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.logs import disk
from supervisor.logs.disk import DiskThread, LogFile
from supervisor.logs.segments import LogWriter, stream_path
from supervisor.logs.times import Times


@dataclass(frozen=True)
class SmallDisk:
    """A folder in which a file can't become larger than 1 MiB until `grow` is called."""

    folder: Path
    reason: str  # in the kernel's words
    grow: Callable[[], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder]).returncode == 0:
        yield SmallDisk(folder, "No space left on device", lambda: remount(folder, "size=16m"))
        subprocess.run(["umount", folder], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)  # for who may not mount: another limit, the same effect
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield SmallDisk(folder, "File too large", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


def log_file(path: Path) -> LogFile:
    return LogFile(path, lambda: path.parent.mkdir(exist_ok=True))


def lost_bytes(content: bytes, reason: str) -> int:
    notices = re.findall(rb"^\[supd: (\d+) bytes not written: %s\]$" % reason.encode(), content, re.MULTILINE)
    return sum(map(int, notices))


def without_notices(content: bytes) -> bytes:
    return re.sub(rb"\n?\[supd: .*\]\n", b"", content)


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
    monkeypatch.setattr(disk, "RETRY_AFTER_S", 0.0)
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
    monkeypatch.setattr(disk, "RETRY_AFTER_S", 0.0)
    path = small_disk.folder / "rank"
    file = log_file(path)
    file.write(b"x" * (2 << 20))
    small_disk.grow()
    file.write(b"and on\n")
    file.close()
    content = path.read_bytes()
    notice = f"\n[supd: {1 << 20} bytes not written: {small_disk.reason}]\n".encode()
    assert content == b"x" * (1 << 20) + notice + b"and on\n"


def test_a_notice_that_fits_only_in_part_is_completed_later(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "RETRY_AFTER_S", 0.0)
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
    monkeypatch.setattr(disk, "RETRY_AFTER_S", 0.0)
    folder = tmp_path / "gen"
    folder.write_bytes(b"a file is in the way")
    file = log_file(folder / "rank")
    file.write(b"one\n")
    file.write(b"two\n")
    folder.unlink()
    file.write(b"three\n")
    file.close()
    assert (folder / "rank").read_bytes() == b"[supd: 8 bytes not written: File exists]\nthree\n"


def test_a_file_that_was_removed_or_renamed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "CHECK_EVERY_S", 0.0)
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


def test_everything_queued_for_a_file_is_written_in_order_before_it_is_closed(tmp_path: Path) -> None:
    thread = DiskThread(1 << 30, lambda: None)
    files = [log_file(tmp_path / f"rank-{rank}") for rank in range(3)]
    expected = b"".join(b"%d\n" % number * 1000 for number in range(1000))  # several slices
    marks = [(expected.index(b"\n%d\n" % number) + 1, float(number)) for number in range(1, 1000)]
    closed = [threading.Event() for _ in files]
    for number in range(1000):
        for file in files:
            thread.put(file, b"%d\n" % number * 1000, number or None)
    for file, event in zip(files, closed, strict=True):
        thread.close(file, event.set)
    assert all(event.wait(10) for event in closed)
    assert all((tmp_path / f"rank-{rank}").read_bytes() == expected for rank in range(3))
    thread.stop(10)
    assert thread.queued_bytes == 0
    for rank in range(3):
        with Times(tmp_path / f"rank-{rank}") as times:
            assert times.between(0, len(expected)) == marks


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
