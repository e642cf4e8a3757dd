"""The coordinator's shell: one machine a run, with the journal behind it, nodes, runners and watchers around it."""

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from protocol import coordinator_events as c
from protocol.absence import Unproven, ended_by_hand, runners_on, unproven
from protocol.coordinator import Coordinator
from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.fleet import in_use, may_live_on
from protocol.grants import are_limited, free_by_node, never_fits, rosters
from protocol.job import Job, JobSpec
from protocol.messages import Message, encode
from protocol.messages.control import EventRecord, RunStatus
from protocol.messages.fleet import NODES_MAX, RunnerBuried
from protocol.messages.member import AnswerFor, Renewal, Testimony
from protocol.takeover import told_run
from protocol.text import one_line
from protocol.timing import Timing
from protocol.view import run_status
from supervisor.daemon.journal import Journal, StoredRun
from supervisor.daemon.retention import DAY_S, KEEP, Keep, surplus
from supervisor.daemon.run import Run
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.driver import Driver

log = structlog.get_logger()

ASK_TIMEOUT_S = 10.0

ROSTER_S = 0.05
"""The least time between two rosters, however many nodes come or go: a run's machine looks at all of them each time."""

ROSTER_AGAIN_S = 1.0
"""Until the next roster, where a run is so far behind that it was left out, or waits for slots."""

ALLOT_S = 5.0
"""The same where nodes have slots: without a word a run may find a use for some, or have none any more."""

GREETED_MAX = 4 * NODES_MAX
"""How many runners are remembered that know our epoch from us. Who is forgotten costs us an epoch, and no more."""

REMEMBER_S = 60.0
"""How long a coordinator that has begun forgets nothing: a runner that is alive is heard within that, and tells of a
run that the journal does not know."""

FORGET_EVERY_S = 600.0

Roster = Callable[[], tuple[c.RosterNode, ...]]


