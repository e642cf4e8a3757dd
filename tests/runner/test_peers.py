"""supervisor/runner/peers.py: runners that reach each other, over real TLS."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import Refused
from protocol.messages import encode
from protocol.messages.member import Answer, AnswerFor, Hello, Renewal, RenewalOf, Wait, Witness
from protocol.messages.runner import TakeOn
from protocol.messages.witness import PassOn, Word, WordWanted, decode_peer
from protocol.versions import VERSIONS
from supervisor.runner import peer_line, peers
from supervisor.runner.peers import Ears, Peers
from supervisor.shell import tls_server
from supervisor.shell.channel import Channel
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import client_context, server_context

TIMEOUT_S = 20.0
HOST = "127.0.0.1"
NEVER_S = 1e6


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SPREAD_S", 0.01)
    monkeypatch.setattr(peers, "RETRY_S", 0.02)


class Runner:
    """What a runner has of peers, and all that it hears."""

    def __init__(
        self,
        folder: Path,
        node: str,
        tasks: asyncio.TaskGroup,
        ports: tuple[int, int] | None = None,
        address: str = HOST,
    ) -> None:
        self.hello = hello(node)
        self.heard: asyncio.Queue[object] = asyncio.Queue()
        self.reached: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        key = folder / "fleet.pem"
        ears = Ears(
            on_word_wanted=lambda node, incarnation, wanted: self.heard.put_nowait((node, incarnation, wanted)),
            on_word=lambda incarnation, word: self.heard.put_nowait((incarnation, word)),
            on_renewal=self.heard.put_nowait,
            on_answer=self.heard.put_nowait,
            on_reached=self.reached.put_nowait,
        )
        task = task_of(node, key, ports, address)
        self.peers = Peers(self.hello, task, client_context(key), tasks, ears)
        self.port = 0

    def as_witness(self, **changed: Any) -> Witness:
        """As an assignment of others would name it."""
        about = {"node": self.hello.node, "incarnation": self.hello.incarnation, "port": self.port}
        return Witness(**{**about, "address": HOST, "node_rank": 0, "first_rank": 0, "nproc": 1, **changed})

    async def reaches(self, *incarnations: str) -> None:
        """Wait until it says that these are the witnesses to which it has a line."""
        async with asyncio.timeout(TIMEOUT_S):
            while await self.reached.get() != frozenset(incarnations):
                pass

    async def hears(self) -> object:
        """The next thing that a peer said."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.heard.get()


def task_of(node: str, key: Path, ports: tuple[int, int] | None, address: str) -> TakeOn:
    return TakeOn(
        run="j@1",
        node=node,
        fleet="default",
        incarnation=f"{node}1",
        coordinator_file="",
        credential=str(key),
        run_dir="",
        logs_dir="",
        orphan_wait_s=60,
        linger_s=60,
        address=address,
        witness_ports=ports,
    )


@pytest.fixture
def folder(short_dir: Path) -> Path:
    """With the fleet's key."""
    write_once(str(short_dir / "fleet.pem"), credential())
    return short_dir


@contextlib.asynccontextmanager
async def runners(folder: Path, *nodes: str) -> AsyncIterator[list[Runner]]:
    """Runners that listen. All is over at the end."""
    made: list[Runner] = []
    async with asyncio.TaskGroup() as tasks:
        try:
            for node in nodes:
                made.append(Runner(folder, node, tasks))
                made[-1].port = await made[-1].peers.listen()
            yield made
        finally:
            for runner in made:
                runner.peers.meet(())
                runner.peers.close()


class Stranger:
    """One end of a connection that says what it is told to, and keeps what it hears."""

    def __init__(self, *said: object) -> None:
        self._said = said
        self.heard: asyncio.Queue[object] = asyncio.Queue()
        self.channel = Channel(
            self._on_open, lambda _, frame: self.heard.put_nowait(decode_peer(frame)), lambda _: None
        )

    def _on_open(self, channel: Channel) -> None:
        for message in self._said:
            channel.send(encode(message))

    async def hears(self) -> object:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.heard.get()

    async def ends(self) -> None:
        """Wait until the other side has ended the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.channel.closed.wait()


async def stranger_at(folder: Path, runner: Runner, *said: object) -> Stranger:
    """Somebody with the fleet's key who connects to a runner."""
    stranger = Stranger(*said)
    tls = client_context(folder / "fleet.pem")
    await asyncio.get_running_loop().create_connection(
        lambda: stranger.channel, HOST, runner.port, ssl=tls, server_hostname=""
    )
    return stranger


