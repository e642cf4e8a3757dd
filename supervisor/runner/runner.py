"""The runner's shell: one Member machine, its link, its workers, its record on disk."""

import asyncio
import signal
from pathlib import Path

import structlog

from protocol.job import Job
from protocol.member import Member
from protocol.member_events import (
    Abort,
    Announce,
    Answered,
    AskWords,
    Clear,
    Dismissed,
    Effect,
    End,
    Event,
    GiveWord,
    Hold,
    Inspect,
    Inspected,
    KeepStacks,
    KillAll,
    Linked,
    Look,
    Looked,
    LookForDone,
    LookForSave,
    LookUpOffer,
    Meet,
    Noticed,
    Offered,
    Persist,
    Questioned,
    Reached,
    Renew,
    SeenDone,
    Signal,
    Spawn,
    TermLeftovers,
    Testify,
    Tick,
    WordAsked,
    WordHeard,
)
from protocol.messages.member import Answer, Hello, Welcome
from protocol.messages.runner import Record, TakeOn
from protocol.versions import VERSIONS
from supervisor.logs import marks
from supervisor.logs.segments import LogWriter
from supervisor.runner.beats import Pages
from supervisor.runner.guard_watch import GuardWatch
from supervisor.runner.helpers import Helpers
from supervisor.runner.link import Link
from supervisor.runner.notices import Notices
from supervisor.runner.offers import Offers
from supervisor.runner.peers import Ears, Peers
from supervisor.runner.record import RecordFile
from supervisor.runner.stop_file import StopFile
from supervisor.runner.workers import Workers
from supervisor.shell.clock import boot_s
from supervisor.shell.driver import Driver
from supervisor.shell.guarding import Tie
from supervisor.shell.lease_page import LeasePage
from supervisor.shell.precedence import Precedence
from supervisor.shell.tls import client_context

log = structlog.get_logger()

WATCH_PAUSE_S = 0.5
"""Between two looks at memory counters and orphans. They come with the renewals, once a second: an idle runner wakes up
once, not twice."""

SETTLE_S = 0.1
"""How long the pre-signal may wait for a marker, so that a checkpoint from before is not taken for an answer to it."""


class Ended(Exception):
    """Nothing is left to do."""