class Jobs:
    """Every run of this coordinator."""

    def __init__(
        self,
        journal: Journal,
        logs_dir: Path,
        epoch: int,
        *,
        on_wanted: Callable[[str, frozenset[str]], None],
        on_unlinked: Callable[[str], None],
        on_seated: Callable[[], None],
        on_blamed: Callable[[str], None],
        on_epoch: Callable[[int], None],
        before_epoch: Callable[[int], Awaitable[None]],
        timing: Timing,
        keeps_isolated: bool,
        keep: Keep = KEEP,
    ) -> None:
        """`on_wanted(run, nodes)` hears which nodes are to have a runner for a run, whenever that changes;
        `on_unlinked(node)` that the connection of a runner there is gone; `on_seated()` that other nodes may be in use;
        `on_blamed(node)` that the root of an incident was there; `on_epoch(epoch)` that the coordinator's is
        another one than at its start, before which `before_epoch(the one it has)` may raise. Leases of generations that
        begin are of this `timing`; where it `keeps_isolated` they never end. Finished runs beyond `keep` are
        forgotten."""
        self._journal = journal
        self._logs_dir = logs_dir
        self.epoch = epoch
        self._on_wanted = on_wanted
        self._on_unlinked = on_unlinked
        self._on_seated = on_seated
        self._on_blamed = on_blamed
        self._on_epoch = on_epoch
        self._before_epoch = before_epoch
        self._timing = timing
        self._keeps_isolated = keeps_isolated
        self._keep = keep
        self._has_begun = asyncio.Event()  # a run; set for a moment
        self._has_ended = asyncio.Event()  # a run, or the last runner of one
        self._began_s = boot_s()
        self.runs: dict[str, Run] = {}
        self._greeted: dict[str, None] = {}  # incarnations that know our epoch from us, the oldest first
        self._roster: Roster = lambda: ()
        self._roster_due: asyncio.Handle | None = None
        self._roster_due_s = math.inf
        self._roster_shared_s = -ROSTER_S
        self._group: asyncio.TaskGroup | None = None

    async def run(self, stored: list[StoredRun]) -> None:
        """Take up the runs of the journal, and drive all machines until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for one in stored:
                self._take_up(one)
            for stray in await self._journal.stray_runs():
                await self._journal.forget_run(stray)
            while True:
                await self._forget_surplus()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FORGET_EVERY_S):
                        await self._has_ended.wait()

    async def accept(self, request_id: str, job: Job, note: c.Note, *, is_told: bool = False) -> str:
        """Begin a run, once it is on disk; returns the run that this request has made, which may be an older one.
        `is_told`: its runners have told of it. Raises Refused."""
        record, now = told_run() if is_told else c.RunRecord(), wall_s()
        made = await self._journal.add_run(request_id, job, record, now)
        if made == job.run:  # else the same request was quicker by another connection
            run = self._take_up(StoredRun(run=made, job=job, record=record, submitted_wall_s=now, ended_wall_s=None))
            self._note(run, note)
        return made

    async def raise_epoch(self, seen: int) -> None:
        """There was a coordinator of the epoch `seen`: go above it, on disk first. It is never lowered. Raises
        Refused, and whatever `before_epoch` raises."""
        await self._before_epoch(self.epoch)
        epoch = await self._journal.raise_to(seen + 1)
        if epoch <= self.epoch:
            return  # several have told of it at once
        self.epoch = epoch
        for run in self.runs.values():
            run.machine.epoch = epoch
        self._on_epoch(epoch)
        log.warning("epoch_raised", epoch=epoch, seen=seen)

    # --- operator ------------------------------------------------------------------------------------------------

    async def ask(self, run: Run, event: c.Event) -> None:
        """Hand in what an operator wants, and see it on disk. Raises Refused where the disk takes too long."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await run.driver.ask(event)
        except TimeoutError:
            why = self._journal.trouble or f"the disk does not answer for {ASK_TIMEOUT_S:g} s"
            hint = "make room: it is carried out as soon as it can be written down"
            raise Refused("F107", f"{run.job.run}: not written down yet: {why}", hint=hint) from None

    def unsettled(self, name: str) -> list[Run]:
        """Every run of this job that is not over, or of which the journal does not have that yet."""
        return [run for run in self.runs.values() if run.name == name and not run.is_settled]

    def find(self, word: str) -> Run:
        """The run a user's word means: NAME@HEX, a job's name (its newest run), or "" for the only active run, else
        the newest. Raises Refused (exit 3)."""
        if word in self.runs:
            return self.runs[word]
        matching = [r for r in self.runs.values() if not word or r.name == word]
        active = [r for r in matching if not r.machine.is_final]
        if not word and len(active) > 1:
            names = ", ".join(sorted(r.job.run for r in active))
            raise Refused(
                "F103", f"several jobs are active: {names}", hint="name one of them", exit_code=ExitCode.USAGE
            )
        if active:
            return active[-1]
        if matching:
            return max(matching, key=lambda r: r.submitted_wall_s)
        what, hint = f"there is no job {word}" if word else "there is no job", "supctl status"
        if "@" in word:
            hint += (
                f"; finished runs are forgotten: more than {self._keep.runs}, and those of more than "
                f"{self._keep.days:g} days ago ([state] keep_runs, keep_days)"
            )
        raise Refused("F102", what, hint=hint, exit_code=ExitCode.NOT_FOUND)

    def active(self) -> list[Run]:
        """Every run that is not over."""
        return [r for r in self.runs.values() if not r.machine.is_final]

    def status(self, run: Run, *, with_ranks: bool, node: str) -> RunStatus:
        """The run as it stands, for a client on this `node`; "" stands for every other one, from which our folder
        cannot be looked into. Where our disk takes nothing, that is what it waits for: it hears nobody meanwhile."""
        seats = run.machine.seats
        has_logs = bool(node) and (node in seats or not seats)
        status = run_status(
            run.machine,
            run.job,
            boot_s(),
            submitted_wall_s=run.submitted_wall_s,
            ended_wall_s=run.ended_wall_s,
            logs_dir=str(self.logs_dir(run)) if has_logs else "",
            with_ranks=with_ranks,
        )
        if not run.is_unwritten or not self.trouble:
            return status
        return msgspec.structs.replace(status, waiting_for=f"the coordinator's disk: {self.trouble}", wait_left_s=None)

    @property
    def trouble(self) -> str:
        """Why nothing can be written down for the time being; "": it can."""
        return self._journal.trouble

    def logs_dir(self, run: Run) -> Path:
        """Where the run's output lies."""
        return self._logs_dir / run.job.run

    # --- runners -------------------------------------------------------------------------------------------------

    def greet(self, incarnation: str) -> None:
        """A runner is told our epoch, be it by way of a witness."""
        self._greeted[incarnation] = None
        if len(self._greeted) > GREETED_MAX:
            del self._greeted[next(iter(self._greeted))]

    def has_greeted(self, incarnation: str) -> bool:
        """Whether a runner that knows our epoch has it from us; of many the ones that came last are remembered."""
        return incarnation in self._greeted

    def on_runner_linked(self, run: Run, incarnation: str, channel: Channel) -> None:
        """A runner's connection is up; the newest one counts."""
        run.channels[incarnation] = channel

    def on_runner_heard(self, run: Run, node: str, incarnation: str, renewal: Renewal, via: str = "") -> None:
        """A renewal came in on a runner's connection, or on that of its witness `via` (an incarnation). Of a flood some
        are left out: each says all of it."""
        if not run.driver.is_behind:
            run.driver.put(c.Heard(node, incarnation, renewal, via))

    def on_testimony(self, run: Run, node: str, incarnation: str, testimony: Testimony) -> None:
        """A witness has answered a question, or says it has. What a flood drowns is asked again."""
        if not run.driver.is_behind:
            run.driver.put(c.Testified(node, incarnation, testimony))

    def on_runner_unlinked(self, run: Run, node: str, incarnation: str, channel: Channel) -> None:
        """The connection is gone, which proves nothing: the lock does."""
        if run.channels.get(incarnation) is channel:
            del run.channels[incarnation]
        self._on_unlinked(node)

    # --- nodes ---------------------------------------------------------------------------------------------------

    async def on_runner_gone(self, node: str, buried: RunnerBuried) -> None:
        """A runner is proven gone; what it knew last is heard first. Returns when that need not be told again: it is on
        disk, or nobody will ever tell of its run."""
        run = await self._known(buried.run)
        if run is None:
            return
        if buried.last is not None:  # what it once offered is not on offer any more
            last = msgspec.structs.replace(buried.last, offer=None)
            run.driver.put(c.Heard(node, buried.incarnation, last, is_record=True))
        await run.driver.ask(c.RunnerGone(node, buried.incarnation))
        if run.machine.takeover is not None:
            await self._taken_over(run)
        run.left.discard(buried.incarnation)
        if run.is_settled and not run.left:
            self._has_ended.set()

    async def _known(self, name: str) -> Run | None:
        """A run, once it is known; None: it never will be. A node may be heard before the first runner of a run that
        the journal does not know."""
        while name not in self.runs and not self.is_forgotten(name):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._began_s + REMEMBER_S - boot_s()):
                    await self._has_begun.wait()
        return self.runs.get(name)

    async def _taken_over(self, run: Run) -> None:
        """Return once the run is not being taken over, on disk: until then what its runners tell is not there."""
        bell = run.changes.listen()
        try:
            while run.machine.takeover is not None:
                bell.clear()
                await bell.wait()
        finally:
            run.changes.leave(bell)
        await run.driver.ask(c.Tick())  # what has ended it may be on its way there

    def on_runner_failed(self, node: str, run_id: str, reason: str) -> None:
        """No runner could be started on a node."""
        run = self.runs.get(run_id)
        if run is not None:
            run.driver.put(c.RunnerFailed(node, one_line(reason)))

    def on_fleet_note(self, note: c.Note) -> None:
        """Something has happened to a node: it is told in the events of every active run, or else of none."""
        for run in self.active():
            self._note(run, note)
        if not self.active():
            self._journal.add_event(_event("", note), lambda: None)

    def on_roster(self, roster: Roster) -> None:
        """The fleet has changed; `roster` gives its nodes as they stand whenever it is called."""
        self._roster = roster
        self._share_roster()

    async def node_lost(self, node: str, names: Iterable[str], by: str) -> None:
        """An operator's word that nothing of these active runs is on a node any more; each has it on disk when this
        returns. Raises Refused."""
        for run in [self.runs[name] for name in names]:  # a run may be forgotten meanwhile
            await self.ask(run, c.NodeLost(node, by))

    def unproven(self, node: str, lacks: Callable[[str], bool] | None) -> Unproven:
        """The active runs that may have a runner on a node, by what can be known of it; `lacks` as there."""
        return unproven(node, {run.job.run: run.machine for run in self.active()}, lacks, boot_s())

    def way_out(self, name: str, node: str) -> str:
        """How an operator brings about the proof that a run waits for, of a node whose supd has the runner."""
        return ended_by_hand(self.runs[name].machine, node)

    def runners_on(self, node: str) -> frozenset[str]:
        """The runners of active runs, by incarnation, that may be alive on a node."""
        return frozenset(one for run in self.active() for one in runners_on(node, run.machine))

    def seated(self, node: str) -> str:
        """The active run that has ranks or a runner on a node which are not proven gone; "" for none."""
        return next((run.job.run for run in self.active() if may_live_on(node, run.machine)), "")

    def in_use(self) -> frozenset[str] | None:
        """Nodes on which runs have ranks, or may have them again; None: it is not known yet."""
        return in_use(run.machine for run in self.active())

    async def heed_roster(self) -> None:
        """See that every run has taken in the nodes as they stand, and that what follows is on disk and sent."""
        told = rosters(self.runs, self._roster())
        async with asyncio.TaskGroup() as group:
            for name, roster in told.items():
                run = self.runs[name]
                run.told.add(roster)
                group.create_task(run.driver.ask(roster), name=f"heed-{name}")

    def _share_roster(self, apart_s: float = ROSTER_S) -> None:
        """Tell all runs of the nodes there are; many changes in a short time once."""
        due_s = self._roster_shared_s + apart_s
        if due_s >= self._roster_due_s:
            return
        if self._roster_due is not None:
            self._roster_due.cancel()
        self._roster_due_s = due_s
        wait_s = max(0.0, due_s - boot_s())
        self._roster_due = asyncio.get_running_loop().call_later(wait_s, self._share_roster_now)

    def _share_roster_now(self) -> None:
        self._roster_due, self._roster_due_s, self._roster_shared_s = None, math.inf, boot_s()
        nodes, active = self._roster(), self.active()
        for name, roster in rosters(self.runs, nodes).items():
            run = self.runs[name]
            if not run.driver.is_behind and not run.told.is_newest(roster):
                self._tell_roster(run, roster)
        if any(run.driver.is_behind or run.machine.rendezvous.lacks_slots for run in active):  # its journal waits, say
            self._share_roster(ROSTER_AGAIN_S)
        elif active and are_limited(nodes):
            self._share_roster(ALLOT_S)

    def _tell_roster(self, run: Run, roster: c.Roster) -> None:
        run.told.add(roster)
        run.driver.put(roster)
        if not run.machine.rendezvous.seen:
            assert self._group is not None, "not running"
            self._group.create_task(self._see_first_roster(run), name=f"nodes-of-{run.job.run}")

    async def _see_first_roster(self, run: Run) -> None:
        """From then on it is known where the run may go on."""
        await run.driver.ask(c.Tick())
        self._on_seated()

    def free_slots(self) -> dict[str, int | None]:
        """Of each node: how many of its slots no run has; None: there is no limit."""
        return free_by_node(self.runs.values(), self._roster())

    def too_large(self, spec: JobSpec) -> str:
        """Why no allotment can ever give a job what it wants, as the fleet is; "": one can."""
        return never_fits(spec, self._roster())

    # --- forgetting ----------------------------------------------------------------------------------------------

    def is_forgotten(self, run: str) -> bool:
        """Whether nothing is known of a run that a node has files of, and nothing will be again."""
        return run not in self.runs and boot_s() >= self._began_s + REMEMBER_S

    async def _forget_surplus(self) -> None:
        """Forget the finished runs that are too many or too old, once nothing of them is left anywhere."""
        if (left_s := self._began_s + REMEMBER_S - boot_s()) > 0:
            await asyncio.sleep(left_s)
        self._has_ended.clear()
        ended = {name: run.ended_wall_s or 0.0 for name, run in self.runs.items() if run.is_settled}
        for name in surplus(ended, self._keep, wall_s()):
            run = self.runs[name]
            is_long_ago = wall_s() - ended[name] > self._keep.days * DAY_S
            if not run.channels and (not run.left or is_long_ago):
                await self._forget(name, run)

    async def _forget(self, name: str, run: Run) -> None:
        await self._journal.forget_run(name)
        del self.runs[name]
        await run.driver.ask(c.Tick())  # whoever has asked it for something meanwhile has the answer
        assert run.task is not None
        run.task.cancel()
        log.info("run_forgotten", run=name)

    # --- the machines --------------------------------------------------------------------------------------------

    def _take_up(self, stored: StoredRun) -> Run:
        allow_mixed = stored.job.submitter.allow_mixed
        machine = Coordinator(
            stored.job.spec,
            stored.record,
            self.epoch,
            random.random,
            allow_mixed=allow_mixed,
            timing=self._timing,
            keeps_isolated=self._keeps_isolated,
        )

        async def perform(effect: c.Effect) -> None:
            await self._perform(run, effect)

        driver: Driver[c.Event, c.Effect] = Driver(machine, perform, c.Tick())
        run = Run(stored.job, machine, driver, stored.submitted_wall_s, stored.ended_wall_s)
        run.is_settled = machine.is_final
        self.runs[stored.run] = run
        self._has_begun.set()
        self._has_begun.clear()
        driver.put(c.Opened())
        run.is_job_ahead = stored.job.revision > stored.record.revision  # it was on disk, and the machine had not heard
        self._catch_up(run)
        if not run.is_settled and (nodes := self._roster()):
            self._tell_roster(run, rosters(self.runs, nodes)[stored.run])
        assert self._group is not None, "not running"
        run.task = self._group.create_task(driver.run(), name=f"run-{stored.run}")
        return run

    def _catch_up(self, run: Run) -> None:
        """Have a run go on with the job that is on disk; one that is being taken over does so once it can."""
        run.is_job_ahead &= run.job.revision > run.machine.revision
        if run.is_job_ahead:
            run.driver.put(c.Reloaded(run.job.spec, run.job.revision, run.job.submitter.user))

    async def _perform(self, run: Run, effect: c.Effect) -> None:
        match effect:
            case c.Persist(record):
                if record.phase in c.FINAL and run.ended_wall_s is None:
                    run.ended_wall_s = wall_s()
                run.is_unwritten = True
                await self._journal.save_run(run.job.run, record, run.ended_wall_s)
                run.is_unwritten = False
                run.is_settled = record.phase in c.FINAL
                self._catch_up(run)
                if run.is_settled:
                    run.left = run.machine.incarnations
                    self._has_ended.set()
                if record.phase is not c.Phase.STOPPING:
                    self._share_roster()  # its ranks may be on other nodes now, or on none
                    self._on_seated()
                log.info("run_phase_changed", run=run.job.run, phase=record.phase.value, generation=record.generation)
                run.changes.ring()
            case c.Send(node, incarnation, answer, via):
                passed_on = AnswerFor(node=node, incarnation=incarnation, answer=answer) if via else answer
                self.greet(incarnation)
                self._say(run, via or incarnation, passed_on)
                run.changes.ring()
            case c.Ask(incarnation, question):
                self._say(run, incarnation, question)
            case c.Blame(node):
                self._on_blamed(node)
            case c.Want(nodes):
                self._on_wanted(run.job.run, nodes)
                self._share_roster()  # where it has no use for a node, others may have
                self._on_seated()
            case c.Note():
                self._note(run, effect)

    def _say(self, run: Run, incarnation: str, message: Message) -> None:
        channel = run.channels.get(incarnation)
        if channel is not None:
            channel.send(encode(message))

    def _note(self, run: Run, note: c.Note) -> None:
        self._journal.add_event(_event(run.job.run, note), run.changes.ring)


def _event(run: str, note: c.Note) -> EventRecord:
    return EventRecord(
        id=0,
        wall_s=wall_s(),
        run=run,
        generation=note.generation,
        kind=note.kind,
        text=note.text,
        detail=note.detail,
    )
