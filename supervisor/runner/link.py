"""The runner's line to the coordinator: finds it, says who we are, and comes back for as long as it takes."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from pathlib import Path

import structlog

from protocol.errors import RemoteProtocolError
from protocol.messages import encode
from protocol.messages.member import Answer, Hello, Rejected, Renewal, Welcome, decode_to_runner
from protocol.versions import VERSIONS
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s
from supervisor.shell.files import read_small

log = structlog.get_logger()

RETRY_S = 0.5
"""Longest wait between two attempts; jittered, so that a fleet does not come back in step."""

CONNECT_TIMEOUT_S = 5.0

UNRECEIVED_S = 5.0
"""A renewal goes out every second. Where the network takes none for so long the connection is given up: TCP would try
ever more seldom, and so tens of seconds after the network is whole again; a new connection is there at once."""

SILENT_S = 10.0
"""Each renewal is answered. After so long without an answer the connection is given up as well, whatever holds it up: a
longer time, since a coordinator that is held up itself must not have all runners come anew meanwhile."""


class Link:
    """Keeps one connection to the coordinator; only the newest one counts."""

    def __init__(
        self,
        hello: Hello,
        coordinator_file: Path,
        tls: ssl.SSLContext,
        *,
        on_welcome: Callable[[Welcome], None],
        on_answer: Callable[[Answer], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._hello = hello
        self._file = coordinator_file
        self._tls = tls
        self._on_welcome = on_welcome
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._channel: Channel | None = None
        self._is_welcome = False
        self._epoch = 0
        self._heard_s = 0.0

    def send(self, renewal: Renewal) -> None:
        """Send it if there is anybody to hear it; the next one says it again."""
        if self._channel is not None and self._is_welcome:
            self._channel.send(encode(renewal))

    async def run(self) -> None:
        """Connect, and reconnect, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    channel = await self._connect()
            except (OSError, TimeoutError, ValueError) as exc:
                log.debug("coordinator_missed", error=repr(exc))
            else:
                await self._serve(channel)
                log.info("coordinator_lost", error=channel.error)
            await asyncio.sleep(RETRY_S * (1 + random.random()) / 2)

    async def _serve(self, channel: Channel) -> None:
        """Until the connection is gone. That ends no rank: it is what a runner without a coordinator does (R6)."""
        channel.expect_receipt_within(UNRECEIVED_S)
        self._heard_s = boot_s()
        while (left_s := self._heard_s + SILENT_S - boot_s()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await channel.closed.wait()
                    return
        channel.abort(f"it has answered nothing for {SILENT_S:g} s")

    async def _connect(self) -> Channel:
        content = await asyncio.to_thread(read_small, self._file, 1000)
        if content is None:
            raise OSError(f"no {self._file}")
        host, _, port = content.decode().strip().rpartition(":")
        channel = Channel(self._on_open, self._on_frame, self._on_closed)
        await asyncio.get_running_loop().create_connection(
            lambda: channel,
            host.strip("[]"),
            int(port),
            ssl=self._tls,
            server_hostname="",  # it would be checked by nobody, and encoded with a table that takes long to load
        )
        return channel

    def _on_open(self, channel: Channel) -> None:
        self._channel, self._is_welcome = channel, False
        channel.send(encode(self._hello))

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        self._heard_s = boot_s()
        match decode_to_runner(payload):
            case Welcome() as welcome:
                if welcome.version not in VERSIONS:
                    raise RemoteProtocolError(f"the coordinator speaks version {welcome.version}")
                self._see_epoch(welcome.epoch)
                self._is_welcome = True
                self._on_welcome(welcome)
            case Answer() as answer:
                self._see_epoch(answer.epoch)
                self._on_answer(answer)
            case Rejected(reason=reason):
                log.warning("coordinator_rejected_us", reason=reason)
                channel.close()

    def _see_epoch(self, epoch: int) -> None:
        """A coordinator that has been replaced has nothing to say any more."""
        if epoch < self._epoch:
            raise RemoteProtocolError(f"epoch {epoch} after {self._epoch}")
        self._epoch = epoch

    def _on_closed(self, channel: Channel) -> None:
        if self._channel is channel:
            self._channel, self._is_welcome = None, False
            self._on_lost()