@contextlib.asynccontextmanager
async def strangers(folder: Path, *said: object) -> AsyncIterator[tuple[int, asyncio.Queue[Stranger]]]:
    """Somebody with the fleet's key who listens, and says this to each who comes; gives the port."""
    came: asyncio.Queue[Stranger] = asyncio.Queue()

    def take() -> Channel:
        came.put_nowait(stranger := Stranger(*said))
        return stranger.channel

    server = await tls_server.listen(HOST, 0, server_context(folder / "fleet.pem"), take)
    try:
        yield server.sockets[0].getsockname()[1], came
    finally:
        server.close()


def hello(node: str, **changed: Any) -> Hello:
    usual = {"versions": VERSIONS, "fleet": "default", "node": node, "run": "j@1", "incarnation": f"{node}1"}
    return Hello(**{**usual, **changed})


# --- what is said ------------------------------------------------------------------------------------------------


async def test_runners_that_are_each_others_witness_share_one_line(folder: Path) -> None:
    async with runners(folder, "a", "b") as (a, b):
        a.peers.meet([b.as_witness()])
        a.peers.ask_words(WordWanted(number=1, generation=7))
        assert await b.hears() == ("a", "a1", WordWanted(number=1, generation=7))
        b.peers.give_word("a1", Word(number=1, generation=7, is_given=True))
        assert await a.hears() == ("b1", Word(number=1, generation=7, is_given=True))
        b.peers.meet([a.as_witness(port=1)])  # where nobody is: it need not open one
        await b.reaches("a1")
        b.peers.ask_words(WordWanted(number=5, generation=7))
        assert await a.hears() == ("b", "b1", WordWanted(number=5, generation=7))


async def test_a_witness_passes_a_renewal_on_and_the_answer_back(folder: Path) -> None:
    async with runners(folder, "a", "b") as (a, b):
        a.peers.meet([b.as_witness()])
        a.peers.pass_on(Renewal(number=3))
        assert await b.hears() == RenewalOf(node="a", incarnation="a1", renewal=Renewal(number=3))
        answer = Answer(epoch=4, number=3, order=Wait())
        b.peers.answer_for(AnswerFor(node="a", incarnation="a1", answer=answer))
        assert await a.hears() == answer


async def test_only_a_witness_of_ours_can_pass_an_answer_on(folder: Path) -> None:
    async with runners(folder, "a", "b") as (a, b):
        a.peers.meet([b.as_witness()])
        await a.reaches("b1")
        a.peers.answer_for(AnswerFor(node="b", incarnation="b1", answer=Answer(epoch=4, number=3, order=Wait())))
        a.peers.ask_words(WordWanted(number=1, generation=7))
        assert await b.hears() == ("a", "a1", WordWanted(number=1, generation=7)), "nothing came before it"


async def test_what_is_to_be_said_opens_the_line_and_only_the_newest_of_each_kind_waits_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SPREAD_S", NEVER_S)
    async with runners(folder, "a", "b") as (a, b):
        a.peers.meet([b.as_witness()])
        for number in (1, 2):
            a.peers.pass_on(Renewal(number=number))
            a.peers.ask_words(WordWanted(number=number, generation=7))
        assert await b.hears() == RenewalOf(node="a", incarnation="a1", renewal=Renewal(number=2))
        assert await b.hears() == ("a", "a1", WordWanted(number=2, generation=7))
        await a.reaches("b1")


# --- lines -------------------------------------------------------------------------------------------------------


