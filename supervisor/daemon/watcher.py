"""One client that watches a run: its events, its state at each change, its output."""

import asyncio
import contextlib

from protocol.errors import LocalProtocolError, Refused
from protocol.messages import encode
from protocol.messages.control import ControlReply, End, LogChunk, Statuses, Watch
from supervisor.daemon import logs_service
from supervisor.daemon.jobs import Jobs, Run
from supervisor.daemon.journal import EVENTS_A_READ_MAX, Journal
from supervisor.shell.channel import Channel

SNAPSHOT_S = 2.0
"""Any wait longer than this is told (ux: "say what you wait for")."""


class Watcher:
    """Sends one client what happens to a run."""

    def __init__(self, jobs: Jobs, journal: Journal, node: str, channel: Channel, request: Watch) -> None:
        self._jobs = jobs
        self._journal = journal
        self._node = node
        self._channel = channel
        self._request = request
        self._logs_sent = asyncio.Event()
        self._run: Run | None = jobs.find(request.run) if request.run or not request.events else None

    async def run(self) -> ControlReply:
        """Until everything was sent (and, following, the run is over). Raises OSError, where output cannot be
        read, Refused, and LocalProtocolError where a state is too large to be sent."""
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                if self._request.logs is not None and self._run is not None:
                    group.create_task(self._logs(self._run), name="logs")
                else:
                    self._logs_sent.set()
                if self._request.events or self._request.snapshots:
                    group.create_task(self._story(), name="story")
        except* (OSError, Refused, LocalProtocolError) as problems:
            failure = problems.exceptions[0]
        if failure is not None:
            raise failure
        return End()

    async def _logs(self, run: Run) -> None:
        assert self._request.logs is not None

        async def send(chunk: LogChunk) -> None:
            self._channel.send(encode(chunk))
            await self._channel.drained()

        await logs_service.stream(
            self._jobs.logs_dir(run),
            self._request.logs,
            follow=self._request.follow,
            is_over=lambda: run.is_settled,
            node=self._node,
            generation_now=lambda: run.machine.generation,
            send=send,
        )
        self._logs_sent.set()

    async def _story(self) -> None:
        """Events and snapshots, in that order at each change, so that a final snapshot comes after its events."""
        bell = self._jobs.changes.listen()
        after = self._request.after_event
        shown: bytes = b""
        try:
            while True:
                bell.clear()
                is_over = not self._request.follow or (self._run is not None and self._run.is_settled)
                if is_over:
                    await self._logs_sent.wait()  # so that the outcome is the last thing that is seen
                if self._request.events:
                    after = await self._send_events(after)
                if self._request.snapshots and self._run is not None:
                    snapshot = encode(Statuses(runs=(self._jobs.status(self._run, with_ranks=True),)))
                    if snapshot != shown:
                        shown = snapshot
                        self._channel.send(snapshot)
                await self._channel.drained()
                if is_over:
                    return
                with contextlib.suppress(TimeoutError):  # what it waits for may change with time alone
                    async with asyncio.timeout(SNAPSHOT_S):
                        await bell.wait()
        finally:
            self._jobs.changes.leave(bell)

    async def _send_events(self, after: int) -> int:
        run = self._run.job.run if self._run is not None else ""
        while True:
            events = await self._journal.events(run, after)
            for event in events:
                self._channel.send(encode(event))
                after = event.id
            if len(events) < EVENTS_A_READ_MAX:
                return after
            await self._channel.drained()
