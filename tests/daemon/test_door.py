"""supervisor/daemon/door.py: who comes to the peers' port, and who is not let in."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import pytest
from structlog.testing import capture_logs

from protocol.errors import RemoteProtocolError
from protocol.messages.control import LogSelection
from protocol.messages.fleet import (
    FetchLogs,
    FetchRank,
    FirstMessage,
    Join,
    JoinRefused,
    LogsNow,
    Probe,
    Visit,
    decode_from_peer,
)
from protocol.messages.member import Assignment, Hello, Rejected, decode_to_runner
from protocol.versions import VERSIONS
from supervisor.daemon.door import Door
from supervisor.shell.channel import Channel
from supervisor.shell.dial import Dialer
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.pull import Pull
from supervisor.shell.tls import client_context, server_context
from tests.protocol.build import job_spec, submitted

LIMIT_S = 20.0


def first_messages(fleet: str) -> list[FirstMessage]:
    """One of each kind."""
    assignment = Assignment(
        generation=0,
        node_rank=0,
        nnodes=1,
        first_rank=0,
        nproc=1,
        world_size=1,
        master_addr="127.0.0.1",
        master_port=1,
    )
    job = submitted(job_spec())
    return [
        Hello(versions=VERSIONS, fleet=fleet, node="b", run="j@1a2b3c", incarnation="aa" * 8),
        Join(
            versions=VERSIONS,
            fleet=fleet,
            node="b",
            identity="0" * 16,
            incarnation=1,
            address="127.0.0.1",
            port=1,
            join=(),
        ),
        Visit(versions=VERSIONS, fleet=fleet, node="b", user="mia"),
        Probe(fleet=fleet),
        FetchLogs(fleet=fleet, run="j@1a2b3c", selection=LogSelection(), now=LogsNow(generation=0, is_over=False)),
        FetchRank(fleet=fleet, job=job, assignment=assignment, rank=0, incarnation="aa" * 8, with_env=False),
    ]


class Entrance:
    """A door of node a of fleet x, and what came in by it."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "pem"
        write_once(str(self.key), credential())
        self.door = Door("x", "a")
        self.came: asyncio.Queue[tuple[Channel, FirstMessage]] = asyncio.Queue()
        self.door.handlers = dict.fromkeys(
            get_args(FirstMessage), lambda channel, message: self.came.put_nowait((channel, message))
        )
        self.port = 0

    @asynccontextmanager
    async def calling(self, message: FirstMessage) -> AsyncIterator[Pull]:
        """A connection that begins with this."""
        async with Pull() as pull:
            await Dialer(client_context(self.key), lambda _to: None).dial(pull.channel, "127.0.0.1", self.port)
            pull.send(message)
            yield pull


@pytest.fixture
async def entrance(tmp_path: Path) -> AsyncIterator[Entrance]:
    entrance = Entrance(tmp_path)
    server = await entrance.door.listen("127.0.0.1", 0, server_context(entrance.key))
    entrance.port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(LIMIT_S):
        yield entrance
    server.close()
    entrance.door.close()


def notices_a_dead_machine(channel: Channel) -> bool:
    assert channel._transport is not None
    connection = channel._transport.get_extra_info("socket")
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


async def test_the_end_of_a_peers_machine_is_noticed_on_either_side_whatever_a_connection_is_for(
    entrance: Entrance,
) -> None:
    for message in first_messages("x"):
        async with entrance.calling(message) as pull:
            channel, came = await entrance.came.get()
            assert came == message
            assert notices_a_dead_machine(channel), message
            assert notices_a_dead_machine(pull.channel), message


async def test_who_is_of_another_fleet_is_told_so_and_not_let_in(entrance: Entrance) -> None:
    why = "a is of fleet x, not of y"
    for message in first_messages("y"):
        async with entrance.calling(message) as pull:
            if isinstance(message, Join):
                continue  # the fleet's machine refuses it
            frame = await pull.frame()
            assert frame is not None
            if isinstance(message, Hello):
                assert decode_to_runner(frame) == Rejected(reason=why)
            else:
                refused = decode_from_peer(frame)
                assert isinstance(refused, JoinRefused)
                assert (refused.code, refused.message) == ("F301", why)
            assert await pull.frame() is None
    _, came = await entrance.came.get()
    assert isinstance(came, Join)
    assert entrance.came.empty()


async def test_a_runner_that_is_rejected_again_and_again_is_logged_once(entrance: Entrance) -> None:
    hello = first_messages("y")[0]
    with capture_logs() as logs:
        for _ in range(5):
            async with entrance.calling(hello) as pull:
                assert await pull.frame() is not None
    assert [entry["reason"] for entry in logs if entry["event"] == "runner_rejected"] == ["a is of fleet x, not of y"]


async def test_an_address_from_which_the_same_nonsense_comes_again_and_again_is_logged_once(entrance: Entrance) -> None:
    def raises(_channel: Channel, _message: object) -> None:
        raise RemoteProtocolError("nonsense")

    entrance.door.handlers[Probe] = raises
    with capture_logs() as logs:
        for _ in range(5):
            async with entrance.calling(Probe(fleet="x")) as pull:
                assert await pull.frame() is None
    assert [entry["error"] for entry in logs if entry["event"] == "connection_refused"] == ["nonsense"]
