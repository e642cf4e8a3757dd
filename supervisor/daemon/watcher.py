"""One client that watches a run: its events, its state at each change, its output."""

import asyncio
import contextlib

from protocol.errors import LocalProtocolError, Refused
from protocol.messages import encode
from protocol.messages.control import ControlReply, End, LogChunk, LogSelection, Statuses, Watch
from supervisor.daemon import logs_service
from supervisor.daemon.jobs import Jobs
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
        self._run = jobs.find(request.run)

    async def run(self) -> ControlReply:
        """Until everything was sent (and, following, the run is over). Raises OSError, where output cannot be
        read, Refused, and LocalProtocolError where a state is too large to be sent."""
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                if self._request.logs is None:
                    self._logs_sent.set()
                else:
                    group.create_task(self._logs(self._request.logs), name="logs")
                if self._request.events or self._request.snapshots:
                    group.create_task(self._story(), name="story")
        except* (OSError, Refused, LocalProtocolError) as problems:
            failure = problems.exceptions[0]
        if failure is not None:
            raise failure
        return End()

    async def _logs(self, selection: LogSelection) -> None:
        run = self._run

        async def send(chunk: LogChunk) -> None:
            self._channel.send(encode(chunk))
            await self._channel.drained()

        await logs_service.stream(
            self._jobs.logs_dir(run),
            selection,
            follow=self._request.follow,
            is_over=lambda: run.is_settled,
            node=self._node,
            generation_now=lambda: run.machine.generation,
            send=send,
        )
        self._logs_sent.set()

    async def _story(self) -> None:
        """Events and snapshots, in that order at each change, so that a final snapshot comes after its events."""
        bell = self._run.changes.listen()
        after = self._request.after_event
        shown: bytes = b""
        try:
            while True:
                bell.clear()
                is_over = not self._request.follow or self._run.is_settled
                if is_over:
                    await self._logs_sent.wait()  # so that the outcome is the last thing that is seen
                if self._request.events:
                    after = await self._send_events(after)
                if self._request.snapshots:
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
            self._run.changes.leave(bell)

    async def _send_events(self, after: int) -> int:
        while True:
            events = await self._journal.events(self._run.job.run, after)
            for event in events:
                self._channel.send(encode(event))
                after = event.id
            if len(events) < EVENTS_A_READ_MAX:
                return after
            await self._channel.drained()
