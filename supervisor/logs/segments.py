"""How a run's output gets from the workers' pipes to its files (supervisor/logs/paths.py).

Every rank has a pipe for each of its streams. The event loop reads them (supervisor/logs/pipes.py) and never touches
the disk; one thread writes the files (supervisor/logs/disk.py). If the disk is slower than the workers, up to
`QUEUE_BYTES_MAX` wait in memory, then the pipes fill and the workers wait, as with any pipe. A disk that hangs costs
output, not training.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from protocol.job import LogsTable
from supervisor.logs.disk import DiskThread
from supervisor.logs.keeper import Keeper
from supervisor.logs.last_lines import LastLines
from supervisor.logs.log_file import DEFAULT_SETTINGS, LogFile, notice
from supervisor.logs.paths import make_generation_dir, stream_path
from supervisor.logs.pipes import READ_BYTES, Pipe, Pipes
from supervisor.logs.times import Marker

log = structlog.get_logger()

QUEUE_BYTES_MAX = 8 << 20
"""What may wait for the disk before the pipes are left to fill; they are read again below half of it."""

DRAIN_BYTES_MAX = 64 << 20
"""The most that is read from one pipe when its rank has ended."""

HUNG_AFTER_S = 5.0
"""A full queue from which the disk takes nothing for so long: from then on output is dropped."""

FINISH_WITHIN_S = 10.0
"""How long the end of a generation waits for the disk."""

KEEPER_WITHIN_S = 2.0
"""How long the end of the run waits for the keeper to leave off and to set its mark."""


HUNG = "the disk hung"


@dataclass(eq=False, kw_only=True, slots=True)
class _Stream:
    """One pipe on its way to a file."""

    generation: int
    rank: int
    path: Path
    file: LogFile
    on_first_byte: Callable[[], None] | None
    on_data: Callable[[bytes], None] | None
    last_lines: LastLines
    pipe: Pipe = field(init=False)
    marker: Marker = field(default_factory=Marker)
    skipped_bytes: int = 0  # dropped before the queue since the last notice
    mid_line: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class LogWriter:
    """Takes over the read ends of workers' pipes and writes what comes out of them to files.

    Made in the running loop that it is to use. Nothing here waits for the disk but `finish` and `close`,
    and no error of the disk is raised.
    """

    def __init__(
        self,
        logs_dir: Path,
        settings: LogsTable = DEFAULT_SETTINGS,
        umask: int = 0o077,
        owner: str = "",
        *,
        hung_after_s: float = HUNG_AFTER_S,
        finish_within_s: float = FINISH_WITHIN_S,
    ) -> None:
        self._logs_dir = logs_dir
        self._settings = settings
        self._umask = umask
        self._keeper = Keeper(logs_dir, settings, owner)
        self._hung_after_s = hung_after_s
        self._finish_within_s = finish_within_s
        self._loop = asyncio.get_running_loop()
        self._disk = DiskThread(QUEUE_BYTES_MAX, lambda: self._call_in_loop(self._on_room))
        self._pipes = Pipes()
        self._streams: list[_Stream] = []
        self._last_lines: dict[tuple[int, str], LastLines] = {}
        self._newest = -1  # generation
        self._is_paused = False
        self._is_dropping = False
        self._hung_timer: asyncio.TimerHandle | None = None

    def open(
        self,
        generation: int,
        rank: int,
        stream: str,
        fd: int,
        on_first_byte: Callable[[], None] | None = None,
        on_data: Callable[[bytes], None] | None = None,
    ) -> None:
        """Take over `fd`, the read end of a pipe, and make its file.

        `on_first_byte` is called once, in the loop, when the rank has written something; `on_data` with all that
        it writes, in pieces as they are read.
        """
        path = stream_path(self._logs_dir, generation, rank, stream)
        prepare = functools.partial(make_generation_dir, self._logs_dir, generation, self._umask)
        file = LogFile(path, prepare, self._settings, self._umask, self._keeper.on_rotated)
        if generation != self._newest:
            self._newest = generation
            self._keeper.on_generation(generation)
        lines = self._last_lines[rank, stream] = LastLines()
        opened = _Stream(
            generation=generation,
            rank=rank,
            path=path,
            file=file,
            on_first_byte=on_first_byte,
            on_data=on_data,
            last_lines=lines,
        )
        self._streams.append(opened)
        self._put(opened, b"")
        opened.pipe = self._pipes.add(fd, functools.partial(self._take, opened))

    def on_failed(self, generation: int) -> None:
        """A rank has failed by itself: its generation's output is kept longer than others'."""
        self._keeper.on_failed(generation)

    def tail(self, rank: int, stream: str) -> tuple[bytes, ...]:
        """The last lines of a rank in the newest generation opened: at most 20, or as `keep_more` said, each of at
        most 2000 bytes."""
        lines = self._last_lines.get((rank, stream))
        return lines.get() if lines is not None else ()

    def keep_more(self, rank: int, stream: str) -> None:
        """From now on, `tail` has up to 200 lines of this stream: for stacks that a rank is about to write."""
        if (kept := self._last_lines.get((rank, stream))) is not None:
            kept.keep_more()

    async def drain(self, rank: int) -> None:
        """Read what the pipes of a rank hold now: all that its main process wrote, if that has ended.

        The end of the pipe is not waited for, since a grandchild may hold it open for as long as it likes;
        for the same reason the pipe stays open.
        """
        for stream in [s for s in self._streams if s.rank == rank]:
            await self._drain(stream)

    async def finish(self, generation: int) -> bool:
        """Read what is left, close pipes and files; for when nobody is alive who could write.

        Returns when everything is written, or after `finish_within_s` without having seen that: False.
        """
        ending = [s for s in self._streams if s.generation == generation]
        for stream in ending:
            await self._drain(stream)
            self._end(stream)
        self._streams = [s for s in self._streams if s not in ending]
        try:
            async with asyncio.timeout(self._finish_within_s):
                for stream in ending:
                    await stream.closed.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Let go of everything and end the threads: the run is over here. Blocks for at most `finish_within_s` and
        KEEPER_WITHIN_S; after `finish`, as long as the disk takes for a mark."""
        for stream in self._streams:
            self._end(stream)
        self._streams = []
        if self._hung_timer is not None:
            self._hung_timer.cancel()
        self._disk.stop(self._finish_within_s)
        if self._disk.queued_bytes:
            log.error("output_missing", path=str(self._logs_dir), bytes=self._disk.queued_bytes, error=HUNG)
        self._keeper.stop(min(KEEPER_WITHIN_S, self._finish_within_s))

    # --- pipes ---------------------------------------------------------------------------------------------------

    async def _drain(self, stream: _Stream) -> None:
        """Read what is in the pipe, whether the queue is full or not: a pipe holds little, and nobody may wait."""
        left = min(stream.pipe.unread_bytes(), DRAIN_BYTES_MAX)
        while left > 0 and (count := self._pipes.read(stream.pipe, min(left, READ_BYTES))):
            left -= count
            await asyncio.sleep(0)

    def _take(self, stream: _Stream, data: bytes) -> None:
        if stream.on_first_byte is not None:
            stream.on_first_byte()
            stream.on_first_byte = None
        stream.last_lines.feed(data)
        if stream.on_data is not None:
            stream.on_data(data)
        self._put(stream, data)

    def _end(self, stream: _Stream) -> None:
        self._pipes.close(stream.pipe)
        if stream.skipped_bytes:
            log.error("output_missing", path=str(stream.path), bytes=stream.skipped_bytes, error=HUNG)
        self._put_notice(stream)
        self._disk.close(stream.file, functools.partial(self._call_in_loop, stream.closed.set))

    # --- queue ---------------------------------------------------------------------------------------------------

    def _put(self, stream: _Stream, data: bytes) -> None:
        if self._is_dropping and self._disk.queued_bytes > QUEUE_BYTES_MAX:
            stream.skipped_bytes += len(data)
            return
        self._put_notice(stream)
        read_s = None
        if data:
            stream.mid_line = not data.endswith(b"\n")
            read_s = stream.marker.mark()
        if self._disk.put(stream.file, data, read_s):
            self._pause()

    def _put_notice(self, stream: _Stream) -> None:
        if stream.skipped_bytes:
            self._disk.put(stream.file, notice(stream.skipped_bytes, HUNG, mid_line=stream.mid_line))
            stream.skipped_bytes, stream.mid_line = 0, False

    def _pause(self) -> None:
        if self._is_paused or self._is_dropping:
            return
        self._is_paused = True
        self._pipes.pause()
        self._watch_disk()

    def _watch_disk(self) -> None:
        self._hung_timer = self._loop.call_later(self._hung_after_s, self._on_still_full, self._disk.handled_bytes)

    def _on_still_full(self, handled_bytes: int) -> None:
        if self._disk.handled_bytes != handled_bytes:
            self._watch_disk()  # slow, not hung
            return
        log.warning("output_lost", path=str(self._logs_dir), bytes=0, error=HUNG)
        self._is_dropping = True
        self._resume()

    def _on_room(self) -> None:
        if self._hung_timer is not None:
            self._hung_timer.cancel()
        self._is_dropping = False
        self._resume()

    def _resume(self) -> None:
        self._is_paused = False
        self._pipes.resume()

    def _call_in_loop(self, callback: Callable[[], None]) -> None:
        """For the disk thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback)
