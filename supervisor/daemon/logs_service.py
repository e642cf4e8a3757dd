"""From a selection of output to a stream of chunks: what lies on this node.

Reading the past and following are one mechanism: look at the files, send what they have grown by, in the order of
time. A follower looks every `POLL_S`. That costs a stat a file and only while somebody follows, and it can miss
nothing, on any file system. What is said between the chunks (`LogsSeen`) lets whoever has several such streams
merge them (log_merge.py).
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from protocol.messages.control import LogChunk, LogSelection
from protocol.messages.fleet import LogPlace, LogsNow, LogsSeen
from supervisor.daemon.slow_disk import ask
from supervisor.logs.blocks import CHUNK_BYTES, Block, BlockReader
from supervisor.logs.segments import generations, stream_path, streams

POLL_S = 0.05

HELD_BYTES_MAX = 4 << 20
"""What is held of all files of a generation together, unless there are so many that `READ_BYTES_MIN` each is more."""

READ_BYTES_MIN = 4 << 10

CHUNKS_A_TURN = 32
"""After these it is the turn of the rest of supd: a client that reads fast never makes us wait."""

Send = Callable[[LogChunk | LogsSeen], Awaitable[None]]


async def stream(
    logs_dir: Path,
    selection: LogSelection,
    *,
    first: int,
    follow: bool,
    now: Callable[[], LogsNow],
    node: str,
    send: Send,
    known: tuple[LogPlace, ...] = (),
) -> None:
    """Send the selected output of the run whose logs are in `logs_dir`, by generation, in the order of time.

    Of each stream the order is as written. A line without a time (a file that has no index) goes with the line before
    it in its file, and where no line has one, rank after rank.

    Unless the selection names a generation, those from `first` on are read. Following, it goes on until
    `now().is_over`, which must not be said before the run's last byte is in its file, and then sends what is left. A
    generation below `now().generation` is taken to be at its end, and with `selection.generation` None later ones are
    followed, too. `tail_lines` and the times hold for each file that is there at the start; `tail_lines` counts lines
    of that time. Every file is read in order and each byte sent once, of those that are `known` in part the rest;
    `send` is awaited, so a slow client slows nobody else. Raises OSError if a file can't be read, and Refused where
    the disk does not answer.
    """
    places = {(place.generation, place.rank, place.stream): place.offset for place in known}
    marks = _Marks(send)

    async def read(generation: int, past: LogSelection | None) -> None:
        reader = _GenerationReader(logs_dir, generation, selection, past, places, node, marks)
        await reader.run(now, follow=follow)

    chosen = await ask(logs_dir, _chosen_generations, logs_dir, selection, first)
    for generation in chosen:
        await read(generation, selection)
    if not follow or selection.generation is not None:
        return
    last = chosen[-1] if chosen else first - 1
    while True:
        seen = now()
        newer = [generation for generation in await ask(logs_dir, generations, logs_dir) if generation > last]
        for last in newer:
            await read(last, None)
        if seen.is_over:
            return
        if not newer:
            await marks.seen(max(seen.generation, last + 1), max(seen.generation, last) + 1, seen.look)
            await asyncio.sleep(POLL_S)


def paths(logs_dir: Path, selection: LogSelection) -> tuple[str, ...]:
    """The files of a selection that there are; blocking."""
    there = generations(logs_dir)
    newest = there[-1] if there and not selection.all_generations else 0
    return tuple(
        str(stream_path(logs_dir, generation, rank, name))
        for generation in _chosen_generations(logs_dir, selection, newest)
        for rank, name in streams(logs_dir, generation)
        if _is_selected(selection, rank, name)
    )


def _chosen_generations(logs_dir: Path, selection: LogSelection, first: int) -> list[int]:
    if selection.generation is not None:
        return [selection.generation]
    return [generation for generation in generations(logs_dir) if generation >= first]


def _is_selected(selection: LogSelection, rank: int, name: str) -> bool:
    if name not in selection.streams:
        return False
    if selection.ranks is None:
        return rank == 0 or name == "err"
    return rank in selection.ranks


class _Marks:
    """Where chunks and what is said of them go: nothing is said twice."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._told: LogsSeen | None = None  # with nothing sent behind it

    async def chunk(self, chunk: LogChunk) -> None:
        self._told = None
        await self._send(chunk)

    async def seen(self, before: int, seen: int, look: int) -> None:
        mark = LogsSeen(before=before, seen=seen, look=look)
        if mark != self._told:
            self._told = mark
            await self._send(mark)


class _GenerationReader:
    """The selected files of one generation."""

    def __init__(
        self,
        logs_dir: Path,
        generation: int,
        selection: LogSelection,
        past: LogSelection | None,
        known: Mapping[tuple[int, int, str], int],
        node: str,
        marks: _Marks,
    ) -> None:
        """`past` narrows what is sent of files that are there at the first look; None: all of it."""
        self._logs_dir = logs_dir
        self._generation = generation
        self._selection = selection
        self._past = past
        self._known = known
        self._node = node
        self._marks = marks
        self._readers: dict[tuple[int, str], BlockReader] = {}
        self._read_bytes = CHUNK_BYTES
        self._chunks_sent = 0

    async def run(self, now: Callable[[], LogsNow], *, follow: bool) -> None:
        """Send all there is, until a look that began when the generation was past."""
        while True:
            seen = now()
            is_last_look = not follow or seen.is_over or seen.generation > self._generation
            await ask(self._logs_dir, self._look)
            await self._send_in_order(is_last_look)
            await self._marks.seen(self._generation + is_last_look, self._generation + 1, seen.look)
            if is_last_look:
                return
            await asyncio.sleep(POLL_S)

    def _look(self) -> None:
        """Find all selected files, and how much they hold now; blocking."""
        past = self._past or LogSelection(tail_lines=None)
        for rank, name in streams(self._logs_dir, self._generation):
            if (rank, name) not in self._readers and _is_selected(self._selection, rank, name):
                known_bytes = self._known.get((self._generation, rank, name))
                self._readers[rank, name] = BlockReader(
                    stream_path(self._logs_dir, self._generation, rank, name),
                    tail_lines=past.tail_lines,
                    since_s=past.since_wall_s,
                    until_s=past.until_wall_s,
                    known_bytes=known_bytes,
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
            place, reader = readers[number]
            chunk = _Chunk()
            while reader.blocks:
                block = reader.blocks[0]
                if block.key_s != key_s and heap and heap[0] < (block.key_s, number):
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

    async def _send_chunk(self, place: tuple[int, str], chunk: "_Chunk") -> None:
        rank, name = place
        await self._marks.chunk(
            LogChunk(
                generation=self._generation,
                node=self._node,
                rank=rank,
                stream=name,
                data=bytes(chunk.data),
                times=tuple(chunk.times),
                offset=chunk.offset,
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
        self.offset = 0

    def has_room(self, block: Block) -> bool:
        """Whether the block still fits."""
        return not self.data or len(self.data) + len(block.data) <= CHUNK_BYTES

    def add(self, block: Block) -> None:
        """Put the block behind the others."""
        if not self.data:
            self.offset = block.offset
        if block.read_s != (self.times[-1][1] if self.times else 0.0):
            self.times.append((len(self.data), block.read_s))
        self.data += block.data
