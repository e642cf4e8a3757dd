"""The host's side of what lies on other nodes alone: their ranks' output, and what a rank was started with."""

import asyncio
from collections.abc import Awaitable, Callable

from protocol.coordinator_events import Seat
from protocol.errors import Refused, RemoteProtocolError
from protocol.job import Job
from protocol.messages.control import LogChunk, Notice
from protocol.messages.fleet import (
    FetchLogs,
    FetchRank,
    JoinRefused,
    LogsEnd,
    LogsSeen,
    RankFacts,
    decode_from_peer,
)
from protocol.text import host_port
from supervisor.daemon.node_list import NodeTable
from supervisor.shell.dial import Dialer
from supervisor.shell.pull import Pull

ANSWER_TIMEOUT_S = 20.0


class Unreached(Exception):
    """The node does not answer, or not with what was asked for."""


class Fetcher:
    """Asks other nodes, at the addresses of the node table."""

    def __init__(self, nodes: NodeTable, dialer: Dialer, fleet: str) -> None:
        self.nodes = nodes
        self._dialer = dialer
        self.fleet = fleet

    async def rank(self, job: Job, seat: Seat, rank: int, pid: int | None, *, with_env: bool) -> RankFacts:
        """What a rank on another node was started with. Raises Refused."""
        request = FetchRank(
            fleet=self.fleet,
            job=job,
            assignment=seat.assignment,
            rank=rank,
            incarnation=seat.incarnation,
            with_env=with_env,
            pid=pid,
        )
        try:
            async with Pull() as pull, asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._dial(seat.node, pull)
                pull.send(request)
                match await self._next(pull):
                    case RankFacts() as facts:
                        return facts
                    case LogsEnd(error=why) | JoinRefused(message=why):
                        raise Unreached(why)
                    case _:
                        raise Unreached("it does not answer what it was asked")
        except (Unreached, TimeoutError) as exc:
            why = str(exc) or f"no answer within {ANSWER_TIMEOUT_S:g} s"
            what = f"rank {rank} is on {seat.node}, which tells nothing of it: {why}"
            raise Refused("F113", what, hint=f"supctl describe node {seat.node}") from None

    async def logs(
        self,
        pull: Pull,
        node: str,
        request: Callable[[], FetchLogs],
        put: Callable[[LogChunk | LogsSeen | Notice], Awaitable[None]],
    ) -> LogsEnd:
        """What a node has of a run, until it has sent all of it, or will not; returns its last word. Raises Unreached.

        `request` is called once the node is reached: from then on, a LogsNow may be sent by `pull`.
        """
        await self._dial(node, pull)
        pull.send(request())
        while True:
            match await self._next(pull):
                case LogChunk() | LogsSeen() | Notice() as item:
                    await put(item)
                case LogsEnd() as end:
                    return end
                case JoinRefused(message=why):
                    raise Unreached(why)
                case _:
                    raise Unreached("it does not answer what it was asked")

    async def _dial(self, name: str, pull: Pull) -> None:
        node = self.nodes.record_of(name)
        if node is None:
            raise Unreached("the fleet does not know it any more")
        try:
            await self._dialer.dial(pull.channel, node.address, node.port)
        except OSError as exc:
            raise Unreached(f"{host_port(node.address, node.port)}: {exc}") from None

    async def _next(self, pull: Pull) -> object:
        try:
            frame = await pull.frame()
            if frame is None:
                raise Unreached("it closed the connection")
            return decode_from_peer(frame)
        except RemoteProtocolError as exc:
            raise Unreached(str(exc)) from None
