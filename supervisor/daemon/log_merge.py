"""Many nodes' output, and what happened between its lines, in one order for one client.

Each source is in the order of time, by generation. The past is merged by the time stamps, corrected by how far a
node's clock is off; what is new is passed on as it arrives, and only a generation waits for the end of the one before.
A source says with `LogsSeen` how far it is, so that it is known what may still come, also where nothing does.
"""

import asyncio
import contextlib
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from protocol.messages.control import LogChunk, LogPlace
from protocol.messages.fleet import LogsNow, LogsSeen
from supervisor.daemon.log_window import Hold, Window
from supervisor.logs.blocks import Keys
from supervisor.shell.clock import boot_s, wall_s

CHUNKS_WAITING_MAX, BYTES_WAITING_MAX = 8, 64 << 10
"""Of one source. A client that does not read makes its sources wait, and nobody else."""

HOLD_S = 10.0
"""How long a source that says nothing may hold up the others."""

PAUSE_A_SOURCE_S, PAUSE_MAX_S = 0.0001, 0.05
"""The least time between two looks at all sources, however often something rings: the more there are, the more a look
costs, and the more rings. It takes a few per cent of the time then."""

TIMER_S = 0.001
"""What the loop's timers can tell apart: with few sources there is no pause."""

CONFIRM_S = 2.0
"""How long an event waits for what was written before it."""


class Between(Protocol):
    """What is told between the lines."""

    def look_in_s(self) -> float:
        """Until the next look is due; it may become due sooner, whenever the bell rings."""

    async def look(self) -> bool:
        """See what there is to tell by now. The output is looked at after that, so what was written before is told
        before. Returns whether anything has to wait for that."""

    def is_due(self, generation: int, until_s: float) -> bool:
        """Whether `tell` would tell an event."""

    async def tell(self, generation: int, until_s: float | None = None) -> None:
        """Tell what was seen: up to this generation and (s since 1970) this time, or else all of it."""

    async def notice(self, text: str) -> None:
        """Tell at once that something is missing."""


class _Piece(NamedTuple):
    """Lines of a chunk that were read at one time."""

    key_s: float
    start: int
    end: int
    read_s: float


class Source:
    """The output of one node on its way into a Merge."""

    def __init__(self, node: str, number: int, on_word: Callable[["Source"], None], clock_off_s: float = 0.0) -> None:
        self.node = node
        self.number = number
        self.before = self.seen = self.look = -1  # as in LogsSeen
        self.has_ended = False
        self.is_away = False  # it does not answer: nobody waits for it
        self.error: Exception | None = None
        self.notices: deque[str] = deque()
        self.chunk: LogChunk | None = None  # the head …
        self.pieces: deque[_Piece] = deque()  # … and what is left of it
        self.heard, self.heard_wall_s = 0, 0.0  # how often it has said something, and when last
        self._places: dict[tuple[int, int, str], int] = {}  # of each file, how much was handed in
        self._on_word = on_word
        self.clock_off_s = clock_off_s  # how far its clock is ahead of ours
        self._items: deque[LogChunk | LogsSeen] = deque()
        self._waiting_bytes = 0
        self._has_room = asyncio.Event()
        self._keys: dict[tuple[int, int, str], Keys] = {}

    # --- who fills it --------------------------------------------------------------------------------------------

    async def put(self, item: LogChunk | LogsSeen) -> None:
        """Hand in what comes next; waits while there is no room."""
        while len(self._items) >= CHUNKS_WAITING_MAX or self._waiting_bytes >= BYTES_WAITING_MAX:
            self._has_room.clear()
            await self._has_room.wait()
        if isinstance(item, LogChunk):
            self._places[item.generation, item.rank, item.stream] = item.offset + len(item.data)
            self._waiting_bytes += len(item.data)
        self._items.append(item)
        self.heard, self.heard_wall_s = self.heard + 1, wall_s()
        self.is_away = False
        self._on_word(self)

    def end(self, error: Exception | None = None) -> None:
        """Nothing more comes: what went wrong, where something did."""
        self.has_ended, self.error = True, error
        self._on_word(self)

    def notice(self, text: str) -> None:
        """Something is missing, which the client is told."""
        self.notices.append(text)
        self._on_word(self)

    def lose(self, text: str) -> None:
        """It does not answer, and may come back."""
        self.is_away = True
        self.notice(text)

    def resume(self, known: tuple[LogPlace, ...]) -> None:
        """So much was handed in before, to another one."""
        self._places = {(place.generation, place.rank, place.stream): place.offset for place in known}

    def known(self) -> tuple[LogPlace, ...]:
        """What was handed in of each file: where a stream that begins anew goes on."""
        return tuple(LogPlace(generation=g, rank=r, stream=s, offset=at) for (g, r, s), at in self._places.items())

    # --- who empties it ------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Put the next chunk at the head, if there is one."""
        while self.chunk is None and self._items:
            item = self._items.popleft()
            self._has_room.set()
            if isinstance(item, LogsSeen):
                if item.before > self.before:
                    self.before = item.before
                    self._places = {place: at for place, at in self._places.items() if place[0] >= self.before}
                self.seen = max(self.seen, item.seen)
                self.look = max(self.look, item.look)
            else:
                self.chunk = item
                self._waiting_bytes -= len(item.data)
                self._cut(item)

    @property
    def is_done(self) -> bool:
        """Whether all of it was taken."""
        return self.has_ended and self.chunk is None and not self._items

    def holds_up(self, generation: int) -> bool:
        """Whether something of it may come before what others have of this generation."""
        is_heard = not self.has_ended and not self.is_away and self.chunk is None
        return is_heard and (self.before < generation or self.seen <= generation)

    def take(self, is_next: Callable[[float], bool]) -> LogChunk:
        """The first piece of the head, and those behind it for whose key `is_next`, as a chunk."""
        assert self.chunk is not None
        taken = [self.pieces.popleft()]
        while self.pieces and (self.pieces[0].key_s == taken[-1].key_s or is_next(self.pieces[0].key_s)):
            taken.append(self.pieces.popleft())
        chunk = self.chunk
        if not self.pieces:
            self.chunk = None
        start, end = taken[0].start, taken[-1].end
        if start == 0 and end == len(chunk.data):
            return chunk
        times = tuple((piece.start - start, piece.read_s) for piece in taken if piece.start > start or piece.read_s)
        part = replace(chunk, data=chunk.data[start:end], times=times, offset=chunk.offset + start)
        return part if start == 0 else replace(part, skipped_lines=0, removed_bytes=0)

    def _cut(self, chunk: LogChunk) -> None:
        if not chunk.data:  # it only says where its stream begins
            return self.pieces.append(_Piece(0.0, 0, 0, 0.0))
        place = (chunk.generation, chunk.rank, chunk.stream)
        keys = self._keys.get(place)
        if keys is None:
            self._keys = {key: value for key, value in self._keys.items() if key[0] >= chunk.generation}
            keys = self._keys[place] = Keys()
        marks = chunk.times if chunk.times and chunk.times[0][0] == 0 else ((0, 0.0), *chunk.times)
        ends = [*(at for at, _ in marks[1:]), len(chunk.data)]
        for (start, read_s), end in zip(marks, ends, strict=True):
            key_s = keys.of(chunk.data[start:end], read_s)
            self.pieces.append(_Piece(key_s - self.clock_off_s if key_s else 0.0, start, end, read_s))


