"""The file that SUPD_STOP_FILE names: it is there once a planned stop has begun. A disk that hangs holds nothing up."""

import asyncio
import json
from pathlib import Path

import structlog

from protocol.member_events import Announce
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.files import write_whole

log = structlog.get_logger()

WAIT_S = 0.1
"""How long a first signal may have to wait for the file that tells of it."""


class StopFile:
    """Writes the newest announcement of a stop."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._newest: tuple[Path, Announce] | None = None  # if it is not on its way yet
        self._writer: asyncio.Task[None] | None = None

    async def write(self, path: Path, stop: Announce) -> None:
        """It is there when this returns, unless that takes longer than WAIT_S."""
        self._newest = path, stop
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.create_task(self._write(), name="stop-file")
        await asyncio.wait({self._writer}, timeout=WAIT_S)

    async def _write(self) -> None:
        while self._newest is not None:
            (path, stop), self._newest = self._newest, None
            try:
                await asyncio.to_thread(write_whole, path, _content(stop))
            except OSError as exc:  # the signals say the same
                log.warning("stop_file_unwritten", path=str(path), error=repr(exc))


def _content(stop: Announce) -> bytes:
    """Times are seconds since 1970: the ranks know no other clock of ours."""
    since_boot_s = wall_s() - boot_s()
    times = {"signal_at": stop.signal_at_s, "deadline": stop.kill_at_s}
    told = {"reason": stop.reason, **{name: round(at_s + since_boot_s, 3) for name, at_s in times.items()}}
    return json.dumps(told).encode() + b"\n"
