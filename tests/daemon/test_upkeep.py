"""supervisor/daemon: nodes that are to be free or were sent a signal, and runs that are given another job."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from protocol import coordinator_events as c
from protocol.errors import Problem
from protocol.fleet_events import Drain
from protocol.job import JobSpec, StopTable, TopologyTable
from protocol.messages.control import Done, Failure, GetNodes, Nodes, NodeStatus, RestartRun, StopRun
from protocol.messages.member import Part
from protocol.messages.upkeep import DrainNodes, ScaleRun, UndrainNodes
from protocol.takeover import told_run
from supervisor.daemon.journal import Journal
from supervisor.daemon.reloading import Reloading
from supervisor.daemon.sent import Sent
from supervisor.daemon.starting import Starting
from supervisor.shell.clock import wall_s
from supervisor.shell.config import Config
from tests.daemon.serving import TIMEOUT_S, ask, config_in, serving
from tests.daemon.test_control import start
from tests.daemon.test_jobs import coordinating
from tests.daemon.test_members_taken_over import RUN, events, job
from tests.daemon.test_nodes import hosting, joined
from tests.protocol.build import job_spec, renewal, submitted
from tests.protocol.fleet import running, started
from tests.protocol.takeover_stage import given_out

ON_TWO = TopologyTable(nproc_per_node=2, nnodes=(2, 2))


async def no_ports(_spec: JobSpec) -> list[Problem]:
    return []


async def node_b(config: Config, fits: Callable[[NodeStatus], object]) -> NodeStatus:
    """Node b as an operator sees it, once that is so."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            reply = await ask(config.control, GetNodes(node="b"))
            assert isinstance(reply, Nodes), reply
            if fits(reply.nodes[0]):
                return reply.nodes[0]


async def test_a_drain_is_of_the_name_and_outlives_the_host_until_it_is_lifted(short_dir: Path) -> None:
    async with hosting(short_dir) as config:
        async with joined(config):
            reply = await ask(config.control, DrainNodes(nodes=("b", "b"), reason="swap\nNIC"))
            assert isinstance(reply, Done), reply
            assert reply.runs == ()
            drained = await node_b(config, lambda node: node.is_drained)
            assert (drained.state, drained.drain_reason) == ("drained", "swap NIC")
        refused = await ask(config.control, DrainNodes(nodes=("a", "nobody")))
        assert isinstance(refused, Failure)
        assert (refused.code, refused.exit_code) == ("F112", 3)
        nodes = await ask(config.control, GetNodes(node="a"))
        assert isinstance(nodes, Nodes)
        assert not nodes.nodes[0].drain_by, "all of them, or none"
    async with serving(config):
        assert (await node_b(config, lambda node: True)).is_drained
        await ask(config.control, UndrainNodes(nodes=("b",)))
        assert not (await node_b(config, lambda node: not node.is_drained)).drain_by


async def test_a_node_on_which_a_run_will_go_on_is_not_told_to_be_free(short_dir: Path) -> None:
    """N10: supd is started again while it waits for that."""
    async with hosting(short_dir) as config, joined(config):
        pass
    two = msgspec.structs.replace(job(), spec=msgspec.structs.replace(job().spec, topology=ON_TWO))
    record = msgspec.structs.replace(running("a", "b").record, phase=c.Phase.BACKOFF, backoff_s=600.0)
    journal = Journal(config.state_dir / "journal.db")
    await journal.add_run("1", two, record, wall_s())
    (b,) = [node for node in await journal.nodes() if node.name == "b"]
    journal.save_node(msgspec.structs.replace(b, drain=Drain(go_wall_s=wall_s() + 1800.0, by="ada")))
    await journal.settle()
    journal.close()
    async with serving(config):
        await asyncio.sleep(0.5)
        assert await events(config, RUN, "node.drained") == []
        drained = await ask(config.control, DrainNodes(nodes=("b",), at="now"))
        assert isinstance(drained, Done)
        await node_b(config, lambda node: node.is_drained)


