"""Where the checkpoints of one generation are seen: in its marker, and in what its ranks write."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from protocol.job import JobSpec
from protocol.member_events import Saved
from protocol.signs import save_ranks
from supervisor.runner.log_search import Search, whole
from supervisor.shell.clock import boot_s
from supervisor.shell.files import read_small

MARKER_MAX_BYTES = 4096


class Saves:
    """Lives in the loop, and waits for no disk; made anew for the next generation."""

    def __init__(
        self, spec: JobSpec, generation: int, world_size: int, tasks: asyncio.TaskGroup, put: Callable[[Saved], None]
    ) -> None:
        self._generation = generation
        self._tasks = tasks
        self._put = put
        self._search = Search("checkpoint.log_pattern", spec.checkpoint.log_pattern, save_ranks(spec, world_size))
        self._marker: Path | None = None
        self._step: int | None = None  # that the marker showed last
        self._is_known = False  # what it held when the ranks were spawned
        self._is_settling = False  # what is found now is no news
        self._reading: asyncio.Task[None] | None = None
        self.tap = self._search.tap

    def begin(self, marker: Path | None) -> None:
        """The ranks are about to be spawned: what this marker holds now is none of their checkpoints."""
        self._marker = marker
        self._read_marker()

    def look(self, generation: int) -> None:
        """Tell of a new checkpoint, if this is the generation: at once if the output shows it, or once the marker is
        read."""
        if generation != self._generation:
            return
        found = [whole(match["step"]) for finding in self._search.look().values() for match in finding.matches]
        steps = [step for step in found if step is not None]
        if steps:
            self._put(Saved(self._generation, max(steps), is_new=not self._is_settling))
        self._read_marker()

    async def look_last(self, generation: int, patience_s: float) -> None:
        """Tell of all that the ranks have saved by now; the marker is waited for no longer than that."""
        give_up_s = boot_s() + patience_s
        await self._wait(give_up_s)  # for a reading that may have been too early
        self.look(generation)
        await self._wait(give_up_s)

    async def settle(self, generation: int, patience_s: float) -> None:
        """What has been saved by now is no news when this returns, unless the disk takes longer."""
        self._is_settling = True
        await self.look_last(generation, patience_s)
        self._is_settling = False

    async def _wait(self, give_up_s: float) -> None:
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=max(0.0, give_up_s - boot_s()))

    def _read_marker(self) -> None:
        if self._marker is not None and (self._reading is None or self._reading.done()):
            self._reading = self._tasks.create_task(self._read(self._marker), name="marker")

    async def _read(self, marker: Path) -> None:
        step = await asyncio.to_thread(_read_step, marker)
        is_new, self._is_known = self._is_known, True
        if step is not None and step != self._step:
            self._step = step
            self._put(Saved(self._generation, step, is_new and not self._is_settling))


def _read_step(path: Path) -> int | None:
    """The first number in a checkpoint marker; None where there is none (yet)."""
    content = read_small(path, MARKER_MAX_BYTES)
    found = re.search(rb"\d{1,18}", content or b"")
    return int(found[0]) if found else None
