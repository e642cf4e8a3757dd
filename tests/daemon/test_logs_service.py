"""supervisor/daemon/logs_service.py: real files, a client that collects."""

import asyncio
import functools
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages.control import LogChunk, LogSelection
from protocol.messages.fleet import LogsNow
from supervisor.daemon import log_choice, log_sources, logs_service
from supervisor.daemon.log_merge import Merge
from supervisor.logs.blocks import CHUNK_BYTES, cut_lines
from supervisor.logs.log_file import LogFile
from supervisor.logs.paths import generations, make_generation_dir, stream_path
from supervisor.logs.times import times_path
from supervisor.shell.clock import boot_s
from tests.daemon.serving import wait_for

FLOOD = b"long\n" * 20_000  # more than a chunk

EVERYTHING = LogSelection(chooser="0-2", all_generations=True, tail_lines=None)


def write(logs_dir: Path, generation: int, rank: int, name: str, data: bytes) -> None:
    """Append like a runner."""
    make_generation_dir(logs_dir, generation)
    with stream_path(logs_dir, generation, rank, name).open("ab", buffering=0) as file:
        file.write(data)


def write_at(logs_dir: Path, generation: int, rank: int, name: str, *pieces: tuple[float, bytes]) -> None:
    """Append like a runner that reads these pieces at these times."""
    make_generation_dir(logs_dir, generation)
    file = LogFile(stream_path(logs_dir, generation, rank, name), lambda: None)
    for read_s, data in pieces:
        file.write(data, [(0, read_s)])
    file.close()


class Told:
    """Events (generation, time, text) that a client is told between the lines."""

    def __init__(self, shown: list[bytes], *events: tuple[int, float, bytes]) -> None:
        self.shown = shown
        self.events = [*events]
        self._seen: list[tuple[int, float, bytes]] = []
        self._looked_at_s = 0.0

    def look_in_s(self) -> float:
        return self._looked_at_s + 0.01 - boot_s()

    async def look(self) -> bool:
        self._looked_at_s = boot_s()
        new, self.events = self.events, []
        self._seen += new
        return bool(new)

    def is_due(self, generation: int, until_s: float | None) -> bool:
        if not self._seen:
            return False
        event_generation, time_s, _ = self._seen[0]
        return event_generation <= generation and (until_s is None or time_s <= until_s)

    async def tell(self, generation: int, until_s: float | None = None) -> None:
        while self.is_due(generation, until_s):
            self.shown.append(self._seen.pop(0)[2])

    async def notice(self, text: str) -> None:
        self.shown.append(text.encode())


async def merge_one(
    logs_dir: Path, selection: LogSelection, between: Told, send: Callable[[LogChunk], Awaitable[None]], **options: Any
) -> None:
    """The output of one node, as a client is sent it."""
    follow, now = options.pop("follow", False), options.pop("now", lambda: LogsNow(generation=99, is_over=True))
    first = 0 if selection.all_generations else max([*generations(logs_dir), 0])
    async with asyncio.TaskGroup() as tasks:
        merge = Merge(between, send, now, asyncio.Event(), follow=follow)
        source, bell = merge.add("gpu-01"), asyncio.Event()

        async def fill() -> None:
            await logs_service.stream(
                logs_dir,
                selection,
                first=first,
                follow=follow,
                now=lambda: merge.now,
                bell=bell,
                node="gpu-01",
                send=functools.partial(log_sources.hand_in, source),
                **options,
            )
            source.end()

        tasks.create_task(fill())
        await merge.run(lambda _now: bell.set())


async def read_past(
    logs_dir: Path, selection: LogSelection, between: Told | None = None, shown: list[bytes] | None = None
) -> list[LogChunk]:
    """What a client gets that does not follow; with `shown` also there, among what `between` has told."""
    chunks = []

    async def send(chunk: LogChunk) -> None:
        chunks.append(chunk)
        if shown is not None:
            shown.append(chunk.data)

    async with asyncio.timeout(20):
        await merge_one(logs_dir, selection, between or Told([]), send)
    return chunks


def told(chunks: list[LogChunk]) -> list[tuple[int, int, str, bytes]]:
    return [(chunk.generation, chunk.rank, chunk.stream, chunk.data) for chunk in chunks]


