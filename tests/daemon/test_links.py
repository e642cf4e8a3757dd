"""supervisor/daemon/links.py: a node finds the host wherever it is, and obeys none of the past."""

import asyncio
import contextlib
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_struct
from structlog.testing import capture_logs

from protocol.addresses import JoinEntry
from protocol.messages import encode
from protocol.messages.fleet import (
    Join,
    Joined,
    JoinRefused,
    KnownHost,
    NodeOrder,
    NodeReport,
    Probe,
    Probed,
    decode_from_peer,
    decode_report,
)
from supervisor.daemon.door import Door
from supervisor.daemon.leadership import Word
from supervisor.daemon.probe import Answerer
from supervisor.shell.channel import Channel
from supervisor.shell.config import Config
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import server_context
from tests.daemon.peers import answering, calling, free_port, join_of
from tests.daemon.serving import config_in, serving, wait_for

FIRST, SECOND, OTHER = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class Hosts:
    """Somebody, at `FIRST` as a rule, who takes a node in, with these epochs one after the other; or says who hosts."""

    def __init__(self, config: Config, *epochs: int, named: KnownHost | None = None) -> None:
        self._config = config
        self._epochs = list(epochs)
        self._named = named
        self.joins: list[Join] = []
        self.reports: list[NodeReport] = []
        self.channel: Channel | None = None
        self.door = Door(config.fleet, "host")
        self.door.handlers[Join] = self._take
        self.door.handlers[Probe] = Answerer("host", "0" * 16, lambda: self._named).take

    def _take(self, channel: Channel, join: Join) -> None:
        self.joins.append(join)
        if not self._epochs:
            channel.send(encode(JoinRefused(code="F308", message="not here", host=self._named)))
            channel.close()
            return
        self.channel = channel
        channel.hand_over(self._on_frame, lambda _: None)
        epoch = self._epochs.pop(0) if len(self._epochs) > 1 else self._epochs[0]
        channel.send(encode(Joined(version=1, epoch=epoch, host="host", identity="0" * 16)))

    def _on_frame(self, _channel: Channel, payload: bytes) -> None:
        self.reports.append(decode_report(payload))

    def name(self, host: KnownHost) -> None:
        """Say from now on that this one hosts."""
        self._named = host

    def order(self, epoch: int) -> None:
        assert self.channel is not None
        self.channel.send(encode(NodeOrder(number=0, epoch=epoch)))

    @contextlib.asynccontextmanager
    async def listening(self, address: str = FIRST) -> AsyncIterator[None]:
        server = await self.door.listen(address, self._config.join[0].port, server_context(self._config.credential))
        try:
            yield
        finally:
            server.close()
            self.door.close()


def node_at(folder: Path, name: str, address: str, port: int, *join: str) -> Config:
    """A node of a fleet whose list begins with FIRST; all have one key."""
    key = folder / "pem"
    if not key.exists():
        write_once(str(key), credential())
    entries = tuple(JoinEntry(host, port, f"{host}:{port}") for host in (FIRST, *join))
    peer = (address, port)
    return config_in(folder / name, node=name, peer=peer, peer_is_default=False, join=entries, credential=key)


async def known_to(config: Config) -> KnownHost | None:
    """Whom a supd names as host."""
    async with calling(config) as peer:
        peer.say(Probe(fleet=config.fleet))
        frame = await peer.frame()
    assert frame is not None
    probed = decode_from_peer(frame)
    assert isinstance(probed, Probed)
    return probed.host


async def test_a_node_goes_where_another_one_says_that_the_host_is(short_dir: Path) -> None:
    port = free_port(FIRST, SECOND, OTHER)
    host = node_at(short_dir, "b", SECOND, port, SECOND)
    node = node_at(short_dir, "c", OTHER, port)  # of itself it knows FIRST alone
    named = KnownHost(node="b", identity="0" * 16, address=SECOND, port=port, epoch=1)
    async with (
        Hosts(node, named=named).listening(),
        serving(host, Word(hosts=True, old_is_dead=True)),
        serving(node),
    ):
        file = node.state_dir / "coordinator"
        await wait_for("c to join b", lambda: file.exists() and file.read_text() == f"{SECOND}:{port}\n")
        for config in (host, node):
            known = await known_to(config)
            assert known is not None
            assert (known.node, known.address, known.port, known.epoch) == ("b", SECOND, port, 1)
            assert known.heard_s < 60


