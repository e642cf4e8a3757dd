"""A real guard and runner, as supd starts them, and a stand-in for their coordinator: the only node of a generation."""

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from protocol.framing import encode_frame
from protocol.ids import NO_GENERATION
from protocol.job import Job, PreemptionTable, RunTable, TopologyTable
from protocol.messages import encode
from protocol.messages.member import (
    Answer,
    Assignment,
    Hello,
    Order,
    Part,
    Renewal,
    Run,
    Wait,
    Welcome,
    Witness,
    decode_to_coordinator,
)
from protocol.messages.runner import TakeOn
from protocol.timing import Timing
from protocol.versions import VERSIONS
from supervisor.shell import guarding, tls_server, tree
from supervisor.shell.channel import Channel
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import server_context
from tests.protocol.build import assignment, job_spec, submitted
from tests.runner.processes import is_gone, wait_until

TIMEOUT_S = 30.0
NPROC = 2
FAST = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)

NOBODY = Witness(node="b", incarnation="bb", address="127.0.0.1", port=1, node_rank=1, first_rank=NPROC, nproc=1)
"""A witness that gives nobody its word."""


class Solo:
    """The stand-in; what it has heard and does not know yet is in `renewals`."""

    def __init__(self, folder: Path, incarnation: str, job: Job, given: Assignment) -> None:
        self.folder = folder
        self.incarnation = incarnation
        self.answers = True
        self.renewals: asyncio.Queue[Renewal] = asyncio.Queue()
        self.runner: tree.Process
        self._job = job
        self._run = Run(assignment=given)

    async def hears(self, *parts: Part) -> Renewal:
        """The next renewal that tells one of these."""
        while (renewal := await self.renewals.get()).part not in parts:
            pass
        return renewal

    def ranks(self) -> list[tree.Process]:
        """What bears the runner's marker, and lives."""
        return [process for process in tree.marked(self.incarnation) if process.is_alive]

    async def until(self, count: int) -> None:
        """Wait until so many processes of ranks are alive."""
        await asyncio.to_thread(wait_until, lambda: len(self.ranks()) == count)

    def channel(self) -> Channel:
        return Channel(lambda _: None, self._on_frame, lambda _: None)

    def _on_frame(self, channel: Channel, frame: bytes) -> None:
        match decode_to_coordinator(frame):
            case Hello():
                channel.send(encode(Welcome(version=VERSIONS[-1], epoch=1, job=self._job)))
            case Renewal() as renewal:
                self.renewals.put_nowait(renewal)
                has_run = renewal.offer is not None or renewal.generation != NO_GENERATION
                order: Order = self._run if has_run else Wait()
                if self.answers:
                    channel.send(encode(Answer(number=renewal.number, epoch=1, order=order)))
            case message:
                raise AssertionError(f"not expected: {message}")


def shell_job(command: str, folder: Path, nproc: int, preemption: PreemptionTable | None = None) -> Job:
    """So many ranks of a shell command."""
    spec = job_spec(
        run=RunTable(command=("sh", "-c", command)),
        topology=TopologyTable(nproc_per_node=nproc),
        preemption=preemption or PreemptionTable(),
    )
    return submitted(spec, folder=str(folder), env={b"PATH": os.environb[b"PATH"]})


def record_draft(folder: Path, incarnation: str) -> Path:
    """Where a record is written before it takes its place."""
    return folder / f"{incarnation}.record.new"


@asynccontextmanager
async def solo(
    folder: Path,
    incarnation: str,
    command: str,
    *,
    has_lease: bool = False,
    own_log: int | None = None,
    preemption: PreemptionTable | None = None,
) -> AsyncIterator[Solo]:
    """A runner with NPROC ranks of a shell command; its own log goes to that descriptor. Everything is gone at the
    end."""
    job = shell_job(command, folder, NPROC, preemption)
    given = assignment(nproc=NPROC, world_size=NPROC, timing=FAST, witnesses=(NOBODY,) if has_lease else ())
    stand_in = Solo(folder, incarnation, job, given)
    write_once(str(folder / "fleet.pem"), credential())
    server = await tls_server.listen("127.0.0.1", 0, server_context(folder / "fleet.pem"), stand_in.channel)
    (folder / "coordinator").write_text(f"127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    with _guard(folder, incarnation, own_log) as guard:
        try:
            assert guard.stdin is not None
            guard.stdin.write(encode_frame(encode(task_of(folder, incarnation))))
            guard.stdin.close()
            async with asyncio.timeout(TIMEOUT_S):
                await stand_in.hears(Part.IDLE)
                [stand_in.runner] = [p for p in tree.processes().values() if p.ppid == guard.pid]
                yield stand_in
        finally:
            server.close()
            for process in tree.descendants(guard.pid, tree.processes()):
                tree.signal_process(process, 9)
            guard.wait(TIMEOUT_S)
            assert all(map(is_gone, tree.marked(incarnation)))


def _guard(folder: Path, incarnation: str, own_log: int | None) -> subprocess.Popen[bytes]:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    runner = [sys.executable, "-E", "-P", "-m", "supervisor.runner.app", "--lock-fd", str(lock), "--cgroup", "-"]
    argv = guarding.guard_argv(guarding.guard_options(incarnation, lock, None), runner)
    try:
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=own_log, pass_fds=(lock,))
    finally:
        os.close(lock)


def task_of(folder: Path, incarnation: str) -> TakeOn:
    """What a runner takes on whose place is this folder."""
    return TakeOn(
        run="j@1",
        node="a",
        fleet="default",
        incarnation=incarnation,
        coordinator_file=str(folder / "coordinator"),
        credential=str(folder / "fleet.pem"),
        run_dir=str(folder),
        logs_dir=str(folder / "logs"),
        orphan_wait_s=60.0,
        linger_s=60.0,
    )