class Follower:
    """A client that follows, and the run that it follows."""

    def __init__(self, between: Told | None = None, shown: list[bytes] | None = None) -> None:
        """With `shown`, what comes is put there, among what `between` has told."""
        self.is_over = False
        self._between = between or Told([])
        self._shown = [] if shown is None else shown
        self.generation: int | None = None
        self.has_ended = False
        self.begins: list[tuple[int, int, str, int]] = []  # of streams of which not all is sent
        self.chunks: list[LogChunk] = []  # all others
        self.is_full = asyncio.Event()  # there is something that the client does not take
        self._chunks: asyncio.Queue[LogChunk] = asyncio.Queue()
        self._may_take = asyncio.Event()
        self._may_take.set()

    def take(self, is_taking: bool) -> None:
        """Whether the client reads what it is sent."""
        if is_taking:
            self._may_take.set()
        else:
            self._may_take.clear()

    async def run(self, logs_dir: Path, selection: LogSelection) -> None:
        await merge_one(
            logs_dir,
            selection,
            self._between,
            self._send,
            follow=True,
            now=lambda: LogsNow(generation=-1 if self.generation is None else self.generation, is_over=self.is_over),
        )
        await self._between.tell(99)
        self.has_ended = True

    @property
    def sent_bytes(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)

    @property
    def last(self) -> bytes:
        return self.chunks[-1].data if self.chunks else b""

    async def _send(self, chunk: LogChunk) -> None:
        if not self._may_take.is_set():
            self.is_full.set()
        await self._may_take.wait()
        if not chunk.data:
            return self.begins.append((chunk.generation, chunk.rank, chunk.stream, chunk.offset))
        self._shown.append(chunk.data)
        self.chunks.append(chunk)
        self._chunks.put_nowait(chunk)

    async def next(self) -> tuple[int, int, str, bytes]:
        return told([await self._chunks.get()])[0]

    def rest(self) -> list[tuple[int, int, str, bytes]]:
        """After the end: what was not taken yet."""
        assert self.has_ended
        return told([self._chunks.get_nowait() for _ in range(self._chunks.qsize())])


@asynccontextmanager
async def following(logs_dir: Path, selection: LogSelection, timeout_s: float = 20.0) -> AsyncIterator[Follower]:
    """A follower; leaving waits for the end of its stream."""
    follower = Follower()
    async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.run(logs_dir, selection))
        yield follower


# --- the past ----------------------------------------------------------------------------------------------------


async def test_without_a_choice_rank_0_and_the_errors_of_all_are_shown(tmp_path: Path) -> None:
    for rank in (1, 0):
        for name in ("err", "out"):
            write(tmp_path, 0, rank, name, b"hello\nERROR bad\n")
    chunks = await read_past(tmp_path, LogSelection())
    both = b"hello\nERROR bad\n"
    assert told(chunks) == [(0, 0, "out", both), (0, 0, "err", both), (0, 1, "err", b"ERROR bad\n")]
    assert {chunk.node for chunk in chunks} == {"gpu-01"}
    assert [chunk.offset for chunk in chunks] == [0, 0, 6]
    assert told(await read_past(tmp_path, LogSelection(streams=("out",)))) == [(0, 0, "out", both)]
    assert told(await read_past(tmp_path, LogSelection(chooser="1", streams=("out",)))) == [(0, 1, "out", both)]


async def test_without_times_the_past_comes_by_generation_then_rank_then_stream(tmp_path: Path) -> None:
    expected = [(g, r, n, b"%d %d\n" % (g, r)) for g in (0, 1, 12) for r in (0, 1, 2) for n in ("out", "err")]
    for generation, rank, name, data in reversed(expected):
        write(tmp_path, generation, rank, name, data)
    assert told(await read_past(tmp_path, EVERYTHING)) == expected


async def test_generations_are_chosen_by_number_the_newest_or_all(tmp_path: Path) -> None:
    async def shown(selection: LogSelection) -> list[int]:
        return [chunk.generation for chunk in await read_past(tmp_path, selection)]

    assert await shown(LogSelection()) == await shown(LogSelection(generation=0)) == []
    for generation in (0, 1, 3):
        write(tmp_path, generation, 0, "out", b"hello\n")
    assert await shown(LogSelection()) == [3]
    assert await shown(LogSelection(generation=0)) == [0]
    assert await shown(LogSelection(generation=2)) == []
    assert await shown(LogSelection(generation=-1)) == []
    assert await shown(LogSelection(all_generations=True)) == [0, 1, 3]


