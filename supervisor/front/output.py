"""The output of this node's ranks, on its way to the console."""

import asyncio
import sys

from protocol.messages.control import LogChunk, LogSelection, Notice, RunStatus
from protocol.messages.fleet import LogsNow, LogsSeen
from supervisor.daemon import logs_service
from supervisor.front.console import STDERR, STDOUT, Console
from supervisor.front.log_dir import Links
from supervisor.shell.config import Config
from supervisor.suprun.plan import LaunchPlan
from supervisor.suprun.values import STDERR as ERR_BIT
from supervisor.suprun.values import STDOUT as OUT_BIT

ALL = LogSelection(chooser="all", all_generations=True, tail_lines=None)

BITS = {"out": OUT_BIT, "err": ERR_BIT}
FDS = {"out": STDOUT, "err": STDERR}


def is_shown(plan: LaunchPlan, local_rank: int, bit: int) -> bool:
    """Whether the console gets that stream of that rank."""
    is_redirected = plan.redirects.of(local_rank) & bit and not plan.tee.of(local_rank) & bit
    return not is_redirected and (not plan.shown_ranks or local_rank in plan.shown_ranks)


class Output:
    """Follows the files that the runner writes: what the console does not take keeps nobody waiting but this."""

    def __init__(self, plan: LaunchPlan, config: Config, console: Console, run: str, links: Links | None) -> None:
        self._plan = plan
        self._logs_dir = config.logs_dir / run
        self._node = config.node
        self._console = console
        self._links = links
        self._bar = "│" if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" else "|"
        self._bell = asyncio.Event()
        self._now = LogsNow(generation=0, is_over=False)
        self._open: dict[int, tuple[int, str]] = {}  # where a line is not at its end: whose

    def see(self, status: RunStatus) -> None:
        """The run as it stands."""
        if self._now.is_over or status.generation is None:
            return
        if self._links is not None:
            own = [rank.rank for rank in status.rank_list if rank.node == self._node]
            if own:
                self._links.first_ranks[status.generation] = min(own)
        if status.generation != self._now.generation:
            self._now = LogsNow(generation=max(0, status.generation), is_over=False)
            self._bell.set()

    def end(self) -> None:
        """The runner is gone: what is in the files is all there is."""
        self._now = LogsNow(generation=self._now.generation, is_over=True)
        self._bell.set()

    async def run(self) -> None:
        """Until all is shown, and has its name in --log-dir."""
        try:
            await logs_service.stream(
                self._logs_dir,
                ALL,
                first=0,
                follow=True,
                now=lambda: self._now,
                bell=self._bell,
                node=self._node,
                send=self._take,
            )
        finally:
            if self._links is not None:
                self._links.make()

    async def _take(self, item: LogChunk | LogsSeen | Notice) -> None:
        if isinstance(item, Notice):
            self._console.tell(item.text)
        if not isinstance(item, LogChunk):
            return
        if self._links is not None and not item.data:  # the first word of a stream
            await asyncio.to_thread(self._links.make)
        await self._copy_filtered(item)
        bit = BITS[item.stream]
        if not is_shown(self._plan, item.local_rank, bit) or not (item.data or item.removed_bytes):
            return
        if item.removed_bytes:
            self._console.tell(f"{item.removed_bytes} bytes of rank {item.rank} were written faster than they are read")
        fd = FDS[item.stream]
        is_teed = self._plan.tee.of(item.local_rank) & bit
        data = self._prefixed(item) if is_teed else item.data
        key = (item.rank, item.stream)
        if self._open.get(fd, key) != key:
            data = b"\n" + data
        if data.endswith((b"\n", b"\r")) or not data:
            self._open.pop(fd, None)
        else:
            self._open[fd] = key
        self._console.put(fd, data)
        await self._console.room()

    async def _copy_filtered(self, chunk: LogChunk) -> None:
        words = self._plan.stdout_filters if chunk.stream == "out" else self._plan.stderr_filters
        if self._links is None or not words:
            return
        wanted = [word.encode(errors="surrogateescape") for word in words]
        lines = [line for line in chunk.data.splitlines(keepends=True) if any(word in line for word in wanted)]
        if lines:
            prefix = self._prefix(chunk.rank)
            copied = b"".join(prefix + line for line in lines)
            await asyncio.to_thread(self._links.copy, chunk.generation, chunk.stream, copied)

    def _prefix(self, rank: int) -> bytes:
        return f"{self._node}:{rank} {self._bar} ".encode()

    def _prefixed(self, chunk: LogChunk) -> bytes:
        prefix = self._prefix(chunk.rank)
        begins_a_line = self._open.get(FDS[chunk.stream]) != (chunk.rank, chunk.stream)
        text = b"".join(prefix + line for line in chunk.data.splitlines(keepends=True))
        return text if begins_a_line else text.removeprefix(prefix)