class Merge:
    """Takes what comes next of all sources, until all are at their end."""

    def __init__(
        self,
        between: Between,
        send: Callable[[LogChunk], Awaitable[None]],
        now: Callable[[], LogsNow],
        bell: asyncio.Event,
        *,
        follow: bool,
        window_s: float = 0.0,
    ) -> None:
        """`bell` rings whenever `between` may have something to tell; `now` is how far the run is. A follower's lines
        wait for `window_s`, so that those come first that were read first."""
        self.now = now()  # what the sources may know
        self._between = between
        self._send = send
        self._ask_now = now
        self._bell = bell
        self._follow = follow
        self._sources: list[Source] = []
        self._quiet: dict[int, Source] = {}  # by number: not at their end, and nothing of them is at hand
        self._heads: list[tuple[int, float, int]] = []  # heap of the others: generation, key, number
        self._spoke: set[int] = set()  # numbers of those that have said something
        self._look = 0
        self._looked_at_s = 0.0
        self._generation = -1  # of what was sent last
        self._held_since_s: float | None = None
        self._window = Window(window_s if follow else 0.0)
        self._hold = Hold()

    def add(self, node: str, clock_off_s: float = 0.0) -> Source:
        """One more source; whoever fills it sees to its end."""
        source = Source(node, len(self._sources), self._on_word, clock_off_s)
        self._sources.append(source)
        self._quiet[source.number] = source
        return source

    async def run(self, on_now: Callable[[LogsNow], None]) -> None:
        """Send everything, in order. `on_now` is called whenever the sources are to know how far the run is. Raises
        what a source has ended with. At the end, some of what is told between the lines may be left to be told."""
        while True:
            looked_s = boot_s()
            self._bell.clear()
            if self._between.look_in_s() <= 0:
                await self._look_around(on_now)
            await self._listen()
            has_more = False
            while not has_more and (source := self._next()) is not None:
                await self._take_from(source)
                await self._listen()
                # A flood must not hold up what is told between its lines.
                has_more = self._between.look_in_s() <= 0 or self._window.due_in_s() <= 0
            is_over = not self._quiet and not self._heads
            for chunk, key_s in self._window.due(is_over=is_over):
                await self._tell_before(chunk.generation, key_s)
                await self._send(chunk)
            if is_over:
                return await self._between.tell(self._generation)
            if self._is_confirmed():
                await self._tell_now()
            self._give_up_waiting()
            wait_s = min(self._between.look_in_s(), 1.0 if self._heads or not self._is_confirmed() else 60.0)
            wait_s = min(wait_s, self._window.due_in_s(), self._hold.left_s())
            if wait_s > 0 and not has_more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._bell.wait()
            pause_s = looked_s + min(PAUSE_A_SOURCE_S * len(self._sources), PAUSE_MAX_S) - boot_s()
            if pause_s >= TIMER_S:
                await asyncio.sleep(pause_s)

    async def _tell_now(self) -> None:
        """Events, behind all that was sent."""
        generation, until_s = self._generation_now(), self._window.until_s()
        if until_s is not None:
            await self._between.tell(generation, until_s)
            if self._between.is_due(generation, math.inf):
                return
        await self._between.tell(generation)

    async def _look_around(self, on_now: Callable[[LogsNow], None]) -> None:
        """How far the run is, and then what has happened: sources are never told of what was not looked at."""
        now = self._ask_now()
        if await self._between.look():
            self._look += 1
            self._looked_at_s = boot_s()
        now = replace(now, look=self._look)
        if now != self.now:
            self.now = now
            on_now(now)

    def _on_word(self, source: Source) -> None:
        self._spoke.add(source.number)
        self._bell.set()

    async def _listen(self) -> None:
        """Take in what sources have said since the last time."""
        spoke, self._spoke = self._spoke, set()
        for number in spoke:
            source = self._sources[number]
            while source.notices:
                await self._between.notice(source.notices.popleft())
            if number in self._quiet:
                self._see(source)

    def _see(self, source: Source) -> None:
        source.advance()
        if source.chunk is not None:
            self._quiet.pop(source.number, None)
            heapq.heappush(self._heads, (source.chunk.generation, source.pieces[0].key_s, source.number))
        elif source.is_done:
            self._quiet.pop(source.number, None)
            if source.error is not None:
                raise source.error
        else:
            self._quiet[source.number] = source

    def _next(self) -> Source | None:
        """The source of what comes next; None: it is not known yet."""
        if not self._heads:
            self._hold.release()
            return None
        if any(source.holds_up(self._heads[0][0]) for source in self._quiet.values()):
            return None
        number = self._heads[0][2]
        if (held := self._hold.number()) is not None:
            mine = next((head for head in self._heads if head[2] == held and head[0] == self._heads[0][0]), None)
            if mine is None:
                return None
            self._heads.remove(mine)
            heapq.heapify(self._heads)
            number = held
        else:
            heapq.heappop(self._heads)
        self._held_since_s = None
        return self._sources[number]

    async def _take_from(self, source: Source) -> None:
        """Take what stands before anything else."""
        assert source.chunk is not None
        generation, key_s = source.chunk.generation, source.pieces[0].key_s
        if self._window.is_open:
            self._window.put(source.take(lambda _key_s: False), key_s)
            return self._see(source)

        def is_next(key_s: float) -> bool:
            is_first = not self._heads or (generation, key_s, source.number) < self._heads[0]
            return is_first and not self._between.is_due(generation, key_s)

        await self._tell_before(generation, key_s)
        chunk = source.take(is_next)
        await self._send(chunk)
        self._see(source)
        if self._follow:
            self._hold.see(source.number, chunk, is_all=source.chunk is None)

    async def _tell_before(self, generation: int, key_s: float) -> None:
        """Events that stand before lines of this generation and time."""
        if generation > self._generation:
            await self._between.tell(generation - 1)
            self._generation = generation
        await self._between.tell(generation, key_s)

    def _generation_now(self) -> int:
        """The generation that is being told."""
        looked = [min(source.before, source.seen - 1) for source in self._quiet.values() if not source.is_away]
        return min([*looked, *(generation for generation, _, _ in self._heads[:1])], default=self.now.generation)

    def _is_confirmed(self) -> bool:
        """Whether what was written before the last look is sent."""
        if self._look == 0 or boot_s() - self._looked_at_s > CONFIRM_S:
            return True
        waits = [*self._quiet.values(), *(self._sources[number] for _, _, number in self._heads)]
        return all(source.look >= self._look or source.is_away or source.has_ended for source in waits)

    def _give_up_waiting(self) -> None:
        """Whoever has held up the others for too long is not waited for any more."""
        if not self._heads:
            self._held_since_s = None
            return
        if self._held_since_s is None:
            self._held_since_s = boot_s()
        if boot_s() - self._held_since_s < HOLD_S:
            return
        generation = self._heads[0][0]
        for source in [s for s in self._quiet.values() if s.holds_up(generation)]:
            source.lose(f"{source.node} has said nothing for {HOLD_S:g} s: its output is missing here")
            if not self._follow:
                source.end()