async def test_the_last_lines_are_counted_for_each_rank_and_stream(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, 0, rank, "err", b"".join(b"line %d\n" % number for number in range(rank + 3)) + b"and")
    assert told(await read_past(tmp_path, LogSelection(chooser="all", tail_lines=2))) == [
        (0, 0, "err", b"line 2\nand"),
        (0, 1, "err", b"line 3\nand"),
    ]
    assert told(await read_past(tmp_path, LogSelection(tail_lines=0))) == []


async def test_what_was_read_at_different_times_comes_in_their_order_and_with_them(tmp_path: Path) -> None:
    write_at(tmp_path, 0, 0, "out", (10.0, b"step 1\n"), (30.0, b"step 2\nstep 3\n"))
    write_at(tmp_path, 0, 1, "out", (20.0, b"step 1\n"), (20.5, b"step 2\n"), (30.0, b"step 3\n"))
    write_at(tmp_path, 0, 1, "err", (30.0, b"Traceback\n"), (30.01, b"  line\n"), (30.02, b"ValueError"))
    write(tmp_path, 0, 2, "out", b"of an older supd\n")
    chunks = await read_past(tmp_path, EVERYTHING)
    assert told(chunks) == [
        (0, 2, "out", b"of an older supd\n"),
        (0, 0, "out", b"step 1\n"),
        (0, 1, "out", b"step 1\nstep 2\n"),
        (0, 0, "out", b"step 2\nstep 3\n"),
        (0, 1, "out", b"step 3\n"),
        (0, 1, "err", b"Traceback\n  line\nValueError"),
    ]
    assert [chunk.times for chunk in chunks] == [
        (),
        ((0, 10.0),),
        ((0, 20.0), (7, 20.5)),
        ((0, 30.0),),
        ((0, 30.0),),
        ((0, 30.0), (10, 30.01), (17, 30.02)),
    ]


async def test_events_stand_at_their_place_in_time_in_their_generation(tmp_path: Path) -> None:
    write_at(tmp_path, 0, 0, "out", (10.0, b"a\n"), (11.0, b"b\n"), (30.0, b"d\n"), (30.1, b"e\n"))
    write_at(tmp_path, 0, 1, "err", (20.0, b"c\n"), (90.0, b"f\n"))
    write_at(tmp_path, 2, 0, "out", (70.0, b"g\n"), (80.0, b"h\n"))
    write(tmp_path, 3, 0, "out", b"no time\n")
    events = [
        *((0, 10.5, b"<begun"), (0, 20.5, b"<1"), (0, 20.6, b"<2"), (0, 40.0, b"<3"), (0, 95.0, b"<ended")),
        *((1, 60.0, b"<silent"), (2, 60.0, b"<begun"), (2, 75.0, b"<4"), (3, 85.0, b"<begun"), (4, 90.0, b"<left")),
    ]
    shown: list[bytes] = []
    await read_past(tmp_path, EVERYTHING, Told(shown, *events), shown)
    text = b" ".join(shown).replace(b"\n", b"")
    assert text == b"a <begun b c <1 <2 de <3 f <ended <silent <begun g <4 h no time <begun"


