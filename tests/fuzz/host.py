"""A whole supd, but for the wires: what peers and clients say to it, and whom it dials, is handed to it in memory."""

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.addresses import JoinEntry
from protocol.coordinator_events import RunRecord
from protocol.framing import FrameDecoder
from protocol.job import Job, JobSpec, RunTable, Submitter, TopologyTable
from supervisor.daemon.app import prepare, serve
from supervisor.daemon.journal import Journal
from supervisor.shell.config import Config
from supervisor.shell.make_credential import credential, write_once
from tests.daemon.serving import config_in, wait_for
from tests.e2e.fleet import free_port

NAME = "a"
JOIN = "host:29410"
RUNS = ("train@000001", "other@000002")
"""Runs of this supd; both are for other nodes only."""

UNKNOWN = "third@000003"
"""A run that it knows nothing of, unless a runner tells its job."""


class Wire(asyncio.Transport):
    """One connection: what supd writes is kept, what we say is read at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        extra: dict[str, Any],
        on_write: Callable[["Wire", bytes], None],
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._protocol = protocol
        self._on_write = on_write
        self._is_closing = False
        protocol.connection_made(self)

    def say(self, data: bytes) -> None:
        """What the other side sends; nothing happens once supd has closed."""
        if not self._is_closing:
            self._protocol.data_received(data)

    # --- what supd does with it ----------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        self._on_write(self, bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Loop(asyncio.SelectorEventLoop):
    """Keeps what serves a connection, so that wires can be made of it; where supd dials out, nodes answer in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.epoch = 0  # that a runner which behaves has heard of
        self.answer: Callable[[str, int, bytes], bytes] | None = None  # what a node there says to a frame
        self._factories: dict[str, Callable[[], asyncio.Protocol]] = {}
        self._tcp = socket.socket()
        self._unix, self._other = socket.socketpair()
        self.set_exception_handler(lambda _, context: self.errors.append(repr(context)))
        threading.excepthook = lambda what: self.errors.append(repr(what))

    async def connect_accepted_socket(self, factory: Any, sock: Any, **more: Any) -> Any:  # type: ignore[override]
        """The first knock shows what serves peers."""
        self._factories["peers"] = factory
        sock.close()

    async def create_unix_server(self, factory: Any, *args: Any, **more: Any) -> Any:  # type: ignore[override]
        self._factories["control"] = factory
        return await super().create_unix_server(factory, *args, **more)

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        host.encode("idna")  # as getaddrinfo does
        if self.answer is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        answer, decoder = self.answer, FrameDecoder()

        def on_write(wire: Wire, data: bytes) -> None:
            for payload in decoder.feed(data):
                self.call_soon(wire.say, answer(host, port, payload))

        return Wire(self, factory(), self._extra("peers"), on_write), None

    def is_open(self, door: str) -> bool:
        """Whether wires can be made of it."""
        return door in self._factories

    def wire(self, door: str, on_write: Callable[[Wire, bytes], None] = lambda wire, data: None) -> Wire:
        """A connection that has just been made, to "peers" or to "control"."""
        return Wire(self, self._factories[door](), self._extra(door), on_write)

    def _extra(self, door: str) -> dict[str, Any]:
        if door == "control":
            return {"socket": self._unix, "peername": ""}
        return {"socket": self._tcp, "peername": ("127.0.0.1", 4000), "sockname": ("127.0.0.1", 4001)}

    def close(self) -> None:
        threading.excepthook = threading.__excepthook__
        for one in (self._tcp, self._unix, self._other):
            one.close()
        super().close()


def config_of(folder: Path, *, is_host: bool) -> Config:
    """A node that hosts a fleet, or one that joins another's."""
    port = free_port(["127.0.0.1"])
    join = (JoinEntry("127.0.0.1", port if is_host else 1, JOIN),)
    config = config_in(folder)
    config.credential.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_once(str(config.credential), credential())
    return replace(config, node=NAME, peer=("127.0.0.1", port), peer_is_default=False, join=join)


async def add_runs(config: Config) -> None:
    """Runs that are for other nodes, as if they had been started before."""
    journal = Journal(config.state_dir / "journal.db")
    try:
        for run in RUNS:
            await journal.add_run(run, elsewhere(run), RunRecord(), 0.0)
    finally:
        journal.close()


def elsewhere(run: str) -> Job:
    """The job of a run that is for other nodes only."""
    topology = TopologyTable(nnodes=(1, 2), nproc_per_node=2, exclude=(NAME,))
    return submitted(JobSpec(name=run.partition("@")[0], run=RunTable(script="t.py"), topology=topology), run)


def submitted(spec: JobSpec, run: str) -> Job:
    """The job as somebody has started it."""
    submitter = Submitter(folder="/", source="j.toml", python="python3", env={}, limits={}, umask=0o22, user="me")
    return Job(run=run, spec=spec, submitter=submitter)


@contextlib.asynccontextmanager
async def serving_in_memory(folder: Path, *, is_host: bool = True) -> AsyncIterator[Loop]:
    """The supd from its first answer to its end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    config = config_of(folder, is_host=is_host)
    lock, stop = prepare(config), asyncio.Event()
    try:
        if is_host:
            await add_runs(config)
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(config, stop), name="supd")
            await wait_for("supd to listen for clients", lambda: loop.is_open("control"))
            with socket.create_connection(config.peer) as knock:
                knock.send(b"?")
                await wait_for("supd to listen for peers", lambda: loop.is_open("peers"))
            try:
                yield loop
            finally:
                stop.set()
    finally:
        os.close(lock)
