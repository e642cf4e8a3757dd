"""A whole supd inside the test's own loop: real journal, sockets, runners. And a client that does as it likes."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.framing import FrameDecoder, encode_frame
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Greeting,
    Request,
    StopRun,
    decode_greeting,
    decode_reply,
)
from supervisor.daemon.app import NO_WORD, prepare, serve
from supervisor.daemon.leadership import Word
from supervisor.shell.config import Config, load_config

TIMEOUT_S = 60.0


def config_in(folder: Path, **changed: Any) -> Config:
    """Everything below `folder`, any free port, no runner kept ready, and none that outlives a killed test for long."""
    config = load_config(None, {}, dev_dir=folder / "supd")
    return replace(config, ready_runners=0, orphan_wait_s=TIMEOUT_S, linger_s=1.0, **changed)


async def wait_for(what: str, look: Callable[[], object]) -> None:
    """Look again and again until it is so; fails after TIMEOUT_S."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not look():  # noqa: ASYNC110  # files and processes ring no bell
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {TIMEOUT_S:g} s for {what}") from None


def _answers(control: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(control)) == 0


@contextlib.asynccontextmanager
async def serving(config: Config, word: Word = NO_WORD) -> AsyncIterator[None]:
    """supd from its first answer to its end. Its runs are stopped before, also where the test fails."""
    lock = prepare(config)
    stop = asyncio.Event()
    runners = config.state_dir / "runners"
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(config, stop, word), name="supd")
            await wait_for("supd to listen", lambda: _answers(config.control))
            try:
                yield
            finally:
                await ask(config.control, StopRun(all_runs=True, now=True))
                await wait_for("all runners to be gone", lambda: not os.listdir(runners))
                stop.set()
    finally:
        os.close(lock)


class Client:
    """One connection to the control socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[bytes] = []

    @classmethod
    async def connect(cls, control: Path) -> "Client":
        return cls(*await asyncio.open_unix_connection(control))

    def say(self, *messages: object) -> None:
        for message in messages:
            self.writer.write(encode_frame(encode(message)))

    async def frame(self) -> bytes | None:
        """The next frame; None once the connection has ended."""
        while not self._frames:
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def close(self) -> None:
        """Go away at once; what was not sent yet is not."""
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def drop_in(control: Path, data: bytes) -> None:
    """Send something, and be gone before anybody has looked at it."""
    with socket.socket(socket.AF_UNIX) as passing:
        passing.connect(os.fspath(control))
        passing.sendall(data)


@contextlib.asynccontextmanager
async def talking(control: Path, request: Request | None = None) -> AsyncIterator[Client]:
    """A client that has greeted (and asked)."""
    client = await Client.connect(control)
    try:
        client.say(Greeting(control_version=CONTROL_VERSION, supd_version="test"))
        if request is not None:
            client.say(request)
        greeting = await client.frame()
        assert greeting is not None
        decode_greeting(greeting)
        yield client
    finally:
        await client.close()


async def ask(control: Path, request: Request) -> ControlReply:
    """The last reply to a request."""
    async with talking(control, request) as client:
        replies = []
        while (payload := await client.frame()) is not None:
            replies.append(decode_reply(payload))
        return replies[-1]