async def test_a_time_is_cut_out_of_all_generations_before_the_last_lines_are_counted(tmp_path: Path) -> None:
    for generation in range(3):
        pieces = [(100.0 * generation + second, b"%d %d\n" % (generation, second)) for second in range(5)]
        write_at(tmp_path, generation, 0, "out", *pieces)

    async def shown(**selection: Any) -> str:
        chunks = await read_past(tmp_path, LogSelection(all_generations=True, **selection))
        return b"".join(chunk.data for chunk in chunks).decode().replace("\n", ";")

    assert await shown(since_wall_s=103.0) == "1 3;1 4;2 0;2 1;2 2;2 3;2 4;"
    assert await shown(since_wall_s=3.5, until_wall_s=102.0) == "0 4;1 0;1 1;"
    assert await shown(since_wall_s=103.0, tail_lines=1) == "1 4;2 4;"
    assert await shown(since_wall_s=1000.0) == ""


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(1, 100), st.binary(min_size=1, max_size=30)), max_size=20),
    st.integers(0, 400),
    st.binary(max_size=20),
)
async def test_an_index_cut_or_spoilt_anywhere_never_loses_or_reorders_a_line(
    writes: list[tuple[int, float, bytes]], cut_at: int, foreign: bytes
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written: dict[int, bytes] = defaultdict(bytes)
        pieces: dict[int, list[tuple[float, bytes]]] = defaultdict(list)
        for rank, read_s, data in writes:
            written[rank] += data
            pieces[rank].append((read_s, data))
        for rank in pieces:
            write_at(folder, 0, rank, "out", *pieces[rank])
        if 0 in pieces:
            index = times_path(stream_path(folder, 0, 0, "out"))
            index.write_bytes(index.read_bytes()[:cut_at] + foreign)
        sent: dict[int, bytes] = defaultdict(bytes)
        for chunk in await read_past(folder, EVERYTHING):
            sent[chunk.rank] += chunk.data
            assert all(0 <= offset < len(chunk.data) for offset, _ in chunk.times)
        assert sent == written


async def test_a_follower_from_a_time_on_sees_all_that_comes(tmp_path: Path) -> None:
    write_at(tmp_path, 0, 0, "out", (10.0, b"old\n"), (20.0, b"seen\n"))
    async with following(tmp_path, LogSelection(chooser="all", since_wall_s=20.0, tail_lines=None)) as follower:
        assert await follower.next() == (0, 0, "out", b"seen\n")
        write_at(tmp_path, 0, 1, "err", (5.0, b"new, though its clock is wrong\n"))
        assert await follower.next() == (0, 1, "err", b"new, though its clock is wrong\n")
        follower.is_over = True
    assert follower.rest() == []


async def test_a_mebibyte_without_newline_comes_in_pieces_and_bytes_stay_bytes(tmp_path: Path) -> None:
    output = bytes(range(256)).replace(b"\n", b"\0") * 4096
    write(tmp_path, 0, 0, "out", output)
    chunks = await read_past(tmp_path, EVERYTHING)
    assert b"".join(chunk.data for chunk in chunks) == output
    assert {len(chunk.data) for chunk in chunks} == {CHUNK_BYTES}


def test_paths_are_those_of_the_files_that_are_there(tmp_path: Path) -> None:
    for generation, rank, name in ((0, 0, "out"), (1, 0, "out"), (1, 1, "out"), (1, 1, "err")):
        write(tmp_path, generation, rank, name, b"")
    assert log_choice.paths(tmp_path, LogSelection(), "gpu-01") == (
        str(tmp_path / "gen-0001" / "rank-00000.out"),
        str(tmp_path / "gen-0001" / "rank-00001.err"),
    )


@given(
    st.lists(st.one_of(st.integers(0, 100), st.integers(CHUNK_BYTES - 2, CHUNK_BYTES + 2)), max_size=8), st.booleans()
)
def test_chunks_are_whole_lines_unless_a_line_is_longer_than_a_chunk(lengths: list[int], is_ended: bool) -> None:
    data = b"\n".join(b"x" * length for length in lengths) + b"\n" * is_ended
    chunks, unfinished = cut_lines(data)
    assert b"".join([*chunks, unfinished]) == data
    assert b"\n" not in unfinished
    assert len(unfinished) <= CHUNK_BYTES
    for chunk in chunks:
        assert 0 < len(chunk) <= CHUNK_BYTES
        assert chunk.endswith(b"\n") or (len(chunk) == CHUNK_BYTES and b"\n" not in chunk)


# --- following ---------------------------------------------------------------------------------------------------


async def test_a_follower_sees_the_last_lines_and_then_what_comes_in_new_files_and_generations(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "out", b"long ago\n")
    write(tmp_path, 1, 0, "out", b"old\nnew\n")
    async with following(tmp_path, LogSelection(chooser="all", tail_lines=1)) as follower:
        assert await follower.next() == (1, 0, "out", b"new\n")
        assert follower.begins == [(1, 0, "out", 4)], "a follower that comes back has to know where it began"
        write(tmp_path, 1, 0, "out", b"newer\n")
        assert await follower.next() == (1, 0, "out", b"newer\n")
        write(tmp_path, 1, 5, "err", b"a rank\nthat was silent\n")
        assert await follower.next() == (1, 5, "err", b"a rank\nthat was silent\n")
        write(tmp_path, 1, 0, "out", b"last words")
        follower.generation = 2
        assert await follower.next() == (1, 0, "out", b"last words")
        write(tmp_path, 2, 0, "out", b"resuming\nfrom step 5\n")
        assert await follower.next() == (2, 0, "out", b"resuming\nfrom step 5\n")
        follower.is_over = True
    assert follower.rest() == []


async def test_a_follower_is_told_of_an_event_after_what_was_written_before_it(tmp_path: Path) -> None:
    shown: list[bytes] = []
    told = Told(shown)
    follower = Follower(told, shown)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.run(tmp_path, EVERYTHING))
        told.events = [(-1, 1.0, b"<accepted")]
        await wait_for("an event before there is output", lambda: shown)
        for generation in range(3):
            write(tmp_path, generation, 0, "out", b"begin %d\n" % generation)
            await follower.next()
            write(tmp_path, generation, 1, "err", b"last words %d\n" % generation)
            told.events += [(generation, 1.0, b"<ended %d" % generation)]
            follower.generation = generation + 1
            await follower.next()
        follower.is_over = True
    told_of = [(b"begin %d\n" % number, b"last words %d\n" % number, b"<ended %d" % number) for number in range(3)]
    assert shown == [b"<accepted", *(text for of_one in told_of for text in of_one)]


