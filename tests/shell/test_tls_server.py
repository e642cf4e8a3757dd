"""supervisor/shell/tls_server.py: who does not get in is told, in one line on both sides."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import structlog

from supervisor.shell import tls_server
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import client_context, server_context, tls_problem
from supervisor.shell.tls_server import TlsServer, listen

TIMEOUT_S = 20.0


class Greeter(asyncio.Protocol):
    """Greets whoever gets in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(b"hello")


def pem(folder: Path, name: str = "ours") -> Path:
    path = folder / f"{name}.pem"
    write_once(str(path), credential())
    return path


@contextlib.asynccontextmanager
async def serving(path: Path, host: str = "127.0.0.1", **more: int) -> AsyncIterator[TlsServer]:
    """A server; nothing may go to the loop's exception handler, which would write a traceback."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    server = await listen(host, 0, server_context(path), Greeter, **more)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield server
    finally:
        server.close()
    assert told == []


def port_of(server: TlsServer) -> int:
    return int(server.sockets[0].getsockname()[1])


async def greeting(server: TlsServer, tls: ssl.SSLContext, host: str = "127.0.0.1") -> bytes:
    reader, writer = await asyncio.open_connection(host, port_of(server), ssl=tls, server_hostname="")
    try:
        return await reader.read(len(b"hello"))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def told(log: list[structlog.typing.EventDict]) -> str:
    """The one thing that the server says of a handshake."""
    while not log:  # noqa: ASYNC110  # a log has no event to wait for
        await asyncio.sleep(0.01)
    (line,) = log
    assert (line["event"], line["log_level"], line["peer"]) == ("handshake_failed", "warning", "127.0.0.1")
    return str(line["error"])


def stranger() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


async def test_who_holds_the_credential_gets_in_and_nothing_is_told(short_dir: Path) -> None:
    path = pem(short_dir)
    with structlog.testing.capture_logs() as log:
        async with serving(path) as server:
            assert [await greeting(server, client_context(path)) for _ in range(3)] == [b"hello"] * 3
    assert log == []


async def test_another_fleets_key_is_told_on_both_sides(short_dir: Path) -> None:
    theirs = pem(short_dir, "theirs")
    with structlog.testing.capture_logs() as log:
        async with serving(pem(short_dir)) as server:
            with pytest.raises(ssl.SSLError) as caught:
                await greeting(server, client_context(theirs))
            assert tls_problem(caught.value) == (
                "its fleet key differs from ours: compare them by `supd fleet key show`"
            )
            assert "fleet key differs from ours" in await told(log)


async def test_the_server_sees_a_wrong_key_by_itself(short_dir: Path) -> None:
    trusting = client_context(pem(short_dir, "theirs"))
    trusting.verify_mode = ssl.CERT_NONE
    with structlog.testing.capture_logs() as log:
        async with serving(pem(short_dir)) as server:
            with contextlib.suppress(OSError):
                assert await greeting(server, trusting) == b""
            assert await told(log) == "its fleet key differs from ours: compare them by `supd fleet key show`"


async def test_who_has_no_key_is_told(short_dir: Path) -> None:
    with structlog.testing.capture_logs() as log:
        async with serving(pem(short_dir)) as server:
            with contextlib.suppress(OSError):
                assert await greeting(server, stranger()) == b""
            assert await told(log) == "it has no fleet key"


async def test_an_old_tls_is_told(short_dir: Path) -> None:
    old = client_context(pem(short_dir))
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with structlog.testing.capture_logs() as log:
        async with serving(short_dir / "ours.pem") as server:
            with contextlib.suppress(OSError):
                assert await greeting(server, old) == b""
            assert await told(log) == "its TLS is older than 1.3"


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\0\0\0\x05abcde"])
async def test_plain_text_is_told(short_dir: Path, words: bytes) -> None:
    with structlog.testing.capture_logs() as log:
        async with serving(pem(short_dir)) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            writer.write(words)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            assert await told(log) == "it does not speak TLS"


async def test_a_server_that_is_no_supd_is_told_by_the_client(short_dir: Path) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        with pytest.raises(ssl.SSLError) as caught:
            await asyncio.open_connection(*listener.sockets[0].getsockname(), ssl=client_context(pem(short_dir)))
        assert tls_problem(caught.value) == "it does not speak TLS"
    finally:
        listener.close()


async def test_a_look_at_the_port_is_nothing_to_tell(short_dir: Path) -> None:
    path = pem(short_dir)
    with structlog.testing.capture_logs() as log:
        async with serving(path) as server:
            for _ in range(5):
                socket.create_connection(("127.0.0.1", port_of(server)), TIMEOUT_S).close()
            assert await greeting(server, client_context(path)) == b"hello"
    assert log == []


async def test_who_does_not_finish_the_handshake_is_left(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_TIMEOUT_S", 0.2)
    with structlog.testing.capture_logs() as log:
        async with serving(pem(short_dir)) as server:
            silent, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            assert await silent.read() == b""
            writer.close()
            assert "has not finished the handshake" in await told(log)


async def test_one_address_is_told_once_in_a_while(short_dir: Path) -> None:
    with structlog.testing.capture_logs() as log:
        async with serving(pem(short_dir)) as server:
            for _ in range(3):
                with contextlib.suppress(OSError):
                    await greeting(server, stranger())
            await told(log)
            assert await greeting(server, client_context(short_dir / "ours.pem")) == b"hello"
    assert len(log) == 1


async def test_more_handshakes_than_may_be_at_a_time_wait_their_turn(short_dir: Path) -> None:
    path = pem(short_dir)
    async with serving(path, handshakes_max=2) as server:
        silent = [await asyncio.open_connection("127.0.0.1", port_of(server)) for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(greeting(server, client_context(path))) for _ in range(5)]
            done, _ = await asyncio.wait(waiting, timeout=0.2)
            assert done == set()
            silent[0][1].close()
        assert [task.result() for task in waiting] == [b"hello"] * 5
        silent[1][1].close()


async def test_where_no_descriptor_is_left_connections_wait_and_that_is_told(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pem(short_dir)
    monkeypatch.setattr(tls_server, "REST_S", 0.05)
    with structlog.testing.capture_logs() as log:
        async with serving(path) as server:
            ours = client_context(path)
            listener = server.sockets[0]
            without = OutOfDescriptors(listener)
            server._accept(without)  # type: ignore[arg-type]  # the kernel's answer cannot be had for the asking
            assert await greeting(server, ours) == b"hello"
    assert [line["event"] for line in log] == ["accept_failed"]


class OutOfDescriptors:
    """A listening socket of a process that has no descriptor left."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener

    def accept(self) -> None:
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_port_that_is_taken_and_a_host_that_is_unknown_are_errors(short_dir: Path) -> None:
    tls = server_context(pem(short_dir))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        await listen("127.0.0.1", taken.getsockname()[1], tls, Greeter)
    with pytest.raises(socket.gaierror):
        await listen("no-such-host.invalid", 0, tls, Greeter)


async def test_all_interfaces_are_those_of_both_families_where_there_are_both(short_dir: Path) -> None:
    path = pem(short_dir)
    async with serving(path, "") as server:
        assert server.sockets[0].family == socket.AF_INET
        assert await greeting(server, client_context(path)) == b"hello"
        assert len({listener.family for listener in server.sockets}) == len(server.sockets)
        assert len({listener.getsockname()[1] for listener in server.sockets}) == 1, "a node tells one port of its own"


async def test_after_its_end_nobody_gets_in(short_dir: Path) -> None:
    path = pem(short_dir)
    async with serving(path) as server:
        port = port_of(server)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
