"""Where a run's output lies on a node, and how it gets there from the workers' pipes.

    <logs>/<run>/gen-0002/rank-00011.err          bytes as written
    <logs>/<run>/gen-0002/rank-00011.err.times    when they were read (supervisor/logs/times.py)
    <logs>/<run>/latest -> gen-0002

Every rank has a pipe for each of its streams. The event loop reads them and never touches the disk; one thread
writes the files (supervisor/logs/disk.py). If the disk is slower than the workers, up to `QUEUE_BYTES_MAX` wait in
memory, then the pipes fill and the workers wait, as with any pipe. A disk that hangs costs output, not training.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import re
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.logs.disk import DiskThread, LogFile, notice
from supervisor.logs.last_lines import LastLines
from supervisor.logs.times import Marker

STREAMS = ("out", "err")

READ_BYTES = 64 << 10
"""The most that is read at once: what a pipe holds, unless someone has enlarged it (pipe(7))."""

READS_A_WAKE_UP = 4
"""After these it is the other pipes' turn: a rank that floods its output must not starve the loop."""

QUEUE_BYTES_MAX = 8 << 20
"""What may wait for the disk before the pipes are left to fill; they are read again below half of it."""

DRAIN_BYTES_MAX = 64 << 20
"""The most that is read from one pipe when its rank has ended."""

HUNG_AFTER_S = 5.0
"""A full queue from which the disk takes nothing for so long: from then on output is dropped."""

FINISH_WITHIN_S = 10.0
"""How long the end of a generation waits for the disk."""

_GENERATION = re.compile(r"gen-(\d{4,})")
_STREAM = re.compile(r"rank-(\d{5,})\.(out|err)")


# --- paths -------------------------------------------------------------------------------------------------------


def generation_dir(logs_dir: Path, generation: int) -> Path:
    """The folder of one generation; `logs_dir` is the run's."""
    return logs_dir / f"gen-{generation:04d}"


def stream_path(logs_dir: Path, generation: int, rank: int, stream: str) -> Path:
    """The file of one rank's stream, `out` or `err`."""
    return generation_dir(logs_dir, generation) / f"rank-{rank:05d}.{stream}"


def generations(logs_dir: Path) -> list[int]:
    """The generations that have a folder, in order; none if the run has written nothing here yet."""
    return sorted(int(found[1]) for name in _names(logs_dir) if (found := _GENERATION.fullmatch(name)))


def streams(logs_dir: Path, generation: int) -> list[tuple[int, str]]:
    """The (rank, stream) pairs that have a file: by rank, `out` before `err`."""
    names = _names(generation_dir(logs_dir, generation))
    pairs = [(int(found[1]), found[2]) for name in names if (found := _STREAM.fullmatch(name))]
    return sorted(pairs, key=lambda pair: (pair[0], STREAMS.index(pair[1])))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def make_generation_dir(logs_dir: Path, generation: int) -> None:
    """Make the folder, for its owner only, and let `latest` point at it unless it points at a newer one."""
    folder = generation_dir(logs_dir, generation)
    logs_dir.mkdir(0o700, parents=True, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)
    latest = logs_dir / "latest"
    with contextlib.suppress(OSError):  # not every file system has symbolic links; the output matters more
        if not latest.is_symlink() or _number(os.readlink(latest)) < generation:
            link = logs_dir / ".latest"
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name)
            link.replace(latest)


def _number(name: str) -> int:
    found = _GENERATION.fullmatch(name)
    return int(found[1]) if found else -1


# --- the writer --------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True, slots=True)
class _Stream:
    """One pipe on its way to a file."""

    generation: int
    rank: int
    fd: int  # -1: at its end, closed
    file: LogFile
    on_first_byte: Callable[[], None] | None
    on_data: Callable[[bytes], None] | None
    last_lines: LastLines
    marker: Marker = field(default_factory=Marker)
    skipped_bytes: int = 0  # dropped before the queue since the last notice
    mid_line: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def unread_bytes(self) -> int:
        """What is in the pipe now (FIONREAD)."""
        if self.fd < 0:
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, b"\0" * 4))
        return int(count)


