"""supervisor/shell/dial.py: what a peer says of its address is dialled as it is."""

import asyncio
import threading
from pathlib import Path

import pytest

from supervisor.shell.channel import Channel
from supervisor.shell.dial import Dialer
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.names import Names
from supervisor.shell.tls import client_context, server_context

TIMEOUT_S = 20.0


@pytest.fixture
def key(short_dir: Path) -> Path:
    """A fleet's."""
    write_once(str(short_dir / "fleet.pem"), credential())
    return short_dir / "fleet.pem"


def a_channel() -> Channel:
    return Channel(lambda _: None, lambda _, frame: None, lambda _: None)


@pytest.mark.parametrize("name", ["a" * 64, "a..b", ".", "é" * 64])
async def test_a_name_that_cannot_be_one_is_told_like_any_that_is_not_known(name: str, key: Path) -> None:
    with pytest.raises(OSError, match="that cannot be a name"):
        await Dialer(client_context(key), lambda to: None).dial(a_channel(), name, 1)


async def test_names_that_nobody_resolves_keep_none_of_the_loops_own_threads_busy(key: Path) -> None:
    answers = threading.Event()

    def resolve(host: str) -> tuple[str, ...]:
        assert answers.wait(TIMEOUT_S)
        raise OSError(2, "Name or service not known")

    dialer = Dialer(client_context(key), lambda to: None, Names(resolve, timeout_s=0.01))
    try:
        for number in range(40):
            with pytest.raises(OSError, match="the name service does not answer"):
                await dialer.dial(a_channel(), f"gpu-{number}", 1)
        async with asyncio.timeout(TIMEOUT_S):
            assert await asyncio.to_thread(lambda: "a thread is free") == "a thread is free"
    finally:
        answers.set()


async def test_a_name_leads_to_the_first_of_its_addresses_where_a_peer_answers(key: Path) -> None:
    taken = asyncio.Event()

    def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.set()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.3", 0, ssl=server_context(key))
    names = Names(lambda host: ("127.0.0.2", "127.0.0.3"))
    channel, port = a_channel(), server.sockets[0].getsockname()[1]
    try:
        await Dialer(client_context(key), lambda to: None, names).dial(channel, "gpu-01", port)
        async with asyncio.timeout(TIMEOUT_S):
            await taken.wait()
        assert channel.peer() == ("127.0.0.3", port)
    finally:
        channel.abort("")
        server.close()
