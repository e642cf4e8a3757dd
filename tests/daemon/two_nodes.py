"""A fleet of two whole supd inside the test's own loop, on two addresses of loopback."""

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from protocol.addresses import JoinEntry
from protocol.messages.control import GetNodes, Nodes
from supervisor.shell.config import Config
from tests.daemon.serving import ask, config_in, serving

HOST, OTHER = "127.0.0.2", "127.0.0.3"


def free_port() -> int:
    """A port that is free on both addresses, a moment ago at least."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind((HOST, 0))
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError):
                two.bind((OTHER, port))
                return port


def config_of(folder: Path, node: str, address: str, port: int) -> Config:
    """A node of a fleet that is hosted at HOST, with the fleet's credential in `folder`."""
    entry = JoinEntry(HOST, port, f"{HOST}:{port}")
    return config_in(
        folder / node, node=node, peer=(address, port), peer_is_default=False, join=(entry,), credential=folder / "pem"
    )


@contextlib.asynccontextmanager
async def two_nodes(folder: Path, **changed: object) -> AsyncIterator[tuple[Config, Config]]:
    """The configurations of `a`, which hosts, and `b` (with what is `changed`), once `b` is taken in."""
    port = free_port()
    a, b = config_of(folder, "a", HOST, port), config_of(folder, "b", OTHER, port)
    b = replace(b, **changed)  # type: ignore[arg-type]
    async with serving(a), serving(b):
        while True:
            nodes = await ask(a.control, GetNodes())
            assert isinstance(nodes, Nodes), nodes
            if "b" in [node.node for node in nodes.nodes if node.state != "unreachable"]:
                break
        yield a, b
