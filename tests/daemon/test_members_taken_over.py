"""supervisor/daemon/members.py: runners of a run that the coordinator knows nothing of, and of another coordinator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from protocol.ids import EPOCH_LEAP_MAX, EPOCH_TOLD_MAX
from protocol.job import Job, StopTable
from protocol.job_file import read_job
from protocol.messages.control import EventRecord, GetStatus, Statuses, Watch, decode_reply
from protocol.messages.member import (
    Answer,
    Hello,
    JobTold,
    JobWanted,
    Part,
    Rejected,
    Release,
    Renewal,
    Tell,
    ToRunner,
    Welcome,
)
from supervisor.daemon import members
from supervisor.daemon.journal import Journal
from supervisor.shell.config import Config
from tests.daemon.serving import ask, config_in, serving, talking
from tests.daemon.test_control import start
from tests.daemon.test_jobs import ended, started
from tests.daemon.test_members import Caller, calling, hello
from tests.protocol.build import job_spec, submitted

RUN = "job@123456"


def job(run: str = RUN, command: str = '["sleep", "3600"]') -> Job:
    """A job that some coordinator has accepted, and this one has not."""
    spec = read_job(start("1", "job", command).job_file, "job.toml").spec
    return Job(run=run, spec=spec, submitter=submitted(job_spec(), folder="/").submitter)


async def heard(caller: Caller) -> ToRunner:
    message = await caller.hear()
    assert message is not None, "the connection has ended"
    return message


async def events(config: Config, run: str, kind: str) -> list[EventRecord]:
    found = []
    async with talking(config.control, Watch(run=run, follow=False, events=True)) as client:
        while (frame := await client.frame()) is not None:
            reply = decode_reply(frame)
            if isinstance(reply, EventRecord) and reply.kind == kind:
                found.append(reply)
    return found


async def runs(config: Config) -> list[str]:
    reply = await ask(config.control, GetStatus())
    assert isinstance(reply, Statuses), reply
    return [status.run for status in reply.runs]


@contextlib.asynccontextmanager
async def asked(config: Config, run: str = RUN, incarnation: str = "0" * 16) -> AsyncIterator[Caller]:
    """A runner of a run that is not known, once it is asked for its job."""
    async with calling(config) as caller:
        caller.say(hello(config, run, incarnation=incarnation))
        assert isinstance(await heard(caller), JobWanted)
        yield caller


# --- a run that is not known -----------------------------------------------------------------------------------------


async def test_a_run_that_is_not_known_is_taken_over_from_its_runner_and_goes_on(short_dir: Path) -> None:
    """R6."""
    config = config_in(short_dir)
    async with serving(config):
        async with asked(config) as caller:
            caller.say(JobTold(job=job()))
            welcome = await heard(caller)
            assert isinstance(welcome, Welcome)
            assert welcome.job == job()
            caller.say(Renewal(number=1, generation=3, part=Part.RUNNING))
            while not isinstance(answer := await heard(caller), Answer) or answer.number != 1:
                pass
            assert isinstance(answer.order, Tell), "what it runs is not touched"
            caller.say(Renewal(number=2, generation=3, part=Part.STOPPED))  # else a stop waits for proof of its end
        assert await runs(config) == [RUN]
        (event,) = await events(config, RUN, "job.taken_over")
        assert (event.text, event.detail) == ("the coordinator had no memory of it", {"node": config.node})


async def test_what_was_taken_over_survives_the_next_loss_of_power(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config), asked(config) as caller:
        caller.say(JobTold(job=job()))
        assert isinstance(await heard(caller), Welcome)
        journal = Journal(config.state_dir / "journal.db")  # another reader of the same file
        assert [stored.job for stored in await journal.runs()] == [job()]
        journal.close()


async def test_runners_that_tell_a_job_at_once_make_one_run_of_it_and_are_all_welcome(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config), contextlib.AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(asked(config, incarnation=f"{n:016x}")) for n in range(8)]
        for caller in callers:
            caller.say(JobTold(job=job()))
        assert [type(await heard(caller)) for caller in callers] == [Welcome] * len(callers)
        assert await runs(config) == [RUN]
        assert len(await events(config, RUN, "job.taken_over")) == 1


async def test_a_runner_that_never_heard_of_its_job_is_welcome_once_another_one_has_told_it(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config), asked(config) as first, asked(config, incarnation="1" * 16) as other:
        other.say(JobTold(job=job()))
        for caller in (first, other):
            assert isinstance(await heard(caller), Welcome)


async def test_who_tells_nonsense_of_a_job_is_told_so_and_another_may_tell_it_better(short_dir: Path) -> None:
    wrong = replace(job(), spec=replace(job().spec, stop=StopTable(grace_s=-1.0)))
    config = config_in(short_dir)
    async with serving(config), asked(config) as liar:
        liar.say(JobTold(job=wrong))
        rejected = await heard(liar)
        assert isinstance(rejected, Rejected)
        assert rejected.reason.startswith(f"the job of {RUN} cannot be taken over: `stop.grace` ")
        assert await liar.hear() is None
        assert await runs(config) == []
        async with asked(config, incarnation="1" * 16) as other:
            other.say(JobTold(job=job()))
            assert isinstance(await heard(other), Welcome)


@pytest.mark.parametrize(
    "told", [JobTold(job=job("job@654321")), Hello(versions=(1,), fleet="default", node="a", run=RUN, incarnation="x")]
)
async def test_a_runner_stays_who_it_is_while_it_is_asked_for_its_job(short_dir: Path, told: object) -> None:
    config = config_in(short_dir)
    async with serving(config), asked(config) as caller:
        caller.say(told)
        assert await caller.hear() is None
        assert await runs(config) == []


async def test_a_job_that_was_not_asked_for_costs_a_runner_its_connection(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await started(config, "1")
        async with calling(config) as caller:
            caller.say(hello(config, run), JobTold(job=job()))
            assert isinstance(await heard(caller), Welcome)
            assert await caller.hear() is None
        assert await runs(config) == [run]


async def test_a_job_that_finds_no_place_among_those_that_wait_is_not_kept(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may have 8 MiB. Its runner comes again."""
    monkeypatch.setattr(members, "JOBS_WAITING_MAX", 0)
    config = config_in(short_dir)
    async with serving(config), asked(config) as caller:
        caller.say(JobTold(job=job()))
        assert await caller.hear() is None
        assert await runs(config) == []


