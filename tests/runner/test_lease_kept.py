"""A real runner and its guard: ranks end with their lease, and no disk keeps a renewal from leaving."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.messages.member import Part
from supervisor.shell import tree
from tests.runner.processes import is_gone, present, wait_until
from tests.runner.solo import NPROC, record_draft, solo

WITH_A_DAEMON = "setsid sleep 60 & sleep 60"
OF_EACH = 3


async def test_a_runner_that_is_answered_no_more_kills_its_ranks_and_says_so(short_dir: Path, incarnation: str) -> None:
    async with solo(short_dir, incarnation, WITH_A_DAEMON, has_lease=True) as runner:
        await runner.until(OF_EACH * NPROC)
        runner.answers = False
        await runner.until(0)
        stopped = await runner.hears(Part.STOPPED)
        assert stopped.fenced_s is not None
        assert [rank.exit.stopped_by_us for rank in stopped.ranks if rank.exit is not None] == [True] * NPROC
        assert not is_gone(runner.runner)


async def test_a_stopped_runner_loses_its_ranks_to_the_guard_and_says_fenced_when_it_goes_on(
    short_dir: Path, incarnation: str
) -> None:
    async with solo(short_dir, incarnation, WITH_A_DAEMON, has_lease=True) as runner:
        await runner.until(OF_EACH * NPROC)
        tree.signal_process(runner.runner, signal.SIGSTOP)
        await asyncio.to_thread(wait_until, lambda: present(runner.runner.pid).state == "T")
        await runner.until(0)
        tree.signal_process(runner.runner, signal.SIGCONT)
        stopped = await runner.hears(Part.STOPPED)
        assert stopped.fenced_s is not None
        assert [rank.exit.stopped_by_us for rank in stopped.ranks if rank.exit is not None] == [True] * NPROC


async def test_ranks_that_are_answered_for_outlive_many_leases(short_dir: Path, incarnation: str) -> None:
    async with solo(short_dir, incarnation, WITH_A_DAEMON, has_lease=True) as runner:
        await runner.until(OF_EACH * NPROC)
        for _ in range(8):  # of 0.4 s, where a lease is of 1.5 s
            assert (await runner.hears(Part.LAUNCHED, Part.RUNNING)).fenced_s is None
        assert len(runner.ranks()) == OF_EACH * NPROC


async def test_a_record_that_does_not_reach_the_disk_holds_no_renewal_up(short_dir: Path, incarnation: str) -> None:
    draft = record_draft(short_dir, incarnation)
    os.mkfifo(draft)  # whoever opens it for writing waits for good
    async with solo(short_dir, incarnation, "sleep 60") as runner:
        for _ in range(3):
            await runner.hears(Part.LAUNCHED, Part.RUNNING)
        assert draft.is_fifo()
        assert not draft.with_suffix("").exists()


@contextmanager
def full_pipe() -> Iterator[int]:
    """A descriptor to which nothing can be written."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(writer)
        os.close(reader)


async def test_output_and_own_log_on_a_disk_that_hangs_hold_no_renewal_up(short_dir: Path, incarnation: str) -> None:
    folder = short_dir / "logs" / "gen-0000"
    folder.mkdir(parents=True)
    for rank in range(NPROC):
        os.mkfifo(folder / f"rank-{rank:05d}.out")
    with full_pipe() as own_log:
        async with solo(short_dir, incarnation, "exec yes", own_log=own_log) as runner:
            for _ in range(4):
                await runner.hears(Part.LAUNCHED, Part.RUNNING)
            assert len(runner.ranks()) == NPROC
