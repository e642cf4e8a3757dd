"""supervisor/shell/tls.py and make_credential.py: one file is the fleet."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from protocol.errors import Refused
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import client_context, ensure_credential, server_context

TIMEOUT_S = 20.0


def made(path: Path) -> Path:
    write_once(str(path), credential())
    return path


async def greet(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """What a client gets to read from a server that greets whoever it trusts: nothing, for all others."""

    async def on_client(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    listener = await asyncio.start_server(on_client, "127.0.0.1", 0, ssl=server)
    host, port = listener.sockets[0].getsockname()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=client)
            try:
                return await reader.read(100)
            finally:
                writer.close()
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        listener.close()


def test_a_credential_is_made_once_and_for_its_owner_alone(short_dir: Path) -> None:
    path = short_dir / "fleet.pem"
    ensure_credential(path)
    first = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.count(b"-----BEGIN") == 2
    ensure_credential(path)
    write_once(str(path), credential())
    assert path.read_bytes() == first
    assert os.listdir(short_dir) == ["fleet.pem"]


def test_a_credential_that_others_can_read_is_refused(short_dir: Path) -> None:
    path = made(short_dir / "fleet.pem")
    path.chmod(0o640)
    with pytest.raises(Refused, match="can be read by others") as caught:
        ensure_credential(path)
    assert caught.value.hint == f"chmod 600 {path}"
    path.write_text("root:x:0:0\n")
    with pytest.raises(Refused, match="can be read by others") as caught:
        ensure_credential(path)
    assert caught.value.hint.startswith("name another in supd.toml")


def test_a_credential_that_cannot_be_made_is_told_with_the_reason(short_dir: Path) -> None:
    with pytest.raises(Refused, match="No such file or directory"):
        ensure_credential(short_dir / "missing" / "fleet.pem")


@pytest.mark.parametrize("content", [b"", b"no credential\n", credential()[:300]])
def test_a_file_that_is_no_credential_is_refused(short_dir: Path, content: bytes) -> None:
    path = short_dir / "fleet.pem"
    path.write_bytes(content)
    with pytest.raises(Refused, match="is no credential"):
        server_context(path)
    with pytest.raises(Refused, match="is no credential"):
        client_context(path)


async def test_who_holds_the_credential_belongs_to_the_fleet(short_dir: Path) -> None:
    path = made(short_dir / "fleet.pem")
    assert await greet(server_context(path), client_context(path)) == b"hello"


async def test_another_fleets_credential_is_refused_by_both_sides(short_dir: Path) -> None:
    ours, theirs = made(short_dir / "ours.pem"), made(short_dir / "theirs.pem")
    assert await greet(server_context(ours), client_context(theirs)) == b""
    trusting = client_context(theirs)  # does not mind whom it talks to: the server does
    trusting.verify_mode = ssl.CERT_NONE
    assert await greet(server_context(ours), trusting) == b""
    gullible = server_context(ours)  # and the other way round
    gullible.verify_mode = ssl.CERT_NONE
    assert await greet(gullible, client_context(theirs)) == b""


async def test_nobody_gets_in_without_a_credential_or_with_an_old_tls(short_dir: Path) -> None:
    ours = made(short_dir / "ours.pem")
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    assert await greet(server_context(ours), anonymous) == b""
    old = client_context(ours)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    assert await greet(server_context(ours), old) == b""
