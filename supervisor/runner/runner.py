"""The runner's shell: one Member machine, its link, its workers, its record on disk."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import structlog

from protocol.errors import Refused
from protocol.job import Job
from protocol.member import Member
from protocol.member_events import (
    Clear,
    Dismissed,
    Effect,
    End,
    Event,
    Linked,
    LookUpOffer,
    Offered,
    Ordered,
    Persist,
    Renew,
    Saved,
    Signal,
    Spawn,
    TermLeftovers,
    Tick,
)
from protocol.messages import encode
from protocol.messages.member import Assignment, Hello, Offer, Renewal, Welcome
from protocol.messages.runner import Record, TakeOn
from protocol.ranks import expand, inherited
from protocol.versions import VERSIONS
from supervisor.logs.segments import LogWriter
from supervisor.runner import devices
from supervisor.runner.link import Link
from supervisor.runner.workers import Workers
from supervisor.shell import guarding
from supervisor.shell.clock import boot_s
from supervisor.shell.driver import Driver
from supervisor.shell.files import read_small, write_whole
from supervisor.shell.tls import client_context

log = structlog.get_logger()

WATCH_PAUSE_S = 0.5
"""Between two looks at memory counters, orphans and checkpoint marker. They come with the renewals, once a second:
an idle runner wakes up once, not twice."""

MARKER_MAX_BYTES = 4096


class Ended(Exception):
    """Nothing is left to do."""


class Runner:
    """Serves one run on one node until it is over (or nobody has asked for it for long)."""

    def __init__(self, task: TakeOn, *, lock_fd: int, cgroup: str | None, guard_pid: int) -> None:
        self._task = task
        self._lock_fd = lock_fd
        self._cgroup = cgroup
        self._guard_pid = guard_pid
        self._job: Job | None = None
        self._driver: Driver[Event, Effect] | None = None
        self._workers: Workers | None = None
        self._assignment: Assignment | None = None
        self._ended = asyncio.Event()
        self._renewed = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._logs = LogWriter(Path(task.logs_dir))
        hello = Hello(versions=VERSIONS, fleet=task.fleet, node=task.node, run=task.run, incarnation=task.incarnation)
        self._link = Link(
            hello,
            Path(task.coordinator_file),
            client_context(Path(task.credential)),
            on_welcome=self._on_welcome,
            on_answer=lambda answer: self._put(Ordered(answer.order)),
            on_lost=lambda: self._put(Linked(up=False)),
            on_dismissed=lambda reason: self._dismiss(),
        )

    async def run(self) -> None:
        """Until there is nothing left to do."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._dismiss)
        self._watch_guard(self._guard_pid)
        try:
            async with self._group:
                self._group.create_task(self._link.run(), name="link")
                self._group.create_task(self._watch(), name="watch")
                self._group.create_task(self._give_up_unmet(), name="unmet")
                await self._ended.wait()
                raise Ended
        except* Ended:
            log.info("runner_ended")
        finally:
            self._logs.close()

    # --- from the link -------------------------------------------------------------------------------------------

    def _on_welcome(self, welcome: Welcome) -> None:
        if self._driver is None:
            self._begin(welcome.job)
        self._put(Linked(up=True))

    def _begin(self, job: Job) -> None:
        self._job = job
        member = Member(job.spec, boot_s(), orphan_wait_s=self._task.orphan_wait_s, linger_s=self._task.linger_s)
        self._driver = Driver(member, self._perform, Tick())
        logs_dir = Path(self._task.logs_dir)
        self._workers = Workers(
            job, self._task.node, self._task.incarnation, self._logs, logs_dir, self._driver.put, self._group
        )
        self._group.create_task(self._driver.run(), name="member")

    def _put(self, event: Event) -> None:
        if self._driver is not None:
            self._driver.put(event)

    def _dismiss(self) -> None:
        if self._driver is None:
            self._ended.set()
        self._put(Dismissed())

    async def _give_up_unmet(self) -> None:
        """A runner that never met its coordinator has nothing to lose."""
        await asyncio.sleep(self._task.orphan_wait_s)
        if self._driver is None:
            self._ended.set()

    # --- effects -------------------------------------------------------------------------------------------------

    async def _perform(self, effect: Effect) -> None:
        assert self._workers is not None
        match effect:
            case Spawn(assignment):
                self._assignment = assignment
                self._workers.launch(assignment)
            case Signal(rank, number, tree):
                self._workers.signal(rank, number, whole_tree=tree)
            case TermLeftovers():
                self._workers.term_leftovers()
            case Clear(generation, kill_at_s):
                self._workers.clear(generation, kill_at_s)
            case LookUpOffer(not_port):
                self._put(Offered(self._offer(not_port)))
            case Persist(renewal, assignment):
                await self._persist(renewal, assignment)
            case Renew(renewal):
                self._link.send(renewal)
                self._renewed.set()
            case End():
                self._ended.set()

    async def _persist(self, renewal: Renewal, assignment: Assignment | None) -> None:
        record = Record(
            run=self._task.run,
            incarnation=self._task.incarnation,
            job=self._job,
            assignment=assignment,
            renewal=renewal,
        )
        path = Path(self._task.run_dir) / f"{self._task.incarnation}.record"
        try:
            await asyncio.to_thread(write_whole, path, encode(record))
        except OSError as exc:  # training goes on; only what a next supd could read is poorer
            log.warning("record_unwritten", path=str(path), error=repr(exc))

    def _offer(self, not_port: int | None) -> Offer:
        assert self._job is not None
        host = self._link.own_host
        environ = {os.fsdecode(k): os.fsdecode(v) for k, v in inherited(self._job, os.environb).items()}
        try:
            slots, how = devices.count_ranks(self._job.spec.topology.nproc_per_node, environ)
        except Refused as exc:
            return Offer(slots=0, address=host, port=0, problem=f"{exc}; {exc.hint}")
        log.debug("ranks_counted", slots=slots, how=how)
        return Offer(slots=slots, address=host, port=free_port(host, not_port))

    # --- watching ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        saved: int | None = None
        due_s = boot_s()
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            if boot_s() < due_s:
                continue
            due_s = boot_s() + WATCH_PAUSE_S
            assert self._workers is not None
            self._workers.reap()  # orphans that came to us; the ranks' ends are seen at once
            self._workers.look_for_oom()
            path = self._marker_path()
            if path is not None:
                step = await asyncio.to_thread(read_step, path)
                if step is not None and step != saved:
                    saved = step
                    self._put(Saved(step))

    def _marker_path(self) -> Path | None:
        assert self._job is not None
        marker = self._job.spec.checkpoint.marker
        if not marker or self._assignment is None:
            return None
        names = {
            "job": self._job.spec.name,
            "run": self._job.run,
            "gen": str(self._assignment.generation),
            "node": self._task.node,
            "rank": str(self._assignment.first_rank),
            "local_rank": "0",
        }
        env = inherited(self._job, os.environb)
        env |= {name.encode(): value.encode() for name, value in self._job.spec.run.env.items()}
        return Path(self._job.submitter.folder, expand(marker, names, env))

    def _watch_guard(self, pid: int) -> None:
        """When the guard dies, start another (docs/decisions/001)."""
        pidfd = guarding.parent_pidfd(pid)
        if pidfd is None:
            self._replace_guard()
        else:
            asyncio.get_running_loop().add_reader(pidfd, self._on_guard_ended, pidfd)

    def _on_guard_ended(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        log.warning("guard_lost")
        self._replace_guard()

    def _replace_guard(self) -> None:
        argv = guarding.watch_argv(self._task.incarnation, self._lock_fd, self._cgroup, os.getpid())
        try:
            guard = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(self._lock_fd,)
            )
        except OSError as exc:
            log.error("guard_unreplaced", error=repr(exc))
            return
        if self._workers is not None:
            self._workers.helpers.add(guard.pid)
        pidfd = os.pidfd_open(guard.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._on_guard_ended, pidfd)


def free_port(host: str, not_port: int | None) -> int:
    """A TCP port that is free on `host` now, other than `not_port`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as first, socket.socket(family) as second:
        first.bind((host, 0))
        port = int(first.getsockname()[1])
        if port != not_port:
            return port
        second.bind((host, 0))  # while the first is held: another one
        return int(second.getsockname()[1])


def read_step(path: Path) -> int | None:
    """The first number in a checkpoint marker; None where there is none (yet)."""
    content = read_small(path, MARKER_MAX_BYTES)
    found = re.search(rb"\d{1,18}", content or b"")
    return int(found[0]) if found else None
