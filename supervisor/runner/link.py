"""The runner's line to the coordinator: finds it, says who we are, and comes back for as long as it takes."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from protocol.errors import RemoteProtocolError
from protocol.ids import may_be_epoch
from protocol.job import Job
from protocol.messages import encode
from protocol.messages.member import (
    Answer,
    AnswerFor,
    Hello,
    JobTold,
    JobWanted,
    Question,
    Rejected,
    Renewal,
    RenewalOf,
    Testimony,
    Welcome,
    decode_to_runner,
)
from protocol.versions import VERSIONS
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s
from supervisor.shell.files import read_small

log = structlog.get_logger()

RETRY_S = 0.5
"""Longest wait between two attempts; jittered, so that a fleet does not come back in step."""

CONNECT_TIMEOUT_S = 5.0

PLACE_MAX_BYTES = 1000
READ_TIMEOUT_S = 1.0

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
        on_answer_for: Callable[[AnswerFor], None],
        on_question: Callable[[Question], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._hello = hello
        self._file = coordinator_file
        self._tls = tls
        self._on_welcome = on_welcome
        self._on_answer = on_answer
        self._on_answer_for = on_answer_for
        self._on_question = on_question
        self._on_lost = on_lost
        self._channel: Channel | None = None
        self._is_welcome = False
        self._job: Job | None = None
        self._epoch = 0  # the highest that was heard of
        self._answered_s: float | None = None  # when its coordinator has last answered, by whichever way
        self._heard_s = 0.0
        self._place: bytes | None = None  # where the coordinator is
        self._reading: asyncio.Future[bytes | None] | None = None

    def send(self, message: Renewal | RenewalOf | Testimony) -> None:
        """Send it if there is anybody to hear it; the next one says it again. What others want to have passed on does
        not pile up before what we have to say ourselves."""
        if self._channel is None or not self._is_welcome:
            return
        if self._channel.is_drained or not isinstance(message, RenewalOf):
            self._channel.send(encode(message))

    def heed(self, answer: Answer) -> bool:
        """Take note of an answer that a witness has passed on. False: its coordinator has been replaced, and counts no
        more, or there cannot be one of that epoch: by such a lie we would lose our own."""
        if answer.epoch < self._epoch or not may_be_epoch(answer.epoch, self._epoch):
            return False
        self._see_answer(answer)
        return True

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
        try:
            while (left_s := self._heard_s + SILENT_S - boot_s()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await channel.closed.wait()
                        return
            channel.abort(f"it has answered nothing for {SILENT_S:g} s")
        finally:
            channel.abort("")

    async def _connect(self) -> Channel:
        content = await self._read_place()
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

    async def _read_place(self) -> bytes | None:
        """What the file says; where the disk hangs, what it said last. It has one thread of ours at the most."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().run_in_executor(None, read_small, self._file, PLACE_MAX_BYTES)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                self._place = await asyncio.shield(self._reading)
        return self._place

    def _on_open(self, channel: Channel) -> None:
        self._channel, self._is_welcome = channel, False
        answered_s = None if self._answered_s is None else boot_s() - self._answered_s
        channel.send(encode(msgspec.structs.replace(self._hello, epoch=self._epoch, answered_s=answered_s)))

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        self._heard_s = boot_s()
        match decode_to_runner(payload):
            case Welcome() as welcome:
                self._check_version(welcome.version)
                self._see_epoch(welcome.epoch)
                self._is_welcome, self._job = True, welcome.job
                self._on_welcome(welcome)
            case JobWanted(version=version, epoch=epoch):
                self._check_version(version)
                self._see_epoch(epoch)
                if self._job is not None:  # else it has to hear of it from another runner
                    channel.send(encode(JobTold(job=self._job)))
            case Answer() as answer:
                self._see_answer(answer)
                self._on_answer(answer)
            case AnswerFor() as passed:
                self._see_epoch(passed.answer.epoch)
                self._on_answer_for(passed)
            case Question() as question:
                self._see_epoch(question.epoch)
                self._on_question(question)
            case Rejected(reason=reason):
                log.warning("coordinator_rejected_us", reason=reason)
                channel.close()

    def _check_version(self, version: int) -> None:
        if version not in VERSIONS:
            raise RemoteProtocolError(f"the coordinator speaks version {version}")

    def _see_epoch(self, epoch: int) -> None:
        """A coordinator that has been replaced has nothing to say any more."""
        if epoch < self._epoch:
            raise RemoteProtocolError(f"epoch {epoch} after {self._epoch}")
        if epoch > self._epoch:
            self._epoch, self._answered_s = epoch, None

    def _see_answer(self, answer: Answer) -> None:
        self._see_epoch(answer.epoch)
        self._answered_s = boot_s()

    def _on_closed(self, channel: Channel) -> None:
        if self._channel is channel:
            self._channel, self._is_welcome = None, False
            self._on_lost()
