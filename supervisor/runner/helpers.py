"""Children of the runner that are no workers: a guard's replacement, the notice command."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

from protocol.dataclass import dataclass, field


@dataclass(frozen=False)
class Helpers:
    """One that is being started has no pid yet: until then no child may be reaped that nobody knows. (It may be killed
    as one: then another is started.)"""

    pids: set[int] = field(default_factory=set)
    _starting: int = 0
    _awaited: dict[int, asyncio.Future[int]] = field(default_factory=dict)

    @property
    def is_starting(self) -> bool:
        """Whether one is being started."""
        return self._starting > 0

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """While one is being started, which `pids` gets at the end."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def expect(self, pid: int) -> asyncio.Future[int]:
        """The exit status of one that leads a process group of its own, as subprocess has it: -N for signal N."""
        self.pids.add(pid)
        self._awaited[pid] = asyncio.get_running_loop().create_future()
        return self._awaited[pid]

    def reap(self, pid: int) -> None:
        """Take in a child that has ended. What one that was expected has left in its process group ends with it: that
        has the number of the child, and of nobody else, until this is done."""
        awaited = self._awaited.pop(pid, None)
        if awaited is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, os.WNOHANG)
        self.pids.discard(pid)
        if awaited is not None and not awaited.done():
            awaited.set_result(os.waitstatus_to_exitcode(status))