class Runner:
    """Serves one run on one node until it is over (or nobody has asked for it for long)."""

    def __init__(
        self,
        task: TakeOn,
        *,
        lock_fd: int,
        cgroup: str | None,
        guard_pid: int,
        page: LeasePage,
        precedence: Precedence,
        tie: Tie | None = None,
    ) -> None:
        """`page` is where the guard reads of the lease; `precedence` is what the workers are to have; `tie` is the
        guards'."""
        self._task = task
        self._lock_fd = lock_fd
        self._cgroup = cgroup
        self._guard_pid = guard_pid
        self._page = page
        self._precedence = precedence
        self._tie = tie
        self._driver: Driver[Event, Effect] | None = None
        self._workers: Workers | None = None
        self._helpers = Helpers()
        self._offers: Offers | None = None
        self._ended = asyncio.Event()
        self._renewed = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._stop_file = StopFile(self._group)
        self._record = RecordFile(Path(task.run_dir) / f"{task.incarnation}.record", self._group)
        self._logs: LogWriter | None = None
        self._pages = Pages(Path(task.beats_dir) if task.beats_dir else None)
        hello = Hello(versions=VERSIONS, fleet=task.fleet, node=task.node, run=task.run, incarnation=task.incarnation)
        tls = client_context(Path(task.credential))
        self._link = Link(
            hello,
            Path(task.coordinator_file),
            tls,
            on_welcome=self._on_welcome,
            on_answer=lambda answer: self._put(Answered(answer)),
            on_answer_for=lambda passed: self._peers.answer_for(passed),
            on_question=lambda question: self._hear(Questioned(question)),
            on_lost=lambda: self._put(Linked(up=False)),
        )
        ears = Ears(
            on_word_wanted=lambda node, incarnation, wanted: self._hear(WordAsked(node, incarnation, wanted)),
            on_word=lambda incarnation, word: self._hear(WordHeard(incarnation, word)),
            on_renewal=self._link.send,
            on_answer=self._on_passed_on,
            on_reached=lambda incarnations: self._put(Reached(incarnations)),
        )
        self._peers = Peers(hello, task, tls, self._group, ears)

    async def run(self) -> None:
        """Until there is nothing left to do."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._dismiss)
        guard_watch = GuardWatch(
            self._task.incarnation,
            lock_fd=self._lock_fd,
            cgroup=self._cgroup,
            page=self._page,
            helpers=self._helpers,
            tie=self._tie,
        )
        try:
            async with self._group:
                self._group.create_task(guard_watch.run(self._guard_pid), name="guard")
                self._group.create_task(self._link.run(), name="link")
                self._group.create_task(self._watch(), name="watch")
                self._group.create_task(self._give_up_unmet(), name="unmet")
                await self._ended.wait()
                raise Ended
        except* Ended:
            log.info("runner_ended")
        finally:
            self._peers.close()
            if self._logs is not None:
                self._logs.close()
            if self._offers is not None:
                self._offers.close()
            self._pages.remove()

    # --- from the link, and from other runners -------------------------------------------------------------------

    def _on_welcome(self, welcome: Welcome) -> None:
        if self._driver is None:
            self._begin(welcome.job)
        self._put(Linked(up=True))

    def _begin(self, job: Job) -> None:
        self._offers = Offers(job, self._task.node, self._task.address, self._peers.listen)
        member = Member(
            job.spec,
            boot_s(),
            orphan_wait_s=self._task.orphan_wait_s,
            linger_s=self._task.linger_s,
            revision=job.revision,
        )
        self._driver = Driver(member, self._perform, Tick())
        logs_dir = Path(self._task.logs_dir)
        owner = marks.owner(self._task.node, Path(self._task.coordinator_file).parent)
        self._logs = LogWriter(logs_dir, job.spec.logs, job.submitter.umask, owner)
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
            run_dir=Path(self._task.run_dir),
            precedence=self._precedence,
            lease=self._page,
        )
        self._group.create_task(self._driver.run(), name="member")
        notices = Notices(
            job,
            self._task.node,
            self._task.incarnation,
            self._precedence,
            self._helpers,
            lambda why: self._put(Noticed(why)),
        )
        notices.listen()
        self._group.create_task(notices.watch(), name="notices")

    def _put(self, event: Event) -> None:
        if self._driver is not None:
            self._driver.put(event)

    def _hear(self, event: Event) -> None:
        """What a peer says, or is asked, and again: where the machine is far behind it is left out."""
        if self._driver is not None and not self._driver.is_behind:
            self._driver.put(event)

    def _on_passed_on(self, answer: Answer) -> None:
        if self._link.heed(answer):
            self._hear(Answered(answer, is_direct=False))

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
            case LookForSave(generation, settles):
                if settles:
                    await self._workers.saves.settle(generation, SETTLE_S)
                else:
                    self._workers.saves.look(generation)
            case LookForDone(generation):
                self._put(SeenDone(generation, self._workers.seen_done()))
            case Announce():
                if (path := self._pages.stop_file) is not None:
                    await self._stop_file.write(path, effect)
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
            case KillAll(generation):
                self._workers.kill_all(generation)
            case Hold(until_s):
                self._page.hold(until_s)
            case LookUpOffer(not_port):
                self._group.create_task(self._look_up_offer(not_port), name="offer")
            case Persist(renewal):
                if any(report.exit is not None and report.exit.failed for report in renewal.ranks):
                    self._workers.on_failed(renewal.generation)
                await self._record.keep(Record(run=self._task.run, incarnation=self._task.incarnation, renewal=renewal))
            case Renew(renewal, by_witnesses):
                self._link.send(renewal)
                if by_witnesses:
                    self._peers.pass_on(renewal)
                self._renewed.set()
            case Meet(witnesses):
                self._peers.meet(witnesses)
            case AskWords(wanted):
                self._peers.ask_words(wanted)
            case GiveWord(incarnation, word):
                self._peers.give_word(incarnation, word)
            case Testify(testimony):
                self._link.send(testimony)
            case End():
                self._ended.set()

    async def _look_up_offer(self, not_port: int | None) -> None:
        assert self._offers is not None
        assert self._workers is not None
        offer = await self._offers.look_up(not_port)
        await self._workers.look_for_earlier_save()  # it is told with the offer: the ranks are to go on from there
        self._put(Offered(offer))

    # --- watching ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
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
