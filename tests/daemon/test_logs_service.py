"""supervisor/daemon/logs_service.py: real files, a client that collects."""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages.control import LogChunk, LogSelection
from supervisor.daemon import logs_service
from supervisor.daemon.logs_service import CHUNK_BYTES, cut_lines
from supervisor.logs.segments import make_generation_dir, stream_path

FLOOD = b"long\n" * 20_000  # more than a chunk

EVERYTHING = LogSelection(ranks=(0, 1, 2), all_generations=True, tail_lines=None)


def write(logs_dir: Path, generation: int, rank: int, name: str, data: bytes) -> None:
    """Append like a runner."""
    make_generation_dir(logs_dir, generation)
    with stream_path(logs_dir, generation, rank, name).open("ab", buffering=0) as file:
        file.write(data)


async def read_past(logs_dir: Path, selection: LogSelection) -> list[LogChunk]:
    """What a client gets that does not follow."""
    chunks = []

    async def send(chunk: LogChunk) -> None:
        chunks.append(chunk)

    async with asyncio.timeout(20):
        await logs_service.stream(
            logs_dir,
            selection,
            follow=False,
            is_over=lambda: False,
            node="gpu-01",
            generation_now=lambda: None,
            send=send,
        )
    return chunks


def told(chunks: list[LogChunk]) -> list[tuple[int, int, str, bytes]]:
    return [(chunk.generation, chunk.rank, chunk.stream, chunk.data) for chunk in chunks]


class Follower:
    """A client that follows, and the run that it follows."""

    def __init__(self) -> None:
        self.is_over = False
        self.generation: int | None = None
        self.has_ended = False
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
        await logs_service.stream(
            logs_dir,
            selection,
            follow=True,
            is_over=lambda: self.is_over,
            node="gpu-01",
            generation_now=lambda: self.generation,
            send=self._send,
        )
        self.has_ended = True

    async def _send(self, chunk: LogChunk) -> None:
        await self._may_take.wait()
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


async def test_without_a_choice_rank_0_and_the_stderr_of_all_are_shown(tmp_path: Path) -> None:
    for rank in (1, 0):
        for name in ("err", "out"):
            write(tmp_path, 0, rank, name, b"hello\n")
    chunks = await read_past(tmp_path, LogSelection())
    assert told(chunks) == [(0, 0, "out", b"hello\n"), (0, 0, "err", b"hello\n"), (0, 1, "err", b"hello\n")]
    assert {chunk.node for chunk in chunks} == {"gpu-01"}
    assert told(await read_past(tmp_path, LogSelection(streams=("out",)))) == [(0, 0, "out", b"hello\n")]
    assert told(await read_past(tmp_path, LogSelection(ranks=(1,), streams=("out",)))) == [(0, 1, "out", b"hello\n")]


async def test_the_past_comes_by_generation_then_rank_then_stream(tmp_path: Path) -> None:
    expected = [(g, r, n, b"%d %d\n" % (g, r)) for g in (0, 1, 12) for r in (0, 1, 2) for n in ("out", "err")]
    for generation, rank, name, data in reversed(expected):
        write(tmp_path, generation, rank, name, data)
    assert told(await read_past(tmp_path, EVERYTHING)) == expected


async def test_generations_are_chosen_by_number_from_the_newest_back_or_all(tmp_path: Path) -> None:
    async def shown(selection: LogSelection) -> list[int]:
        return [chunk.generation for chunk in await read_past(tmp_path, selection)]

    assert await shown(LogSelection()) == await shown(LogSelection(generation=-1)) == []
    for generation in (0, 1, 3):
        write(tmp_path, generation, 0, "out", b"hello\n")
    assert await shown(LogSelection()) == [3]
    assert await shown(LogSelection(generation=-1)) == [1]
    assert await shown(LogSelection(generation=0)) == [0]
    assert await shown(LogSelection(generation=2)) == []
    assert await shown(LogSelection(generation=-9)) == []
    assert await shown(LogSelection(all_generations=True)) == [0, 1, 3]


async def test_the_last_lines_are_counted_for_each_rank_and_stream(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, 0, rank, "err", b"".join(b"line %d\n" % number for number in range(rank + 3)) + b"and")
    assert told(await read_past(tmp_path, LogSelection(tail_lines=2))) == [
        (0, 0, "err", b"line 2\n"),
        (0, 0, "err", b"and"),
        (0, 1, "err", b"line 3\n"),
        (0, 1, "err", b"and"),
    ]
    assert told(await read_past(tmp_path, LogSelection(tail_lines=0))) == []


async def test_a_mebibyte_without_newline_comes_in_pieces_and_bytes_stay_bytes(tmp_path: Path) -> None:
    output = bytes(range(256)).replace(b"\n", b"\0") * 4096
    write(tmp_path, 0, 0, "out", output)
    chunks = await read_past(tmp_path, EVERYTHING)
    assert b"".join(chunk.data for chunk in chunks) == output
    assert {len(chunk.data) for chunk in chunks} == {CHUNK_BYTES}


def test_paths_are_those_of_the_files_that_are_there(tmp_path: Path) -> None:
    for generation, rank, name in ((0, 0, "out"), (1, 0, "out"), (1, 1, "out"), (1, 1, "err")):
        write(tmp_path, generation, rank, name, b"")
    assert logs_service.paths(tmp_path, LogSelection()) == (
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
    async with following(tmp_path, LogSelection(tail_lines=1)) as follower:
        assert await follower.next() == (1, 0, "out", b"new\n")
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
    async with following(tmp_path, LogSelection(generation=-1)) as follower:
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
