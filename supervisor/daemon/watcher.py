"""One client that watches a run: its events, its state at each change, its output."""

import asyncio
import contextlib
from collections import deque

from protocol.errors import ProtocolError, SupdError
from protocol.messages import encode
from protocol.messages.control import (
    ControlReply,
    End,
    EventRecord,
    LogChunk,
    LogSelection,
    Notice,
    Statuses,
    Watch,
)
from protocol.messages.fleet import LogsNow
from supervisor.daemon.fetch import Fetcher
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import EVENTS_A_READ_MAX, Journal
from supervisor.daemon.log_merge import Between, Merge
from supervisor.daemon.log_sources import Sources
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s

SNAPSHOT_S = 2.0
"""Any wait longer than this is told (ux: "say what you wait for"): what a run waits for may change with time alone."""

LOOK_MIN_S = 0.01
LOOK_MAX_S = 0.5
LOOK_A_RUNNER_S = 0.001
"""The least time between two looks, however often something rings. Each runner rings once a second or more, and the
more there are the more a look costs: it takes a few per cent of the time then."""


class Watcher(Between):
    """Sends one client what happens to a run. Events stand between the lines of the output at their place in time; a
    snapshot comes behind the events that were there before it, so that the outcome is the last thing that is seen."""

    def __init__(
        self,
        jobs: Jobs,
        journal: Journal,
        fetcher: Fetcher,
        node: str,
        channel: Channel,
        request: Watch,
        client_node: str,
    ) -> None:
        """On this `node`; for `client_node` see `Jobs.status`."""
        self._jobs = jobs
        self._journal = journal
        self._fetcher = fetcher
        self._node = node
        self._channel = channel
        self._request = request
        self._client_node = client_node
        self._run = jobs.find(request.run)
        self._bell = asyncio.Event()
        self._looked_at_s = -SNAPSHOT_S
        self._phase: tuple[str, int | None] = ("", None)  # of the newest snapshot
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
                    async with asyncio.timeout(self.look_in_s()):
                        await self._bell.wait()
                await asyncio.sleep(self.look_in_s())
        finally:
            self._run.changes.leave(self._bell)

    async def look(self) -> bool:
        """See what has happened since the last look. Whether there is more to tell than a number that has changed."""
        if not self._bell.is_set() and self.look_in_s() > 0:
            return False
        self._bell.clear()
        self._looked_at_s = boot_s()
        has_news = False
        if self._request.events and not self._has_more_events:
            has_news = await self._read_events()
        if self._request.snapshots:
            status = self._jobs.status(self._run, with_ranks=True, node=self._client_node)
            snapshot = encode(Statuses(runs=(status,)))
            if snapshot != self._snapshot:
                self._snapshot, self._is_snapshot_told = snapshot, False
                has_news |= (status.phase, status.generation) != self._phase
                self._phase = (status.phase, status.generation)
        return has_news

    def look_in_s(self) -> float:
        """When to look again: soon after something rang, else now and then."""
        often_s = min(max(LOOK_MIN_S, LOOK_A_RUNNER_S * len(self._run.channels)), LOOK_MAX_S)
        pause_s = often_s if self._bell.is_set() else SNAPSHOT_S
        return self._looked_at_s + pause_s - boot_s()

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

    async def notice(self, text: str) -> None:
        """Tell at once that something is missing."""
        await self._send(encode(Notice(text=text)))

    async def _read_events(self) -> bool:
        events = await self._journal.events(self._run.job.run, self._after_event)
        self._has_more_events = len(events) == EVENTS_A_READ_MAX
        self._events += events
        if events:
            self._after_event = events[-1].id
        return bool(events)

    async def _send_logs(self, selection: LogSelection) -> None:
        async def send(chunk: LogChunk) -> None:
            await self._send(encode(chunk))

        request = self._request
        failure: Exception | None = None
        bell = self._run.changes.listen()
        try:
            merge = Merge(self, send, self._now, bell, follow=request.follow, window_s=request.merge_window_s)
            sources = Sources(
                self._run,
                selection,
                follow=request.follow,
                merge=merge,
                fetcher=self._fetcher,
                node=self._node,
                logs_dir=self._jobs.logs_dir(self._run),
                known=request.known,
            )
            async with asyncio.TaskGroup() as group:
                sources.start(group)
                try:
                    await merge.run(sources.on_now)
                except (OSError, SupdError, ProtocolError) as exc:
                    failure = exc
                sources.stop()
        finally:
            self._run.changes.leave(bell)
        if failure is not None:
            raise failure

    def _now(self) -> LogsNow:
        return LogsNow(generation=self._run.machine.generation, is_over=self._run.is_settled)

    async def _send(self, frame: bytes) -> None:
        self._channel.send(frame)
        await self._channel.drained()
