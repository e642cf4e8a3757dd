"""From a selection of output to a stream of chunks for one client.

Reading the past and following are one mechanism: look at the files, send what they have grown by. A follower looks
every `POLL_S`. That costs a stat a file and only while somebody follows, and it can miss nothing, on any file system.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from protocol.messages.control import LogChunk, LogSelection
from supervisor.logs.reader import FileTail
from supervisor.logs.segments import generations, stream_path, streams
from supervisor.shell.clock import boot_s

CHUNK_BYTES = 64 << 10
"""The most in one chunk, and the longest line that is sent in one piece."""

POLL_S = 0.05

UNFINISHED_AFTER_S = 0.5
"""A follower sees a line that does not end (a progress bar, a prompt) after so long."""


async def stream(
    logs_dir: Path,
    selection: LogSelection,
    *,
    follow: bool,
    is_over: Callable[[], bool],
    node: str,
    generation_now: Callable[[], int | None],
    send: Callable[[LogChunk], Awaitable[None]],
) -> None:
    """Send the selected output of the run whose logs are in `logs_dir`; the past by generation, rank and stream.

    Following, it goes on until `is_over()`, which must not be said before the run's last byte is in its file, and
    then sends what is left. A generation below `generation_now()` is taken to be at its end. With
    `selection.generation` None later generations are followed, too. `tail_lines` holds for each file that is there
    at the start. Every file is read in order and each byte sent once; `send` is awaited, so a slow client slows
    nobody else. Raises OSError if a file can't be read.
    """

    async def read(generation: int, tail_lines: int | None) -> None:
        def is_past() -> bool:
            now = generation_now()
            return not follow or is_over() or (now is not None and now > generation)

        await _GenerationReader(logs_dir, generation, selection, tail_lines, node, send).run(is_past)

    chosen = await asyncio.to_thread(_chosen_generations, logs_dir, selection)
    for generation in chosen:
        await read(generation, selection.tail_lines)
    if not follow or selection.generation is not None:
        return
    last = chosen[-1] if chosen else -1
    while True:
        is_last_look = is_over()
        for generation in await asyncio.to_thread(generations, logs_dir):
            if generation > last:
                await read(generation, None)
                last = generation
        if is_last_look:
            return
        await asyncio.sleep(POLL_S)


def paths(logs_dir: Path, selection: LogSelection) -> tuple[str, ...]:
    """The files of a selection that there are; blocking."""
    return tuple(
        str(stream_path(logs_dir, generation, rank, name))
        for generation in _chosen_generations(logs_dir, selection)
        for rank, name in streams(logs_dir, generation)
        if _is_selected(selection, rank, name)
    )


def _chosen_generations(logs_dir: Path, selection: LogSelection) -> list[int]:
    there = generations(logs_dir)
    if selection.all_generations:
        return there
    if selection.generation is None:
        return there[-1:]
    if selection.generation < 0:
        return there[: selection.generation][-1:]
    return [selection.generation]


def _is_selected(selection: LogSelection, rank: int, name: str) -> bool:
    if name not in selection.streams:
        return False
    if selection.ranks is None:
        return rank == 0 or name == "err"
    return rank in selection.ranks


def cut_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """`data` as chunks of whole lines, and the unfinished line behind them, which is at most CHUNK_BYTES long.

    A line longer than CHUNK_BYTES comes in pieces.
    """
    chunks: list[bytes] = []
    start = 0
    while True:
        end = data.rfind(b"\n", start, start + CHUNK_BYTES) + 1
        if end == 0:
            if len(data) - start <= CHUNK_BYTES:
                return chunks, data[start:]
            end = start + CHUNK_BYTES
        chunks.append(data[start:end])
        start = end


class _StreamReader:
    """One file, and the unfinished line at the place reached in it."""

    def __init__(self, rank: int, name: str, file: FileTail) -> None:
        self.rank = rank
        self.name = name
        self.file = file
        self.unread_bytes = 0  # at the last look
        self._unfinished = b""
        self._unfinished_since_s = 0.0

    def cut(self, data: bytes) -> list[bytes]:
        """What can be sent now that `data` has been read."""
        chunks, unfinished = cut_lines(self._unfinished + data)
        if chunks or not self._unfinished:
            self._unfinished_since_s = boot_s()
        self._unfinished = unfinished
        return chunks

    def has_waited(self) -> bool:
        """Whether there is an unfinished line that has stood for long enough."""
        return bool(self._unfinished) and boot_s() - self._unfinished_since_s >= UNFINISHED_AFTER_S

    def take_unfinished(self) -> bytes:
        """The unfinished line as it is; what follows counts as a new one."""
        unfinished, self._unfinished = self._unfinished, b""
        return unfinished


class _GenerationReader:
    """The selected files of one generation."""

    def __init__(
        self,
        logs_dir: Path,
        generation: int,
        selection: LogSelection,
        tail_lines: int | None,
        node: str,
        send: Callable[[LogChunk], Awaitable[None]],
    ) -> None:
        self._logs_dir = logs_dir
        self._generation = generation
        self._selection = selection
        self._tail_lines = tail_lines
        self._node = node
        self._send = send
        self._readers: dict[tuple[int, str], _StreamReader] = {}

    async def run(self, is_past: Callable[[], bool]) -> None:
        """Send all there is, until a look that began when the generation was past."""
        while True:
            is_last_look = is_past()
            # In a thread: a disk may hang, and supd must not.
            for reader in await asyncio.to_thread(self._look):
                await self._send_unread(reader)
                if is_last_look or reader.has_waited():
                    await self._send_bytes(reader, reader.take_unfinished())
            if is_last_look:
                return
            await asyncio.sleep(POLL_S)

    def _look(self) -> list[_StreamReader]:
        """All selected files, in order, with what they hold now; blocking."""
        for rank, name in streams(self._logs_dir, self._generation):
            if (rank, name) not in self._readers and _is_selected(self._selection, rank, name):
                path = stream_path(self._logs_dir, self._generation, rank, name)
                file = FileTail(path, from_end_lines=self._tail_lines)
                self._readers[rank, name] = _StreamReader(rank, name, file)
        self._tail_lines = None  # a file that appears later is new from its first byte on
        for reader in self._readers.values():
            reader.unread_bytes = reader.file.unread_bytes()
        return list(self._readers.values())

    async def _send_unread(self, reader: _StreamReader) -> None:
        """Send what was there at the look, and no more: a flood must not keep the other files waiting."""
        while reader.unread_bytes > 0:
            data = await asyncio.to_thread(reader.file.read, min(reader.unread_bytes, CHUNK_BYTES))
            reader.unread_bytes = reader.unread_bytes - len(data) if data else 0
            for chunk in reader.cut(data):
                await self._send_bytes(reader, chunk)

    async def _send_bytes(self, reader: _StreamReader, data: bytes) -> None:
        if data:
            await self._send(
                LogChunk(generation=self._generation, node=self._node, rank=reader.rank, stream=reader.name, data=data)
            )
