"""supervisor/daemon/log_sources.py, fetch.py and local_files.py: output that lies on another node."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from protocol import coordinator_events as c
from protocol.coordinator import Coordinator
from protocol.errors import Refused
from protocol.fleet_events import NodeRecord
from protocol.job import Job, JobSpec, RunTable, Submitter
from protocol.messages import encode
from protocol.messages.control import LogChunk, LogPlace, LogSelection, NodeStatus
from protocol.messages.fleet import FetchLogs, FetchRank, JoinRefused, LogsEnd, LogsNow, decode_from_peer
from protocol.messages.member import Assignment
from supervisor.daemon import log_sources
from supervisor.daemon.door import Door
from supervisor.daemon.fetch import Fetcher
from supervisor.daemon.local_files import LocalFiles
from supervisor.daemon.log_merge import Merge
from supervisor.daemon.log_sources import Sources
from supervisor.daemon.run import Run
from supervisor.shell.channel import Channel
from supervisor.shell.dial import Dialer
from supervisor.shell.driver import Driver
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.pull import Pull
from supervisor.shell.tls import client_context, server_context
from tests.daemon.serving import wait_for
from tests.daemon.test_logs_service import Told, write, write_at

LIMIT_S = 20.0
RUN = "job@1a2b3c"


class Peer:
    """Node `b`: nothing but its files, and the door to them. It may be away, and come back."""

    def __init__(self, folder: Path) -> None:
        self.logs_dir = folder / "b" / RUN
        self.credential = folder / "pem"
        write_once(str(self.credential), credential())
        self._folder = folder
        self.port = 1
        self.clock_off_s = 0.0
        self.asked: list[FetchLogs] = []

    def status(self) -> list[NodeStatus]:
        return [NodeStatus(node="b", state="ready", address="127.0.0.1", port=self.port)]

    def record_of(self, node: str) -> NodeRecord | None:
        if node != "b":
            return None
        return NodeRecord(
            name="b",
            identity="0" * 16,
            incarnation=1,
            address="127.0.0.1",
            port=self.port,
            joined=1,
            clock_off_s=self.clock_off_s,
        )

    def fetcher(self, fleet: str = "default") -> Fetcher:
        return Fetcher(self, Dialer(client_context(self.credential), lambda _to: None), fleet)

    @asynccontextmanager
    async def there(self) -> AsyncIterator[None]:
        """While it answers."""
        files, door = LocalFiles("b", self._folder / "b"), Door("default", "b")

        channels: list[Channel] = []

        def take_logs(channel: Channel, request: FetchLogs) -> None:
            self.asked.append(request)
            channels.append(channel)
            files.take_logs(channel, request)

        door.handlers[FetchLogs], door.handlers[FetchRank] = take_logs, files.take_rank
        serving = asyncio.get_running_loop().create_task(files.run())
        server = await door.listen("127.0.0.1", 0, server_context(self.credential))
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            door.close()
            for channel in channels:
                await channel.closed.wait()
            serving.cancel()
            await asyncio.wait([serving])


@asynccontextmanager
async def held_up(peer: Peer) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Something before the node that takes connections, and lets nothing through; what is set by the first one, and
    what ends that."""
    port, is_taken, may_pass = peer.port, asyncio.Event(), asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_taken.set()
        await may_pass.wait()
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(reader, other_writer))
            group.create_task(pump(other_reader, writer))

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        peer.port = server.sockets[0].getsockname()[1]
        yield is_taken, may_pass


def seat(node: str, rank: int, generation: int = 0) -> c.Seat:
    assignment = Assignment(
        generation=generation,
        node_rank=rank,
        nnodes=2,
        first_rank=rank,
        nproc=1,
        world_size=2,
        master_addr="127.0.0.1",
        master_port=1,
    )
    return c.Seat(node=node, incarnation=f"{rank}" * 16, assignment=assignment)


