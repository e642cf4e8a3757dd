"""One framed connection: asyncio's transport on one side, whole frames on the other."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import cast

from protocol.errors import ProtocolError
from protocol.framing import FrameDecoder, encode_frame
from protocol.text import host_port

SEND_QUEUE_MAX_BYTES = 64 * 1024 * 1024
"""What may wait for a peer that does not read; beyond it the connection is closed (the peer comes back and is told)."""

KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds and tries (tcp(7)): so a machine that is gone is noticed within 20 s where nothing is said."""


class Channel(asyncio.Protocol):
    """A connection that carries frames. `on_frame` and `on_closed` are called from the loop.

    A peer that sends nonsense, or does not read for long, costs itself the connection and nothing else.
    """

    def __init__(
        self,
        on_open: Callable[["Channel"], None],
        on_frame: Callable[["Channel", bytes], None],
        on_closed: Callable[["Channel"], None],
    ) -> None:
        self._on_open = on_open
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_closed_first: Callable[[Channel], None] | None = None
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = asyncio.Event()
        self.error = ""  # why we closed it, where we did

    def hand_over(self, on_frame: Callable[["Channel", bytes], None], on_closed: Callable[["Channel"], None]) -> None:
        """Others hear it from the next frame on. Whoever heard of its opening hears of its end as well, after them."""
        self._on_frame = on_frame
        self._on_closed_first = on_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                if self.is_open:  # a frame may have cost it the connection
                    self._on_frame(self, frame)
        except ProtocolError as exc:
            self.abort(str(exc))

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        self.closed.set()
        if self._on_closed_first is not None:
            self._on_closed_first(self)
        self._on_closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    @property
    def is_open(self) -> bool:
        """Whether a frame handed in now has a chance to arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, payload: bytes) -> None:
        """Send one frame; nothing happens on a closed connection."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > SEND_QUEUE_MAX_BYTES:
            self.abort("the peer does not read")
            return
        self._transport.write(encode_frame(payload))

    @property
    def is_drained(self) -> bool:
        """Whether the peer has read most of what was sent."""
        return self._writable.is_set()

    async def drained(self) -> None:
        """Wait until the peer has read most of what was sent (or is gone)."""
        await self._writable.wait()

    def peer(self) -> tuple[str, int]:
        """Address and port of the other side; ("?", 0) for a unix socket's."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("?", 0)

    def hold(self, is_held: bool) -> None:
        """Read nothing for now, so that the peer has to wait; or go on."""
        if self._transport is None or self._transport.is_closing():
            return
        if is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def keep_alive(self) -> None:
        """Notice the end of the peer's machine also in silence."""
        connection = self._transport.get_extra_info("socket") if self._transport else None
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def expect_receipt_within(self, limit_s: float) -> None:
        """Give the connection up where what was sent is not acknowledged by the peer's machine in that time (tcp(7),
        TCP_USER_TIMEOUT). Not for one whose peer may be slow to read: that counts as well."""
        connection = self._transport.get_extra_info("socket") if self._transport else None
        if connection is not None:
            with contextlib.suppress(OSError):  # it is closed already
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))

    def peer_address(self) -> str:
        """HOST:PORT of the other side, for messages."""
        host, port = self.peer()
        return host_port(host, port) if port else host

    def own_host(self) -> str:
        """The address by which this side reached the other."""
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if isinstance(name, tuple) else "127.0.0.1"

    def peer_uid(self) -> int:
        """The user of the other side of a unix socket (unix(7), SO_PEERCRED)."""
        assert self._transport is not None
        connection = self._transport.get_extra_info("socket")
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(uid)

    def close(self) -> None:
        """Close once everything sent so far has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Close at once."""
        self.error = self.error or why
        if self._transport is not None:
            self._transport.abort()
