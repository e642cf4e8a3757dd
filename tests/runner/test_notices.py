"""Notices of preemption that reach a runner: by a signal, and by the job's command."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from protocol.job import PreemptionTable, RunTable
from supervisor.runner.helpers import Helpers
from supervisor.runner.notices import Notices
from supervisor.shell import tree
from tests.protocol.build import job_spec, submitted
from tests.runner.processes import wait_until

TIMEOUT_S = 20.0


class Told:
    """What the runner's machine is told, and what is logged."""

    def __init__(self) -> None:
        self.why: asyncio.Queue[str] = asyncio.Queue()
        self.helpers = Helpers()


def reap_all(helpers: Helpers, options: int = 0) -> None:
    """What the workers' side does with every child that it finds."""
    for pid in list(helpers.pids):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | options) is not None:
            helpers.reap(pid)


@asynccontextmanager
async def notices(
    folder: Path, incarnation: str, script: str = "", *, interval_s: float = 0.05, signals: tuple[str, ...] = ()
) -> AsyncIterator[Told]:
    """Of a job with this shell script for a notice command."""
    command = ("sh", "-c", script) if script else ()
    table = PreemptionTable(signals=signals, notice_command=command, notice_interval_s=interval_s)
    job = submitted(
        job_spec(preemption=table, run=RunTable(script="t.py", env={"OWN": "o"})),
        folder=str(folder),
        env={b"PATH": os.environb[b"PATH"]},
    )
    told = Told()
    made = Notices(job, "a", incarnation, (os.nice(0), 0), told.helpers, told.why.put_nowait)
    made.listen()
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(made.watch())
        try:
            yield told
        finally:
            watching.cancel()
            for name in signals:
                asyncio.get_running_loop().remove_signal_handler(signal.Signals[name])
    reap_all(told.helpers)


async def test_a_signal_of_the_job_is_a_notice(tmp_path: Path, incarnation: str) -> None:
    async with notices(tmp_path, incarnation, signals=("SIGUSR2",)) as told:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert await told.why.get() == "its runner was sent SIGUSR2"


async def test_a_command_that_ends_with_0_is_a_notice_and_another_code_withdraws_it(
    tmp_path: Path, incarnation: str
) -> None:
    async with notices(tmp_path, incarnation, "test -e notice && echo gone by noon") as told:
        assert await told.why.get() == ""
        (tmp_path / "notice").touch()
        while not (why := await told.why.get()):
            pass
        assert why == "its preemption.notice_command has ended with 0: gone by noon"
        (tmp_path / "notice").unlink()
        while await told.why.get():
            pass


async def test_a_notice_by_a_signal_is_not_withdrawn_by_a_command(tmp_path: Path, incarnation: str) -> None:
    async with notices(tmp_path, incarnation, "false", signals=("SIGUSR2",)) as told:
        assert await told.why.get() == ""
        os.kill(os.getpid(), signal.SIGUSR2)
        while not await told.why.get():
            pass
        assert [await told.why.get() for _ in range(2)] == ["its runner was sent SIGUSR2"] * 2


async def test_the_command_runs_in_a_session_of_its_own_with_the_jobs_environment(
    tmp_path: Path, incarnation: str
) -> None:
    script = 'echo "$$ $(ps -o sid= -p $$) $OWN $SUPD_NODE" > seen.new && mv seen.new seen'
    async with notices(tmp_path, incarnation, script) as told:
        assert await told.why.get()
        pid, session, own, node = (tmp_path / "seen").read_text().split()
        assert (session, own, node) == (pid, "o", "a")


async def test_a_command_that_takes_too_long_is_killed_with_all_that_it_has_started_and_has_said_nothing(
    tmp_path: Path, incarnation: str
) -> None:
    script = "test -e slow || exit 0; setsid sleep 600 & sleep 600"
    async with notices(tmp_path, incarnation, script) as told:
        assert await told.why.get()
        (tmp_path / "slow").touch()
        with structlog.testing.capture_logs() as lines:
            await asyncio.to_thread(wait_until, lambda: any("killed" in line["event"] for line in lines))
            (tmp_path / "slow").unlink()
        while not told.why.empty():
            told.why.get_nowait()
        assert await told.why.get(), "nothing has withdrawn the notice"
    await asyncio.to_thread(wait_until, lambda: not tree.marked(incarnation))


async def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path, incarnation: str) -> None:
    async with notices(tmp_path, incarnation, "sleep 600 & exit 0", interval_s=600.0) as told:
        assert await told.why.get()
        await asyncio.to_thread(wait_until, lambda: not tree.marked(incarnation))


async def test_a_command_that_cannot_be_run_is_told_once_and_is_no_notice(tmp_path: Path, incarnation: str) -> None:
    job = submitted(
        job_spec(preemption=PreemptionTable(notice_command=("./none",), notice_interval_s=0.001)), folder=str(tmp_path)
    )
    helpers, said = Helpers(), list[str]()
    made = Notices(job, "a", incarnation, (os.nice(0), 0), helpers, said.append)
    with structlog.testing.capture_logs() as lines:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(made.watch())
            await asyncio.to_thread(wait_until, lambda: bool(lines))
            await asyncio.to_thread(int)
            watching.cancel()
    assert said == []
    [line] = lines
    assert (line["event"], line["reason"]) == ("notice_command_unstarted", "program: not found")


async def test_a_command_that_writes_without_end_fills_nothing(tmp_path: Path, incarnation: str) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x"
    async with notices(tmp_path, incarnation, script, interval_s=10.0) as told:
        assert len(await told.why.get()) <= 500


async def test_a_command_that_others_have_reaped_has_ended_all_the_same(tmp_path: Path, incarnation: str) -> None:
    async with notices(tmp_path, incarnation, "exit 0", interval_s=0.01) as told:
        while told.why.qsize() < 20:
            reap_all(told.helpers, os.WNOHANG)
            await asyncio.sleep(0)
