"""Whether the disk takes the output of this node's ranks: what it does not take is not shown either."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

from supervisor.front.console import Console

LOOK_S = 2.0

READ_MAX_BYTES = 1 << 18
"""Of a runner's log, in which are warnings only."""

LOST = ("output_lost", "output_missing")
"""What the runner says in its log (docs/log-events.md)."""

_OS_ERROR = re.compile(r"OSError\([0-9]+, '(.*)'\)")


class LostOutput:
    """Looks into the logs of a run's runners, which nobody else reads, and tells it once."""

    def __init__(self, state: Path, run: str, logs: Path, console: Console) -> None:
        """`logs` is what users know of the place of output."""
        self._folder = state / "runs" / run
        self._logs = logs
        self._console = console
        self._is_told = False

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Now."""
        why = "" if self._is_told else await asyncio.to_thread(self._found)
        if why and not self._is_told:
            self._is_told = True
            self._console.tell(f"output is lost, and not shown: {self._logs}: {why}; the job goes on")

    def _found(self) -> str:
        for path in self._folder.glob("*.log"):
            content = b""
            with contextlib.suppress(OSError), path.open("rb") as file:
                content = file.read(READ_MAX_BYTES)
            for line in content.splitlines():
                if (error := _error(line)) is not None:
                    return _OS_ERROR.sub(r"\1", error)
        return ""


def _error(line: bytes) -> str | None:
    """Of a line that tells of lost output."""
    if not any(event.encode() in line for event in LOST):
        return None
    try:
        event = json.loads(line)
    except ValueError:  # it is being written
        return None
    return str(event.get("error", "")) if isinstance(event, dict) and event.get("event") in LOST else None