def a_job() -> Job:
    submitter = Submitter(folder="/", source="j", python="python3", env={}, limits={}, umask=0, user="mia")
    return Job(run=RUN, spec=JobSpec(name="job", run=RunTable(command=("true",))), submitter=submitter)


def a_run(generation: int = 0) -> Run:
    """A run with a rank on `a`, where we are, and one on `b`."""
    job = a_job()
    record = c.RunRecord(
        phase=c.Phase.RUNNING, generation=generation, seats=(seat("a", 0, generation), seat("b", 1, generation))
    )
    machine = Coordinator(job.spec, record, 1, random.Random(1).random)

    async def perform(_effect: c.Effect) -> None:
        pass

    return Run(job, machine, Driver(machine, perform, c.Tick()), 0.0, None)


class Reader:
    """A client of the run's output, at node `a`."""

    def __init__(
        self,
        folder: Path,
        peer: Peer,
        selection: LogSelection,
        *,
        follow: bool,
        generation: int = 0,
        known: tuple[LogPlace, ...] = (),
        is_settled: bool = False,
    ) -> None:
        self.logs_dir = folder / "a" / RUN
        self.shown: list[bytes] = []
        self.is_over = False
        self._run = a_run(generation)
        self._run.is_settled = is_settled
        self._follow = follow
        self._merge = Merge(Told(self.shown), self._send, self._now, asyncio.Event(), follow=follow)
        self._sources = Sources(
            self._run,
            selection,
            follow=follow,
            merge=self._merge,
            fetcher=peer.fetcher(),
            node="a",
            logs_dir=self.logs_dir,
            known=known,
        )

    def _now(self) -> LogsNow:
        return LogsNow(generation=self._run.machine.generation, is_over=self.is_over)

    async def _send(self, chunk: LogChunk) -> None:
        self.shown.append(chunk.data)

    async def run(self) -> None:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            self._sources.start(group)
            await self._merge.run(self._sources.on_now)

    @property
    def knows_the_end(self) -> bool:
        """Whether the sources were told that the run is over."""
        return self._merge.now.is_over

    @property
    def text(self) -> str:
        return b"".join(self.shown).decode().replace("\n", " ").strip()

    async def saw(self, text: str) -> None:
        await wait_for(f"{text!r} in what was shown", lambda: text in self.text)


EVERYTHING = LogSelection(chooser="0,1", all_generations=True, tail_lines=None)


async def test_the_past_of_two_nodes_is_one_story(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=False, generation=1)
    write_at(reader.logs_dir, 0, 0, "out", (1.0, b"1\n"), (3.0, b"3\n"))
    write_at(peer.logs_dir, 0, 1, "out", (2.0, b"2\n"), (9.0, b"4\n"))
    write_at(reader.logs_dir, 1, 0, "out", (5.0, b"5\n"))
    write_at(peer.logs_dir, 1, 1, "out", (6.0, b"6\n"))
    async with peer.there():
        await reader.run()
    assert reader.text == "1 2 3 4 5 6"


