"""The runners that talk to the coordinator: one connection each.

    Hello ──its run is known──▶ Welcome ──▶ renewals, its own and those it passes on; testimonies
      └── it is not ──▶ JobWanted ──▶ JobTold ──checked, and in the journal──▶ Welcome

A runner that has heard of a coordinator of our epoch or a later one, and not from us, waits until ours is above that.
"""

import asyncio
from collections.abc import Iterator

import structlog

from protocol import coordinator_events as c
from protocol.dataclass import dataclass
from protocol.errors import Refused, RemoteProtocolError
from protocol.ids import may_be_epoch
from protocol.job import Job
from protocol.job_told import flaw_of
from protocol.messages import encode
from protocol.messages.fleet import NODES_MAX
from protocol.messages.member import (
    Hello,
    JobTold,
    JobWanted,
    Renewal,
    RenewalOf,
    Testimony,
    ToCoordinator,
    Welcome,
    decode_to_coordinator,
)
from protocol.versions import VERSIONS, agreed
from supervisor.daemon.door import Door
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import DiskTrouble
from supervisor.daemon.run import Run, check_size
from supervisor.shell.channel import Channel

log = structlog.get_logger()

WAITING_MAX = 2 * NODES_MAX
"""Runners that wait for the journal; more are let go, and come again."""

JOBS_WAITING_MAX = 16
"""Jobs that runners have told and that wait there; each may have 8 MiB."""


class _Unfit(Exception):
    """What a runner has told cannot be so."""


@dataclass(frozen=False)
class _Guest:
    """A connection of a runner."""

    hello: Hello
    version: int
    run: Run | None = None  # None: it is not welcome yet
    is_asked: bool = False  # for its job, which it has not told yet


