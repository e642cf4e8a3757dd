"""The selected output of one generation on this node, from files to chunks."""

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from protocol.messages.control import LogChunk, LogSelection, Notice
from protocol.messages.fleet import LogsNow, LogsSeen
from protocol.text import one_line
from supervisor.daemon.growth import GROWTH
from supervisor.daemon.log_choice import Choice, Chosen
from supervisor.daemon.slow_disk import ask
from supervisor.logs.blocks import BLOCK_HOLD_S, CHUNK_BYTES, Block, BlockReader, is_in_progress
from supervisor.logs.errors import PLAIN_LINES_MAX, Errors
from supervisor.logs.paths import generation_dir, stream_path
from supervisor.shell.clock import boot_s

POLL_S = 0.25
"""How often a follower looks, where nothing tells it that files have grown."""

LOOK_S = 0.01
LOOK_A_FOLLOWER_S = 0.002
"""The least time between two looks of a follower, however often it is told; more where there are many."""

HELD_BYTES_MAX = 2 << 20
"""What is read of all streams of a generation at once, unless there are so many that `READ_BYTES_MIN` each is more."""

READ_BYTES_MIN, READ_BYTES_MAX = 4 << 10, 256 << 10

FILL_S = 2.0
"""How long one question to the disk may take, and a little more: many gzipped files are unzipped one after another."""

CHUNKS_A_TURN = 32
"""After these it is the turn of the rest of supd: a client that reads fast never makes us wait."""

BEHIND_BYTES_MAX = 32 << 20
"""A follower that is so far behind in a stream, and may be taken ahead, is taken to its last `AHEAD_LINES` lines."""

AHEAD_LINES = 200
SKIP_BYTES = 256 << 20  # as much is counted in one question to the disk

Send = Callable[[LogChunk | LogsSeen | Notice], Awaitable[None]]

Places = Mapping[tuple[int, int, str], int]
"""(generation, rank, stream) -> the offset of the first byte that is not known yet."""


