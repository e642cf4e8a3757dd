"""The door for a supd's peers: TCP, mutual TLS. The first frame says what a connection is for, and who takes it."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import structlog

from protocol.messages import encode
from protocol.messages.fleet import FirstMessage, Join, JoinRefused, decode_first
from protocol.messages.member import Hello, Rejected
from protocol.text import one_line
from supervisor.shell import tls_server
from supervisor.shell.channel import Channel
from supervisor.shell.seldom import Seldom
from supervisor.shell.tls_server import TlsServer

log = structlog.get_logger()

HELLO_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 20_000

Handler = Callable[[Channel, Any], None]
"""Takes over a connection (`Channel.hand_over`) after its first message, or answers and closes it."""


class Door:
    """Listens for peers of this `node`. Each connection goes to the handler of its first message; `handlers` may change
    meanwhile. Whoever is of another fleet is not let in.

    Every kind of FirstMessage has to have a handler before the door is opened.
    """

    def __init__(self, fleet: str, node: str) -> None:
        self._fleet = fleet
        self._node = node
        self._seldom = Seldom()
        self.handlers: dict[type[FirstMessage], Handler] = {}
        self._timers: dict[Channel, asyncio.TimerHandle] = {}  # of those that have said nothing yet
        self._taken: set[Channel] = set()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext) -> TlsServer:
        """Begin to listen; on all interfaces with `host` "". Raises OSError where the port is taken."""
        return await tls_server.listen(host, port, tls, lambda: Channel(self._on_open, self._on_first, self._on_closed))

    def close(self) -> None:
        """Let go of everybody; they come back to the next supd."""
        for channel in [*self._timers, *self._taken]:
            channel.abort("")

    def _on_open(self, channel: Channel) -> None:
        if len(self._timers) + len(self._taken) >= CONNECTIONS_MAX:
            channel.abort("too many connections")
            return
        loop = asyncio.get_running_loop()
        self._timers[channel] = loop.call_later(HELLO_TIMEOUT_S, channel.abort, "said nothing")

    def _on_first(self, channel: Channel, payload: bytes) -> None:
        message: FirstMessage = decode_first(payload)
        timer = self._timers.pop(channel, None)
        if timer is None:  # whoever took it over has let go of it, and it goes on talking
            channel.abort("nobody listens any more")
            return
        timer.cancel()
        self._taken.add(channel)
        channel.keep_alive()
        if isinstance(message, Join) or message.fleet == self._fleet:  # what is wrong with a node is an event (N2)
            return self.handlers[type(message)](channel, message)
        why = one_line(f"{self._node} is of fleet {self._fleet}, not of {message.fleet}")
        if isinstance(message, Hello):
            return self.reject(channel, why)
        channel.send(encode(JoinRefused(code="F301", message=why, hint="see `[fleet] name` in supd.toml of both")))
        channel.close()

    def reject(self, channel: Channel, reason: str) -> None:
        """Tell a runner that nobody hears it here. Never final: a healthy run is not ended because its coordinator has
        moved, or lost its memory (R6)."""
        reason = one_line(reason)
        if self._seldom.is_due((channel.peer()[0], reason)):
            log.warning("runner_rejected", reason=reason, peer=channel.peer_address())
        channel.send(encode(Rejected(reason=reason)))
        channel.close()

    def _on_closed(self, channel: Channel) -> None:
        timer = self._timers.pop(channel, None)
        if timer is not None:
            timer.cancel()
        self._taken.discard(channel)
        if channel.error and self._seldom.is_due((channel.peer()[0], channel.error)):
            log.warning("connection_refused", peer=channel.peer_address(), error=channel.error)