async def test_only_a_node_that_can_have_selected_output_is_asked(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    async with peer.there():
        for selection in (LogSelection(chooser="0"), LogSelection(streams=("out",))):
            await Reader(tmp_path, peer, selection, follow=False).run()
        assert peer.asked == []
        await Reader(tmp_path, peer, LogSelection(), follow=False).run()
        await Reader(tmp_path, peer, LogSelection(chooser="0", generation=0), follow=False, generation=1).run()
    assert [request.first for request in peer.asked] == [0, 1]


async def test_a_node_that_is_away_is_told_once_and_the_rest_is_shown(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=False)
    write(reader.logs_dir, 0, 0, "out", b"here\n")
    await reader.run()
    assert reader.text.startswith("b does not answer, its output is missing here: 127.0.0.1:1: ")
    assert reader.text.endswith("here")
    assert reader.text.count("b does not answer") == 1


async def test_a_follower_of_a_node_that_comes_back_sees_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sources, "RETRY_S", 0.05)
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, LogSelection(chooser="0,1", tail_lines=1), follow=True)
    write(reader.logs_dir, 0, 0, "out", b"here\n")
    write(peer.logs_dir, 0, 1, "out", b"long ago\nbefore\n")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        async with peer.there():
            reading = tasks.create_task(reader.run())
            await reader.saw("before")
            write(peer.logs_dir, 0, 1, "out", b"unfin")
            await reader.saw("unfin")
        await reader.saw("b does not answer, its output is missing here until it answers")
        write(peer.logs_dir, 0, 1, "out", b"ished\nmeanwhile\n")
        write_at(peer.logs_dir, 0, 1, "err", (4e9, b"a new file\n"))
        write(reader.logs_dir, 0, 0, "out", b"still here\n")
        await reader.saw("still here")
        async with peer.there():
            await reader.saw("a new file")
            write(peer.logs_dir, 0, 1, "out", b"and now\n")
            await reader.saw("and now")
            reader.is_over = True
            await reading
    words = ("long ago", "before", "unfin", "ished", "meanwhile", "a new file", "still here", "and now")
    assert [reader.text.count(word) for word in words] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert reader.text.count("b does not answer") == 1
    assert reader.text.count("b answers again") == 1
    assert reader.text.count("here") == 3


async def test_a_client_that_comes_back_is_sent_the_rest_of_all_nodes(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    known = (
        LogPlace(generation=0, rank=0, stream="out", offset=5),
        LogPlace(generation=0, rank=1, stream="out", offset=6),
    )
    selection = LogSelection(chooser="all", tail_lines=1)
    reader = Reader(tmp_path, peer, selection, follow=False, generation=1, known=known)
    write(reader.logs_dir, 0, 0, "out", b"here\nrest\n")
    write(peer.logs_dir, 0, 1, "out", b"there\nrest\n")
    write(peer.logs_dir, 1, 1, "out", b"next\nand\n")
    async with peer.there():
        await reader.run()
    assert reader.text == "rest rest next and"


async def test_the_end_of_the_run_ends_the_waiting_for_a_node_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sources, "RETRY_S", 0.05)
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reader.run())
        await reader.saw("until it answers")
        reader.is_over = True


async def test_a_run_that_ends_while_a_node_is_being_reached_has_ended_for_that_node_too(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=True)
    write(peer.logs_dir, 0, 1, "out", b"there\n")
    async with peer.there(), held_up(peer) as (is_taken, may_pass), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        await is_taken.wait()
        reader.is_over = True
        await wait_for("the end to be told", lambda: reader.knows_the_end)
        may_pass.set()
        await reading
    assert reader.text == "there"


async def test_a_node_that_is_slow_to_answer_is_named_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sources, "WAIT_TOLD_S", 0.05)
    peer = Peer(tmp_path)
    write(peer.logs_dir, 0, 1, "out", b"there\n")
    reader = Reader(tmp_path, peer, EVERYTHING, follow=False)
    async with peer.there(), held_up(peer) as (_, may_pass), asyncio.TaskGroup() as group:
        group.create_task(reader.run())
        await reader.saw("waiting for b, which has said nothing for")
        may_pass.set()
    assert reader.text.endswith("there")


