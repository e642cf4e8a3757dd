"""supervisor/daemon/jobs.py: the proof that a runner is gone is not forgotten before it is on disk (R6, R7)."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from protocol.job import Job, TopologyTable
from protocol.messages.control import GetStatus, Statuses
from protocol.messages.fleet import RunnerBuried
from protocol.messages.member import Assignment, JobTold, JobWanted, Part, Renewal, Welcome
from supervisor.daemon import jobs
from supervisor.shell.config import Config
from tests.daemon.peers import FakeNode
from tests.daemon.serving import ask
from tests.daemon.test_members import Caller, calling, hello
from tests.daemon.test_members_taken_over import RUN, heard, job
from tests.daemon.test_nodes import hosting, joined
from tests.protocol.build import exited, rank
from tests.protocol.fleet import FINISHED
from tests.protocol.takeover_stage import given_out

A1, B1 = "a" * 16, "b" * 16
SOON_S = 0.3


def given() -> tuple[Assignment, Assignment]:
    """What a coordinator that nobody remembers has given to A1 and B1."""
    told = given_out("ab", 3)
    mine, others = told["a1"], told["b1"]
    named = [tuple(replace(w, incarnation=runner) for w in one.witnesses) for one, runner in ((mine, B1), (others, A1))]
    return replace(mine, witnesses=named[0]), replace(others, witnesses=named[1])


def on_two() -> Job:
    spec = replace(job().spec, topology=TopologyTable(nproc_per_node=2, nnodes=(2, 2)))
    return replace(job(), spec=spec)


def finished(number: int) -> Renewal:
    """A1 has done its work."""
    return Renewal(number=number, generation=3, part=Part.FINISHED, ranks=FINISHED, assignment=given()[0])


def buried() -> RunnerBuried:
    """B1 had done its work, and has ended."""
    done = (rank(2, exited(0), first=2), rank(3, exited(0, order=1), first=2))
    last = Renewal(number=9, generation=3, part=Part.FINISHED, ranks=done, assignment=given()[1])
    return RunnerBuried(run=RUN, incarnation=B1, last=last)


async def tells_its_job(config: Config, caller: Caller) -> None:
    caller.say(hello(config, RUN, incarnation=A1))
    assert isinstance(await heard(caller), JobWanted)
    caller.say(JobTold(job=on_two()))
    assert isinstance(await heard(caller), Welcome)


async def is_settled_soon(node: FakeNode) -> bool:
    try:
        async with asyncio.timeout(SOON_S):
            await node.order(lambda order: order.settled)
    except TimeoutError:
        return False
    return True


async def state(config: Config) -> str:
    reply = await ask(config.control, GetStatus())
    assert isinstance(reply, Statuses)
    return ", ".join(f"{status.state} {status.waiting_for}".strip() for status in reply.runs)


async def test_what_a_node_tells_before_the_first_runner_of_a_run_is_kept_for_it(short_dir: Path) -> None:
    async with hosting(short_dir) as config, joined(config) as node:
        node.report(buried=(buried(),))
        assert not await is_settled_soon(node)
        async with calling(config) as caller:
            await tells_its_job(config, caller)
            caller.say(finished(1))
            await node.order(lambda order: order.settled)
            assert await state(config) == "succeeded"


async def test_a_proof_is_not_settled_while_its_run_is_taken_over(short_dir: Path) -> None:
    async with hosting(short_dir) as config, joined(config) as node, calling(config) as caller:
        await tells_its_job(config, caller)
        node.report(buried=(buried(),))
        assert not await is_settled_soon(node), "nothing of it is on disk"
        assert (await state(config)).startswith("starting a (generation 3 is taken over from its runners)")
        caller.say(finished(1))
        await node.order(lambda order: order.settled)
        assert await state(config) == "succeeded"


async def test_a_proof_of_a_run_that_nobody_tells_of_is_settled_after_a_while(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "REMEMBER_S", 2.0)
    async with hosting(short_dir) as config, joined(config) as node:
        node.report(buried=(buried(),))
        assert not await is_settled_soon(node)
        await node.order(lambda order: order.settled)
        node.report(buried=(RunnerBuried(run="other@123456", incarnation=A1),))
        assert (await node.order(lambda order: order.settled)).settled == (A1,), "at once from then on"