class Members:
    """Hears runners. Who one is comes from its first message and stays so for as long as it is connected."""

    def __init__(self, jobs: Jobs, door: Door) -> None:
        self._jobs = jobs
        self._door = door
        self._guests: dict[Channel, _Guest] = {}
        self._waiting: asyncio.Queue[tuple[Channel, Hello, Job | None]] = asyncio.Queue(WAITING_MAX)
        self._told: set[str] = set()  # runs whose job waits there

    async def run(self) -> None:
        """See to those that have to wait for the journal, one by one, until cancelled."""
        while True:
            await self._see_to(*await self._waiting.get())

    def take(self, channel: Channel, hello: Hello) -> None:
        """A connection that began with `hello`."""
        version = agreed(hello.versions)
        if version is None:
            self._door.reject(channel, f"this supd speaks versions {VERSIONS}, the runner {hello.versions}")
        elif not may_be_epoch(hello.epoch, self._jobs.epoch):
            self._door.reject(channel, f"there is no epoch {hello.epoch}")
        else:
            self._guests[channel] = _Guest(hello, version)
            channel.hand_over(self._on_frame, self._on_closed)
            if self._is_ahead(hello):
                self._wait(channel, hello)
            else:
                self._greet(channel)

    # --- on the way in -------------------------------------------------------------------------------------------

    def _is_ahead(self, hello: Hello) -> bool:
        """Whether it has heard of another coordinator than this one, which has counted as far."""
        ours = self._jobs.epoch
        return hello.epoch > ours or (hello.epoch == ours and not self._jobs.has_greeted(hello.incarnation))

    def _wait(self, channel: Channel, hello: Hello, job: Job | None = None) -> None:
        """Of the many runners of a run that all tell its job, the first one is enough."""
        if job is not None and job.run not in self._told and len(self._told) >= JOBS_WAITING_MAX:
            channel.abort("too many jobs wait at once")
            return
        try:
            self._waiting.put_nowait((channel, hello, None if job is None or job.run in self._told else job))
        except asyncio.QueueFull:
            channel.abort("too many wait at once")
            return
        if job is not None:
            self._told.add(job.run)

    async def _see_to(self, channel: Channel, hello: Hello, job: Job | None) -> None:
        try:
            if self._is_ahead(hello):
                await self._jobs.raise_epoch(hello.epoch)
            if job is not None:
                await self._take_over(job, hello.node)
        except (_Unfit, DiskTrouble) as exc:
            if channel in self._guests:
                self._door.reject(channel, str(exc))
        else:
            waits = {channel} if job is None else {channel, *self._of_run(job.run)}
            for each in waits & self._guests.keys():  # it may have gone meanwhile
                if self._guests[each].run is None:
                    self._greet(each)
        finally:
            if job is not None:
                self._told.discard(job.run)

    def _of_run(self, run: str) -> Iterator[Channel]:
        """Who waits for this run to be known: also those that have never heard of their job."""
        for channel, guest in self._guests.items():
            if guest.run is None and guest.hello.run == run and not self._is_ahead(guest.hello):
                yield channel

    def _greet(self, channel: Channel) -> None:
        """Welcome it, or ask it for its job."""
        guest = self._guests[channel]
        hello, epoch = guest.hello, self._jobs.epoch
        self._jobs.greet(hello.incarnation)
        guest.run = run = self._jobs.runs.get(hello.run)
        if run is None:
            guest.is_asked = True
            channel.send(encode(JobWanted(version=guest.version, epoch=epoch)))
            return
        channel.send(encode(Welcome(version=guest.version, epoch=epoch, job=run.job)))
        self._jobs.on_runner_linked(run, hello.incarnation, channel)
        log.info("runner_linked", run=hello.run, node=hello.node, incarnation=hello.incarnation)

    async def _take_over(self, job: Job, node: str) -> None:
        """Put a run into the journal that we know nothing of. Raises _Unfit, and Refused as `Jobs.accept`."""
        if job.run in self._jobs.runs:
            return
        if flaw := await asyncio.to_thread(flaw_of, job):  # a large one takes a second
            raise _Unfit(f"the job of {job.run} cannot be taken over: {flaw}")
        try:
            check_size(job)
        except Refused as exc:
            raise _Unfit(str(exc)) from None
        note = c.Note("job.taken_over", "the coordinator had no memory of it", None, {"node": node})
        if await self._jobs.accept(job.run, job, note, is_told=True) != job.run:
            raise _Unfit(f"{job.run} is the name of a request")

    # --- what is heard -------------------------------------------------------------------------------------------

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        guest, message = self._guests[channel], decode_to_coordinator(payload)
        if guest.run is None:
            self._on_early(channel, guest, message)
            return
        node, incarnation = guest.hello.node, guest.hello.incarnation
        match message:
            case Renewal():
                self._jobs.on_runner_heard(guest.run, node, incarnation, message)
            case RenewalOf(node=other_node, incarnation=other, renewal=renewal):
                self._jobs.on_runner_heard(guest.run, other_node, other, renewal, via=incarnation)
            case Testimony():
                self._jobs.on_testimony(guest.run, node, incarnation, message)
            case Hello():
                raise RemoteProtocolError("a second hello")
            case JobTold():
                raise RemoteProtocolError("a job that was not asked for")

    def _on_early(self, channel: Channel, guest: _Guest, message: ToCoordinator) -> None:
        """It is not welcome yet. What it says of itself it says again when it is."""
        match message:
            case JobTold(job=job):
                if not guest.is_asked or job.run != guest.hello.run:
                    raise RemoteProtocolError("a job that was not asked for")
                guest.is_asked = False
                self._wait(channel, guest.hello, job)
            case Hello():
                raise RemoteProtocolError("a second hello")
            case Renewal() | RenewalOf() | Testimony():
                pass

    def _on_closed(self, channel: Channel) -> None:
        guest = self._guests.pop(channel)
        if guest.run is not None:
            self._jobs.on_runner_unlinked(guest.run, guest.hello.node, guest.hello.incarnation, channel)
