"""The coordinator's door for runners: TCP, mutual TLS, one connection a runner."""

import asyncio
import ssl
from dataclasses import dataclass

import structlog

from protocol.errors import RemoteProtocolError
from protocol.messages import encode
from protocol.messages.member import Hello, Rejected, Renewal, Welcome, decode_to_coordinator
from protocol.versions import VERSIONS, agreed
from supervisor.daemon.jobs import Jobs, Run
from supervisor.shell.channel import Channel

log = structlog.get_logger()

HELLO_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 4096


@dataclass
class _Guest:
    """A connection, and who it is once it has said so."""

    timer: asyncio.TimerHandle
    run: Run | None = None
    node: str = ""
    incarnation: str = ""


class Members:
    """Hears runners. Who one is comes from its first message and stays so for as long as it is connected."""

    def __init__(self, jobs: Jobs, fleet: str, node: str) -> None:
        self._jobs = jobs
        self._fleet = fleet
        self._node = node
        self._guests: dict[Channel, _Guest] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext) -> asyncio.Server:
        """Begin to listen; raises OSError where the port is taken."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: Channel(self._on_open, self._on_frame, self._on_closed),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=HELLO_TIMEOUT_S,
            backlog=CONNECTIONS_MAX,
        )

    def close(self) -> None:
        """Let go of everybody; they come back to the next supd."""
        for channel in list(self._guests):
            channel.abort("supd ends")

    def _on_open(self, channel: Channel) -> None:
        if len(self._guests) >= CONNECTIONS_MAX:
            channel.abort("too many connections")
            return
        timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._on_silent, channel)
        self._guests[channel] = _Guest(timer)

    def _on_silent(self, channel: Channel) -> None:
        channel.abort("said nothing")

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        guest = self._guests[channel]
        message = decode_to_coordinator(payload)
        match message:
            case Hello():
                if guest.run is not None:
                    raise RemoteProtocolError("a second hello")
                self._on_hello(channel, guest, message)
            case Renewal():
                if guest.run is None:
                    raise RemoteProtocolError("a renewal before the hello")
                self._jobs.on_runner_heard(guest.run, guest.node, guest.incarnation, message)

    def _on_hello(self, channel: Channel, guest: _Guest, hello: Hello) -> None:
        guest.timer.cancel()
        version = agreed(hello.versions)
        run = self._jobs.runs.get(hello.run)
        if version is None:
            refusal = f"this supd speaks versions {VERSIONS}, the runner {hello.versions}"
        elif hello.fleet != self._fleet:
            refusal = f"this is fleet {self._fleet}, not {hello.fleet}"
        elif run is None:
            refusal = f"run {hello.run} is not known here"
        else:
            guest.run, guest.node, guest.incarnation = run, hello.node, hello.incarnation
            channel.send(encode(Welcome(version=version, epoch=self._jobs.epoch, job=run.job)))
            self._jobs.on_runner_linked(run, hello.incarnation, channel)
            log.info("runner_linked", run=hello.run, node=hello.node, incarnation=hello.incarnation)
            return
        # Never final: a healthy run is not ended because its coordinator has lost its memory (R6).
        log.warning("runner_rejected", reason=refusal, peer=channel.peer_address())
        channel.send(encode(Rejected(reason=refusal)))
        channel.close()

    def _on_closed(self, channel: Channel) -> None:
        guest = self._guests.pop(channel, None)
        if guest is None:
            return
        guest.timer.cancel()
        if channel.error:
            log.warning("connection_refused", peer=channel.peer_address(), error=channel.error)
        if guest.run is not None:
            self._jobs.on_runner_unlinked(guest.run, guest.incarnation, channel)
