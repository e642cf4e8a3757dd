"""Runners that live in our state folder, and of which the journal knows nothing: it was lost, and they were not.

Whose lock is held was started from this very folder. Of a lock that is free nothing can be told: the folder may be a
copy, and the runner may live in the original.
"""

import asyncio
import os
from collections.abc import Collection
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

import structlog

from supervisor.daemon.journal import Journal, StoredRunner
from supervisor.shell.files import read_small

log = structlog.get_logger()

LOCK_MAX_BYTES = 4096
NO_GROUP = "-"
"""What stands in the lock file of a runner without a cgroup."""


async def known_runners(state_dir: Path, journal: Journal) -> list[StoredRunner]:
    """All that serve a run, by the journal; those that it did not know it knows from now on. Raises Refused."""
    known = await journal.runners()
    for runner in await asyncio.to_thread(unknown_runners, state_dir, {runner.incarnation for runner in known}):
        await journal.add_runner(runner)
        log.warning("runner_adopted", run=runner.run, incarnation=runner.incarnation)
        known.append(runner)
    return known


def unknown_runners(state_dir: Path, known: Collection[str]) -> list[StoredRunner]:
    """Those that are alive and serve a run, but for these incarnations."""
    runs = {path.stem: path.parent.name for path in state_dir.glob("runs/*/*.log")}
    locks = [path for path in state_dir.glob("runners/*.lock") if path.stem in runs.keys() - set(known)]
    return [_stored(lock, runs[lock.stem]) for lock in locks if _is_held(lock)]


def _stored(lock: Path, run: str) -> StoredRunner:
    group = (read_small(lock, LOCK_MAX_BYTES) or b"").decode(errors="replace")
    return StoredRunner(incarnation=lock.stem, run=run, cgroup=None if group in ("", NO_GROUP) else group)


def _is_held(lock: Path) -> bool:
    """What cannot be looked at counts as free: so it is nobody's, as before."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
