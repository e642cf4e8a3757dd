"""supervisor/daemon/log_merge.py and log_window.py: many nodes' output in one order."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.messages.control import LogChunk, LogPlace
from protocol.messages.fleet import LogsNow, LogsSeen
from supervisor.daemon import log_merge, log_window
from supervisor.daemon.log_merge import Merge, Source
from supervisor.shell.clock import boot_s, wall_s
from tests.daemon.serving import wait_for
from tests.daemon.test_logs_service import Told

LIMIT_S = 20.0


def chunk(generation: int, rank: int, *lines: tuple[float, bytes], offset: int = 0) -> LogChunk:
    """Lines of a rank, each with the time at which it was read."""
    data, times = b"", []
    for read_s, line in lines:
        times.append((len(data), read_s))
        data += line
    return LogChunk(
        generation=generation, node="", rank=rank, stream="out", data=data, times=tuple(times), offset=offset
    )


class Client:
    """Who is sent what is merged."""

    def __init__(self, *, follow: bool, between: Told | None = None, window_s: float = 0.0) -> None:
        self.shown: list[bytes] = [] if between is None else between.shown
        self.chunks: list[LogChunk] = []
        self.generation = 0
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.merge = Merge(
            between or Told(self.shown),
            self._send,
            lambda: LogsNow(generation=self.generation, is_over=False),
            asyncio.Event(),
            follow=follow,
            window_s=window_s,
        )

    async def _send(self, item: LogChunk) -> None:
        await self.may_take.wait()
        self.chunks.append(item)
        self.shown.append(item.data)

    @property
    def text(self) -> bytes:
        return b"".join(self.shown).replace(b"\n", b" ").strip()

    async def saw(self, text: bytes) -> None:
        await wait_for(f"{text!r} to be shown", lambda: text in self.text)


@asynccontextmanager
async def merging(client: Client) -> AsyncIterator[None]:
    """Leaving waits for the end of all sources."""
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.merge.run(lambda _now: None))
        yield


async def fill(source: Source, *items: LogChunk | LogsSeen) -> None:
    for item in items:
        await source.put(item)


def seen(before: int, seen: int, look: int = 0) -> LogsSeen:
    return LogsSeen(before=before, seen=seen, look=look)


# --- the past ----------------------------------------------------------------------------------------------------


async def test_the_past_of_several_nodes_comes_in_the_order_of_time() -> None:
    client = Client(follow=False)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, chunk(0, 0, (1.0, b"1\n"), (3.0, b"3\n"), (4.0, b"4\n")), chunk(0, 1, (7.0, b"7\n")))
        a.end()
        await fill(b, chunk(0, 2, (2.0, b"2\n"), (5.0, b"5\n"), (6.0, b"6\n")), chunk(1, 2, (0.5, b"8\n")))
        b.end()
    assert client.text == b"1 2 3 4 5 6 7 8"
    assert [one.times for one in client.chunks][:3] == [((0, 1.0),), ((0, 2.0),), ((0, 3.0), (2, 4.0))]
    assert [one.offset for one in client.chunks][:3] == [0, 0, 2]


async def test_times_are_corrected_by_how_far_a_clock_is_off() -> None:
    client = Client(follow=False)
    a, b = client.merge.add("a"), client.merge.add("b", clock_off_s=100.0)
    async with merging(client):
        await fill(a, chunk(0, 0, (1.0, b"1\n"), (3.0, b"3\n")))
        a.end()
        await fill(b, chunk(0, 1, (102.0, b"2\n"), (104.0, b"4\n")))
        b.end()
    assert client.text == b"1 2 3 4"
    assert (0, 102.0) in client.chunks[1].times, "shown is what the node's clock said"


async def test_a_traceback_stays_whole_among_other_nodes_lines() -> None:
    client = Client(follow=False)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, chunk(0, 0, (1.0, b"Traceback\n"), (1.02, b"  line\n"), (1.04, b"Error\n")))
        a.end()
        await fill(b, chunk(0, 1, (1.01, b"other\n"), (1.03, b"another\n")))
        b.end()
    assert client.text == b"Traceback   line Error other another"


async def test_events_stand_at_their_time_among_the_lines_of_all() -> None:
    told = Told([], (0, 1.5, b"<1.5 "), (0, 2.5, b"<2.5 "), (0, 9.0, b"<late "), (1, 2.7, b"<begun "))
    client = Client(follow=False, between=told)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, chunk(0, 0, (1.0, b"1\n"), (3.0, b"3\n")), chunk(1, 0, (2.8, b"4\n")))
        a.end()
        await fill(b, chunk(0, 1, (2.0, b"2\n")))
        b.end()
    assert client.text == b"1 <1.5 2 <2.5 3 <late <begun 4"


async def test_a_node_that_says_nothing_is_left_out_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_merge, "HOLD_S", 0.1)
    client = Client(follow=False)
    a = client.merge.add("a")
    client.merge.add("b")
    async with merging(client):
        await fill(a, chunk(0, 0, (1.0, b"1\n")))
        a.end()
    assert client.text.startswith(b"b has said nothing")
    assert client.text.endswith(b"1")


async def test_what_goes_wrong_with_a_source_is_raised_behind_its_output() -> None:
    client = Client(follow=False)
    a = client.merge.add("a")
    await fill(a, chunk(0, 0, (1.0, b"1\n")))
    a.end(OSError("no disk"))
    with pytest.raises(OSError, match="no disk"):
        await client.merge.run(lambda _now: None)
    assert client.text == b"1"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.floats(1, 50)), max_size=12), min_size=1, max_size=4
    ),
    st.randoms(use_true_random=False),
)
async def test_each_line_comes_once_by_generation_and_of_each_stream_in_order(
    nodes: list[list[tuple[int, int, float]]], random: object
) -> None:
    client = Client(follow=False)
    written: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    sources = []
    for number, lines in enumerate(nodes):
        source = client.merge.add(f"n{number}")
        items = []
        for count, (generation, rank, read_s) in enumerate(sorted(lines)):
            line = b"%d/%d\n" % (number, count)
            written[generation, number * 2 + rank].append(line)
            items.append(chunk(generation, number * 2 + rank, (read_s, line)))
        sources.append((source, items))

    async def play(source: Source, items: list[LogChunk]) -> None:
        await fill(source, *items)
        source.end()

    async with merging(client), asyncio.TaskGroup() as tasks:
        for source, items in sources:
            tasks.create_task(play(source, items))
    got: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for one in client.chunks:
        got[one.generation, one.rank] += one.data.splitlines(keepends=True)
    assert got == written
    assert [one.generation for one in client.chunks] == sorted(one.generation for one in client.chunks)


# --- following ---------------------------------------------------------------------------------------------------


async def test_what_is_new_is_passed_on_as_it_comes() -> None:
    client = Client(follow=True)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, chunk(0, 0, (5.0, b"old\n")), seen(0, 1))
        await asyncio.sleep(0)
        assert client.text == b"", "b may have something older"
        await fill(b, seen(0, 1))
        await client.saw(b"old")
        await fill(b, chunk(0, 1, (1.0, b"late\n")))
        await client.saw(b"old late")
        a.end()
        b.end()


async def test_the_next_generation_waits_for_the_end_of_this_one_everywhere() -> None:
    client = Client(follow=True)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, seen(0, 1), chunk(1, 0, (5.0, b"next\n")), seen(1, 2))
        await fill(b, seen(0, 1), chunk(0, 1, (9.0, b"last\n")))
        await client.saw(b"last")
        assert b"next" not in client.text
        await fill(b, seen(1, 2))
        await client.saw(b"last next")
        a.end()
        b.end()


async def test_an_event_waits_for_what_was_written_before_it() -> None:
    told = Told([])
    client = Client(follow=True, between=told)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, seen(0, 1))
        await fill(b, seen(0, 1))
        told.events = [(0, 5.0, b"<ended")]
        await wait_for("the sources to be told of the look", lambda: client.merge.now.look == 1)
        await fill(a, seen(0, 1, look=1))
        await fill(b, chunk(0, 1, (4.0, b"last words\n")), seen(0, 1, look=1))
        await client.saw(b"<ended")
        assert client.text == b"last words <ended"
        a.end()
        b.end()


async def test_a_node_that_went_away_holds_up_nobody_and_its_lines_come_when_it_is_back() -> None:
    client = Client(follow=True)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, seen(0, 1))
        await fill(b, seen(0, 1))
        b.lose("b is away")
        await fill(a, chunk(1, 0, (5.0, b"next\n")), seen(1, 2))
        await client.saw(b"b is away")
        await client.saw(b"next")
        await fill(b, chunk(0, 1, (4.0, b"back\n")), seen(1, 2))
        await client.saw(b"back")
        a.end()
        b.end()


async def test_a_client_that_does_not_take_makes_its_sources_wait() -> None:
    client = Client(follow=True)
    client.may_take.clear()
    a = client.merge.add("a")
    handed_in = 0

    async def flood() -> None:
        nonlocal handed_in
        for handed_in in range(100):  # looked at while it goes on
            await a.put(chunk(0, 0, (1.0 + handed_in, b"x\n")))
        a.end()

    async with merging(client), asyncio.TaskGroup() as tasks:
        tasks.create_task(flood())
        before = -1
        while before != handed_in:
            before = handed_in
            await asyncio.sleep(0.05)
        assert handed_in < 2 * log_merge.CHUNKS_WAITING_MAX
        client.may_take.set()
    assert len(b"".join(one.data for one in client.chunks)) == 200


async def test_what_is_known_of_files_that_are_past_is_forgotten() -> None:
    client = Client(follow=True)
    a = client.merge.add("a")
    async with merging(client):
        await fill(a, chunk(0, 0, (1.0, b"1\n")), seen(1, 1), chunk(1, 0, (2.0, b"2\n")))
        await client.saw(b"2")
        assert [(place.generation, place.offset) for place in a.known()] == [(1, 2)]
        a.end()


@pytest.mark.parametrize(("sources", "pause_s"), [(500, log_merge.PAUSE_MAX_S), (20, 0.002)])
async def test_a_run_of_many_nodes_is_looked_at_a_few_times_a_second_however_often_it_rings(
    sources: int, pause_s: float
) -> None:
    looks = 0

    class Counting(Told):
        def look_in_s(self) -> float:
            nonlocal looks
            looks += 1
            return super().look_in_s()

    client = Client(follow=True, between=Counting([]))
    all_sources = [client.merge.add(f"n{number}") for number in range(sources)]
    async with merging(client):
        before_s = boot_s()
        while boot_s() - before_s < 0.5:
            await fill(all_sources[0], seen(0, 0))
            await asyncio.sleep(0)
        assert looks <= 3 * (1 + (boot_s() - before_s) / pause_s), "a round asks at most three times"
        for source in all_sources:
            source.end()


async def test_what_a_chunk_says_of_lines_before_it_is_said_once_and_where_a_stream_begins_as_well() -> None:
    client = Client(follow=False)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        begin = chunk(0, 0, offset=100)
        lines = replace(chunk(0, 0, (1.0, b"1\n"), (3.0, b"3\n"), offset=100), skipped_lines=7, removed_bytes=9)
        await fill(a, begin, lines)
        a.end()
        await fill(b, chunk(0, 1, (2.0, b"2\n")))
        b.end()
    assert [(one.data, one.offset, one.skipped_lines, one.removed_bytes) for one in client.chunks] == [
        (b"", 100, 0, 0),
        (b"1\n", 100, 7, 9),
        (b"2\n", 0, 0, 0),
        (b"3\n", 102, 0, 0),
    ]


async def test_a_source_goes_on_where_another_one_was() -> None:
    client = Client(follow=True)
    a = client.merge.add("a")
    known = tuple(LogPlace(generation=g, rank=0, stream="out", offset=10) for g in (0, 1))
    a.resume(known)
    assert a.known() == known
    async with merging(client):
        await fill(a, chunk(1, 0, (1.0, b"1\n"), offset=10), seen(1, 1))
        await client.saw(b"1")
        assert [(place.generation, place.offset) for place in a.known()] == [(1, 12)]
        a.end()


async def test_in_a_merge_window_lines_and_events_come_in_the_order_of_time_whoever_is_late() -> None:
    now_s = wall_s()
    told = Told([], (0, now_s + 0.25, b"<event "))
    client = Client(follow=True, between=told, window_s=1.0)
    a, b = client.merge.add("a"), client.merge.add("b", clock_off_s=100.0)
    async with merging(client):
        await fill(a, seen(0, 1), chunk(0, 0, (now_s + 0.2, b"2\n"), (now_s + 0.4, b"4\n")), seen(0, 1))
        await fill(a, chunk(0, 1, (now_s + 0.3, b"3\n")))
        await fill(b, seen(0, 1), chunk(0, 2, (now_s + 100.1, b"1\n")), seen(0, 1))
        await client.saw(b"4")
        assert client.text == b"1 2 <event 3 4"
        assert wall_s() >= now_s + 1.0
        await fill(a, chunk(0, 0, (now_s + 0.1, b"late\n"), (wall_s() + 50, b"ahead\n")))
        await client.saw(b"late")
        a.end()
        b.end()
    assert client.text == b"1 2 <event 3 4 late ahead", "the end of all ends the waiting"


async def test_the_next_generation_is_behind_this_one_in_a_merge_window_too() -> None:
    client = Client(follow=True, window_s=0.2)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, seen(0, 1), chunk(1, 0, (wall_s() - 5.0, b"next\n")), seen(1, 2))
        await fill(b, seen(0, 1), chunk(0, 1, (wall_s(), b"last\n")), seen(1, 2))
        await client.saw(b"last next")
        a.end()
        b.end()


async def test_other_nodes_lines_wait_for_the_end_of_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_window, "BLOCK_HOLD_S", 1000.0)
    client = Client(follow=True)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, seen(0, 1))
        await fill(b, seen(0, 1))
        begin_s = wall_s()
        await fill(a, chunk(0, 0, (begin_s, b"Traceback (most recent call last):\n")))
        await client.saw(b"Traceback")
        await fill(b, chunk(0, 1, (begin_s + 0.001, b"other\n")))
        await fill(a, chunk(0, 0, (begin_s + 0.01, b"  line\n")))
        await client.saw(b"line")
        await fill(a, chunk(0, 0, (begin_s + 0.02, b"Error\n")))
        await client.saw(b"other")
        a.end()
        b.end()
    assert client.text == b"Traceback (most recent call last):   line Error other"


async def test_they_wait_for_a_moment_only_and_not_again_at_once() -> None:
    client = Client(follow=True)
    a, b = client.merge.add("a"), client.merge.add("b")
    async with merging(client):
        await fill(a, seen(0, 1))
        await fill(b, seen(0, 1))
        await fill(a, chunk(0, 0, (wall_s(), b" indented\n")))
        await client.saw(b"indented")
        await fill(b, chunk(0, 1, (wall_s(), b"other\n")))
        await client.saw(b"other")
        a.end()
        b.end()


def test_a_window_that_holds_too_much_lets_go_of_the_oldest_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_window, "WINDOW_BYTES_MAX", 5)
    window = log_window.Window(1000.0)
    for number in (3, 1, 2):
        window.put(chunk(0, number, (1.0, b"%d\n" % number)), wall_s() + number)
    assert [one.rank for one, _ in window.due(is_over=False)] == [1]
    assert 900 < window.due_in_s() < 1100
    assert [one.rank for one, _ in window.due(is_over=True)] == [2, 3]
    assert window.until_s() is not None
    assert log_window.Window(0.0).until_s() is None
