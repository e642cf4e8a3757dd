"""Sees to it that the runner has a guard: when one dies, another is started (docs/decisions/001)."""

import asyncio
import os
import subprocess

import structlog

from supervisor.runner.helpers import Helpers
from supervisor.runner.spawn import pidfd_of
from supervisor.shell import guarding
from supervisor.shell.clock import boot_s
from supervisor.shell.lease_page import LeasePage

log = structlog.get_logger()

AGAIN_S = 1.0
"""How soon after a replacement another one may follow: what cannot run must not be started in a loop."""


class GuardWatch:
    """Each replacement is one of the `helpers`."""

    def __init__(
        self,
        incarnation: str,
        *,
        lock_fd: int,
        cgroup: str | None,
        page: LeasePage,
        helpers: Helpers,
        tie: guarding.Tie | None = None,
    ) -> None:
        self._incarnation = incarnation
        self._lock_fd = lock_fd
        self._cgroup = cgroup
        self._page = page
        self._helpers = helpers
        self._tie = tie
        self._started_s = -AGAIN_S

    async def run(self, guard_pid: int) -> None:
        """From now on, with the guard that has started us, until cancelled."""
        pidfd = guarding.parent_pidfd(guard_pid)
        while True:
            if pidfd is not None:
                await _end_of(pidfd)
                log.warning("guard_lost")
            pidfd = await self._replace()

    async def _replace(self) -> int | None:
        """Start another guard; returns its pidfd. None: that has failed."""
        await asyncio.sleep(max(0.0, self._started_s + AGAIN_S - boot_s()))
        self._started_s = boot_s()
        with self._helpers.starting():
            try:
                pid, pidfd = await asyncio.to_thread(self._start)
            except OSError as exc:
                log.error("guard_unreplaced", error=repr(exc))
                return None
            self._helpers.pids.add(pid)
        return pidfd

    def _start(self) -> tuple[int, int]:
        """Its pid and pidfd, once it is executed: for so long as the disk hangs on which Python lies, this blocks."""
        argv = guarding.watch_argv(self._incarnation, self._lock_fd, self._cgroup, os.getpid(), self._page, self._tie)
        kept = (self._lock_fd, self._page.page_fd, self._page.poke_fd, *([self._tie.fd] if self._tie else ()))
        guard = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=kept)
        pidfd = pidfd_of(guard)
        guard.returncode = 0  # it is reaped with the workers
        return guard.pid, pidfd


async def _end_of(pidfd: int) -> None:
    """Wait for the end of a process, and let go of its pidfd."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
