"""Where a run's output comes from: the files of this node, and a connection to every other node that has some."""

import asyncio
import functools
from pathlib import Path

from msgspec.structs import replace

from protocol.coordinator_events import Seat
from protocol.errors import Refused
from protocol.messages.control import LogSelection
from protocol.messages.fleet import FetchLogs, LogsNow
from supervisor.daemon import logs_service
from supervisor.daemon.fetch import Fetcher, Unreached
from supervisor.daemon.log_merge import Merge, Source
from supervisor.daemon.run import Run
from supervisor.shell.pull import Pull

RETRY_S = 1.0
"""Between two attempts of a follower to reach a node."""

WAIT_TOLD_S = 2.0
"""Any wait longer than this is told (ux: "say what you wait for")."""

CLOCK_SLACK_S = 5.0
"""How far a node's clock may be off for files that appear there while it is not reached."""


class Sources:
    """Fills a Merge with the selected output of a run."""

    def __init__(
        self,
        run: Run,
        selection: LogSelection,
        *,
        follow: bool,
        merge: Merge,
        fetcher: Fetcher,
        node: str,
        logs_dir: Path,
    ) -> None:
        self._run = run
        self._selection = selection
        self._first = 0 if selection.all_generations else run.machine.generation
        self._follow = follow
        self._merge = merge
        self._fetcher = fetcher
        self._node = node
        self._logs_dir = logs_dir
        self._generation = run.machine.generation
        self._away: dict[str, _Away] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._group: asyncio.TaskGroup | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to read here and elsewhere."""
        self._group = group
        self._tasks.append(group.create_task(self._read_here(self._merge.add(self._node)), name="logs-here"))
        is_newest = self._selection.generation in (None, self._generation) and not self._selection.all_generations
        if is_newest:
            return self._add(self._seated())
        self._add({node.node for node in self._fetcher.nodes.status()} | self._run.machine.seats.keys())

    def stop(self) -> None:
        """Nobody takes anything any more."""
        for task in self._tasks:
            task.cancel()

    def on_now(self, now: LogsNow) -> None:
        """The run has moved on."""
        if now.generation != self._generation:
            self._generation = now.generation
            self._add(self._seated())
        for away in self._away.values():
            away.tell(now)

    def _seated(self) -> set[str]:
        """The nodes with selected ranks of the newest generation."""
        return {node for node, seat in self._run.machine.seats.items() if _has(self._selection, seat)}

    def _add(self, nodes: set[str]) -> None:
        assert self._group is not None
        for name in sorted(nodes - self._away.keys() - {self._node}):
            known = self._fetcher.nodes.record_of(name)
            source = self._merge.add(name, known.clock_off_s if known is not None else 0.0)
            away = self._away[name] = _Away(
                self._fetcher, source, self._run.job.run, self._selection, self._first, self._merge.now, self._follow
            )
            self._tasks.append(self._group.create_task(away.run(), name=f"logs-{name}"))

    async def _read_here(self, source: Source) -> None:
        try:
            await logs_service.stream(
                self._logs_dir,
                self._selection,
                first=self._first,
                follow=self._follow,
                now=lambda: self._merge.now,
                node=self._node,
                send=source.put,
            )
        except (OSError, Refused) as exc:
            source.end(exc)
        else:
            source.end()


def _has(selection: LogSelection, seat: Seat) -> bool:
    """Whether a node with this seat may have output that is selected."""
    first, nproc = seat.assignment.first_rank, seat.assignment.nproc
    if selection.ranks is None:
        return first == 0 or "err" in selection.streams
    return any(first <= rank < first + nproc for rank in selection.ranks)


class _Away:
    """The output on another node. Following, a node that does not answer is asked again, and goes on where it was."""

    def __init__(
        self,
        fetcher: Fetcher,
        source: Source,
        run: str,
        selection: LogSelection,
        first: int,
        now: LogsNow,
        follow: bool,
    ) -> None:
        self._fetcher = fetcher
        self._source = source
        self._run = run
        self._selection = selection
        self._first = first
        self._now = now
        self._follow = follow
        self._pull: Pull | None = None

    def tell(self, now: LogsNow) -> None:
        """How far the run is."""
        self._now = now
        if self._pull is not None:
            self._pull.send(now)

    async def run(self) -> None:
        """Until everything was sent, or will not be."""
        node, source = self._source.node, self._source
        told_at: int | None = None  # what had been heard when its absence was told
        while True:
            is_over = self._now.is_over
            waits = asyncio.get_running_loop().call_later(WAIT_TOLD_S, self._tell_wait, source.heard, told_at)
            try:
                async with Pull() as pull:
                    why = await self._fetcher.logs(pull, node, functools.partial(self._request, pull), source.put)
                if why:
                    source.notice(f"the output on {node} is missing here: {why}")
                return source.end()
            except Unreached as exc:
                why = str(exc)
            finally:
                self._pull = None
                waits.cancel()
            is_last = is_over or not self._follow
            if told_at != source.heard or is_last:
                until = "" if is_last else " until it answers"
                source.lose(f"{node} does not answer, its output is missing here{until}: {why}")
                told_at = source.heard
            if is_last:
                return source.end()
            await asyncio.sleep(RETRY_S)

    def _tell_wait(self, heard: int, told_at: int | None) -> None:
        if self._source.heard == heard != told_at:
            self._source.notice(f"waiting for {self._source.node}, which has said nothing for {WAIT_TOLD_S:g} s")

    def _request(self, pull: Pull) -> FetchLogs:
        """All that is selected, or what is new since the node was heard; times are by the clock of that node. It goes
        out by `pull`, and how far the run is behind it, whenever that changes."""
        self._pull = pull
        selection, source = self._selection, self._source
        since_s, until_s = selection.since_wall_s, selection.until_wall_s
        if source.heard:
            since_s = max(since_s or 0.0, source.heard_wall_s - CLOCK_SLACK_S)
            selection = replace(selection, tail_lines=None)
        selection = replace(
            selection,
            since_wall_s=None if since_s is None else since_s + source.clock_off_s,
            until_wall_s=None if until_s is None else until_s + source.clock_off_s,
        )
        return FetchLogs(
            fleet=self._fetcher.fleet,
            run=self._run,
            selection=selection,
            now=self._now,
            first=max(self._first, source.before),
            follow=self._follow,
            known=source.known(),
        )
