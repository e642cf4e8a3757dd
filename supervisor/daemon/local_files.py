"""What lies on this node alone, for the host of the coordinator: output of ranks, and what a rank was started with."""

import asyncio
from pathlib import Path

from protocol.errors import LocalProtocolError, Refused, RemoteProtocolError
from protocol.messages import encode
from protocol.messages.control import LogChunk, Notice
from protocol.messages.fleet import (
    GENERATIONS_MAX,
    FetchLogs,
    FetchRank,
    JoinRefused,
    LogsEnd,
    LogsNow,
    LogsSeen,
    RankFacts,
    decode_logs_now,
)
from protocol.text import one_line
from supervisor.daemon import logs_service
from supervisor.daemon.rank_facts import rank_facts
from supervisor.shell.channel import Channel

READERS_MAX = 1000
"""As many clients may follow at once, on the host: more are not served."""


class LocalFiles:
    """Takes over connections that begin with FetchLogs or FetchRank."""

    def __init__(self, node: str, logs_dir: Path) -> None:
        self._node = node
        self._logs_dir = logs_dir
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[Channel, asyncio.Task[None]] = {}
        self._now: dict[Channel, LogsNow] = {}
        self._bells: dict[Channel, asyncio.Event] = {}  # of those that are sent logs: one has heard how far its run is

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None  # it takes nobody any more

    def take_logs(self, channel: Channel, request: FetchLogs) -> None:
        """A connection that began with `request`."""
        self._now[channel], self._bells[channel] = request.now, asyncio.Event()
        self._take(channel, request)

    def take_rank(self, channel: Channel, request: FetchRank) -> None:
        """A connection that began with `request`."""
        self._take(channel, request)

    def _take(self, channel: Channel, request: FetchLogs | FetchRank) -> None:
        channel.hand_over(self._on_frame, self._on_closed)
        if self._group is None or len(self._tasks) >= READERS_MAX:
            channel.send(encode(JoinRefused(code="F113", message=f"{self._node} serves too many readers")))
            return channel.close()
        work = (
            self._send_logs(channel, request) if isinstance(request, FetchLogs) else self._send_rank(channel, request)
        )
        self._tasks[channel] = self._group.create_task(work, name="fetch")

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        now = decode_logs_now(payload)
        if channel not in self._now:
            raise RemoteProtocolError("it is not told of logs")
        self._now[channel] = now
        self._bells[channel].set()

    def _on_closed(self, channel: Channel) -> None:
        self._now.pop(channel, None)
        self._bells.pop(channel, None)
        task = self._tasks.pop(channel, None)
        if task is not None:
            task.cancel()

    async def _send_logs(self, channel: Channel, request: FetchLogs) -> None:
        async def send(item: LogChunk | LogsSeen | Notice) -> None:
            channel.send(encode(item))
            await channel.drained()

        error, there = "", None
        try:
            there = await logs_service.stream(
                self._logs_dir / request.run,
                request.selection,
                first=request.first,
                follow=request.follow,
                now=lambda: self._now.get(channel, request.now),
                bell=self._bells[channel],
                node=self._node,
                send=send,
                known=request.known,
            )
            there = there[:GENERATIONS_MAX]
        except (OSError, Refused) as exc:
            error = f"the output cannot be read: {exc}" if isinstance(exc, OSError) else str(exc)
        await _finish(channel, LogsEnd(error=one_line(error), generations=there))

    async def _send_rank(self, channel: Channel, request: FetchRank) -> None:
        answer: RankFacts | LogsEnd
        try:
            answer = await rank_facts(
                request.job,
                request.assignment,
                request.rank,
                request.incarnation,
                request.pid,
                node=self._node,
                logs_dir=self._logs_dir / request.job.run,
                with_env=request.with_env,
            )
        except (OSError, Refused, ValueError) as exc:  # ValueError: nobody has checked a peer's job
            answer = LogsEnd(error=one_line(str(exc)))
        await _finish(channel, answer)


async def _finish(channel: Channel, message: object) -> None:
    try:
        channel.send(encode(message))
    except LocalProtocolError as exc:
        channel.send(encode(LogsEnd(error=f"the answer is too large: {exc}")))
    await channel.drained()
    channel.close()