async def test_a_run_that_has_written_nothing_yet_can_be_followed(tmp_path: Path) -> None:
    async with following(tmp_path / "run", LogSelection()) as follower:
        write(tmp_path / "run", 0, 0, "out", b"at last\n")
        assert await follower.next() == (0, 0, "out", b"at last\n")
        follower.is_over = True


async def test_following_ends_only_when_all_that_was_written_has_been_sent(tmp_path: Path) -> None:
    output = b"".join(b"line %06d\n" % number for number in range(100_000))
    async with following(tmp_path, EVERYTHING) as follower:
        write(tmp_path, 0, 0, "out", b"begin\n")
        assert await follower.next() == (0, 0, "out", b"begin\n")
        for generation in (0, 1, 2):
            write(tmp_path, generation, 1, "err", output)
        follower.is_over = True
    rest = follower.rest()
    for generation in (0, 1, 2):
        assert b"".join(data for g, _, _, data in rest if g == generation) == output


async def test_a_line_waits_for_its_end_but_a_progress_bar_is_shown_after_half_a_second(tmp_path: Path) -> None:
    async with following(tmp_path, LogSelection()) as follower:
        write(tmp_path, 0, 0, "out", b"step 1 ")
        write(tmp_path, 0, 0, "out", b"loss 2.3\n 10%|")
        assert await follower.next() == (0, 0, "out", b"step 1 loss 2.3\n")
        assert await follower.next() == (0, 0, "out", b" 10%|")
        write(tmp_path, 0, 0, "out", b"\r 20%|")
        assert await follower.next() == (0, 0, "out", b"\r 20%|")
        write(tmp_path, 0, 0, "out", b"\ndone\n")
        assert await follower.next() == (0, 0, "out", b"\ndone\n")
        follower.is_over = True


async def test_following_one_generation_ends_with_it(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "out", b"past\n")
    write(tmp_path, 1, 0, "out", b"present\n")
    async with following(tmp_path, LogSelection(generation=1)) as follower:
        assert await follower.next() == (1, 0, "out", b"present\n")
        write(tmp_path, 1, 0, "out", b"end\n")
        write(tmp_path, 2, 0, "out", b"future\n")
        follower.generation = 2
    assert follower.rest() == [(1, 0, "out", b"end\n")]
    async with following(tmp_path, LogSelection(generation=1)) as follower:
        follower.generation = 2
    assert follower.rest() == [(1, 0, "out", b"present\nend\n")]


async def test_a_slow_client_slows_only_itself(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "out", b"one\n")
    async with following(tmp_path, LogSelection()) as slow, following(tmp_path, LogSelection()) as fast:
        slow.take(False)
        assert await fast.next() == (0, 0, "out", b"one\n")
        write(tmp_path, 0, 0, "out", b"two\n")
        assert await fast.next() == (0, 0, "out", b"two\n")
        fast.is_over = slow.is_over = True
        slow.take(True)
    assert b"".join(data for *_, data in slow.rest()) == b"one\ntwo\n"


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["out", "err"]), st.binary(max_size=100) | st.just(FLOOD)),
        max_size=12,
    )
)
async def test_each_byte_is_sent_once_and_in_order_however_it_was_written(writes: list[tuple[int, str, bytes]]) -> None:
    written: dict[tuple[int, str], bytes] = defaultdict(bytes)
    with tempfile.TemporaryDirectory() as folder:
        async with following(Path(folder), EVERYTHING) as follower:
            for rank, name, data in writes:
                write(Path(folder), 0, rank, name, data)
                written[rank, name] += data
                await asyncio.to_thread(bool)
            follower.is_over = True
        sent: dict[tuple[int, str], bytes] = defaultdict(bytes)
        for _, rank, name, data in follower.rest():
            sent[rank, name] += data
    assert sent == {key: data for key, data in written.items() if data}
