"""supervisor/runner/guard_watch.py: a guard that dies is replaced, also from a disk that hangs."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest

from supervisor.runner import guard_watch
from supervisor.runner.guard_watch import GuardWatch
from supervisor.runner.helpers import Helpers
from supervisor.shell import tree
from supervisor.shell.lease_page import LeasePage
from tests.runner.processes import present, wait_until

TIMEOUT_S = 20.0


class Disk:
    """One program, on a disk that hangs whoever executes it: by a lease of its file (fcntl(2), F_SETLEASE)."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "python"
        self.program.write_text("#!/bin/sh\nexec sleep 60\n")
        self.program.chmod(0o755)
        self._fd = os.open(self.program, os.O_RDONLY)
        fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def is_waited_for(self) -> bool:
        return fcntl.fcntl(self._fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def go_on(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which tells that somebody waits
    disk = Disk(tmp_path)
    monkeypatch.setattr(sys, "executable", str(disk.program))
    try:
        yield disk
    finally:
        disk.close()
        signal.signal(signal.SIGIO, before)


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[Helpers]:
    """Our guard is watched, and has died long ago. What replaces it is ended at the end."""
    helpers, page = Helpers(), LeasePage.make()
    lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    watch = GuardWatch("aa", lock_fd=lock_fd, cgroup=None, page=page, helpers=helpers)
    try:
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run(os.getpid()))  # nobody is its own parent
            try:
                yield helpers
            finally:
                watching.cancel()
    finally:
        end_all(helpers.pids)
        for fd in (lock_fd, page.page_fd, page.poke_fd):
            os.close(fd)


def end_all(children: Iterable[int]) -> None:
    for pid in children:  # nobody has reaped them
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


async def test_a_replacement_that_waits_for_its_disk_holds_nothing_else_up(tmp_path: Path, disk: Disk) -> None:
    async with watched(tmp_path) as helpers:
        await until(disk.is_waited_for)
        assert (helpers.pids, helpers.is_starting) == (set(), True), "nobody is reaped who may be this one"
        disk.go_on()
        await until(lambda: not helpers.is_starting)
        [pid] = helpers.pids
        assert present(pid).ppid == os.getpid()


async def test_a_replacement_that_dies_before_it_has_begun_is_replaced_as_well(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_watch, "AGAIN_S", 0.01)
    before = {process.pid for process in tree.descendants(os.getpid(), tree.processes())}
    async with watched(tmp_path) as helpers:
        await until(disk.is_waited_for)
        [first] = [p for p in tree.descendants(os.getpid(), tree.processes()) if p.pid not in before]
        tree.signal_process(first, signal.SIGKILL)
        disk.go_on()
        await until(lambda: len(helpers.pids) == 2)
        assert first.pid in helpers.pids
