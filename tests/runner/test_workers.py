"""supervisor/runner/workers.py: what the end of a lease does to ranks that run, and to those that are being started."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from protocol.member_events import Event, Exited, Launched
from supervisor.logs.segments import LogWriter
from supervisor.runner.beats import Pages
from supervisor.runner.helpers import Helpers
from supervisor.runner.workers import Workers
from supervisor.shell import tree
from supervisor.shell.clock import boot_s
from supervisor.shell.lease_page import LeasePage
from tests.protocol.build import assignment
from tests.runner.processes import wait_until
from tests.runner.solo import shell_job

TIMEOUT_S = 20.0
WITH_A_DAEMON = "setsid sleep 60 & sleep 60"
NPROC = 3


class Place:
    """Workers of a job whose ranks have a child in a session of its own, and what is told of them."""

    def __init__(self, folder: Path, incarnation: str, group: asyncio.TaskGroup, precedence: tuple[int, int]) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.helpers = Helpers({p.pid for p in tree.descendants(os.getpid(), tree.processes())})  # not this test's
        self.lease = LeasePage.make()
        self.logs = LogWriter(folder / "logs")
        self.workers = Workers(
            job=shell_job(WITH_A_DAEMON, folder, NPROC),
            node="a",
            incarnation=incarnation,
            logs=self.logs,
            logs_dir=folder / "logs",
            put=self.events.put_nowait,
            tasks=group,
            helpers=self.helpers,
            pages=Pages(None),
            run_dir=folder,
            precedence=precedence,
            lease=self.lease,
        )

    def launch(self, generation: int) -> None:
        self.workers.launch(assignment(generation, nproc=NPROC, world_size=NPROC))

    async def launched(self) -> Launched:
        while not isinstance(event := await self.events.get(), Launched):
            pass
        return event


@asynccontextmanager
async def opened(folder: Path, incarnation: str) -> AsyncIterator[Place]:
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        place = Place(folder, incarnation, group, (os.nice(0), 0))
        try:
            yield place
        finally:
            tree.kill_all(lambda: tree.marked(incarnation))
            place.workers.reap()
            place.logs.close()


async def test_all_of_a_generation_is_killed_at_once_and_each_ranks_end_is_told(
    tmp_path: Path, incarnation: str
) -> None:
    async with opened(tmp_path, incarnation) as place:
        place.launch(0)
        assert len((await place.launched()).pids) == NPROC
        await asyncio.to_thread(wait_until, lambda: len(tree.marked(incarnation)) == 3 * NPROC)
        place.workers.kill_all(0)
        ends = [await place.events.get() for _ in range(NPROC)]
        assert {end.rank for end in ends if isinstance(end, Exited) and end.exit.signal == 9} == set(range(NPROC))
        await asyncio.to_thread(wait_until, lambda: not tree.marked(incarnation))


async def test_no_rank_is_started_once_the_lease_is_over(tmp_path: Path, incarnation: str) -> None:
    async with opened(tmp_path, incarnation) as place:
        place.lease.hold(boot_s() - 1)
        place.launch(0)
        assert await place.launched() == Launched(0, ())
        assert tree.marked(incarnation) == []


async def test_no_rank_of_a_generation_is_started_once_that_was_killed_but_those_of_the_next_are(
    tmp_path: Path, incarnation: str
) -> None:
    async with opened(tmp_path, incarnation) as place:
        place.launch(0)
        place.workers.kill_all(0)
        assert await place.launched() == Launched(0, ())
        place.launch(1)
        assert len((await place.launched()).pids) == NPROC
        place.workers.kill_all(1)
        for _ in range(NPROC):
            assert isinstance(await place.events.get(), Exited)


def ended_child() -> int:
    """One that is still to be reaped."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


async def test_no_child_is_reaped_while_one_is_being_started_that_is_not_known_yet(
    tmp_path: Path, incarnation: str
) -> None:
    async with opened(tmp_path, incarnation) as place:
        pid = ended_child()
        with place.helpers.starting():
            place.workers.reap()
            assert tree.look(pid) is not None
        place.workers.reap()
        assert tree.look(pid) is None
