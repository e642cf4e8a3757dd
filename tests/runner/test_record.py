"""supervisor/runner/record.py: what a runner knew last is on disk, and a disk that hangs holds nothing else up."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from protocol.messages.member import Part, Renewal
from protocol.messages.runner import Record, decode_record
from supervisor.runner.record import RecordFile

TIMEOUT_S = 20.0


def record(number: int, part: Part = Part.RUNNING) -> Record:
    return Record(run="j@1", incarnation="aa", renewal=Renewal(number=number, generation=0, part=part))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[RecordFile]:
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        yield RecordFile(path, group)


def hang(path: Path) -> None:
    """Let whoever writes this file wait for good: a pipe that nobody reads."""
    os.mkfifo(path.with_name(f"{path.name}.new"))


def answer(path: Path) -> int:
    """The disk answers, after all; returns what is to be closed in the end."""
    return os.open(path.with_name(f"{path.name}.new"), os.O_RDONLY | os.O_NONBLOCK)


async def test_a_record_is_on_disk_when_it_has_been_kept(tmp_path: Path) -> None:
    async with opened(tmp_path / "record") as file:
        for number, part in enumerate((Part.RUNNING, Part.FINISHED)):
            await file.keep(record(number, part))
            assert decode_record((tmp_path / "record").read_bytes()) == record(number, part)


async def test_a_disk_that_hangs_is_waited_for_once_and_has_the_newest_record_when_it_answers(tmp_path: Path) -> None:
    path = tmp_path / "record"
    async with opened(path) as file:
        hang(path)
        await file.keep(record(0))
        for number in (1, 2, 3):
            keeping = asyncio.create_task(file.keep(record(number)))  # noqa: TID251  # looked at, and awaited, here
            await asyncio.sleep(0)
            assert keeping.done(), "it has waited again"
            await keeping
        reader = answer(path)
    os.close(reader)
    assert decode_record(path.read_bytes()) == record(3)


async def test_a_disk_that_is_quick_again_is_waited_for_again(tmp_path: Path) -> None:
    path = tmp_path / "record"
    async with opened(path) as file:
        hang(path)
        await file.keep(record(0))
        await file.keep(record(1))
        reader = answer(path)
        for number in range(2, 100_000):
            await asyncio.sleep(0)
            await file.keep(record(number))
            if path.is_file() and decode_record(path.read_bytes()) == record(number):
                break  # it has been waited for
        await file.keep(record(0))
        assert decode_record(path.read_bytes()) == record(0)
    os.close(reader)


async def test_a_disk_that_takes_nothing_ends_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path / "gone" / "record") as file:
        await file.keep(record(0))
        await file.keep(record(1))
