"""supervisor/daemon/jobs.py: every run of this coordinator, over restarts of supd."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from protocol.coordinator_events import RosterNode, RunRecord, Tick
from protocol.job import Job
from protocol.job_file import read_job
from protocol.messages.control import Done, Failure, GetStatus, Resolve, RunStatus, Statuses, StopRun, Watch
from protocol.timing import DEFAULTS
from supervisor.daemon.jobs import ROSTER_S, Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.starting import Starting
from supervisor.shell.clock import boot_s
from supervisor.shell.config import Config
from tests.daemon.serving import ask, config_in, serving, talking, wait_for
from tests.daemon.test_control import start
from tests.protocol.build import job_spec, submitted


async def started(config: Config, request_id: str, name: str = "job", command: str = '["sleep", "3600"]') -> str:
    reply = await ask(config.control, start(request_id, name, command))
    assert isinstance(reply, Done), reply
    return reply.run


async def status(config: Config, run: str) -> RunStatus:
    reply = await ask(config.control, GetStatus(run=run, with_ranks=True))
    assert isinstance(reply, Statuses), reply
    return reply.runs[0]


async def ended(config: Config, run: str) -> RunStatus:
    """The run's last snapshot."""
    async with talking(config.control, Watch(run=run, follow=True, snapshots=True)) as client:
        while await client.frame() is not None:
            pass
    return await status(config, run)


async def nobody_else_leads(_epoch: int) -> None:
    pass


@contextlib.asynccontextmanager
async def coordinating(folder: Path) -> AsyncIterator[tuple[Jobs, Journal]]:
    """The runs of a coordinator, and no supd around it."""
    journal = Journal(folder / "journal.db")
    jobs = Jobs(
        journal,
        folder / "logs",
        1,
        on_wanted=lambda run, nodes: None,
        on_unlinked=lambda node: None,
        on_seated=lambda: None,
        on_blamed=lambda node: None,
        on_epoch=lambda epoch: None,
        before_epoch=nobody_else_leads,
        timing=DEFAULTS,
        keeps_isolated=False,
    )
    try:
        async with asyncio.TaskGroup() as group:
            driving = group.create_task(jobs.run([]))
            await asyncio.sleep(0)
            yield jobs, journal
            driving.cancel()
    finally:
        journal.close()


async def resolved(config: Config, word: str) -> str | int:
    """The run that a word means, or the exit code of the refusal."""
    reply = await ask(config.control, Resolve(word=word))
    if isinstance(reply, Done):
        return reply.run
    assert isinstance(reply, Failure), reply
    return reply.exit_code


async def test_a_word_means_the_run_that_a_user_would_expect(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        assert await resolved(config, "") == 3
        old = await started(config, "1", "a", '["true"]')
        await ended(config, old)
        assert await resolved(config, "") == old, "the newest, where none is active"
        new = await started(config, "2", "a")
        assert [await resolved(config, word) for word in ("", "a", old, new, "b")] == [new, new, old, new, 3]
        await started(config, "3", "b")
        assert await resolved(config, "") == 2, "two are active"
        await ask(config.control, StopRun(run="a", now=True))
        await ended(config, new)
        assert await resolved(config, "a") == new, "the newest of those that are over"


async def test_a_job_that_is_active_is_not_started_twice(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(config.control, start(str(n)))) for n in range(5)]
        replies = [task.result() for task in asked]
        assert sorted(type(reply).__name__ for reply in replies) == ["Done"] + ["Failure"] * 4
        refusal = await ask(config.control, start("again"))
        assert isinstance(refusal, Failure)
        assert (refusal.code, refusal.hint) == (
            "F101",
            "supctl stop job; or start with --replace, or under another --name",
        )


async def test_one_request_by_two_connections_at_once_makes_one_run(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(config.control, start("same"))) for _ in range(5)]
        replies = [task.result() for task in asked]
        runs = {reply.run for reply in replies if isinstance(reply, Done)}
        assert (len(runs), [reply for reply in replies if not isinstance(reply, Done)]) == (1, [])
        everything = await ask(config.control, GetStatus())
        assert isinstance(everything, Statuses)
        assert {run.run for run in everything.runs} == runs


async def test_a_run_that_is_over_is_told_alike_by_every_supd_to_come(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        good = await ended(config, await started(config, "1", "good", '["true"]'))
        bad = await ended(config, await started(config, "2", "bad", '["sh", "-c", "echo why >&2; exit 3"]'))
    assert (good.state, good.rank_list[0].exit_code) == ("succeeded", 0)
    assert bad.incident is not None
    assert (bad.state, bad.incident.exit_code, bad.incident.stderr_tail) == ("failed", 3, (b"why",))
    assert (bad.rank_list[0].exit_code, bad.rank_list[0].pid) == (3, bad.incident.pid)
    async with serving(config):
        assert await status(config, good.run) == good
        assert await status(config, bad.run) == bad


async def test_what_was_accepted_and_not_yet_begun_is_begun_by_the_next_supd(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        pass
    request = start("1", "job", '["true"]')
    spec = read_job(request.job_file, "job.toml").spec
    journal = Journal(config.state_dir / "journal.db")
    job = Job(run="job@123456", spec=spec, submitter=submitted(job_spec(), env=request.env, folder="/").submitter)
    await journal.add_run(request.request_id, job, RunRecord(), 1.0)
    journal.close()
    async with serving(config):
        assert (await ended(config, "job@123456")).state == "succeeded"
        assert await ask(config.control, request) == Done(run="job@123456", notes=("in /",))


async def test_of_a_thousand_nodes_that_come_at_once_the_runs_are_told_a_few_times_and_of_the_last_one_too(
    short_dir: Path,
) -> None:
    node = RosterNode("a", is_up=True, may_come=False, joined=0)
    come: list[int] = []
    told: list[int] = []

    def roster() -> tuple[RosterNode, ...]:
        told.append(len(come))
        return (node,)

    async with coordinating(short_dir) as (jobs, journal):
        job = submitted(job_spec())
        await Starting(jobs, journal, None).start(job.spec, job.submitter, "1")
        before_s = boot_s()
        for number in range(1000):
            come.append(number)
            jobs.on_roster(roster)
            await asyncio.sleep(0)
        await wait_for("the last change", lambda: told[-1] == 1000)
        assert len(told) <= 2 + (boot_s() - before_s) / ROSTER_S
        assert told[0] < 10, "the first one at once"


async def test_a_run_that_is_far_behind_hears_of_the_nodes_later_and_holds_up_nobody(short_dir: Path) -> None:
    def roster(name: str) -> Callable[[], tuple[RosterNode, ...]]:
        return lambda: (RosterNode(name, is_up=True, may_come=False, joined=0),)

    failed: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with coordinating(short_dir) as (jobs, journal):
        job = submitted(job_spec())
        run = await Starting(jobs, journal, None).start(job.spec, job.submitter, "1")
        machine, driver = jobs.runs[run].machine, jobs.runs[run].driver
        jobs.on_roster(roster("a"))
        await wait_for("the run to know a", lambda: machine.rendezvous.is_up("a"))
        with contextlib.suppress(asyncio.QueueFull):
            while True:
                driver.put(Tick())
        jobs.on_roster(roster("b"))
        await wait_for("the run to know b", lambda: machine.rendezvous.is_up("b"))
    assert not failed
