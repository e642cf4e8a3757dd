"""supervisor/shell/channel.py: frames over a real pair of sockets, with a peer that does as it likes."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.framing import MAX_FRAME_BYTES, encode_frame
from supervisor.shell.channel import SEND_QUEUE_MAX_BYTES, Channel

TIMEOUT_S = 20.0


class Side:
    """Our side of a connection: a channel, and what has come in on it."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.opened = 0
        self.ended = 0
        self.channel = Channel(self._on_open, self._on_frame, self._on_closed)

    def _on_open(self, channel: Channel) -> None:
        self.opened += 1

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        if payload == b"nonsense":
            raise RemoteProtocolError("nonsense")
        self.frames.put_nowait(payload)

    def _on_closed(self, channel: Channel) -> None:
        self.ended += 1


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Side, socket.socket]]:
    """A channel, and the peer's end as a bare socket."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    side = Side()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.get_running_loop().create_connection(lambda: side.channel, sock=ours)
        try:
            yield side, theirs
        finally:
            side.channel.abort("the test is over")
            theirs.close()
            await side.channel.closed.wait()
    assert (side.opened, side.ended) == (1, 1)


async def test_frames_arrive_whole_in_whatever_pieces_they_come() -> None:
    loop = asyncio.get_running_loop()
    async with connected() as (side, peer):
        data = encode_frame(b"first") + encode_frame(b"") + encode_frame(b"x" * 100_000)
        for start in range(0, len(data), 7001):
            await loop.sock_sendall(peer, data[start : start + 7001])
        assert [await side.frames.get() for _ in range(3)] == [b"first", b"", b"x" * 100_000]
        side.channel.send(b"answer")
        assert await loop.sock_recv(peer, 100) == encode_frame(b"answer")


@pytest.mark.parametrize(
    ("sent", "why"),
    [((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "over the limit"), (encode_frame(b"nonsense"), "nonsense")],
)
async def test_nonsense_costs_a_peer_its_connection_and_the_frames_behind_it(sent: bytes, why: str) -> None:
    loop = asyncio.get_running_loop()
    async with connected() as (side, peer):
        await loop.sock_sendall(peer, encode_frame(b"good") + sent + encode_frame(b"late"))
        await side.channel.closed.wait()
        assert why in side.channel.error
        assert side.frames.qsize() <= 1, "a frame behind the nonsense was heard"
        assert not side.channel.is_open
        side.channel.send(b"nobody hears this")


async def test_half_a_frame_is_no_frame_and_its_end_no_error() -> None:
    async with connected() as (side, peer):
        await asyncio.get_running_loop().sock_sendall(peer, encode_frame(b"whole")[:-1])
        peer.close()
        await side.channel.closed.wait()
        assert side.frames.empty()
        assert side.channel.error == ""


async def test_a_peer_that_does_not_read_loses_its_connection_before_it_fills_our_memory() -> None:
    async with connected() as (side, _peer):
        frame = b"x" * (1 << 20)
        for _ in range(SEND_QUEUE_MAX_BYTES // len(frame) + 2):
            side.channel.send(frame)
        await side.channel.closed.wait()
        assert side.channel.error == "the peer does not read"
        await side.channel.drained()


async def test_drained_waits_for_a_peer_that_is_slow() -> None:
    loop = asyncio.get_running_loop()
    async with connected() as (side, peer):
        size = 8 * (1 << 20) - 4
        side.channel.send(b"x" * size)
        drained = loop.create_task(side.channel.drained())
        got = len(await loop.sock_recv(peer, 1 << 20))
        assert not drained.done()
        while got < size + 4:
            got += len(await loop.sock_recv(peer, 1 << 20))
        await drained


async def test_we_never_send_a_frame_that_is_over_the_limit() -> None:
    async with connected() as (side, _peer):
        with pytest.raises(LocalProtocolError):
            side.channel.send(b"x" * (MAX_FRAME_BYTES + 1))
        assert side.channel.is_open


async def test_close_lets_out_what_was_sent_and_the_other_side_is_who_the_kernel_says() -> None:
    loop = asyncio.get_running_loop()
    async with connected() as (side, peer):
        assert side.channel.peer_uid() == os.geteuid()
        side.channel.send(b"last")
        side.channel.close()
        assert await loop.sock_recv(peer, 100) == encode_frame(b"last")
        assert await loop.sock_recv(peer, 100) == b""