async def test_a_line_that_is_lost_is_opened_again(folder: Path) -> None:
    async with strangers(folder, hello("b")) as (port, came), runners(folder, "a") as (a,):
        a.peers.meet([a.as_witness(node="b", incarnation="b1", port=port)])
        await a.reaches("b1")
        (await came.get()).channel.abort("")
        await a.reaches()
        await a.reaches("b1")


async def test_a_witness_that_does_not_answer_is_tried_by_another_line_and_that_one_serves_from_then_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_line, "SILENT_S", 0.05)
    async with strangers(folder, hello("b")) as (port, came), runners(folder, "a") as (a,):
        a.peers.meet([a.as_witness(node="b", incarnation="b1", port=port)])
        await a.reaches("b1")
        first = await came.get()
        async with asyncio.timeout(TIMEOUT_S):
            while came.empty():
                a.peers.ask_words(WordWanted(number=1, generation=7))
                await asyncio.sleep(0.01)
        second = await came.get()
        await first.ends()
        assert isinstance(await second.hears(), Hello)
        assert await second.hears() == WordWanted(number=1, generation=7), "at once"


async def test_a_witness_that_has_no_answer_to_pass_on_is_not_silent_for_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may be cut off from it as well, and reach us by another one."""
    monkeypatch.setattr(peer_line, "SILENT_S", 0.0)
    async with strangers(folder, hello("b")) as (port, came), runners(folder, "a") as (a,):
        a.peers.meet([a.as_witness(node="b", incarnation="b1", port=port)])
        await a.reaches("b1")
        b = await came.get()
        assert isinstance(await b.hears(), Hello)
        for number in range(10):
            a.peers.pass_on(Renewal(number=number))
            assert await b.hears() == PassOn(renewal=Renewal(number=number))
        assert came.empty()


async def test_a_witness_that_takes_connections_and_says_nothing_is_tried_again_and_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "CONNECT_TIMEOUT_S", 0.05)
    came: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: came.put_nowait(writer), HOST, 0)
    try:
        async with runners(folder, "a") as (a,), asyncio.timeout(TIMEOUT_S):
            a.peers.meet([a.as_witness(node="b", incarnation="b1", port=server.sockets[0].getsockname()[1])])
            for _ in range(3):
                (await came.get()).close()
    finally:
        server.close()


async def test_a_runner_that_is_nobodys_witness_any_more_loses_the_line(folder: Path) -> None:
    async with strangers(folder, hello("b")) as (port, came), runners(folder, "a", "c") as (a, c):
        a.peers.meet([a.as_witness(node="b", incarnation="b1", port=port)])
        await a.reaches("b1")
        a.peers.meet([c.as_witness()])
        await (await came.get()).ends()
        await a.reaches("c1")


@pytest.mark.parametrize(("other", "kept"), [("0", "theirs"), ("z", "ours")])
async def test_of_two_lines_that_were_opened_from_both_sides_that_of_the_lower_incarnation_stays(
    folder: Path, other: str, kept: str
) -> None:
    said = hello("b", incarnation=other)
    async with strangers(folder, said) as (port, came), runners(folder, "a") as (a,):
        a.peers.meet([a.as_witness(node="b", incarnation=other, port=port)])
        await a.reaches(other)
        ours, theirs = await came.get(), await stranger_at(folder, a, said)
        if kept == "theirs":
            await ours.ends()
        assert await theirs.hears() == a.hello
        a.peers.ask_words(WordWanted(number=1, generation=7))
        if kept == "theirs":
            assert await theirs.hears() == WordWanted(number=1, generation=7)
        else:
            assert ours.channel.is_open, "whoever has opened the other one ends it"


# --- who is let in -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        hello("b", run="j@2"),
        hello("b", fleet="another"),
        hello("b", versions=(99,)),
        hello("b", incarnation="a1"),
        WordWanted(number=1, generation=7),
    ],
    ids=["of another run", "of another fleet", "of another version", "ourselves", "no hello"],
)
async def test_who_is_no_runner_of_our_run_loses_the_connection_and_is_not_heard(folder: Path, first: object) -> None:
    async with runners(folder, "a") as (a,):
        stranger = await stranger_at(folder, a, first, WordWanted(number=2, generation=7))
        await stranger.ends()
        assert a.heard.empty()


@pytest.mark.parametrize("there", [hello("c"), hello("b", incarnation="b2")], ids=["node", "incarnation"])
async def test_a_runner_that_is_not_the_one_that_was_meant_loses_the_connection(folder: Path, there: Hello) -> None:
    async with (
        strangers(folder, there, WordWanted(number=1, generation=7)) as (port, came),
        runners(folder, "a") as (a,),
    ):
        a.peers.meet([a.as_witness(node="b", incarnation="b1", port=port)])
        await (await came.get()).ends()
        assert a.heard.empty()


async def test_who_says_nothing_is_let_go_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "HELLO_TIMEOUT_S", 0.05)
    async with runners(folder, "a") as (a,):
        await (await stranger_at(folder, a)).ends()


async def test_there_are_no_more_connections_than_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LINES_MAX", 2)
    async with runners(folder, "a") as (a,):
        known = [await stranger_at(folder, a, hello(node)) for node in "bc"]
        for stranger in known:
            assert await stranger.hears() == a.hello
        await (await stranger_at(folder, a, hello("d"))).ends()
        assert all(stranger.channel.is_open for stranger in known)


async def test_a_flood_is_not_read_any_further_and_others_are_served_meanwhile(folder: Path) -> None:
    async with runners(folder, "a", "b") as (a, b):
        flood = [WordWanted(number=number, generation=7) for number in range(20_000)]
        await stranger_at(folder, a, hello("c"), *flood)
        b.peers.meet([a.as_witness()])
        b.peers.ask_words(WordWanted(number=1, generation=7))
        heard: list[object] = []
        while ("b", "b1", WordWanted(number=1, generation=7)) not in heard:
            heard.append(await a.hears())
        assert len(heard) <= 3 * peer_line.FRAMES_MAX


# --- where it listens --------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on, with the next one free as far as can be known."""
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


