"""One real guard and runner with ranks that do their worst, and a stand-in for their coordinator that answers every
renewal and notes when it comes.

    lateness_server.py KIND SECONDS        prints JSON: by how much each renewal was late, or why that was not measured
"""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from members_server import FLEET, HOST

from protocol.framing import encode_frame
from protocol.ids import NO_GENERATION
from protocol.job import Job, JobSpec, RunTable, Submitter, TopologyTable
from protocol.messages import encode
from protocol.messages.member import (
    Answer,
    Assignment,
    Hello,
    Part,
    Renewal,
    Run,
    Wait,
    Welcome,
    decode_to_coordinator,
)
from protocol.messages.runner import TakeOn
from protocol.timing import DEFAULTS
from protocol.versions import VERSIONS
from supervisor.shell import cgroup, guarding, tls_server, tree
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s
from supervisor.shell.tls import ensure_credential, server_context

RANKS = {"quiet": 1, "flood": 8, "full": 8, "busy": 64, "memory": 1, "hung": 8}
WORKERS = {"quiet": "idle", "flood": "flood", "full": "flood", "busy": "spin", "memory": "fill", "hung": "flood"}

DISK_BYTES = 1 << 20
MEMORY_BYTES = 400 << 20
LEFT_BYTES = 120 << 20  # for runner, guard and the file
FILE_BYTES = 1 << 30

LIMIT_S = 120.0
RUN = "bench@000000"


class NotHere(Exception):
    """This cannot be measured on this machine, or not by this user."""


class Coordinator:
    """Orders one generation, and notes the times of the renewals."""

    def __init__(self, job: Job, assignment: Assignment) -> None:
        self._job = job
        self._order = Run(assignment=assignment)
        self.is_launched = asyncio.Event()
        self.heard_s: list[float] = []  # since the order

    def channel(self) -> Channel:
        """For the next connection."""
        return Channel(lambda _: None, self._on_frame, lambda _: None)

    def _on_frame(self, channel: Channel, frame: bytes) -> None:
        match decode_to_coordinator(frame):
            case Hello():
                channel.send(encode(Welcome(version=max(VERSIONS), epoch=1, job=self._job)))
            case Renewal() as renewal:
                order = Wait() if renewal.offer is None and renewal.generation == NO_GENERATION else self._order
                if order is self._order:
                    self.heard_s.append(boot_s())
                channel.send(encode(Answer(number=renewal.number, epoch=1, order=order)))
                if renewal.part in (Part.LAUNCHED, Part.RUNNING):
                    self.is_launched.set()
            case _:
                return


class Place:
    """The files of one runner, in which a disk may be full or hang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.incarnation = secrets.token_hex(8)
        self.run_dir, self.logs_dir = folder / "run", folder / "logs"
        self.file, self.credential = folder / "file", folder / "fleet.pem"
        for made in (self.run_dir, self.logs_dir):
            made.mkdir()
        ensure_credential(self.credential)

    def hang(self, ranks: int) -> None:
        """Pipes that nobody reads, instead of its record and of its ranks' output."""
        os.mkfifo(self.run_dir / f"{self.incarnation}.record.new")
        generation = self.logs_dir / "gen-0000"
        generation.mkdir()
        for rank in range(ranks):
            os.mkfifo(generation / f"rank-{rank:05d}.out")

    @contextmanager
    def full(self) -> Iterator[None]:
        """The ranks' output goes to a file system that is full."""
        _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.logs_dir))
        try:
            with contextlib.suppress(OSError):
                (self.logs_dir / "all").write_bytes(bytes(2 * DISK_BYTES))
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(self.logs_dir)], check=True)


def _mount(*options: str) -> None:
    if os.getuid() or subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        raise NotHere("a file system cannot be mounted")


