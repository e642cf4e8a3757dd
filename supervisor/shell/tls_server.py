"""Listens for TLS and tells of those who do not get in.

asyncio's own servers hand a connection over once its handshake is done, and keep silent about those that fail.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

import structlog

from supervisor.shell.seldom import Seldom
from supervisor.shell.tls import tls_problem

log = structlog.get_logger()

HANDSHAKE_TIMEOUT_S = 10.0
BACKLOG = 4096
HANDSHAKES_MAX = 4096
"""At a time, unless whoever listens wants fewer; more wait in the kernel's queue."""

NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
"""Where the machine has none, or has it switched off, all interfaces are those of IPv4."""

PORT_TRIES = 20
"""A port that is free for IPv4 may not be for IPv6."""

REST_S = 1.0
"""Where no connection can be accepted (no descriptor is left), until it is tried again."""


class TlsServer:
    """Listening sockets, and the handshakes with whoever has come. Make one with `listen`."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        handshakes_max: int,
    ) -> None:
        self.sockets = sockets
        self._handshakes_max = handshakes_max
        self._tls = tls
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None
        self._seldom = Seldom()
        self._resume()

    def close(self) -> None:
        """Listen no more, and give up the handshakes; connections that are made stay."""
        if self._rest is not None:
            self._rest.cancel()
        for listener in self.sockets:
            self._loop.remove_reader(listener)
            listener.close()
        for task in self._handshakes:
            task.cancel()

    def _resume(self) -> None:
        for listener in self.sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def _pause(self) -> None:
        for listener in self.sockets:
            self._loop.remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        while len(self._handshakes) < self._handshakes_max:
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                log.error("accept_failed", error=str(exc))
                self._pause()
                self._rest = self._loop.call_later(REST_S, self._resume)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._shake_hands(connection, address[0]))
            self._handshakes.add(task)
            task.add_done_callback(self._on_handshake_over)
        self._pause()

    def _on_handshake_over(self, task: asyncio.Task[None]) -> None:
        if len(self._handshakes) == self._handshakes_max and self.sockets[0].fileno() >= 0:
            self._resume()
        self._handshakes.discard(task)

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                if not await self._says_something(connection):
                    return
                await self._loop.connect_accepted_socket(self._make, connection, ssl=self._tls)
        except ssl.SSLError as exc:
            self._tell(address, tls_problem(exc))
        except TimeoutError:
            self._tell(address, f"it has not finished the handshake within {HANDSHAKE_TIMEOUT_S:g} s")
        except OSError:  # TLS would have it say why before it leaves, and asyncio does not let it
            why = "as a supd does whose fleet key differs from ours, or one that ended just then"
            self._tell(address, f"it left during the handshake, {why}")

    async def _says_something(self, connection: socket.socket) -> bool:
        """Wait for the first byte. Who leaves without one, or waits for ours, has only had a look at the port."""
        is_readable = self._loop.create_future()
        self._loop.add_reader(connection, _resolve, is_readable)
        speaks = False
        try:
            await is_readable
            speaks = bool(connection.recv(1, socket.MSG_PEEK))
        except OSError:
            pass
        finally:
            self._loop.remove_reader(connection)
            if not speaks:
                connection.close()
        return speaks

    def _tell(self, address: str, error: str) -> None:
        if self._seldom.is_due(address):
            log.warning("handshake_failed", peer=address, error=error)


async def listen(
    host: str,
    port: int,
    tls: ssl.SSLContext,
    make: Callable[[], asyncio.Protocol],
    *,
    handshakes_max: int = HANDSHAKES_MAX,
) -> TlsServer:
    """Listen on every address of a host, on all interfaces with ""; whoever gets in is handed to a protocol of `make`.
    Port 0 is any that is free, the same one for all addresses.

    Raises OSError where that cannot be, socket.gaierror where the host is not known.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    tries_left = PORT_TRIES
    while True:
        tries_left -= 1
        try:
            return TlsServer(_listeners(host, port, list(dict.fromkeys(found))), tls, make, handshakes_max)
        except OSError as exc:
            if port or exc.errno != errno.EADDRINUSE or not tries_left:
                raise


def _listeners(host: str, port: int, found: list[Any]) -> list[socket.socket]:
    """One for each of the addresses that getaddrinfo has found. Raises OSError."""
    with contextlib.ExitStack() as undo:
        sockets: list[socket.socket] = []
        for family, _, _, _, (address, _, *rest) in found:
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
                undo.callback(listener.close)
                _listen_at(listener, (address, sockets[0].getsockname()[1] if sockets else port, *rest))
            except OSError as exc:
                if host or family != socket.AF_INET6 or exc.errno not in NO_IPV6:
                    raise
            else:
                sockets.append(listener)
        undo.pop_all()
    return sockets


def _listen_at(listener: socket.socket, address: Any) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
    listener.bind(address)
    listener.listen(BACKLOG)
    listener.setblocking(False)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
