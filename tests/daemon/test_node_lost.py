"""supervisor/daemon/nodes.py: an operator gives a node up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec

from protocol.messages.control import DeclareLost, Done, Failure, GetNodes, Nodes
from protocol.messages.fleet import Joined, decode_to_node
from protocol.messages.member import Answer, Offer, Part, Renewal, Run, Welcome
from protocol.timing import Timing
from supervisor.daemon.journal import Journal
from supervisor.shell.config import Config
from tests.daemon.peers import FakeNode, answering, free_port, join_of, node_config
from tests.daemon.peers import calling as calling_as_node
from tests.daemon.serving import TIMEOUT_S, ask, serving
from tests.daemon.test_control import start
from tests.daemon.test_members import calling, hello
from tests.daemon.test_nodes import HOST, OTHER, events, hosting, joined

SUPD_ANSWERS = "b is not lost: supd answers there"
FAST = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)


async def refused(config: Config, node: str) -> Failure:
    reply = await ask(config.control, DeclareLost(node=node))
    assert isinstance(reply, Failure), reply
    return reply


async def state_of(config: Config, node: str) -> str:
    reply = await ask(config.control, GetNodes(node=node))
    assert isinstance(reply, Nodes), reply
    return reply.nodes[0].state


async def gone(config: Config, node: str) -> None:
    """Wait until it is noticed that a node's connection has ended."""
    async with asyncio.timeout(TIMEOUT_S):
        while await state_of(config, node) == "ready":
            pass


def fast(short_dir: Path) -> Config:
    return replace(node_config(short_dir, "a", HOST, free_port(HOST, OTHER)), timing=FAST)


async def begun(config: Config, name: str = "job") -> str:
    """A run that wants two nodes, in whatever they run."""
    settings = ("topology.nnodes=2", "restart.policy=on-failure")
    request = msgspec.structs.replace(start(name, name), settings=settings, allow_mixed=True)
    started = await ask(config.control, request)
    assert isinstance(started, Done), started
    return started.run


@contextlib.asynccontextmanager
async def running_on_b(config: Config, run: str) -> AsyncIterator[None]:
    """A runner of node b that has got its order to launch; at the end it is silent for ever."""
    async with calling(config) as runner:
        runner.say(hello(config, run, node="b"))
        assert isinstance(await runner.hear(), Welcome)
        runner.say(Renewal(number=1, offer=Offer(slots=1, address=OTHER, port=4000)))
        async with asyncio.timeout(TIMEOUT_S):
            while not isinstance(answer := await runner.hear(), Answer) or not isinstance(answer.order, Run):
                assert answer is not None
        yield


async def test_a_node_that_answers_is_not_given_up_and_neither_is_one_that_is_not_there(short_dir: Path) -> None:
    async with hosting(short_dir) as config, joined(config):
        for node in ("a", "b"):
            refusal = await refused(config, node)
            assert (refusal.code, refusal.message) == ("F115", f"{node} is not lost: supd answers there")
        refusal = await refused(config, "c")
        assert (refusal.code, refusal.exit_code) == ("F112", 3)


async def test_a_node_that_nobody_waits_for_may_be_given_up_and_that_is_written_down(short_dir: Path) -> None:
    async with hosting(short_dir) as config:
        async with joined(config):
            pass
        await gone(config, "b")
        assert await ask(config.control, DeclareLost(node="b")) == Done(run="")
        other = "f" * 16
        async with answering(config, OTHER, identity=other) as port, calling_as_node(config) as peer:
            peer.say(join_of(config, OTHER, port, identity=other))
            frame = await peer.frame()
            assert frame is not None
            assert isinstance(decode_to_node(frame), Joined), "its name is free at once"
    journal = Journal(config.state_dir / "journal.db")
    told = [event for event in await journal.events("", 0) if event.kind == "operator.node_lost"]
    journal.close()
    assert [event.detail["node"] for event in told] == ["b"]


