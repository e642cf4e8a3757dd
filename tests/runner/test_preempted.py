"""A real runner whose node is about to be taken away."""

import os
import signal
from pathlib import Path

from protocol.job import PreemptionTable
from protocol.messages.member import Part
from supervisor.shell import tree
from tests.runner.solo import NPROC, Solo, solo


async def noticed(runner: Solo, *, is_on: bool = True) -> str:
    """Its next word that there is a notice, or that there is none."""
    while bool(why := (await runner.renewals.get()).notice) != is_on:
        pass
    return why


def command_line(process: tree.Process) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0").replace("\0", " ")


async def test_a_signal_of_the_job_is_a_notice_even_one_that_dismisses_a_runner_else(
    short_dir: Path, incarnation: str
) -> None:
    table = PreemptionTable(signals=("SIGTERM", "SIGUSR1"))
    async with solo(short_dir, incarnation, "sleep 60", preemption=table) as runner:
        await runner.hears(Part.LAUNCHED)
        os.kill(runner.runner.pid, signal.SIGTERM)
        assert await noticed(runner) == "its runner was sent SIGTERM"
        os.kill(runner.runner.pid, signal.SIGUSR1)
        renewal = await runner.hears(Part.LAUNCHED)
        assert (len(renewal.ranks), renewal.notice) == (NPROC, "its runner was sent SIGTERM"), "its ranks go on"


async def test_a_notice_command_beside_the_ranks_gives_and_withdraws_notice(short_dir: Path, incarnation: str) -> None:
    """It is none of the ranks' leftovers, nor does its end look like one of theirs."""
    script = "sleep 0.02; test -e notice"
    table = PreemptionTable(notice_command=("sh", "-c", script), notice_interval_s=0.05)
    async with solo(short_dir, incarnation, "sleep 60", preemption=table) as runner:
        await runner.hears(Part.LAUNCHED)
        for is_on in (True, False):
            (short_dir / "notice").touch() if is_on else (short_dir / "notice").unlink()
            await noticed(runner, is_on=is_on)
        renewal = await runner.hears(Part.LAUNCHED)
        assert [rank.exit for rank in renewal.ranks] == [None] * NPROC


async def test_the_end_of_a_generation_does_not_wait_for_a_notice_command_nor_end_it(
    short_dir: Path, incarnation: str
) -> None:
    table = PreemptionTable(notice_command=("sleep", "600"), notice_interval_s=600.0)
    script = "until test -e go; do :; done; sleep 1 & exit 0"
    async with solo(short_dir, incarnation, script, preemption=table) as runner:
        await runner.until(NPROC + 1)
        (short_dir / "go").touch()
        await runner.hears(Part.FINISHED)
        assert [command_line(process) for process in runner.ranks()] == ["sleep 600"]
