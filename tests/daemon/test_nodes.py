"""supervisor/daemon/nodes.py, role.py and links.py: nodes that join, report and are given orders."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from protocol.messages.control import Done, EventRecord, GetNodes, Nodes, NodeStatus, StopRun, Watch, decode_reply
from protocol.messages.fleet import (
    Joined,
    JoinRefused,
    NodeReport,
    Probe,
    Probed,
    RunnerBuried,
    StartFailure,
    decode_from_peer,
    decode_to_node,
)
from protocol.messages.member import Hello, Rejected, Renewal, decode_to_runner
from protocol.versions import VERSIONS
from supervisor.daemon import jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.node import Node
from supervisor.daemon.node_list import with_runs
from supervisor.shell.config import Config
from supervisor.shell.make_credential import credential, write_once
from tests.daemon.peers import FakeNode, Peer, answering, calling, free_port, join_of, node_config
from tests.daemon.serving import ask, config_in, serving, talking, wait_for
from tests.daemon.test_control import start

HOST, OTHER = "127.0.0.1", "127.0.0.2"


@contextlib.asynccontextmanager
async def hosting(folder: Path) -> AsyncIterator[Config]:
    """The host of a fleet, called a."""
    config = node_config(folder, "a", HOST, free_port(HOST, OTHER))
    async with serving(config):
        yield config


async def refusal(peer: Peer) -> JoinRefused:
    frame = await peer.frame()
    assert frame is not None
    refused = decode_to_node(frame)
    assert isinstance(refused, JoinRefused)
    assert await peer.frame() is None
    return refused


@contextlib.asynccontextmanager
async def joined(config: Config) -> AsyncIterator[FakeNode]:
    """A node b that answers at OTHER, and was taken in."""
    async with answering(config, OTHER) as port, calling(config) as peer:
        peer.say(join_of(config, OTHER, port))
        frame = await peer.frame()
        assert frame is not None
        welcome = decode_to_node(frame)
        assert isinstance(welcome, Joined)
        assert (welcome.host, welcome.epoch) == ("a", 1)
        yield FakeNode(peer)


async def start_on_two(config: Config) -> str:
    reply = await ask(config.control, replace(start("1"), settings=("topology.nnodes=2",)))
    assert isinstance(reply, Done), reply
    return reply.run


async def events(config: Config, run: str) -> list[EventRecord]:
    found = []
    async with talking(config.control, Watch(run=run, follow=False, events=True)) as client:
        while (frame := await client.frame()) is not None:
            reply = decode_reply(frame)
            if isinstance(reply, EventRecord):
                found.append(reply)
    return found


async def test_a_node_whose_list_begins_with_another_one_is_refused_naming_both(short_dir: Path) -> None:
    async with hosting(short_dir) as config, calling(config) as peer:
        peer.say(join_of(config, OTHER, 29410, join=("elsewhere:29410",)))
        refused = await refusal(peer)
    assert refused.code == "F303"
    assert '"elsewhere:29410"' in refused.message
    assert f'"{config.join[0].text}"' in refused.message


async def test_a_node_that_is_refused_again_and_again_is_logged_once(short_dir: Path) -> None:
    with capture_logs() as logs:
        async with hosting(short_dir) as config:
            for _ in range(3):
                async with calling(config) as peer:
                    peer.say(join_of(config, OTHER, 29410, join=("elsewhere:29410",)))
                    refused = await refusal(peer)
    told = [entry for entry in logs if entry["event"] == "node_refused"]
    assert [(entry["node"], entry["address"], entry["code"], entry["why"]) for entry in told] == [
        ("b", OTHER, "F303", refused.message)
    ]


def test_nodes_are_listed_in_the_natural_order_of_their_names() -> None:
    joined = [NodeStatus(node=name, state="ready", address=OTHER, port=1) for name in ("n10", "n9", "a", "n1")]
    assert [node.node for node in with_runs(joined, [], 0.0)] == ["a", "n1", "n9", "n10"]


def test_trouble_of_the_coordinators_disk_is_that_of_the_host() -> None:
    joined = [
        NodeStatus(node=name, state="ready", address=OTHER, port=1, is_host=name == "a", note=f"of {name}")
        for name in "ab"
    ]
    assert [node.note for node in with_runs(joined, [], 0.0, "it is full")] == ["of a; it is full", "of b"]


async def test_a_node_that_nobody_can_reach_is_refused_with_its_address_and_why(short_dir: Path) -> None:
    async with hosting(short_dir) as config, calling(config) as peer:
        port = free_port(OTHER)
        peer.say(join_of(config, OTHER, port))
        refused = await refusal(peer)
    assert refused.code == "F306"
    assert f"{OTHER}:{port}: connection refused" in refused.message
    assert "[listen] advertise" in refused.hint


async def test_a_node_at_whose_address_another_one_answers_is_refused(short_dir: Path) -> None:
    async with (
        hosting(short_dir) as config,
        answering(config, OTHER, "c", "f" * 16) as port,
        calling(config) as peer,
    ):
        peer.say(join_of(config, OTHER, port))
        refused = await refusal(peer)
    assert (refused.code, "another node answers there, c" in refused.message) == ("F306", True)


async def test_a_second_node_of_a_name_is_refused_naming_both_addresses(short_dir: Path) -> None:
    async with (
        hosting(short_dir) as config,
        answering(config, OTHER) as first,
        answering(config, OTHER, identity="f" * 16) as second,
        calling(config) as holder,
        calling(config) as peer,
    ):
        holder.say(join_of(config, OTHER, first))
        frame = await holder.frame()
        assert frame is not None
        assert isinstance(decode_to_node(frame), Joined)
        peer.say(join_of(config, OTHER, second, identity="f" * 16))
        refused = await refusal(peer)
    assert refused.code == "F304"
    assert f"{OTHER}:{first}" in refused.message
    assert f"{OTHER}:{second}" in refused.message


async def test_a_node_that_connects_anew_takes_the_place_of_its_older_connection(short_dir: Path) -> None:
    async with hosting(short_dir) as config, answering(config, OTHER) as port, calling(config) as old:
        run = await start_on_two(config)
        old.say(join_of(config, OTHER, port))
        old_side = FakeNode(old)
        assert isinstance(decode_to_node(await old.frame() or b""), Joined)
        old_side.report()
        old_side.report()
        await old_side.order(lambda order: order.number == 2)
        async with calling(config) as new:
            new.say(join_of(config, OTHER, port))
            assert isinstance(decode_to_node(await new.frame() or b""), Joined)
            new_side = FakeNode(new)
            new_side.report()
            order = await new_side.order(lambda order: order.wanted)
            assert (order.number, order.wanted) == (1, (run,))
            while await old.frame() is not None:
                pass


async def test_a_report_before_it_was_taken_in_costs_a_node_its_connection(short_dir: Path) -> None:
    async with hosting(short_dir) as config, calling(config) as peer:
        peer.say(join_of(config, OTHER, free_port(OTHER)), NodeReport(number=1))
        frames = [frame async for frame in _rest(peer)]
        assert all(isinstance(decode_to_node(frame), JoinRefused) for frame in frames)
        assert isinstance(await ask(config.control, GetNodes()), Nodes)


async def _rest(peer: Peer) -> AsyncIterator[bytes]:
    while (frame := await peer.frame()) is not None:
        yield frame


async def test_a_node_gets_its_orders_pushed_and_with_each_answer(short_dir: Path) -> None:
    async with hosting(short_dir) as config, joined(config) as node:
        run = await start_on_two(config)
        assert (await node.order(lambda order: order.wanted)).wanted == (run,)
        node.report()
        assert (await node.order(lambda order: order.number == 1)).wanted == (run,)
        await ask(config.control, StopRun(run=run))
        assert (await node.order(lambda order: not order.wanted)).epoch == 1


async def test_a_start_that_failed_counts_once_however_often_it_is_reported(short_dir: Path) -> None:
    async with hosting(short_dir) as config, joined(config) as node:
        run = await start_on_two(config)
        for number in (1, 1, 2, 1):
            node.report(failures=(StartFailure(run=run, number=number, reason="no room"),))
        await node.order(lambda order: order.number == 4)
        told = [event for event in await events(config, run) if event.kind == "runner.failed"]
        assert [event.detail.get("node") for event in told] == ["b", "b"]


async def test_the_end_of_a_runner_is_settled_once_it_is_on_disk(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "REMEMBER_S", 0.0)
    async with hosting(short_dir) as config, joined(config) as node:
        run = await start_on_two(config)
        buried = (
            RunnerBuried(run=run, incarnation="aa" * 8, last=Renewal(number=3)),
            RunnerBuried(run="unknown@123456", incarnation="bb" * 8),
        )
        node.report(buried=buried)
        order = await node.order(lambda order: len(order.settled) == 2)
        assert order.settled == ("aa" * 8, "bb" * 8)
        node.report()
        assert (await node.order(lambda order: order.number == 2)).settled == ()


async def test_a_node_that_floods_its_host_keeps_nobody_else_waiting(short_dir: Path) -> None:
    async with hosting(short_dir) as config, joined(config) as node:
        for _ in range(5_000):
            node.report()
        reply = await ask(config.control, GetNodes())
        assert isinstance(reply, Nodes)
        assert {one.node: one.state for one in reply.nodes} == {"a": "ready", "b": "ready"}
        await node.order(lambda order: order.number == 5_000)


async def test_what_happens_to_a_node_is_told_in_the_events_of_the_runs(short_dir: Path) -> None:
    async with hosting(short_dir) as config:
        run = await start_on_two(config)
        async with joined(config) as node:
            await node.order(lambda order: order.wanted)
            assert "node.joined" in {event.kind for event in await events(config, run)}


# --- two supd ----------------------------------------------------------------------------------------------------


async def states(config: Config) -> dict[str, str]:
    reply = await ask(config.control, GetNodes())
    return {one.node: one.state for one in reply.nodes} if isinstance(reply, Nodes) else {}


async def test_a_supd_joins_and_comes_back_after_its_host_was_away(short_dir: Path) -> None:
    host, other = short_dir / "a", short_dir / "b"
    port = free_port(HOST, OTHER)
    first, second = node_config(host, "a", HOST, port), node_config(other, "b", OTHER, port)
    async with contextlib.AsyncExitStack() as stack:
        async with serving(first):
            share_the_key(first, second)
            await stack.enter_async_context(serving(second))
            await _until(second, {"a": "ready", "b": "ready"})
            coordinator = second.state_dir / "coordinator"
            await wait_for("its runners to be told", coordinator.exists)
            assert coordinator.read_text() == f"{HOST}:{port}\n"
        async with serving(first):
            await _until(second, {"a": "ready", "b": "ready"})
            await stack.aclose()


async def test_a_node_comes_back_to_a_host_whose_journal_was_moved_away(short_dir: Path) -> None:
    host, other = short_dir / "a", short_dir / "b"
    port = free_port(HOST, OTHER)
    first, second = node_config(host, "a", HOST, port), node_config(other, "b", OTHER, port)
    async with serving(first):
        pass
    share_the_key(first, second)
    async with contextlib.AsyncExitStack() as stack:
        async with serving(first):
            await stack.enter_async_context(serving(second))
            await _until(second, {"a": "ready", "b": "ready"})
        (first.state_dir / "journal.db").rename(short_dir / "damaged")
        async with serving(first):  # its epoch is 1 again, as it was before the one that the node has seen
            await _until(second, {"a": "ready", "b": "ready"})
            await stack.aclose()


async def test_where_the_coordinator_is_stays_as_it_is_written_until_that_changes(short_dir: Path) -> None:
    config = config_in(short_dir)
    config.state_dir.mkdir()
    journal = Journal(config.state_dir / "journal.db")
    node, file = Node(config, journal, []), config.state_dir / "coordinator"
    await node.publish(HOST, 1)
    before = file.stat()
    await node.publish(HOST, 1)
    assert file.stat() == before
    await node.publish(OTHER, 1)
    assert file.read_text() == f"{OTHER}:1\n"
    journal.close()


async def test_a_disk_that_takes_nothing_keeps_no_node_out(short_dir: Path) -> None:
    host, other = short_dir / "a", short_dir / "b"
    port = free_port(HOST, OTHER)
    first, second = node_config(host, "a", HOST, port), node_config(other, "b", OTHER, port)
    coordinator = second.state_dir / "coordinator"
    with capture_logs() as logs:
        async with serving(first):
            share_the_key(first, second)
            coordinator.mkdir(parents=True)  # so that nothing can be written there
            async with serving(second):
                await _until(second, {"a": "ready", "b": "ready"})
                await wait_for("a word of it", lambda: "coordinator_unpublished" in [entry["event"] for entry in logs])
                coordinator.rmdir()
                await wait_for("the file", coordinator.is_file)
    assert coordinator.read_text() == f"{HOST}:{port}\n"


def share_the_key(host: Config, other: Config) -> None:
    other.credential.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    other.credential.write_bytes(host.credential.read_bytes())
    other.credential.chmod(0o600)


async def _until(config: Config, wanted: dict[str, str]) -> None:
    async with asyncio.timeout(60):
        while await states(config) != wanted:  # noqa: ASYNC110  # no bell rings there
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_join", [True, False], ids=["node", "runner"])
async def test_who_asks_a_supd_that_does_not_host_is_told_so(short_dir: Path, is_join: bool) -> None:
    config = node_config(short_dir, "b", OTHER, free_port(HOST, OTHER))
    config.credential.parent.mkdir(mode=0o700, parents=True)
    write_once(str(config.credential), credential())
    async with serving(config), calling(config) as peer:
        if is_join:
            peer.say(join_of(config, OTHER, 29410, node="c"))
            refused = await refusal(peer)
            assert refused.code == "F308"
            assert config.join[0].text in refused.message
        else:
            peer.say(Hello(versions=VERSIONS, fleet=config.fleet, node="c", run="j@1", incarnation="aa" * 8))
            frame = await peer.frame()
            assert frame is not None
            assert decode_to_runner(frame) == Rejected(reason="b does not host the coordinator")


async def test_every_supd_tells_who_it_is_to_those_of_its_fleet(short_dir: Path) -> None:
    async with hosting(short_dir) as config:
        async with calling(config) as peer:
            peer.say(Probe(fleet=config.fleet))
            frame = await peer.frame()
            assert frame is not None
            answer = decode_from_peer(frame)
            assert isinstance(answer, Probed)
            assert answer.node == "a"
        async with calling(config) as peer:
            peer.say(Probe(fleet="other"))
            frame = await peer.frame()
            assert frame is not None
            answer = decode_from_peer(frame)
            assert isinstance(answer, JoinRefused)
            assert "a is of fleet default, not of other" in answer.message
