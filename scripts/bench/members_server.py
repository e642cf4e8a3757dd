"""The two servers of the members bench: supd's own coordinator without its node, and a bare one that only takes
connections and answers their first frame with as much. Both on uvloop, with the fleet's TLS.

    members_server.py supd|bare COUNT FOLDER

Says `PORT RUN` once it listens. `gone NODE INCARNATION` on its stdin is the proof that a runner is gone, and tells
that its node is, too.
"""

import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import cast

import uvloop

from protocol.coordinator_events import RosterNode
from protocol.dataclass import replace
from protocol.framing import FrameDecoder, encode_frame
from protocol.job import Job, JobSpec, RunTable, Submitter, TopologyTable
from protocol.messages import encode
from protocol.messages.fleet import RunnerBuried
from protocol.messages.member import Hello, Welcome
from protocol.timing import DEFAULTS
from protocol.versions import VERSIONS
from supervisor.daemon.door import Door
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.members import Members
from supervisor.daemon.starting import Starting
from supervisor.shell.log_setup import set_up_log
from supervisor.shell.tls import ensure_credential, server_context

FLEET = "bench"
HOST = "127.0.0.1"
HANDSHAKE_TIMEOUT_S = 60.0
BACKLOG = 4096


def node_name(number: int) -> str:
    """The nodes are n00000, n00001 …"""
    return f"n{number:05}"


def the_job(count: int) -> tuple[JobSpec, Submitter]:
    """A run of so many nodes, or of one less."""
    topology = TopologyTable(nnodes=(count - 1, count), extra_nodes="grow", nproc_per_node=1)
    spec = JobSpec(name="bench", run=RunTable(script="/bench.py"), topology=topology)
    env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    return spec, Submitter(
        folder="/", source="bench.toml", python="/usr/bin/python3", env=env, limits={}, umask=0o22, user="bench"
    )


async def lines() -> asyncio.StreamReader:
    """This process's stdin."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def nobody_else_leads(_epoch: int) -> None:
    """Only one coordinator is measured."""


async def serve_as_supd(count: int, folder: Path) -> None:
    """Door, members, jobs and journal as in supd."""
    journal = Journal(folder / "journal.db")
    jobs = Jobs(
        journal,
        folder / "logs",
        await journal.next_epoch(),
        on_wanted=lambda run, nodes: None,
        on_unlinked=lambda node: None,
        on_seated=lambda: None,
        on_blamed=lambda node: None,
        on_epoch=lambda epoch: None,
        before_epoch=nobody_else_leads,
        timing=DEFAULTS,
        keeps_isolated=False,
    )
    door = Door(FLEET, HOST)
    members = Members(jobs, door)
    door.handlers[Hello] = members.take
    async with asyncio.TaskGroup() as group:
        group.create_task(journal.watch())
        group.create_task(jobs.run(await journal.runs()))
        group.create_task(members.run())
        roster = {
            name: RosterNode(name=name, is_up=True, joined=i) for i, name in enumerate(map(node_name, range(count)))
        }
        jobs.on_roster(lambda: tuple(roster.values()))
        await asyncio.sleep(0)
        server = await door.listen(HOST, 0, server_context(folder / "fleet.pem"))
        run = await Starting(jobs, journal, None).start(*the_job(count), "bench")  # the same request makes it once
        print(server.sockets[0].getsockname()[1], run, flush=True)
        stdin = await lines()
        while line := await stdin.readline():
            _, node, incarnation = line.decode().split()
            roster[node] = replace(roster[node], is_up=False)
            jobs.on_roster(lambda: tuple(roster.values()))
            await jobs.on_runner_gone(node, RunnerBuried(run=run, incarnation=incarnation))


class Bare(asyncio.Protocol):
    """Keeps a connection, and answers its first frame."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self._decoder.feed(data):
            self._transport.write(encode_frame(self._answer))


async def serve_bare(count: int, folder: Path) -> None:
    """The least that accepting these connections takes."""
    spec, submitter = the_job(count)
    run = "bench@000000"
    job = Job(run=run, spec=spec, submitter=submitter)
    answer = encode(Welcome(version=max(VERSIONS), epoch=1, job=job))
    server = await asyncio.get_running_loop().create_server(
        lambda: Bare(answer),
        HOST,
        0,
        ssl=server_context(folder / "fleet.pem"),
        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
        backlog=BACKLOG,
    )
    print(server.sockets[0].getsockname()[1], run, flush=True)
    await (await lines()).read()


def main() -> None:
    """Until stdin ends."""
    kind, count, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    set_up_log("info", "json")
    ensure_credential(folder / "fleet.pem")
    serve = serve_as_supd if kind == "supd" else serve_bare
    uvloop.run(serve(count, folder))


if __name__ == "__main__":
    main()