async def test_it_listens_on_the_first_free_port_of_its_range(folder: Path, taken: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        runner = Runner(folder, "a", tasks, ports=(taken, min(taken + 100, 65535)))
        port = await runner.peers.listen()
        assert taken < port <= taken + 100
        assert await runner.peers.listen() == port, "once"
        runner.peers.close()


async def test_a_range_without_a_free_port_is_told_by_its_key(folder: Path, taken: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        runner = Runner(folder, "a", tasks, ports=(taken, taken))
        with pytest.raises(Refused, match=rf"its runner cannot listen .* \[listen\] runners = {taken}-{taken}"):
            await runner.peers.listen()


async def test_a_credential_on_a_disk_that_hangs_holds_nothing_else_up_and_is_read_once(
    folder: Path, taken: int
) -> None:
    loop = asyncio.get_running_loop()
    key, disk = folder / "fleet.pem", folder / "hanging"
    os.mkfifo(disk)

    def go_on() -> None:
        """Give the reader nothing, once the loop has done something while it waits."""
        with disk.open("wb"):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(TIMEOUT_S)

    async with asyncio.TaskGroup() as tasks:
        runner = Runner(folder, "a", tasks, ports=(taken, taken))
        key.rename(folder / "kept")
        key.symlink_to(disk)
        going_on = tasks.create_task(asyncio.to_thread(go_on))
        with pytest.raises(Refused, match="is no credential"):
            await runner.peers.listen()
        await going_on
        (folder / "kept").rename(key)
        with pytest.raises(Refused, match="cannot listen"):
            await runner.peers.listen()
        key.unlink()
        with pytest.raises(Refused, match="cannot listen"):
            await runner.peers.listen()


@pytest.mark.parametrize(("address", "host"), [("127.0.0.5", "127.0.0.5"), ("192.0.2.1", "0.0.0.0"), ("n1", "0.0.0.0")])
async def test_it_listens_on_all_interfaces_unless_no_other_machine_is_to_reach_it(
    folder: Path, address: str, host: str
) -> None:
    async with asyncio.TaskGroup() as tasks:
        runner = Runner(folder, "a", tasks, address=address)
        port = await runner.peers.listen()
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind((host, port))
        runner.peers.close()