class Marks:
    """Where chunks and what is said of them go: nothing is said twice."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._told: LogsSeen | None = None  # with nothing sent behind it

    async def chunk(self, chunk: LogChunk) -> None:
        """Send lines."""
        self._told = None
        await self._send(chunk)

    async def notice(self, text: str) -> None:
        """Say what is missing."""
        await self._send(Notice(text=text))

    async def seen(self, before: int, seen: int, look: int) -> None:
        """Say how far the files were looked at."""
        mark = LogsSeen(before=before, seen=seen, look=look)
        if mark != self._told:
            self._told = mark
            await self._send(mark)


class GenerationReader:
    """The selected streams of one generation."""

    def __init__(
        self,
        logs_dir: Path,
        generation: int,
        choice: Choice,
        past: LogSelection | None,
        known: Places,
        node: str,
        marks: Marks,
        bell: asyncio.Event,
    ) -> None:
        """`past` narrows what is sent of streams that are there at the first look; None: all of it. `bell` rings when
        the run has moved on; it is rung when files grow as well."""
        self._logs_dir = logs_dir
        self._generation = generation
        self._choice = choice
        self._past = past
        self._known = known
        self._node = node
        self._marks = marks
        self._bell = bell
        self._folder = generation_dir(logs_dir, generation)
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._seen: set[tuple[int, str, int]] = set()  # rank, name and local rank: it is known whether it is wanted
        self._pasts: dict[tuple[int, str], LogSelection | None] = {}  # of those that could not be read so far
        self._unread: dict[tuple[int, str], str] = {}  # streams that cannot be read, and why, as far as it was seen
        self._told: set[tuple[int, str]] = set()  # … and told: once, however often that is
        self._chunks_sent = 0
        self._held_for: _Stream | None = None  # the others' lines wait for the end of its block …
        self._held_until_s = 0.0  # … at most till then

    async def run(self, now: Callable[[], LogsNow], *, follow: bool) -> None:
        """Send all there is, until a look that began when the generation was past. A stream that cannot be read is
        told once, tried again at each look, and keeps nobody from the others."""
        try:
            while True:
                self._bell.clear()
                seen, looked_s = now(), boot_s()
                is_last_look = not follow or seen.is_over or seen.generation > self._generation
                if not is_last_look:
                    await GROWTH.listen(self._folder, self._bell)
                while not await ask(self._logs_dir, self._look):
                    pass
                await self._tell_unread()
                if follow:
                    await self._say_where_they_begin()
                    await self._take_ahead()
                if await self._send_in_order(is_last_look):
                    await self._marks.seen(self._generation + is_last_look, self._generation + 1, seen.look)
                if is_last_look:
                    return
                await self._wait(looked_s)
        finally:
            GROWTH.leave(self._bell)

    async def _wait(self, looked_s: float) -> None:
        """Until there may be something to be read."""
        limit_s = POLL_S if self._held_for is None else self._held_until_s - boot_s()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(limit_s, 0)):
                await self._bell.wait()
        pause_s = max(LOOK_S, LOOK_A_FOLLOWER_S * GROWTH.listeners(self._folder))
        await asyncio.sleep(max(looked_s + pause_s - boot_s(), 0))

    # --- looking -------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Find all selected streams, and how much they hold now; blocking. Returns whether it has come to its end:
        else it is to be called again."""
        until_s = boot_s() + FILL_S
        for chosen in self._choice.find(self._logs_dir, self._generation, self._node, self._seen):
            key = (chosen.rank, chosen.name)
            if key not in self._streams:
                past = self._pasts.setdefault(key, self._past)
                try:
                    self._streams[key] = self._opened(chosen, past or LogSelection(tail_lines=None))
                except OSError as exc:
                    self._unread[key] = str(exc)
                    continue
                del self._pasts[key]
            self._seen.add((*key, chosen.local_rank))
            if boot_s() > until_s:
                return False
        self._past = None  # a stream that appears later is new from its first byte on
        for stream in self._streams.values():
            with self._going_on(stream):
                stream.reader.look()  # all of them first: a flood must not keep the other streams waiting
        return True

    @contextlib.contextmanager
    def _going_on(self, stream: "_Stream") -> Iterator[None]:
        """Where its files can't be read."""
        try:
            yield
        except OSError as exc:
            self._unread[stream.chosen.rank, stream.chosen.name] = str(exc)

    async def _tell_unread(self) -> None:
        unread, self._unread = self._unread, {}
        for (rank, name), why in unread.items():
            if (rank, name) not in self._told:
                self._told.add((rank, name))
                what = f"the output of rank {rank} (std{name}, generation {self._generation}) on {self._node}"
                await self._marks.notice(one_line(f"{what} is missing here, it cannot be read: {why}"))

    def _opened(self, chosen: Chosen, past: LogSelection) -> "_Stream":
        place = self._known.get((self._generation, chosen.rank, chosen.name))
        errors = Errors() if chosen.is_errors_only else None
        reader = BlockReader(
            stream_path(self._logs_dir, self._generation, chosen.rank, chosen.name),
            tail_lines=past.tail_lines,
            since_s=past.since_wall_s,
            until_s=past.until_wall_s,
            known_bytes=place,
            before_lines=0 if errors is None else PLAIN_LINES_MAX,  # an error may have begun before
            pick=None if errors is None else errors.pick,
        )
        if errors is not None:
            errors.begin = reader.begin
        return _Stream(chosen, reader, begin=0 if place is not None else reader.begin)

    async def _say_where_they_begin(self) -> None:
        """So that a follower which comes back knows its place also in streams of which it was sent nothing."""
        for stream in self._streams.values():
            if stream.begin > 0:
                await self._marks.chunk(self._chunk(stream, offset=stream.begin))
                stream.begin = 0

    async def _take_ahead(self) -> None:
        """Leave out what a follower is too slow for, but nothing of the past that it has asked for."""
        if not self._choice.selection.may_skip:
            return
        for stream in self._streams.values():
            is_behind = stream.reader.unread_bytes > BEHIND_BYTES_MAX and not stream.reader.blocks
            if is_behind and stream.has_caught_up and not stream.chosen.is_errors_only:
                with self._going_on(stream):
                    while not await ask(self._logs_dir, stream.reader.skip, AHEAD_LINES, SKIP_BYTES):
                        pass

    async def _fill(self, streams: Iterable["_Stream"], *, ends_lines: bool) -> None:
        """See that each has a block, unless nothing is left in it; `ends_lines` also where a line has no end."""
        share_bytes = max(HELD_BYTES_MAX // max(len(self._streams), 1), READ_BYTES_MIN)

        def fill() -> bool:
            until_s = boot_s() + FILL_S
            for stream in streams:
                reader, left_bytes = stream.reader, share_bytes
                with self._going_on(stream):
                    while reader.lacks_block or (left_bytes < share_bytes and min(left_bytes, reader.unread_bytes) > 0):
                        if boot_s() > until_s:
                            return False
                        left_bytes -= reader.fill(min(share_bytes, READ_BYTES_MAX))
                if not reader.blocks and (ends_lines or reader.has_waited()):
                    reader.end_line()
            return True

        while not await ask(self._logs_dir, fill):
            pass
        if self._unread:
            await self._tell_unread()

    # --- sending -------------------------------------------------------------------------------------------------

    async def _send_in_order(self, is_last_look: bool) -> bool:
        """Send what was there at the look, the oldest block of all streams first. Returns whether that was all: lines
        may wait for the end of another rank's traceback."""
        streams = list(self._streams.values())
        await self._fill(streams, ends_lines=is_last_look)
        held_for, self._held_for = self._held_for, None
        may_hold = not is_last_look
        if held_for is not None:
            may_hold &= boot_s() < self._held_until_s  # else they have waited long enough
            if may_hold:
                await self._send_from(held_for, lambda _key_s: True, ends_lines=False)
                if held_for.is_in_progress:
                    self._held_for = held_for
                    return not any(stream.reader.blocks for stream in streams)
        heap = [(stream.reader.blocks[0].key_s, n) for n, stream in enumerate(streams) if stream.reader.blocks]
        heapq.heapify(heap)
        while heap:
            _, number = heapq.heappop(heap)
            stream = streams[number]

            def is_next(key_s: float, number: int = number) -> bool:
                return not heap or (key_s, number) < heap[0]

            await self._send_from(stream, is_next, ends_lines=is_last_look)
            if stream.reader.blocks:
                heapq.heappush(heap, (stream.reader.blocks[0].key_s, number))
            elif may_hold and stream.is_in_progress:
                self._held_for, self._held_until_s = stream, boot_s() + BLOCK_HOLD_S
                return not heap
        for stream in streams:
            stream.has_caught_up = True
        return True

    async def _send_from(self, stream: "_Stream", is_next: Callable[[float], bool], *, ends_lines: bool) -> None:
        """Send the first block, and those behind it that have its key, or one that `is_next`."""
        reader = stream.reader
        chunk = _Chunk()
        key_s: float | None = None
        while reader.blocks:
            block = reader.blocks[0]
            if key_s is not None and block.key_s != key_s and not is_next(block.key_s):
                break
            key_s = block.key_s
            if not chunk.has_room(block):
                await self._send(stream, chunk)
                chunk = _Chunk()
            chunk.add(reader.blocks.popleft())
            stream.is_in_progress = is_in_progress(block.data, block.read_s)
            if not reader.blocks and reader.has_more:
                await self._fill([stream], ends_lines=ends_lines)
        if chunk.data:
            await self._send(stream, chunk)

    async def _send(self, stream: "_Stream", chunk: "_Chunk") -> None:
        await self._marks.chunk(
            self._chunk(
                stream,
                offset=chunk.offset,
                data=bytes(chunk.data),
                times=tuple(chunk.times),
                skipped_lines=chunk.skipped_lines,
                removed_bytes=chunk.removed_bytes,
            )
        )
        self._chunks_sent += 1
        if self._chunks_sent % CHUNKS_A_TURN == 0:
            await asyncio.sleep(0)

    def _chunk(self, stream: "_Stream", *, offset: int, data: bytes = b"", **facts: Any) -> LogChunk:
        return LogChunk(
            generation=self._generation,
            node=self._node,
            rank=stream.chosen.rank,
            local_rank=stream.chosen.local_rank,
            stream=stream.chosen.name,
            offset=offset,
            data=data,
            **facts,
        )


class _Stream:
    """One stream that is read."""

    def __init__(self, chosen: Chosen, reader: BlockReader, begin: int) -> None:
        self.chosen = chosen
        self.reader = reader
        self.begin = begin  # where it is read from, as long as that has to be told
        self.has_caught_up = False  # with what was there at first
        self.is_in_progress = False  # what was sent last ends in the middle of a traceback that is being written


class _Chunk:
    """Blocks of one stream that are sent together."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.times: list[tuple[int, float]] = []
        self.offset = self.skipped_lines = self.removed_bytes = 0

    def has_room(self, block: Block) -> bool:
        """Whether the block still fits, and stands right behind the others."""
        is_next = block.offset == self.offset + len(self.data) and not block.removed_bytes and not block.skipped_lines
        return not self.data or (is_next and len(self.data) + len(block.data) <= CHUNK_BYTES)

    def add(self, block: Block) -> None:
        """Put the block behind the others."""
        if not self.data:
            self.offset = block.offset
            self.skipped_lines, self.removed_bytes = block.skipped_lines, block.removed_bytes
        if block.read_s != (self.times[-1][1] if self.times else 0.0):
            self.times.append((len(self.data), block.read_s))
        self.data += block.data
