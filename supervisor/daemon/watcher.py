"""One client that watches a run: its events, its state at each change, its output."""

import asyncio
import contextlib
from collections import deque

from protocol.messages import encode
from protocol.messages.control import ControlReply, End, EventRecord, LogChunk, LogSelection, Statuses, Watch
from supervisor.daemon import logs_service
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import EVENTS_A_READ_MAX, Journal
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s

SNAPSHOT_S = 2.0
"""Any wait longer than this is told (ux: "say what you wait for"): what a run waits for may change with time alone."""


class Watcher(logs_service.Between):
    """Sends one client what happens to a run. Events stand between the lines of the output at their place in time; a
    snapshot comes behind the events that were there before it, so that the outcome is the last thing that is seen."""

    def __init__(self, jobs: Jobs, journal: Journal, node: str, channel: Channel, request: Watch) -> None:
        self._jobs = jobs
        self._journal = journal
        self._node = node
        self._channel = channel
        self._request = request
        self._run = jobs.find(request.run)
        self._bell = asyncio.Event()
        self._look_again_s = 0.0
        self._events: deque[EventRecord] = deque()  # seen, and not told yet
        self._has_more_events = False  # than one read gives
        self._after_event = request.after_event
        self._snapshot = b""  # the newest one
        self._is_snapshot_told = True

    async def run(self) -> ControlReply:
        """Until everything was sent (and, following, the run is over). Raises OSError, where output cannot be
        read, Refused, and LocalProtocolError where a state is too large to be sent."""
        self._bell = self._run.changes.listen()
        try:
            if self._request.logs is not None:
                await self._send_logs(self._request.logs)
            while True:
                is_over = not self._request.follow or self._run.is_settled
                await self.look()
                await self.tell()
                if is_over:
                    return End()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SNAPSHOT_S):
                        await self._bell.wait()
        finally:
            self._run.changes.leave(self._bell)

    async def look(self) -> None:
        """See what has happened since the last look."""
        if not self._bell.is_set() and boot_s() < self._look_again_s:
            return
        self._bell.clear()
        self._look_again_s = boot_s() + SNAPSHOT_S
        if self._request.events and not self._has_more_events:
            await self._read_events()
        if self._request.snapshots:
            snapshot = encode(Statuses(runs=(self._jobs.status(self._run, with_ranks=True),)))
            if snapshot != self._snapshot:
                self._snapshot, self._is_snapshot_told = snapshot, False

    def is_due(self, generation: int | None, until_s: float | None) -> bool:
        """Whether the next event is of this time, or of one before."""
        if not self._events:
            return False
        event = self._events[0]
        is_of_this = generation is None or event.generation is None or event.generation <= generation
        return is_of_this and (until_s is None or event.wall_s <= until_s)

    async def tell(self, generation: int | None = None, until_s: float | None = None) -> None:
        """Send events, and behind the last one the snapshot."""
        while self.is_due(generation, until_s):
            await self._send(encode(self._events.popleft()))
            if not self._events and self._has_more_events:
                await self._read_events()
        if until_s is None and not self._events and not self._is_snapshot_told:
            self._is_snapshot_told = True
            await self._send(self._snapshot)

    async def _read_events(self) -> None:
        events = await self._journal.events(self._run.job.run, self._after_event)
        self._has_more_events = len(events) == EVENTS_A_READ_MAX
        self._events += events
        if events:
            self._after_event = events[-1].id

    async def _send_logs(self, selection: LogSelection) -> None:
        async def send(chunk: LogChunk) -> None:
            await self._send(encode(chunk))

        await logs_service.stream(
            self._jobs.logs_dir(self._run),
            selection,
            follow=self._request.follow,
            is_over=lambda: self._run.is_settled,
            node=self._node,
            generation_now=lambda: self._run.machine.generation,
            send=send,
            between=self,
        )

    async def _send(self, frame: bytes) -> None:
        self._channel.send(frame)
        await self._channel.drained()
