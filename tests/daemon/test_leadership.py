"""supervisor/daemon/leadership.py and moving.py: which node hosts, by the operator's word and by what others say."""

import asyncio
import contextlib
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol.addresses import JoinEntry
from protocol.coordinator_events import RunRecord
from protocol.errors import Refused
from protocol.messages.fleet import KnownHost, Probe
from protocol.timing import DEFAULTS, Timing
from supervisor.daemon import leadership, moving
from supervisor.daemon.door import Door
from supervisor.daemon.hosting import Hosting, Hosts, Joins
from supervisor.daemon.journal import Journal, StoredRunner
from supervisor.daemon.leadership import OperatorsWord, Word
from supervisor.daemon.moving import Others
from supervisor.daemon.node import Node
from supervisor.daemon.probe import Answerer, Prober
from supervisor.shell.clock import boot_s
from supervisor.shell.config import Config
from supervisor.shell.dial import Dialer
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import client_context, server_context
from tests.daemon.peers import free_port
from tests.daemon.serving import config_in
from tests.daemon.test_journal import JOB

LIMIT_S = 20.0
A, B, C = "127.0.0.2", "127.0.0.3", "127.0.0.4"
HERE = (B, 7000)
FAST = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)
TAKES_OVER, IS_DEAD = Word(hosts=True), Word(hosts=True, old_is_dead=True)


def config_of(folder: Path, address: str = B) -> Config:
    """Node b, of a fleet of a, b and c."""
    port = free_port(A, B, C)
    join = tuple(JoinEntry(host, port, f"{host}:{port}") for host in (A, B, C))
    key = folder / "pem"
    write_once(str(key), credential())
    (folder / "supd" / "state").mkdir(parents=True, mode=0o700)
    config = config_in(folder, node="b", peer=(address, port), peer_is_default=False, join=join, credential=key)
    return replace(config, timing=FAST, state_dir=folder / "supd" / "state")


def known(config: Config, node: str = "a", epoch: int = 5, heard_s: float = 0.0) -> KnownHost:
    address = {"a": A, "b": B, "c": C}[node]
    return KnownHost(node=node, identity="0" * 16, address=address, port=config.peer[1], epoch=epoch, heard_s=heard_s)


@contextlib.asynccontextmanager
async def saying(config: Config, node: str, says: Callable[[], KnownHost | None]) -> AsyncIterator[None]:
    """Another node, which says this of the host."""
    door = Door(config.fleet, node)
    door.handlers[Probe] = Answerer(node, "1" * 16, says).take
    address = {"a": A, "c": C}[node]
    server = await door.listen(address, config.peer[1], server_context(config.credential))
    try:
        yield
    finally:
        server.close()
        door.close()


@contextlib.asynccontextmanager
async def leading(
    config: Config,
    word: Word = Word(),  # noqa: B008  # frozen
    node: Node | None = None,
) -> AsyncIterator[OperatorsWord]:
    """The leadership of a supd that was started with this word; fails where it takes too long."""
    async with asyncio.timeout(LIMIT_S):
        journal = Journal(config.state_dir / "journal.db")
        try:
            hosting = Hosting(config, told=word.hosts or await journal.is_told_to_host())
            dialer = Dialer(client_context(config.credential), hosting.local_address)
            others = Others(config, Prober(dialer, config.fleet), node or Node(config, journal, []))
            yield OperatorsWord(config, journal, hosting, others, word)
        finally:
            journal.close()


# --- the operator's word -----------------------------------------------------------------------------------------