async def test_a_run_of_a_name_that_is_no_runs_is_not_taken_over(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config), asked(config, "../job@12") as caller:
        caller.say(JobTold(job=job("../job@12")))
        assert isinstance(await heard(caller), Rejected)
        assert await runs(config) == []


async def test_a_runner_of_a_run_that_is_over_is_released(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await started(config, "1", command='["true"]')
        await ended(config, run)
        async with calling(config) as caller:
            caller.say(hello(config, run))
            assert isinstance(await heard(caller), Welcome)
            caller.say(Renewal(number=1, generation=3, part=Part.RUNNING))
            answer = await heard(caller)
            assert isinstance(answer, Answer)
            assert isinstance(answer.order, Release)


# --- another coordinator ---------------------------------------------------------------------------------------------


async def epoch_told(config: Config, run: str, epoch: int, incarnation: str) -> int:
    """The epoch in the welcome of a runner that has heard of this one."""
    async with calling(config) as caller:
        caller.say(hello(config, run, epoch=epoch, incarnation=incarnation))
        welcome = await heard(caller)
        assert isinstance(welcome, Welcome)
        return welcome.epoch


async def test_a_coordinator_goes_above_every_epoch_that_it_hears_of_and_never_back(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await started(config, "1")
        assert await epoch_told(config, run, 0, "a") == 1
        assert await epoch_told(config, run, 1, "a") == 1, "it has that from us"
        assert await epoch_told(config, run, 1, "b") == 2, "it has that from another one"
        assert await epoch_told(config, run, 40, "c") == 41
        assert await epoch_told(config, run, 7, "d") == 41
        async with calling(config) as caller:
            caller.say(hello(config, run, epoch=41, incarnation="c"))
            assert isinstance(await heard(caller), Welcome)
            caller.say(Renewal(number=1))
            answer = await heard(caller)
            assert isinstance(answer, Answer)
            assert answer.epoch == 41, "in what its machine says as well"
    async with serving(config):
        assert await epoch_told(config, run, 0, "e") == 42, "it was on disk"


async def test_the_highest_epoch_that_is_believed_leaves_room_to_count_on(short_dir: Path) -> None:
    """Or else one lie would end the talk with every runner, for ever."""
    config, most = config_in(short_dir), EPOCH_TOLD_MAX + EPOCH_LEAP_MAX
    async with serving(config):
        run = await started(config, "1")
        assert await epoch_told(config, run, most, "a") == most + 1
        assert await epoch_told(config, run, most + 1, "b") == most + 2, "another one has heard of it"
    async with serving(config):
        assert await epoch_told(config, run, most + 2, "b") == most + 3, "it goes on from there"


async def test_runners_that_come_at_once_from_another_coordinator_cost_one_epoch(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await started(config, "1")
        async with asyncio.TaskGroup() as group:
            told = [group.create_task(epoch_told(config, run, 8, f"{n:016x}")) for n in range(8)]
        assert {task.result() for task in told} == {9}


async def test_a_run_that_is_not_known_comes_with_the_epoch_that_its_runner_knows(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config), calling(config) as caller:
        caller.say(hello(config, RUN, epoch=5))
        wanted = await heard(caller)
        assert isinstance(wanted, JobWanted)
        caller.say(JobTold(job=job()))
        welcome = await heard(caller)
        assert isinstance(welcome, Welcome)
        assert (wanted.epoch, welcome.epoch) == (6, 6)
