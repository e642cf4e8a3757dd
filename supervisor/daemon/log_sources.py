"""Where a run's output comes from: the files of this node, and a connection to every other node that has some."""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from protocol.errors import Refused
from protocol.messages.control import LogChunk, LogPlace, LogSelection, Notice
from protocol.messages.fleet import FetchLogs, LogsNow, LogsSeen
from protocol.text import one_line
from supervisor.daemon import logs_service
from supervisor.daemon.fetch import Fetcher, Unreached
from supervisor.daemon.log_choice import Choice
from supervisor.daemon.log_gaps import not_kept
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
        known: tuple[LogPlace, ...] = (),
    ) -> None:
        """`known` is what the client has had before. Raises Refused where the selection is not understood."""
        self._run = run
        self._choice = Choice(replace(selection, tail_lines=None) if known else selection)
        self._known = known
        generation = run.machine.generation
        self._first = 0 if selection.all_generations else min([generation, *(place.generation for place in known)])
        self._follow = follow
        self._merge = merge
        self._fetcher = fetcher
        self._node = node
        self._logs_dir = logs_dir
        self._generation = run.machine.generation
        # What each node had at first says nothing of output that came later.
        self._was_over = run.is_settled and generation >= 0
        self._away: dict[str, _Away] = {}
        self._open: set[str] = {node}  # of which something may come
        self._there: dict[str, tuple[int, ...]] = {}  # the generations that each that has ended had output of
        self._tasks: list[asyncio.Task[None]] = []
        self._group: asyncio.TaskGroup | None = None
        self._bell = asyncio.Event()  # of the reader here: it rings when the run has moved on

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to read here and elsewhere."""
        self._group = group
        here = self._merge.add(self._node)
        here.resume(self._known)
        self._tasks.append(group.create_task(self._read_here(here), name="logs-here"))
        selection = self._choice.selection
        if (self._first if selection.generation is None else selection.generation) == self._generation:
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
        self._bell.set()
        for away in self._away.values():
            away.tell(now)

    def _seated(self) -> set[str]:
        """The nodes with selected ranks of the newest generation."""
        return {node for node, seat in self._run.machine.seats.items() if self._choice.may_have(seat)}

    def _add(self, nodes: set[str]) -> None:
        assert self._group is not None
        for name in sorted(nodes - self._away.keys() - {self._node}):
            known = self._fetcher.nodes.record_of(name)
            source = self._merge.add(name, known.clock_off_s if known is not None else 0.0)
            source.resume(self._known)
            away = self._away[name] = _Away(
                self._fetcher,
                source,
                self._run.job.run,
                self._choice.selection,
                self._first,
                self._merge.now,
                self._follow,
                self._end,
            )
            self._open.add(name)
            self._tasks.append(self._group.create_task(away.run(), name=f"logs-{name}"))

    async def _read_here(self, source: Source) -> None:
        try:
            there = await logs_service.stream(
                self._logs_dir,
                self._choice.selection,
                first=self._first,
                follow=self._follow,
                now=lambda: self._merge.now,
                bell=self._bell,
                node=self._node,
                send=functools.partial(hand_in, source),
                known=self._known,
            )
        except (OSError, Refused) as exc:
            source.end(exc)
        else:
            self._end(source, there)

    def _end(self, source: Source, there: tuple[int, ...] | None) -> None:
        """All of it was handed in; with what comes last it is told what nobody has any more."""
        self._open.discard(source.node)
        if there is not None:
            self._there[source.node] = there
        if not self._open:
            machine, selection = self._run.machine, self._choice.selection
            first = self._first if selection.generation is None else selection.generation
            behind = (machine.generation if selection.generation is None else first) + 1
            seated = [node for node, seat in machine.seats.items() if self._choice.may_have(seat)]
            keep = self._run.job.spec.logs.keep_generations
            for text in not_kept(self._there, range(first, behind), keep, seated if self._was_over else ()):
                source.notice(text)
        source.end()


async def hand_in(source: Source, item: LogChunk | LogsSeen | Notice) -> None:
    """What a node has sent."""
    if isinstance(item, Notice):
        source.notice(one_line(item.text))
    else:
        await source.put(item)


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
        end: Callable[[Source, tuple[int, ...] | None], None],
    ) -> None:
        """`end` is given the source once no more comes of it, and the generations that the node had output of."""
        self._end = end
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
                    end = await self._fetcher.logs(pull, node, functools.partial(self._request, pull), self._put)
                if end.error:
                    source.notice(f"the output on {node} is missing here: {end.error}")
                return self._end(source, end.generations)
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
                return self._end(source, None)
            await asyncio.sleep(RETRY_S)

    async def _put(self, item: LogChunk | LogsSeen | Notice) -> None:
        if self._source.is_away and not self._source.has_ended:
            self._source.notice(f"{self._source.node} answers again")
        await hand_in(self._source, item)

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
