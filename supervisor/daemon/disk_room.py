"""Looks once a minute how much room this node's files take, and sees that it stays within [state] of supd.toml."""

import asyncio
from collections.abc import Callable

import structlog

from protocol.errors import Refused
from supervisor.daemon import slow_disk
from supervisor.logs import marks
from supervisor.logs.quota import Limits, Quota, Tidied
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.config import Config

log = structlog.get_logger()

LOOK_EVERY_S = 60.0

TELL_AGAIN_S = 3600.0
"""How often a disk is complained of that stays too full."""


class DiskRoom:
    """The room for the output of runs, and for supd's own files."""

    def __init__(self, config: Config, is_live: Callable[[str], bool]) -> None:
        """`is_live` says, in any thread, whether a run has a runner here."""
        limits = Limits(config.max_disk_bytes, config.min_free_bytes, config.min_free_percent)
        owner = marks.owner(config.node, config.state_dir)
        self._quota = Quota(config.state_dir, config.logs_dir, limits, owner)
        self._logs_dir = config.logs_dir
        self._is_live = is_live
        self._tell_at_s = 0.0

    async def run(self) -> None:
        """Look after it until cancelled."""
        while True:
            try:
                tidied = await slow_disk.ask(self._logs_dir, self._quota.tidy, self._is_live, wall_s())
            except (OSError, Refused) as exc:
                log.warning("disk_room_unseen", error=str(exc))
            else:
                if tidied is not None:
                    self._tell(tidied)
            await asyncio.sleep(LOOK_EVERY_S)

    def _tell(self, tidied: Tidied) -> None:
        for run in tidied.removed:
            log.warning("output_removed", run=run, why="[state] max_disk, min_free")
        if not tidied.is_over:
            self._tell_at_s = 0.0
        elif boot_s() >= self._tell_at_s:
            self._tell_at_s = boot_s() + TELL_AGAIN_S
            log.warning("disk_too_full", used_bytes=tidied.used_bytes, free_bytes=tidied.free_bytes)