@contextmanager
def memory_group(name: str) -> Iterator[Path]:
    """A memory cgroup of our own with a limit."""
    paths = cgroup.parse_memberships(cgroup.read_text("/proc/self/cgroup"))
    for mount in cgroup.parse_mounts(cgroup.read_text("/proc/self/mountinfo")):
        own = mount.folder(paths.get("" if mount.is_v2 else "memory", "/.."))
        limit = "memory.max" if mount.is_v2 else "memory.limit_in_bytes"
        if own is None or not (mount.is_v2 or "memory" in mount.controllers):
            continue
        group = Path(own, f"supd-bench-{name}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(MEMORY_BYTES))
                yield group
                return
            finally:
                group.rmdir()
    raise NotHere("there is no memory cgroup to make one in")


@contextmanager
def started(place: Place, port: int, *, group: Path | None, hangs: bool) -> Iterator[None]:
    """A guard and a runner that has its run, as supd starts them; both are gone at the end."""
    (place.folder / "coordinator").write_text(f"{HOST}:{port}\n")
    lock = os.open(place.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    runner = [sys.executable, "-E", "-P", "-m", "supervisor.runner.app", "--lock-fd", str(lock), "--cgroup", "-"]
    argv = guarding.guard_argv(guarding.guard_options(place.incarnation, lock, None), runner)
    if group is not None:
        argv = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs; exec "$@"', str(group), *argv]
    unread, log = os.pipe()
    if hangs:
        os.set_blocking(log, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(log, bytes(4096)):
                pass
        os.set_blocking(log, True)
    with (
        (place.folder / "log").open("wb") as log_file,
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log if hangs else log_file,
            pass_fds=(lock,),
            start_new_session=True,
        ) as guard,
    ):
        os.close(lock)
        os.close(log)
        try:
            assert guard.stdin is not None
            guard.stdin.write(encode_frame(encode(_task(place))))
            guard.stdin.close()
            yield
        finally:
            os.close(unread)
            below = tree.descendants(guard.pid, tree.processes())
            tree.kill_once([process for process in below if process.ppid == guard.pid])  # the runner
            guard.wait(LIMIT_S)


def _task(place: Place) -> TakeOn:
    return TakeOn(
        run=RUN,
        node="a",
        fleet=FLEET,
        incarnation=place.incarnation,
        coordinator_file=str(place.folder / "coordinator"),
        credential=str(place.credential),
        run_dir=str(place.run_dir),
        logs_dir=str(place.logs_dir),
        orphan_wait_s=LIMIT_S,
        linger_s=LIMIT_S,
    )


def the_job(kind: str, place: Place) -> Job:
    """So many ranks of that kind."""
    worker = Path(__file__).with_name("lateness_worker.py")
    more = (str(place.file), str(MEMORY_BYTES - LEFT_BYTES)) if kind == "memory" else ()
    run = RunTable(script=str(worker), args=(WORKERS[kind], *more))
    spec = JobSpec(name="bench", run=run, topology=TopologyTable(nproc_per_node=RANKS[kind]))
    env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    submitter = Submitter(
        folder="/", source="bench.toml", python=sys.executable, env=env, limits={}, umask=0o22, user="bench"
    )
    return Job(run=RUN, spec=spec, submitter=submitter)


def the_assignment(ranks: int) -> Assignment:
    """The only node's."""
    return Assignment(
        generation=0,
        node_rank=0,
        nnodes=1,
        first_rank=0,
        nproc=ranks,
        world_size=ranks,
        master_addr=HOST,
        master_port=29500,
    )


async def measure(kind: str, seconds: float, place: Place, group: Path | None) -> list[float]:
    """By how much each renewal came late, in seconds; changes that are told at once count as being in time."""
    coordinator = Coordinator(the_job(kind, place), the_assignment(RANKS[kind]))
    if kind == "hung":
        place.hang(RANKS[kind])
    server = await tls_server.listen(HOST, 0, server_context(place.credential), coordinator.channel)
    port = server.sockets[0].getsockname()[1]
    with started(place, port, group=group, hangs=kind == "hung"):
        async with asyncio.timeout(LIMIT_S):
            await coordinator.is_launched.wait()
        await asyncio.sleep(seconds)
        heard_s = [*coordinator.heard_s, boot_s()]  # none at all is late, too
        server.close()
    gaps_s = (later - earlier for earlier, later in itertools.pairwise(heard_s))
    return [max(0.0, gap_s - DEFAULTS.renew_s) for gap_s in gaps_s]


def main() -> None:
    """One kind, and a folder of its own."""
    kind, seconds = sys.argv[1], float(sys.argv[2])
    with contextlib.suppress(OSError):  # what is measured is the runner's lateness, not ours
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    with tempfile.TemporaryDirectory(prefix="supd-bench-") as name, contextlib.ExitStack() as stack:
        place = Place(Path(name))
        try:
            group = stack.enter_context(memory_group(place.incarnation)) if kind == "memory" else None
            if kind == "full":
                stack.enter_context(place.full())
            if kind == "memory":
                with place.file.open("wb") as file:
                    file.truncate(FILE_BYTES)
        except NotHere as exc:
            print(json.dumps({"skipped": str(exc)}))
            return
        print(json.dumps({"late_s": uvloop.run(measure(kind, seconds, place, group))}))


if __name__ == "__main__":
    main()