async def test_a_node_that_is_told_to_hosts_from_then_on(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with leading(config) as before:
        assert await before.settled(HERE) == Joins(config.join)
    async with leading(config, TAKES_OVER) as told:
        assert await told.settled(HERE) == Hosts(B)
        assert await told.begin() == 1
    async with leading(config) as later:
        assert await later.settled(HERE) == Hosts(B)
        assert await later.begin() == 2


async def test_it_begins_above_every_epoch_that_anybody_has_heard_of(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    for word, epoch in ((TAKES_OVER, 7), (IS_DEAD, 20)):
        says = partial(known, config, "a", epoch, 60)
        async with saying(config, "c", says), leading(config, word) as told:
            assert await told.settled(HERE) == Hosts(B)
            assert await told.begin() == epoch + 1


async def test_it_refuses_while_the_old_host_answers_unless_that_is_said_to_be_dead(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with saying(config, "a", lambda: known(config)):
        async with leading(config, TAKES_OVER) as told:
            with pytest.raises(Refused) as caught:
                await told.settled(HERE)
        assert caught.value.code == "F310"
        assert str(caught.value) == f"a ({A}:{config.peer[1]}) hosts the coordinator, and lives: it answers as host"
        assert "--old-is-dead" in caught.value.hint
        async with leading(config) as plain:
            assert isinstance(await plain.settled(HERE), Joins)
        async with leading(config, IS_DEAD) as told:
            assert (await told.settled(HERE), await told.begin()) == (Hosts(B), 6)


async def test_it_refuses_while_others_hear_the_old_host(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with saying(config, "c", lambda: known(config, heard_s=0.1)), leading(config, TAKES_OVER) as told:
        with pytest.raises(Refused, match=r"lives: c has heard it 0\.1 s ago"):
            await told.settled(HERE)
    async with leading(config) as plain:
        assert isinstance(await plain.settled(HERE), Joins), "nothing has come of it"


async def test_it_waits_until_a_host_that_has_just_ended_was_heard_by_nobody_for_a_lease(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    heard_s = boot_s()

    def says() -> KnownHost:
        return known(config, heard_s=boot_s() - heard_s)

    async with saying(config, "c", says), leading(config, TAKES_OVER) as told:
        assert await told.settled(HERE) == Hosts(B)
        assert boot_s() > heard_s + FAST.ttl_s


async def test_where_it_found_the_host_last_is_asked_as_well(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (config.state_dir / "coordinator").write_text(f"{A}:{config.peer[1]}\n")
    listed = replace(config, join=config.join[1:])
    async with saying(config, "a", lambda: known(config)), leading(listed, TAKES_OVER) as told:
        with pytest.raises(Refused, match="it answers as host"):
            await told.settled(HERE)


async def test_what_is_said_of_this_node_itself_is_no_reason_to_refuse(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with saying(config, "c", lambda: known(config, "b", 3)), leading(config, TAKES_OVER) as told:
        assert await told.settled(HERE) == Hosts(B)


@contextlib.asynccontextmanager
async def mute(config: Config, address: str) -> AsyncIterator[None]:
    """Something listens there, as a supd that is frozen does, and says nothing."""
    with socket.create_server((address, config.peer[1])):
        yield


async def test_silence_is_no_proof_that_the_old_host_is_gone(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with mute(config, A), leading(config, TAKES_OVER) as told:
        with pytest.raises(Refused, match="nobody can say whether the old host is gone") as caught:
            await told.settled(HERE)
        assert (caught.value.code, "--old-is-dead" in caught.value.hint) == ("F310", True)
        assert f"no word of a host from {A}:{config.peer[1]}" in str(caught.value), (
            "that of c refuses: no supd is there"
        )
    async with mute(config, A), leading(config, IS_DEAD) as told:
        assert await told.settled(HERE) == Hosts(B)
    async with mute(config, A), leading(config, TAKES_OVER) as again:
        assert await again.settled(HERE) == Hosts(B), "it was the host itself"


async def test_it_refuses_while_the_old_host_answers_runners_of_this_node_by_way_of_others(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    file = config.state_dir / "coordinator"
    file.write_text(f"{A}:{config.peer[1]}\n")
    journal = Journal(config.state_dir / "runners.db")
    node = Node(config, journal, [StoredRunner(incarnation="0" * 16, run="j@1", cgroup=None)])

    async def answer() -> None:
        while True:
            if file.read_text() == f"{B}:7000\n":  # runners find this supd, and say when they were answered
                node.answered = (5, boot_s())
            await asyncio.sleep(0.01)

    try:
        async with asyncio.TaskGroup() as group, leading(config, TAKES_OVER, node) as told:
            answering = group.create_task(answer())
            with pytest.raises(Refused, match="it answers runners of this node"):
                await told.settled(HERE)
            assert file.read_text() == f"{A}:{config.peer[1]}\n", "they find the old one again"
            answering.cancel()
        async with leading(config, TAKES_OVER, node) as told:
            assert await told.settled(HERE) == Hosts(B)
            assert boot_s() > node.answered[1] + FAST.ttl_s
            assert await told.begin() == 6
    finally:
        journal.close()


@pytest.mark.parametrize("join", [0, 1])
async def test_a_node_that_nobody_would_find_is_not_to_host(tmp_path: Path, join: int) -> None:
    config = config_of(tmp_path)
    listed = replace(config, join=config.join[:join])
    async with leading(listed, IS_DEAD) as told:
        with pytest.raises(Refused, match="nobody would find the coordinator here") as caught:
            await told.settled(HERE)
    assert (caught.value.code, caught.value.exit_code) == ("F309", 78)


# --- the journal of the old host ---------------------------------------------------------------------------------


async def test_the_journal_that_was_put_here_is_taken_over_once(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    moved = config.state_dir / moving.MOVED
    moved.mkdir()
    old = Journal(moved / "journal.db")
    await old.raise_to(7)
    await old.add_run("one", JOB, RunRecord(), 1.0)
    old.close()
    for epoch in (8, 9):
        async with leading(config, TAKES_OVER) as told:
            assert await told.settled(HERE) == Hosts(B)
            assert [run.run for run in await told.journal.runs()] == ["j@1"]
            assert await told.begin() == epoch
    assert not moved.exists()
    assert (config.state_dir / "moved-7" / "journal.db").exists()


@pytest.mark.parametrize("followed", [True, False])
async def test_runs_of_before_another_node_has_hosted_do_not_begin_anew(tmp_path: Path, followed: bool) -> None:
    config = config_of(tmp_path)
    async with leading(config, TAKES_OVER) as told:
        await told.journal.add_run("one", JOB, RunRecord(), 1.0)
        if followed:
            await told.journal.tell_to_host(False, 4)
        assert await told.settled(HERE) == Hosts(B)
        assert [run.run for run in await told.journal.runs()] == ([] if followed else ["j@1"])
    kept = config.state_dir / "journal-4.db"
    assert kept.exists() is followed
    if followed:
        aside = Journal(kept)
        assert [run.run for run in await aside.runs()] == ["j@1"]
        aside.close()


async def test_a_journal_that_is_none_is_refused_and_nothing_is_begun(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    moved = config.state_dir / moving.MOVED
    moved.mkdir()
    (moved / "journal.db").write_bytes(b"x" * 4096)
    async with leading(config, TAKES_OVER) as told:
        with pytest.raises(Refused, match=str(moved)):
            await told.settled(HERE)
        assert (await told.journal.is_told_to_host(), await told.journal.epoch()) == (None, 0)


# --- another host ------------------------------------------------------------------------------------------------


async def test_an_old_host_that_comes_back_joins_the_one_of_a_higher_epoch_and_remembers_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, A)
    config = replace(config, node="a")
    others = Joins(config.join[1:])
    async with leading(config) as first:
        assert (await first.settled(HERE), await first.begin()) == (Hosts(A), 1)
    with capture_logs() as logs:
        async with saying(config, "c", lambda: known(config, "b", 6, 60)), leading(config) as back:
            assert await back.settled(HERE) == others
    (line,) = [line for line in logs if line["event"] == "coordinator_moved"]
    assert (line["host"], line["address"], line["epoch"]) == ("b", f"{B}:{config.peer[1]}", 6)
    async with leading(config) as later:
        assert await later.settled(HERE) == others, "also where nobody is there to be asked"
    async with leading(config, TAKES_OVER) as told:
        assert (await told.settled(HERE), await told.begin()) == (Hosts(A), 7)


@pytest.mark.parametrize("epoch", [0, 1, 3])
async def test_an_old_host_goes_on_where_others_know_of_no_higher_epoch(tmp_path: Path, epoch: int) -> None:
    config = replace(config_of(tmp_path, A), node="a")
    async with leading(config) as first:
        await first.journal.raise_to(3)
    async with saying(config, "c", lambda: known(config, "a", epoch) if epoch else None), leading(config) as back:
        assert (await back.settled(HERE), await back.begin()) == (Hosts(A), 4)


async def test_a_host_ends_once_another_one_is_heard_of_that_comes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LOOK_S", 0.01)
    config = replace(config_of(tmp_path, A), node="a")
    hosts = [known(config, "c", 1), known(config, "b", 3, heard_s=60)]  # below; above, and not heard for long
    said = [*hosts, known(config, "b", 2)]  # the same epoch, and a name that comes later
    async with saying(config, "c", lambda: said.pop(0) if len(said) > 1 else said[0]), leading(config) as led:
        await led.journal.tell_to_host(True, 2)
        await led.ended(lambda: 2)
        assert len(said) == 1
        assert (await led.journal.is_told_to_host(), await led.journal.epoch()) == (False, 2)


def test_a_host_has_looked_for_another_one_before_that_one_may_take_anybody_for_lost() -> None:
    assert DEFAULTS.ttl_s - 1.0 >= leadership.LOOK_S + moving.ASK_LIMIT_S  # as long as nodes need to find the other one


async def test_a_host_whose_disk_takes_nothing_looks_for_another_one_all_the_same(tmp_path: Path) -> None:
    config = replace(config_of(tmp_path, A), node="a")
    async with leading(config) as led:
        await led.journal.raise_to(2)
        with contextlib.closing(sqlite3.connect(config.state_dir / "journal.db")) as db:
            db.execute("BEGIN IMMEDIATE")
            async with saying(config, "c", lambda: known(config, "b", 1)):
                assert not await led.is_over(2)
            db.rollback()