class LogWriter:
    """Takes over the read ends of workers' pipes and writes what comes out of them to files.

    Made in the running loop that it is to use. Nothing here waits for the disk but `finish` and `close`,
    and no error of the disk is raised.
    """

    def __init__(
        self, logs_dir: Path, *, hung_after_s: float = HUNG_AFTER_S, finish_within_s: float = FINISH_WITHIN_S
    ) -> None:
        self._logs_dir = logs_dir
        self._hung_after_s = hung_after_s
        self._finish_within_s = finish_within_s
        self._loop = asyncio.get_running_loop()
        self._disk = DiskThread(QUEUE_BYTES_MAX, lambda: self._call_in_loop(self._on_room))
        self._streams: list[_Stream] = []
        self._last_lines: dict[tuple[int, str], LastLines] = {}
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
        os.set_blocking(fd, False)
        path = stream_path(self._logs_dir, generation, rank, stream)
        file = LogFile(path, functools.partial(make_generation_dir, self._logs_dir, generation))
        lines = self._last_lines[rank, stream] = LastLines()
        opened = _Stream(
            generation=generation,
            rank=rank,
            fd=fd,
            file=file,
            on_first_byte=on_first_byte,
            on_data=on_data,
            last_lines=lines,
        )
        self._streams.append(opened)
        self._put(opened, b"")
        if not self._is_paused:
            self._loop.add_reader(fd, self._on_readable, opened)

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
        """Let go of everything and end the thread. Blocks for at most `finish_within_s`; after `finish`, not at all."""
        for stream in self._streams:
            self._end(stream)
        self._streams = []
        if self._hung_timer is not None:
            self._hung_timer.cancel()
        self._disk.stop(self._finish_within_s)

    # --- pipes ---------------------------------------------------------------------------------------------------

    def _on_readable(self, stream: _Stream) -> None:
        for _ in range(READS_A_WAKE_UP):
            if self._read(stream, READ_BYTES) < READ_BYTES or self._is_paused:
                return

    async def _drain(self, stream: _Stream) -> None:
        """Read what is in the pipe, whether the queue is full or not: a pipe holds little, and nobody may wait."""
        left = min(stream.unread_bytes(), DRAIN_BYTES_MAX)
        while left > 0 and (count := self._read(stream, min(left, READ_BYTES))):
            left -= count
            await asyncio.sleep(0)

    def _read(self, stream: _Stream, bytes_max: int) -> int:
        if stream.fd < 0:
            return 0
        try:
            data = os.read(stream.fd, bytes_max)
        except BlockingIOError:
            return 0
        if not data:
            self._close_pipe(stream)
            return 0
        if stream.on_first_byte is not None:
            stream.on_first_byte()
            stream.on_first_byte = None
        stream.last_lines.feed(data)
        if stream.on_data is not None:
            stream.on_data(data)
        self._put(stream, data)
        return len(data)

    def _end(self, stream: _Stream) -> None:
        self._close_pipe(stream)
        self._put_notice(stream)
        self._disk.close(stream.file, functools.partial(self._call_in_loop, stream.closed.set))

    def _close_pipe(self, stream: _Stream) -> None:
        if stream.fd >= 0:
            self._loop.remove_reader(stream.fd)
            os.close(stream.fd)
            stream.fd = -1

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
            self._disk.put(stream.file, notice(stream.skipped_bytes, "the disk hung", mid_line=stream.mid_line))
            stream.skipped_bytes, stream.mid_line = 0, False

    def _pause(self) -> None:
        if self._is_paused or self._is_dropping:
            return
        self._is_paused = True
        for stream in self._streams:
            if stream.fd >= 0:
                self._loop.remove_reader(stream.fd)
        self._watch_disk()

    def _watch_disk(self) -> None:
        self._hung_timer = self._loop.call_later(self._hung_after_s, self._on_still_full, self._disk.handled_bytes)

    def _on_still_full(self, handled_bytes: int) -> None:
        if self._disk.handled_bytes != handled_bytes:
            self._watch_disk()  # slow, not hung
            return
        self._is_dropping = True
        self._resume()

    def _on_room(self) -> None:
        if self._hung_timer is not None:
            self._hung_timer.cancel()
        self._is_dropping = False
        self._resume()

    def _resume(self) -> None:
        self._is_paused = False
        for stream in self._streams:
            if stream.fd >= 0:
                self._loop.add_reader(stream.fd, self._on_readable, stream)

    def _call_in_loop(self, callback: Callable[[], None]) -> None:
        """For the disk thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback)
