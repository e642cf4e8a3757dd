"""The runner's shell: one Member machine, its link, its workers, its record on disk."""

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import structlog

from protocol.job import Job
from protocol.member import Member
from protocol.member_events import (
    Abort,
    Clear,
    Dismissed,
    Effect,
    End,
    Event,
    Inspect,
    Inspected,
    KeepStacks,
    Linked,
    Look,
    Looked,
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
from protocol.messages.member import Hello, Part, Renewal, Welcome
from protocol.messages.runner import Record, TakeOn
from protocol.versions import VERSIONS
from supervisor.logs.segments import LogWriter
from supervisor.runner.beats import Pages, package_dir
from supervisor.runner.link import Link
from supervisor.runner.offers import Offers
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

PERSIST_S = 2.0
"""How long the record may take to reach the disk before everything else goes on without it."""


class Ended(Exception):
    """Nothing is left to do."""


class Runner:
    """Serves one run on one node until it is over (or nobody has asked for it for long)."""

    def __init__(self, task: TakeOn, *, lock_fd: int, cgroup: str | None, guard_pid: int) -> None:
        self._task = task
        self._lock_fd = lock_fd
        self._cgroup = cgroup
        self._guard_pid = guard_pid
        self._driver: Driver[Event, Effect] | None = None
        self._workers: Workers | None = None
        self._helpers: set[int] = set()  # our own children that are no workers
        self._offers: Offers | None = None
        self._unwritten: Record | None = None  # the newest record, if it is not on its way to the disk yet
        self._writer: asyncio.Task[None] | None = None
        self._disk_hangs = False
        self._ended = asyncio.Event()
        self._renewed = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._logs = LogWriter(Path(task.logs_dir))
        self._pages = Pages(Path(task.beats_dir) if task.beats_dir else None)
        hello = Hello(versions=VERSIONS, fleet=task.fleet, node=task.node, run=task.run, incarnation=task.incarnation)
        self._link = Link(
            hello,
            Path(task.coordinator_file),
            client_context(Path(task.credential)),
            on_welcome=self._on_welcome,
            on_answer=lambda answer: self._put(Ordered(answer.order)),
            on_lost=lambda: self._put(Linked(up=False)),
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
            self._pages.remove()

    # --- from the link -------------------------------------------------------------------------------------------

    def _on_welcome(self, welcome: Welcome) -> None:
        if self._driver is None:
            self._begin(welcome.job)
        self._put(Linked(up=True))

    def _begin(self, job: Job) -> None:
        self._offers = Offers(job, self._task.node, self._task.address)
        member = Member(job.spec, boot_s(), orphan_wait_s=self._task.orphan_wait_s, linger_s=self._task.linger_s)
        self._driver = Driver(member, self._perform, Tick())
        logs_dir = Path(self._task.logs_dir)
        self._workers = Workers(
            job=job,
            node=self._task.node,
            incarnation=self._task.incarnation,
            logs=self._logs,
            logs_dir=logs_dir,
            put=self._driver.put,
            tasks=self._group,
            helpers=self._helpers,
            pages=self._pages,
            package_dir=package_dir(Path(self._task.run_dir)),
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
                self._workers.launch(assignment)
            case Look(generation):
                self._put(Looked(generation, self._workers.look()))
            case Inspect(generation, suspects):
                self._put(Inspected(generation, self._workers.inspect(suspects)))
            case Signal(rank, number, tree):
                self._workers.signal(rank, number, whole_tree=tree)
            case Abort(ranks):
                self._workers.abort(ranks)
            case KeepStacks(rank):
                self._workers.keep_stacks(rank)
            case TermLeftovers():
                self._workers.term_leftovers()
            case Clear(generation, kill_at_s):
                self._workers.clear(generation, kill_at_s)
            case LookUpOffer(not_port):
                self._group.create_task(self._look_up_offer(not_port), name="offer")
            case Persist(renewal):
                await self._persist(renewal)
            case Renew(renewal):
                self._link.send(renewal)
                self._renewed.set()
            case End():
                self._ended.set()

    async def _persist(self, renewal: Renewal) -> None:
        """Put the record on disk before what is in it is told; a disk that hangs is waited for once, not for ever."""
        self._unwritten = Record(run=self._task.run, incarnation=self._task.incarnation, renewal=renewal)
        if self._writer is None or self._writer.done():
            self._writer = self._group.create_task(self._write_record(), name="record")
            self._disk_hangs = False
        if self._disk_hangs:
            return
        try:
            async with asyncio.timeout(PERSIST_S):
                await asyncio.shield(self._writer)
        except TimeoutError:
            self._disk_hangs = True
            log.warning("record_unwritten", error=f"the disk hangs for {PERSIST_S:g} s")

    async def _write_record(self) -> None:
        path = Path(self._task.run_dir) / f"{self._task.incarnation}.record"
        while (record := self._unwritten) is not None:
            self._unwritten = None
            is_outcome = record.renewal.part is Part.FINISHED  # a job that is done must not be done again
            try:
                await asyncio.to_thread(write_whole, path, encode(record), through=is_outcome)
            except OSError as exc:  # training goes on; only what a next supd could read is poorer
                log.warning("record_unwritten", path=str(path), error=repr(exc))

    async def _look_up_offer(self, not_port: int | None) -> None:
        assert self._offers is not None
        self._put(Offered(await self._offers.look_up(not_port)))

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
            if self._workers.marker is not None:
                step = await asyncio.to_thread(read_step, self._workers.marker)
                if step is not None and step != saved:
                    saved = step
                    self._put(Saved(step))

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
        self._helpers.add(guard.pid)
        pidfd = os.pidfd_open(guard.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._on_guard_ended, pidfd)


def read_step(path: Path) -> int | None:
    """The first number in a checkpoint marker; None where there is none (yet)."""
    content = read_small(path, MARKER_MAX_BYTES)
    found = re.search(rb"\d{1,18}", content or b"")
    return int(found[0]) if found else None
