"""Peers of a supd that say what they like: connections to its peers' port, and nodes that are none."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.addresses import JoinEntry
from protocol.framing import FrameDecoder, encode_frame
from protocol.messages import encode
from protocol.messages.fleet import Join, NodeOrder, NodeReport, Probe, Probed, decode_first, decode_to_node
from protocol.versions import VERSIONS
from supervisor.shell.config import Config
from supervisor.shell.tls import client_context, server_context
from tests.daemon.serving import TIMEOUT_S, config_in

IDENTITY = "0123456789abcdef"


def free_port(*hosts: str) -> int:
    """A port that is free at all of these addresses just now."""
    while True:
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            sockets = [held.enter_context(socket.socket()) for _ in hosts]
            sockets[0].bind((hosts[0], 0))
            port: int = sockets[0].getsockname()[1]
            for host, other in zip(hosts[1:], sockets[1:], strict=True):
                other.bind((host, port))
            return port


def node_config(folder: Path, node: str, host: str, port: int, join: str = "127.0.0.1") -> Config:
    """A supd of a fleet whose host is at `join`; all of them listen on one port."""
    entry = JoinEntry(join, port, f"{join}:{port}")
    return config_in(folder, node=node, peer=(host, port), join=(entry,))


class Peer:
    """One TLS connection to a supd."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[bytes] = []

    def say(self, *messages: object) -> None:
        for message in messages:
            self.writer.write(encode_frame(encode(message)))

    async def frame(self) -> bytes | None:
        """The next frame; None once the connection has ended."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self._frames:
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = await self.reader.read(1 << 16)
                if not data:
                    return None
                self._frames += self._decoder.feed(data)
        return self._frames.pop(0)


@contextlib.asynccontextmanager
async def calling(config: Config) -> AsyncIterator[Peer]:
    """A connection to a supd's peers' port, with the fleet's key."""
    host, port = config.peer
    peer = Peer(*await asyncio.open_connection(host, port, ssl=client_context(config.credential)))
    try:
        yield peer
    finally:
        peer.writer.transport.abort()
        with contextlib.suppress(OSError):
            await peer.writer.wait_closed()


def join_of(config: Config, address: str, port: int, **changed: Any) -> Join:
    """What a node called `b` of this fleet says of itself."""
    usual = {
        "versions": VERSIONS,
        "fleet": config.fleet,
        "node": "b",
        "identity": IDENTITY,
        "incarnation": 1,
        "address": address,
        "port": port,
        "join": tuple(entry.text for entry in config.join),
    }
    return Join(**{**usual, **changed})


@dataclass
class FakeNode:
    """A node that was taken in, and has no supd."""

    peer: Peer
    number: int = 0
    orders: list[NodeOrder] = field(default_factory=list)

    def report(self, **said: Any) -> None:
        """Say this."""
        self.number += 1
        self.peer.say(NodeReport(number=self.number, **said))

    async def order(self, fits: Callable[[NodeOrder], object]) -> NodeOrder:
        """The next order for which this holds; the node goes on reporting nothing new."""
        while True:
            frame = await self.peer.frame()
            assert frame is not None, "the connection has ended"
            order = decode_to_node(frame)
            assert isinstance(order, NodeOrder)
            self.orders.append(order)
            if fits(order):
                return order


@contextlib.asynccontextmanager
async def answering(config: Config, address: str, node: str = "b", identity: str = IDENTITY) -> AsyncIterator[int]:
    """Somebody who answers a Probe as this node; gives the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameDecoder().feed(await reader.read(1 << 16))
        assert decode_first(frames[0]) == Probe(fleet=config.fleet)
        writer.write(encode_frame(encode(Probed(node=node, identity=identity))))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, 0, ssl=server_context(config.credential))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