async def test_what_a_node_says_of_signals_is_seen_and_forgiven(short_dir: Path) -> None:
    async with hosting(short_dir) as config, joined(config) as node:
        node.report(signals={"SIGUSR1": 1})
        await node.order(lambda order: order.number == node.number)
        said = "its supd was sent SIGUSR1"
        await node_b(config, lambda b: said in b.note)
        await ask(config.control, UndrainNodes(nodes=("b",)))
        assert (await node_b(config, lambda b: said not in b.note)).state == "ready"


async def test_a_run_that_is_over_is_neither_scaled_nor_given_another_job(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        begun = await ask(config.control, msgspec.structs.replace(start("1"), settings=("topology.nnodes=2",)))
        assert isinstance(begun, Done), begun
        inverted = await ask(config.control, ScaleRun(run=begun.run, nnodes=(3, 2)))
        assert isinstance(inverted, Failure)
        assert inverted.code == "F122"
        await ask(config.control, StopRun(run=begun.run, now=True))
        for request in (
            ScaleRun(run=begun.run, nnodes=(1, 1)),
            RestartRun(run=begun.run, reason="", job=start("2")),
        ):
            reply = await ask(config.control, request)
            assert isinstance(reply, Failure)
            assert (reply.code, "is over" in reply.message) == ("F104", True)


async def test_a_job_that_was_on_disk_when_supd_was_killed_is_what_the_run_goes_on_with(short_dir: Path) -> None:
    old = submitted(job_spec())
    new = msgspec.structs.replace(old, spec=job_spec(nnodes=(2, 2)), revision=1)
    journal = Journal(short_dir / "journal.db")
    await journal.add_run("1", old, c.RunRecord(), 1.0)
    await journal.save_job(new)
    journal.close()
    async with coordinating(short_dir) as (jobs, read):
        [stored] = await read.runs()
        run = jobs._take_up(stored)
        await run.driver.ask(c.Tick())
        assert (run.job, run.machine.record().revision, run.machine.spec.topology.nnodes) == (new, 1, (2, 2))


async def test_a_run_that_is_taken_over_goes_on_with_the_job_on_disk_once_all_have_told(short_dir: Path) -> None:
    """kill -9 between the job and what the machine says to it, which was that it cannot."""
    old = submitted(job_spec())
    new = msgspec.structs.replace(old, spec=job_spec(stop=StopTable(grace_s=7.0)), revision=1)
    journal = Journal(short_dir / "journal.db")
    await journal.add_run("1", old, told_run(), 1.0)
    await journal.save_job(new)
    journal.close()
    told = renewal(1, Part.RUNNING, 4, *started(), assignment=given_out("a")["a1"])
    async with coordinating(short_dir) as (jobs, read):
        [stored] = await read.runs()
        run = jobs._take_up(stored)
        await run.driver.ask(c.Tick())
        assert (run.machine.refuses_restart, run.machine.revision) == (True, 0)
        await run.driver.ask(c.Heard("a", "a1", told))
        await run.driver.ask(c.Tick())
        assert (run.job, run.machine.record().revision, run.machine.phase) == (new, 1, c.Phase.STOPPING)
        assert run.machine.takeover is None


async def test_a_job_that_a_run_cannot_take_once_it_is_on_disk_does_not_come_later(
    short_dir: Path,
) -> None:
    async with coordinating(short_dir) as (jobs, journal):
        old = submitted(job_spec())
        run = jobs.runs[await jobs.accept("1", old, c.Note("job.accepted", "told", None, {}), is_told=True)]
        reloading = Reloading(jobs, Starting(jobs, journal, None), journal, no_ports, "a", {})
        await run.driver.ask(c.Tick())
        assert run.machine.refuses_restart
        await reloading.reload(run, start("2", "j"), "me", "", is_local=False)
        [stored] = await journal.runs()
        assert (run.job, stored.job, run.machine.revision) == (old, old, 0)


def test_signals_that_came_before_anybody_listened_are_told_as_well() -> None:
    sent, told = Sent(), list[Mapping[str, int]]()
    sent.add(signal.SIGUSR1)
    sent.tell(lambda counts: told.append(dict(counts)))
    sent.add(signal.SIGUSR1)
    sent.add(signal.SIGHUP)
    assert told == [{"SIGUSR1": 1}, {"SIGUSR1": 2}, {"SIGUSR1": 2, "SIGHUP": 1}]
