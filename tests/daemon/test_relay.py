"""supervisor/daemon/relay.py, and control.py on a node that does not host: supctl works the same from any node."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from protocol.errors import Refused
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Describe,
    Description,
    Done,
    End,
    EventRecord,
    Failure,
    GetNodes,
    GetStatus,
    Greeting,
    LogChunk,
    LogPaths,
    LogSelection,
    Paths,
    Request,
    Resolve,
    RestartRun,
    Start,
    Statuses,
    StopRun,
    Watch,
    decode_reply,
)
from protocol.messages.fleet import JoinRefused, Visit, decode_to_visitor
from protocol.versions import VERSIONS
from supervisor.daemon.door import Door
from supervisor.daemon.relay import HostAway, Relay
from supervisor.shell.channel import Channel
from supervisor.shell.dial import Dialer
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.pull import Pull
from supervisor.shell.tls import client_context, server_context
from tests.daemon.serving import ask, talking, wait_for
from tests.daemon.test_control import start
from tests.daemon.two_nodes import HOST, two_nodes

LIMIT_S = 20.0


def on_two_nodes(request: Start, lines: str = "echo out $RANK; echo err $RANK >&2; exec sleep 3600") -> Start:
    """The same with a rank on each of two nodes."""
    job_file = request.job_file.replace(b'["sleep", "3600"]', f'["sh", "-c", "{lines}"]'.encode())
    return replace(request, job_file=job_file.replace(b"[topology]", b"[topology]\nnnodes = 2"))


async def heard(control: Path, request: Request) -> list[ControlReply]:
    """All replies to a request."""
    async with asyncio.timeout(LIMIT_S), talking(control, request) as client:
        replies = []
        while (payload := await client.frame()) is not None:
            replies.append(decode_reply(payload))
        return replies


async def until_started(control: Path, run: str) -> None:
    async with asyncio.timeout(LIMIT_S), talking(control, Watch(run=run, follow=True, snapshots=True)) as client:
        while True:
            payload = await client.frame()
            assert payload is not None
            reply = decode_reply(payload)
            if isinstance(reply, Statuses) and reply.runs[0].has_started:
                return


async def test_what_is_asked_on_either_node_gets_the_same_answer(short_dir: Path) -> None:
    async with two_nodes(short_dir) as (a, b):
        done = await ask(b.control, on_two_nodes(start("1")))
        assert isinstance(done, Done), done
        again = await ask(a.control, on_two_nodes(start("1")))
        assert isinstance(again, Done)
        assert again.run == done.run
        await until_started(b.control, done.run)
        questions = (Resolve(word="job"), Resolve(word="nosuch"), GetNodes(node="c"), Describe(run="job", rank=9))
        for request in questions:
            assert await ask(a.control, request) == await ask(b.control, request)
        for look in (GetStatus(), GetStatus(run="job", with_ranks=True)):
            mine, theirs = [await ask(config.control, look) for config in (a, b)]
            assert isinstance(mine, Statuses)
            assert isinstance(theirs, Statuses)
            assert [run.run for run in mine.runs] == [run.run for run in theirs.runs] == [done.run]
            assert (mine.runs[0].logs_dir, theirs.runs[0].logs_dir) == (str(a.logs_dir / done.run), ""), "a hosts"
            assert [rank.node for rank in mine.runs[0].rank_list] == [rank.node for rank in theirs.runs[0].rank_list]


async def test_who_asked_from_which_node_stands_in_the_events(short_dir: Path) -> None:
    async with two_nodes(short_dir) as (a, b):
        done = await ask(b.control, on_two_nodes(start("1")))
        assert isinstance(done, Done), done
        await until_started(b.control, done.run)
        await ask(b.control, RestartRun(run="job", reason=""))
        await ask(a.control, RestartRun(run="job", reason=""))
        await ask(b.control, StopRun(run="job", now=True))
        events = await heard(b.control, Watch(run="job", follow=True, events=True))
        assert isinstance(events[-1], End)
        by = [event.kind for event in events if isinstance(event, EventRecord) and "@b" in event.text]
        assert by == ["job.accepted", "operator.restarted", "operator.stopped", "job.stopped"]
        at_the_host = [event.kind for event in events if isinstance(event, EventRecord) and "@a" in event.text]
        assert at_the_host == ["operator.restarted"]
        here = await heard(a.control, Watch(run="job", follow=False, events=True))
        assert here == events


async def test_a_job_is_looked_at_where_its_client_is(short_dir: Path) -> None:
    async with two_nodes(short_dir) as (a, b):
        lost = replace(start("1"), job_file=b'name = "x"\n[run]\nscript = "no.py"\n', check_only=True)
        failure = await ask(b.control, lost)
        assert isinstance(failure, Failure)
        assert [problem.code for problem in failure.problems] == ["J402"]
        elsewhere = replace(lost, job_file=lost.job_file + b'[topology]\nexclude = ["b"]\n')
        assert isinstance(await ask(b.control, elsewhere), Done)
        assert isinstance(await ask(a.control, elsewhere), Failure)


async def test_files_and_the_facts_of_a_rank_come_from_the_node_that_has_them(short_dir: Path) -> None:
    async with two_nodes(short_dir) as (a, b):
        done = await ask(b.control, on_two_nodes(start("1")))
        assert isinstance(done, Done), done
        await until_started(a.control, done.run)
        everything = LogSelection(chooser="0,1")
        for rank, config in ((0, a), (1, b)):
            paths = await ask(config.control, LogPaths(run="job", logs=everything))
            assert isinstance(paths, Paths)
            told = [await ask(asked.control, Describe(run="job", rank=rank, with_env=True)) for asked in (a, b)]
            for about in told:
                assert isinstance(about, Description), about
                assert about.files == paths.paths
                env = {name: value for name, value, _ in about.env}
                assert (env["RANK"], env["SUPD_NODE"]) == (str(rank), config.node)
                assert "SUPD_HEARTBEAT" in env, "it was read from the process"


async def test_output_of_all_nodes_comes_whichever_node_is_asked(short_dir: Path) -> None:
    async with two_nodes(short_dir) as (a, b):
        done = await ask(b.control, on_two_nodes(start("1"), "echo $RANK $SUPD_GENERATION; exec sleep 3600"))
        assert isinstance(done, Done), done
        await until_started(a.control, done.run)
        follow = Watch(run="job", follow=True, logs=LogSelection(chooser="0,1"))
        async with asyncio.TaskGroup() as tasks:
            followers = [tasks.create_task(heard(config.control, follow)) for config in (a, b)]
            await ask(b.control, RestartRun(run="job", reason=""))
            await wait_for("both ranks to have written", lambda: _files(a.logs_dir, b.logs_dir, "gen-0001") == 2)
            await ask(b.control, StopRun(run="job", now=True))
        past = await heard(
            b.control, Watch(run="job", follow=False, logs=LogSelection(all_generations=True, chooser="1"))
        )
        expected = [(g, node, f"{rank} {g}\n") for g in (0, 1) for rank, node in enumerate("ab")]
        for follower in followers:
            assert sorted(_lines(follower.result())) == expected
        assert _lines(past) == [expected[1], expected[3]]


def _lines(replies: list[ControlReply]) -> list[tuple[int, str, str]]:
    return [(r.generation, r.node, r.data.decode()) for r in replies if isinstance(r, LogChunk)]


def _files(*folders_and_generation: Path | str) -> int:
    *folders, generation = folders_and_generation
    return sum(f.stat().st_size > 0 for folder in folders for f in Path(folder).glob(f"*/{generation}/*.out"))


@pytest.mark.parametrize(
    ("to", "changed", "refusal"),
    [
        ("b", {}, "b does not host the coordinator"),
        ("a", {"fleet": "x"}, "a is of fleet default, not of x"),
        ("a", {"versions": (99,)}, "a speaks versions (1,), c (99,)"),
    ],
)
async def test_a_visit_that_cannot_be_served_is_refused_with_the_reason(
    short_dir: Path, to: str, changed: dict[str, Any], refusal: str
) -> None:
    visit = Visit(**{"versions": VERSIONS, "fleet": "default", "node": "c", "user": "mia"} | changed)
    async with two_nodes(short_dir) as nodes, asyncio.timeout(LIMIT_S), Pull() as pull:
        config = nodes["ab".index(to)]
        await Dialer(client_context(config.credential), lambda _to: None).dial(pull.channel, *config.peer)
        pull.send(visit)
        frame = await pull.frame()
        assert frame is not None
        answer = decode_to_visitor(frame)
        assert isinstance(answer, JoinRefused)
        assert answer.message == refusal
        assert await pull.frame() is None


async def test_a_port_that_a_job_names_is_for_the_node_that_gets_rank_0_to_look_at(short_dir: Path) -> None:
    with socket.create_server((HOST, 0)) as held:
        taken = held.getsockname()[1]  # on the host's address, which is not that of b
        async with two_nodes(short_dir) as (a, b):
            settings = ("topology.nodes=['b']", f"rendezvous.master_port={taken}")
            job = start("one", "one", '["sh", "-c", "echo x; exec sleep 3600"]')
            reply = await ask(a.control, replace(job, settings=settings))
            assert isinstance(reply, Done), reply
            await until_started(b.control, reply.run)


# --- a host of the test's own ------------------------------------------------------------------------------------


class FakeHost:
    """What listens where the host should be: takes visits over, and does with each as the test says."""

    def __init__(self, folder: Path) -> None:
        self._credential = folder / "pem"
        if not self._credential.exists():
            write_once(str(self._credential), credential())
        self.visits: asyncio.Queue[tuple[Pull, Visit]] = asyncio.Queue()
        self._door = Door("default", "a")
        self._door.handlers[Visit] = lambda channel, visit: self.visits.put_nowait((Pull(channel), visit))
        self.place = ("127.0.0.1", 1)

    def relay(self) -> Relay:
        dialer = Dialer(client_context(self._credential), lambda _to: None)
        return Relay(lambda: self.place, dialer, "default", "b", Path("/state/logs"))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["FakeHost"]:
        server = await self._door.listen("127.0.0.1", 0, server_context(self._credential))
        self.place = server.sockets[0].getsockname()[:2]
        try:
            yield self
        finally:
            server.close()
            self._door.close()

    async def taken(self, version: int = CONTROL_VERSION) -> Pull:
        """The next visit, greeted."""
        pull, visit = await self.visits.get()
        assert (visit.node, visit.user) == ("b", "mia")
        assert await pull.frame() is not None, "its greeting"
        pull.send(Greeting(control_version=version, supd_version="9.9", node="a"))
        assert await pull.frame() is not None, "its request"
        return pull


async def test_a_host_that_is_away_is_named_with_its_address_and_why(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    with pytest.raises(HostAway, match=r"at 127\.0\.0\.1:1 does not answer: connect") as away:
        await host.relay().pass_on("mia", GetStatus())
    assert (away.value.code, away.value.exit_code) == ("F110", 69)
    assert "runs go on" in away.value.hint
    assert "/state/logs" not in away.value.hint
    with pytest.raises(HostAway) as away:
        await host.relay().resolve("mia", "train")
    assert away.value.hint.endswith("what ranks of this node write lies in /state/logs")


async def test_a_host_that_hangs_up_at_once_is_told_in_words(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        host.place = server.sockets[0].getsockname()[:2]
        with pytest.raises(HostAway, match=r"does not answer: [a-z ]+$"):
            await host.relay().pass_on("mia", GetStatus())


async def test_a_host_that_goes_away_in_the_middle_is_told(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), FakeHost(tmp_path).listening() as host, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(_outcome(host.relay().pass_on("mia", Watch(run="", follow=True))))
        (await host.taken()).channel.close()
        assert "it went away in the middle" in await asked


async def test_a_host_of_another_control_version_is_told(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), FakeHost(tmp_path).listening() as host, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(_outcome(host.relay().pass_on("mia", GetStatus())))
        await host.taken(CONTROL_VERSION + 1)
        theirs = f"the coordinator's supd at 127.0.0.1:{host.place[1]} is 9.9, of control version {CONTROL_VERSION + 1}"
        assert await asked == f"F111 {theirs}; this node's is {CONTROL_VERSION}"


async def test_a_host_that_refuses_or_talks_nonsense_is_told(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), FakeHost(tmp_path).listening() as host, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(_outcome(host.relay().pass_on("mia", GetStatus())))
        pull, _ = await host.visits.get()
        pull.send(JoinRefused(code="F110", message="a is of fleet x, b of default"))
        assert await asked == "F110 a is of fleet x, b of default"
        asked = tasks.create_task(_outcome(host.relay().pass_on("mia", GetStatus())))
        pull = await host.taken()
        pull.channel.send(b"nonsense")
        assert (await asked).startswith("F110 ")


async def test_the_host_hears_it_when_a_client_leaves(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), FakeHost(tmp_path).listening() as host, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(host.relay().pass_on("mia", Watch(run="", follow=True)))
        pull = await host.taken()
        asked.cancel()
        assert await pull.frame() is None


async def test_a_client_that_does_not_read_makes_the_host_wait_and_misses_nothing(tmp_path: Path) -> None:
    chunk = LogChunk(generation=0, node="a", rank=0, stream="out", data=b"x" * 65536)
    frame, count, sent = encode(chunk), 400, 0
    may_read, got = asyncio.Event(), 0

    async def take(payload: bytes) -> None:
        nonlocal got
        await may_read.wait()
        got += payload == frame

    async with asyncio.timeout(LIMIT_S), FakeHost(tmp_path).listening() as host, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(host.relay().pass_on("mia", Watch(run="", follow=True), take))
        pull = await host.taken()
        channel: Channel = pull.channel

        async def flood() -> None:
            nonlocal sent
            for sent in range(1, count + 1):  # noqa: B007  # looked at while it goes on
                channel.send(frame)
                await channel.drained()
            pull.send(End())

        flooding = tasks.create_task(flood())
        seen = -1
        while seen != sent:  # as long as it gets on
            seen = sent
            await asyncio.sleep(0.3)
        assert sent < count, "nobody made it wait"
        may_read.set()
        assert await asked == End()
        await flooding
    assert got == count


async def _outcome(asked: object) -> str:
    try:
        return repr(await asked)  # type: ignore[misc]
    except (HostAway, Refused) as exc:
        return f"{exc.code} {exc}"