async def test_times_that_are_asked_for_are_those_of_the_coordinators_clock(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.clock_off_s = 100.0
    selection = LogSelection(chooser="0,1", tail_lines=None, since_wall_s=1000.0, until_wall_s=1200.0)
    reader = Reader(tmp_path, peer, selection, follow=False)
    for logs_dir, rank, off_s in ((reader.logs_dir, 0, 0.0), (peer.logs_dir, 1, 100.0)):
        lines = (
            (950.0, b"early\n"),
            (1050.0 + rank, b"%d\n" % rank),
            (1150.0 + rank, b"%d\n" % rank),
            (1250.0, b"late\n"),
        )
        write_at(logs_dir, 0, rank, "out", *((at_s + off_s, line) for at_s, line in lines))
    async with peer.there():
        await reader.run()
    assert reader.text == "0 1 0 1"


@pytest.mark.parametrize("follow", [False, True])
async def test_output_that_cannot_be_read_is_told_once_and_the_others_go_on(tmp_path: Path, follow: bool) -> None:
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=follow)
    for logs_dir, rank in ((reader.logs_dir, 0), (peer.logs_dir, 1)):
        write(logs_dir, 0, rank, "err", b"%d goes on\n" % rank)
        (logs_dir / "gen-0000" / f"rank-0000{rank}.out").mkdir()
    async with peer.there(), asyncio.TaskGroup() as group:
        group.create_task(reader.run())
        for rank in (0, 1):
            await reader.saw(f"{rank} goes on")
        if follow:
            write(peer.logs_dir, 0, 1, "err", b"for long\n")
            await reader.saw("for long")
        reader.is_over = True
    for rank, node in enumerate("ab"):
        told = f"the output of rank {rank} (stdout, generation 0) on {node} is missing here, it cannot be read: "
        assert reader.text.count(told) == 1


async def test_all_output_that_cannot_be_read_there_is_told(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=False)
    write(reader.logs_dir, 0, 0, "out", b"")
    peer.logs_dir.mkdir(parents=True)
    (peer.logs_dir / "gen-0000").symlink_to("gen-0000")
    async with peer.there():
        await reader.run()
    assert reader.text.startswith("the output on b is missing here: the output cannot be read: ")


async def test_generations_that_no_node_keeps_any_more_are_told_once(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=False, generation=25)
    for logs_dir, rank in ((reader.logs_dir, 0), (peer.logs_dir, 1)):
        for generation in (0, *range(7, 26)):
            write(logs_dir, generation, rank, "out", b"kept\n")
    async with peer.there():
        await reader.run()
    text = "the output of generations 1-6 is not kept any more ([logs] keep_generations)"
    assert (reader.text.count(text), reader.text.count("kept")) == (1, 2 * 20 + 1)


async def test_output_that_made_room_with_its_run_is_told(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    reader = Reader(tmp_path, peer, EVERYTHING, follow=False)
    write(reader.logs_dir, 0, 0, "out", b"here\n")
    async with peer.there():
        await reader.run()
        assert reader.text == "here", "a run that goes on may have written nothing yet"
        reader = Reader(tmp_path, peer, EVERYTHING, follow=False, is_settled=True)
        await reader.run()
    assert "the output of this run on b is not kept any more ([state] max_disk, min_free)" in reader.text


async def test_a_reader_of_another_fleet_is_refused(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    async with asyncio.timeout(LIMIT_S), peer.there():
        with pytest.raises(Refused, match="rank 1 is on b, which tells nothing of it: b is of fleet default, not of x"):
            await peer.fetcher("x").rank(a_job(), seat("b", 1), 1, None, with_env=False)


@pytest.mark.parametrize("run", ["../../etc@1a", "job", "a/b@1a", "@1a", "a\0@1a", "x" * 100 + "@1a"])
async def test_a_name_that_is_no_runs_leads_to_no_folder(tmp_path: Path, run: str) -> None:
    peer = Peer(tmp_path)
    request = FetchLogs(fleet="default", run=run, selection=EVERYTHING, now=LogsNow(generation=0, is_over=True))
    async with asyncio.timeout(LIMIT_S), peer.there(), Pull() as pull:
        dialer = Dialer(client_context(peer.credential), lambda _to: None)
        await dialer.dial(pull.channel, "127.0.0.1", peer.port)
        pull.channel.send(encode(request))
        frame = await pull.frame()
        assert frame is None or not isinstance(decode_from_peer(frame), (LogChunk, LogsEnd, JoinRefused))
