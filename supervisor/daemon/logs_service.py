"""From a selection of output to a stream of chunks for one client.

Reading the past and following are one mechanism: look at the files, send what they have grown by, in the order of
time. A follower looks every `POLL_S`. That costs a stat a file and only while somebody follows, and it can miss
nothing, on any file system.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from pathlib import Path

from protocol.messages.control import LogChunk, LogSelection
from supervisor.daemon.slow_disk import ask
from supervisor.logs.blocks import CHUNK_BYTES, Block, BlockReader
from supervisor.logs.segments import generations, stream_path, streams

POLL_S = 0.05

HELD_BYTES_MAX = 4 << 20
"""What is held of all files of a generation together, unless there are so many that `READ_BYTES_MIN` each is more."""

READ_BYTES_MIN = 4 << 10

CHUNKS_A_TURN = 32
"""After these it is the turn of the rest of supd: a client that reads fast never makes us wait."""


class Between:
    """What is told between the lines: here nothing."""

    async def look(self) -> None:
        """See what there is to tell by now. The output is looked at after that, so what was written before is told
        before."""

    def is_due(self, generation: int | None, until_s: float | None) -> bool:
        """Whether `tell` would tell an event."""
        return False

    async def tell(self, generation: int | None = None, until_s: float | None = None) -> None:
        """Tell what was seen: up to this generation and (s since 1970) this time, or else all of it."""


async def stream(
    logs_dir: Path,
    selection: LogSelection,
    *,
    follow: bool,
    is_over: Callable[[], bool],
    node: str,
    generation_now: Callable[[], int | None],
    send: Callable[[LogChunk], Awaitable[None]],
    between: Between,
) -> None:
    """Send the selected output of the run whose logs are in `logs_dir`, by generation, in the order of time, and what
    `between` has to tell at its place in that order. At the end, some of that may be left to be told.

    Of each stream the order is as written. A line without a time (a file that has no index) goes with the line before
    it in its file, and where no line has one, rank after rank.

    Following, it goes on until `is_over()`, which must not be said before the run's last byte is in its file, and
    then sends what is left. A generation below `generation_now()` is taken to be at its end. With
    `selection.generation` None later generations are followed, too. `tail_lines` and the times hold for each file that
    is there at the start; `tail_lines` counts lines of that time. Every file is read in order and each byte sent
    once; `send` is awaited, so a slow client slows nobody else. Raises OSError if a file can't be read, and Refused
    where the disk does not answer.
    """

    async def read(generation: int, past: LogSelection | None) -> None:
        def is_past() -> bool:
            now = generation_now()
            return not follow or is_over() or (now is not None and now > generation)

        await _GenerationReader(logs_dir, generation, selection, past, node, send, between).run(is_past)

    chosen = await ask(logs_dir, _chosen_generations, logs_dir, selection)
    for generation in chosen:
        await read(generation, selection)
    if not follow or selection.generation is not None:
        return
    last = chosen[-1] if chosen else -1
    while True:
        is_last_look = is_over()
        await between.look()
        newer = [generation for generation in await ask(logs_dir, generations, logs_dir) if generation > last]
        for last in newer:
            await read(last, None)
        if is_last_look:
            return
        if not newer:
            await between.tell()
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
    return [selection.generation]


def _is_selected(selection: LogSelection, rank: int, name: str) -> bool:
    if name not in selection.streams:
        return False
    if selection.ranks is None:
        return rank == 0 or name == "err"
    return rank in selection.ranks


class _GenerationReader:
    """The selected files of one generation."""

    def __init__(
        self,
        logs_dir: Path,
        generation: int,
        selection: LogSelection,
        past: LogSelection | None,
        node: str,
        send: Callable[[LogChunk], Awaitable[None]],
        between: Between,
    ) -> None:
        """`past` narrows what is sent of files that are there at the first look; None: all of it."""
        self._logs_dir = logs_dir
        self._generation = generation
        self._selection = selection
        self._past = past
        self._node = node
        self._send = send
        self._between = between
        self._readers: dict[tuple[int, str], BlockReader] = {}
        self._read_bytes = CHUNK_BYTES
        self._chunks_sent = 0

    async def run(self, is_past: Callable[[], bool]) -> None:
        """Send all there is, until a look that began when the generation was past."""
        while True:
            is_last_look = is_past()
            await self._between.look()
            await ask(self._logs_dir, self._look)
            await self._send_in_order(is_last_look)
            await self._between.tell(self._generation)
            if is_last_look:
                return
            await asyncio.sleep(POLL_S)

    def _look(self) -> None:
        """Find all selected files, and how much they hold now; blocking."""
        past = self._past or LogSelection(tail_lines=None)
        for rank, name in streams(self._logs_dir, self._generation):
            if (rank, name) not in self._readers and _is_selected(self._selection, rank, name):
                self._readers[rank, name] = BlockReader(
                    stream_path(self._logs_dir, self._generation, rank, name),
                    tail_lines=past.tail_lines,
                    since_s=past.since_wall_s,
                    until_s=past.until_wall_s,
                )
        self._past = None  # a file that appears later is new from its first byte on
        for reader in self._readers.values():
            reader.look()  # all of them first: a flood must not keep the other files waiting
        self._read_bytes = max(min(CHUNK_BYTES, HELD_BYTES_MAX // max(len(self._readers), 1)), READ_BYTES_MIN)

    async def _send_in_order(self, is_last_look: bool) -> None:
        """Send what was there at the look, the oldest block of all files first."""
        readers = list(self._readers.items())

        def fill(*some: BlockReader) -> None:
            for reader in some:
                reader.fill(self._read_bytes)
                if not reader.blocks and (is_last_look or reader.has_waited()):
                    reader.end_line()

        await ask(self._logs_dir, fill, *self._readers.values())
        heap = [(reader.blocks[0].key_s, number) for number, (_, reader) in enumerate(readers) if reader.blocks]
        heapq.heapify(heap)
        while heap:
            key_s, number = heapq.heappop(heap)
            await self._between.tell(self._generation, key_s)
            place, reader = readers[number]
            chunk = _Chunk()
            while reader.blocks:
                block = reader.blocks[0]
                if block.key_s != key_s and self._is_anything_before(heap, block.key_s, number):
                    heapq.heappush(heap, (block.key_s, number))
                    break
                key_s = block.key_s
                if not chunk.has_room(block):
                    await self._send_chunk(place, chunk)
                    chunk = _Chunk()
                chunk.add(reader.blocks.popleft())
                if not reader.blocks and reader.has_more:
                    await ask(self._logs_dir, fill, reader)
            await self._send_chunk(place, chunk)

    def _is_anything_before(self, heap: list[tuple[float, int]], key_s: float, number: int) -> bool:
        return bool(heap and heap[0] < (key_s, number)) or self._between.is_due(self._generation, key_s)

    async def _send_chunk(self, place: tuple[int, str], chunk: "_Chunk") -> None:
        rank, name = place
        await self._send(
            LogChunk(
                generation=self._generation,
                node=self._node,
                rank=rank,
                stream=name,
                data=bytes(chunk.data),
                times=tuple(chunk.times),
            )
        )
        self._chunks_sent += 1
        if self._chunks_sent % CHUNKS_A_TURN == 0:
            await asyncio.sleep(0)


class _Chunk:
    """Blocks of one stream that are sent together."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.times: list[tuple[int, float]] = []

    def has_room(self, block: Block) -> bool:
        """Whether the block still fits."""
        return not self.data or len(self.data) + len(block.data) <= CHUNK_BYTES

    def add(self, block: Block) -> None:
        """Put the block behind the others."""
        if block.read_s != (self.times[-1][1] if self.times else 0.0):
            self.times.append((len(self.data), block.read_s))
        self.data += block.data