async def test_a_run_goes_on_without_a_node_on_the_word_of_an_operator_but_not_while_its_runner_answers(
    short_dir: Path,
) -> None:
    config = fast(short_dir)
    async with serving(config), joined(config) as node:
        run = await begun(config)
        await node.order(lambda order: order.wanted)
        async with running_on_b(config, run):
            node.peer.writer.transport.abort()
            await gone(config, "b")
            refusal = await refused(config, "b")
            assert refusal.message == f"b is not lost: the runner of {run} answers there"
        async with asyncio.timeout(TIMEOUT_S):
            while isinstance(reply := await ask(config.control, DeclareLost(node="b")), Failure):
                assert reply.code == "F115"  # a silence that has just begun is none
        assert reply == Done(run="", runs=(run,))
        assert await state_of(config, "b") == "lost"
        kinds = [event.kind for event in await events(config, run)]
        assert ("operator.node_lost" in kinds, "node.lost" in kinds) == (True, True)
        assert await ask(config.control, DeclareLost(node="b")) == Done(run=""), "again: nobody waits for it"


async def test_a_node_whose_supd_knows_nothing_of_the_runner_that_is_waited_for_may_be_given_up(
    short_dir: Path,
) -> None:
    """An old journal was put back here: what its run waits for has ended since, and the node has forgotten it."""
    config = fast(short_dir)
    async with serving(config), joined(config) as node:
        run = await begun(config)
        await node.order(lambda order: order.wanted)
        async with running_on_b(config, run):
            pass
        async with asyncio.timeout(TIMEOUT_S):
            while "the runner of" in await answer_to(config, node, ("0" * 16,)):
                pass
        for runners in (("0" * 16,), None):
            assert await answer_to(config, node, runners) == SUPD_ANSWERS
        assert await answer_to(config, node, ("f" * 16,)) == ""
        assert await state_of(config, "b") == "lost"


async def test_a_word_is_about_those_runs_alone_of_which_the_supd_there_knows_nothing(short_dir: Path) -> None:
    """A disk was lost, and the node serves another run by now: that one is left alone."""
    config = fast(short_dir)
    async with serving(config), joined(config) as node:
        run, other = await begun(config), await begun(config, "other")
        await node.order(lambda order: len(order.wanted) == 2)
        async with running_on_b(config, run):
            pass
        async with calling(config) as runner:
            runner.say(hello(config, other, node="b", incarnation="1" * 16))
            assert isinstance(await runner.hear(), Welcome)
            async with asyncio.timeout(TIMEOUT_S):
                while refusal := await answer_to(config, node, ("1" * 16,), check_only=True):
                    assert refusal in {f"b is not lost: the runner of {one} answers there" for one in (run, other)}
                    runner.say(Renewal(number=1))
        async with asyncio.timeout(TIMEOUT_S):
            while await answer_to(config, node, ("0" * 16, "1" * 16), check_only=True) != SUPD_ANSWERS:
                pass  # until the other runner is silent, too
        assert await answer_to(config, node, ("1" * 16,), check_only=True) == ""
        assert await ask(config.control, DeclareLost(node="b", check_only=True)) == Done(run="", runs=(run,))
        assert await ask(config.control, DeclareLost(node="b", runs=(other,))) == Done(run="")
        assert await words(config, run) == []
        assert await ask(config.control, DeclareLost(node="b")) == Done(run="", runs=(run,))
        assert (len(await words(config, run)), await words(config, other)) == (1, [])


async def test_a_node_that_the_fleet_does_not_know_may_be_given_up_where_a_run_waits_for_it(short_dir: Path) -> None:
    """The host's journal was lost, and the node has not come back."""
    config = fast(short_dir)
    async with serving(config):
        run = await begun(config)
        async with calling(config) as runner:
            runner.say(hello(config, run, node="c"))
            assert isinstance(await runner.hear(), Welcome)
            runner.say(Renewal(number=1, part=Part.STOPPING))
            assert isinstance(await runner.hear(), Answer)
        assert await state_of(config, "c") == "unreachable"
        async with asyncio.timeout(TIMEOUT_S):
            while isinstance(reply := await ask(config.control, DeclareLost(node="c")), Failure):
                assert reply.code == "F115"
        assert reply == Done(run="", runs=(run,))


async def words(config: Config, run: str) -> list[str]:
    """Those that a run was given by operators."""
    return [event.text for event in await events(config, run) if event.kind == "operator.node_lost"]


async def answer_to(
    config: Config, node: FakeNode, runners: tuple[str, ...] | None, *, check_only: bool = False
) -> str:
    """What is said against giving b up, which has reported these runners; "": nothing, it is (or would be) given up."""
    node.report(runners=runners)
    await node.order(lambda order: order.number == node.number)
    reply = await ask(config.control, DeclareLost(node="b", check_only=check_only))
    return reply.message if isinstance(reply, Failure) else ""