async def test_a_node_obeys_no_host_of_an_epoch_below_one_that_it_has_heard(short_dir: Path) -> None:
    config = node_at(short_dir, "c", OTHER, free_port(FIRST, SECOND, OTHER))
    host = Hosts(config, 5, 6, 4, 8)
    with capture_logs() as logs:
        async with host.listening(), serving(config):
            await wait_for("a report", lambda: host.reports)
            assert host.channel is not None
            host.channel.abort("")
            await wait_for("c to come back", lambda: len(host.joins) > 1)
            host.order(7)
            await wait_for("more reports", lambda: len(host.reports) > 2)
            host.channel.abort("")
            await wait_for("c to be taken in by the last one", lambda: len(host.joins) > 3)
            reports = len(host.reports)
            await wait_for("reports to that", lambda: len(host.reports) > reports)
    assert [(join.epoch, join.host) for join in host.joins] == [(0, ""), (5, "0" * 16), (7, "0" * 16), (7, "0" * 16)]
    assert [entry["epoch"] for entry in logs if entry["event"] == "fleet_joined"] == [5, 6, 8]


async def test_a_node_remembers_the_epoch_over_its_own_restart(short_dir: Path) -> None:
    config = node_at(short_dir, "c", OTHER, free_port(FIRST, SECOND, OTHER))
    host = Hosts(config, 5)
    async with host.listening():
        async with serving(config):
            await wait_for("a report", lambda: host.reports)
            with contextlib.closing(sqlite3.connect(config.state_dir / "journal.db")) as db:
                kept = "SELECT value FROM meta WHERE key = 'epoch'"
                await wait_for("c to have written it down", lambda: db.execute(kept).fetchone() == (5,))
        async with serving(config):
            await wait_for("c to join again", lambda: len(host.joins) > 1)
    assert [join.epoch for join in host.joins] == [0, 5]


@contextlib.contextmanager
def full(config: Config) -> Iterator[None]:
    """The journal of this node finds no room any more, and a small file does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (config.state_dir / "journal.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_runners_are_told_of_a_coordinator_that_has_moved_also_while_the_journal_waits(short_dir: Path) -> None:
    port = free_port(FIRST, SECOND, OTHER)
    config = node_at(short_dir, "c", OTHER, port, SECOND)
    first, second = Hosts(config, 5), Hosts(config, 7)
    file = config.state_dir / "coordinator"
    with capture_logs() as logs:
        async with serving(config), first.listening():
            await wait_for("c to join the first one", lambda: first.reports and file.exists())
            with full(config):
                first.order(6)
                await wait_for("the journal to wait", lambda: any(e["event"] == "journal_waits" for e in logs))
                first.door.close()
                async with second.listening(SECOND):
                    await wait_for("the new place", lambda: file.read_text() == f"{SECOND}:{port}\n")


async def test_a_host_begins_an_epoch_above_any_that_a_node_has_heard_of_elsewhere(short_dir: Path) -> None:
    port = free_port(FIRST, SECOND, OTHER)
    host, node = node_at(short_dir, "a", FIRST, port), node_at(short_dir, "c", OTHER, port)
    async with serving(host):
        pass
    async with serving(host), serving(node):
        await wait_for("c to join", (node.state_dir / "coordinator").exists)
        known = await known_to(host)
        assert known is not None
        assert known.epoch == 2
    lost = replace(host, state_dir=host.state_dir.with_name("new"))  # its epochs begin with 1
    async with asyncio.timeout(60), serving(lost), serving(node):
        while (known := await known_to(lost)) is None or known.epoch < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert known.epoch == 3


@pytest.mark.parametrize("heard_s", [0.5, 600.0])
async def test_a_host_that_hears_of_a_higher_epoch_gives_way_where_its_host_was_heard_just_now(
    short_dir: Path, heard_s: float
) -> None:
    """As one that was frozen while the coordinator was moved away."""
    port = free_port(FIRST, SECOND, OTHER)
    config = node_at(short_dir, "a", FIRST, port, SECOND)
    named = KnownHost(node="b", identity="1" * 16, address=OTHER, port=port, epoch=6, heard_s=600.0)
    other = Hosts(config, named=named)
    with capture_logs() as logs:
        async with other.listening(SECOND), serving(config, Word(hosts=True, old_is_dead=True)):
            known = await known_to(config)
            assert known is not None
            other.name(replace_struct(named, epoch=known.epoch + 1, heard_s=heard_s))
            async with answering(config, OTHER) as back, calling(config) as peer:
                peer.say(join_of(config, OTHER, back, epoch=known.epoch + 1, host="1" * 16))
                frame = await peer.frame()
            starts = 1 if frame else 2
            await wait_for("a to be there", lambda: [e["event"] for e in logs].count("supd_ready") == starts)
    events = [entry["event"] for entry in logs]
    assert ("coordinator_moved" in events, "epoch_raised" in events, frame is None) == (
        (True, False, True) if heard_s < 1 else (False, True, False)
    )
