"""The record of a runner: what it knew last, on disk for the next supd. A disk that hangs holds nothing else up."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from protocol.messages import encode
from protocol.messages.member import Part
from protocol.messages.runner import Record
from supervisor.shell.clock import boot_s
from supervisor.shell.files import write_whole

log = structlog.get_logger()

WAIT_S = 0.1
"""How long a record may take to reach the disk before everything else goes on without it. Twice that is the most by
which a renewal can come too late: it may have a record of its own, behind that of another event."""


class RecordFile:
    """Writes the newest record, in a thread of its own: other disks that hang have none of it."""

    def __init__(self, path: Path, tasks: asyncio.TaskGroup) -> None:
        self._path = path
        self._tasks = tasks
        self._thread = ThreadPoolExecutor(1, "record")
        self._unwritten: Record | None = None  # the newest, if it is not on its way to the disk yet
        self._writer: asyncio.Task[None] | None = None
        self._is_slow = False  # the disk has not yet shown that it is quick again

    async def keep(self, record: Record) -> None:
        """It is on disk when this returns, unless the disk takes longer than WAIT_S. That long it is waited for once,
        and then not at all until it has taken a record in less."""
        self._unwritten = record
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.create_task(self._write(), name="record")
        if self._is_slow:
            return
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.shield(self._writer)
        except TimeoutError:
            self._is_slow = True
            log.warning("record_unwritten", path=str(self._path), error=f"the disk takes more than {WAIT_S:g} s")

    async def _write(self) -> None:
        while (record := self._unwritten) is not None:
            self._unwritten = None
            begun_s = boot_s()
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._write_one, record)
            except OSError as exc:  # training goes on; only what a next supd could read is poorer
                log.warning("record_unwritten", path=str(self._path), error=repr(exc))
            self._is_slow = self._is_slow and boot_s() - begun_s > WAIT_S

    def _write_one(self, record: Record) -> None:
        is_outcome = record.renewal.part is Part.FINISHED  # a job that is done must not be done again
        write_whole(self._path, encode(record), through=is_outcome)
