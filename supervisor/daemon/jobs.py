"""The coordinator's shell: one machine a run, with the journal behind it, nodes, runners and watchers around it."""

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import structlog

from protocol import coordinator_events as c
from protocol.coordinator import Coordinator
from protocol.errors import Problem, Refused
from protocol.exit_code import ExitCode
from protocol.fleet import may_live_on
from protocol.framing import MAX_FRAME_BYTES
from protocol.ids import RunId, job_name
from protocol.job import Job, JobSpec, Submitter
from protocol.messages import encode
from protocol.messages.control import EventRecord, RunStatus
from protocol.messages.fleet import RunnerBuried
from protocol.messages.member import Renewal
from protocol.text import one_line
from protocol.view import run_status
from supervisor.daemon.journal import Journal, StoredRun
from supervisor.daemon.master_port import port_problems
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.driver import Driver

log = structlog.get_logger()

FRAME_ROOM_BYTES = 4096
"""What a Welcome has around the job."""

ASK_TIMEOUT_S = 10.0

WAIT_TOLD_S = 2.0
"""Any wait longer than this is told (ux: "say what you wait for")."""

MAKE_WAY_S = 300.0
"""How much longer than its graceful stop may take a run that is being replaced is waited for."""

ROSTER_S = 0.05
"""The least time between two rosters, however many nodes come or go: a run's machine looks at all of them each time."""

OTHER_IS_ACTIVE = "supctl stop {}; or start with --replace, or under another --name"


Roster = Callable[[], tuple[c.RosterNode, ...]]


class Changes:
    """A bell for everyone who shows what a run is doing."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()

    def ring(self) -> None:
        """Something has changed."""
        for waiter in self._waiters:
            waiter.set()

    def listen(self) -> asyncio.Event:
        """An event that is set at every ring from now on; give it back with `leave`."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        return waiter

    def leave(self, waiter: asyncio.Event) -> None:
        """Stop listening."""
        self._waiters.discard(waiter)


@dataclass
class Run:
    """One run: its job, its machine, who serves it, and when it was what."""

    job: Job
    machine: Coordinator
    driver: Driver[c.Event, c.Effect]
    submitted_wall_s: float
    ended_wall_s: float | None
    channels: dict[str, Channel] = field(default_factory=dict)  # by the runner's incarnation
    changes: Changes = field(default_factory=Changes)
    is_settled: bool = False  # final, and the journal has it
    is_unwritten: bool = False  # what it has decided is on its way to the journal: until then it does nothing more

    @property
    def name(self) -> str:
        """The job's name."""
        return job_name(RunId(self.job.run))


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
        place: tuple[str, int] | None = None,
    ) -> None:
        """`on_wanted(run, nodes)` hears which nodes are to have a runner for a run, whenever that changes;
        `on_unlinked(node)` that the connection of a runner there is gone. `place` is where runners are listened for in
        a fleet of one, where rank 0 of any run is on this node; None: there are other nodes."""
        self._journal = journal
        self._logs_dir = logs_dir
        self.epoch = epoch
        self._on_wanted = on_wanted
        self._on_unlinked = on_unlinked
        self._place = place
        self.runs: dict[str, Run] = {}
        self._roster: Roster = lambda: ()
        self._is_roster_due = False
        self._roster_shared_s = -ROSTER_S
        self._group: asyncio.TaskGroup | None = None
        self._being_started: dict[str, tuple[str, asyncio.Event, JobSpec]] = {}  # by name: request, end, job

    async def run(self, stored: list[StoredRun]) -> None:
        """Take up the runs of the journal, and drive all machines until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for one in stored:
                self._take_up(one)
            await asyncio.Event().wait()

    # --- operator ------------------------------------------------------------------------------------------------

    async def start(
        self, spec: JobSpec, submitter: Submitter, request_id: str, on_wait: Callable[[Run], None] | None = None
    ) -> str:
        """Accept a run; when this returns it survives power loss. Raises Refused.

        With `on_wait` it replaces the active run of its name: that one is stopped and waited for, and `on_wait`
        called now and then meanwhile. Two that want this at once come one after the other.
        """
        while (known := await self._journal.run_of_request(request_id)) is None:
            twin = self._being_started.get(spec.name)
            if twin is None or (twin[0] != request_id and on_wait is None):
                break
            # The same request, sent again while the first is on its way; or one that this one is to replace.
            if on_wait is not None:
                for other_run in self._unsettled(spec.name):
                    on_wait(other_run)
            await _wait_a_little(twin[1])
        if known is not None:
            return known
        active = self._unsettled(spec.name)
        if spec.name in self._being_started or (on_wait is None and any(not r.machine.is_final for r in active)):
            other = active[0].job.run if active else spec.name
            raise Refused("F101", f"{other} is still active", hint=OTHER_IS_ACTIVE.format(spec.name))
        for problem in self.port_problems(spec):
            raise Refused("F203", problem.message, hint=problem.hint)
        ended = asyncio.Event()
        self._being_started[spec.name] = request_id, ended, spec
        try:
            job = Job(run=self._new_run_id(spec.name), spec=spec, submitter=submitter)
            _check_size(job)
            if on_wait is not None:
                for other_run in active:
                    await self._make_way(other_run, submitter.user, on_wait)
            record, now = c.RunRecord(), wall_s()
            made = await self._journal.add_run(request_id, job, record, now)
            if made == job.run:  # else the same request was quicker by another connection
                run = self._take_up(
                    StoredRun(run=made, job=job, record=record, submitted_wall_s=now, ended_wall_s=None)
                )
                user = submitter.user
                self._note(run, c.Note("job.accepted", f"started by {user}", None, {"user": user}))
            return made
        finally:
            del self._being_started[spec.name]
            ended.set()

    def port_problems(self, spec: JobSpec) -> list[Problem]:
        """What is wrong where the job names a port for rank 0 that is supd's own, or another job's. Of several nodes,
        the one that gets rank 0 has to tell (runner/ports.py)."""
        if self._place is None:
            return []
        others = [run for run in self.active() if run.name != spec.name]
        named = [(run.job.run, run.job.spec) for run in others]
        named += [(name, job) for name, (_, _, job) in self._being_started.items() if name != spec.name]
        taken = {port: who for who, job in named if isinstance(port := job.rendezvous.master_port, int)}
        taken |= {s.assignment.master_port: run.job.run for run in others for s in run.machine.seats.values()}
        return port_problems(spec, self._place[1], taken)

    def foreign_port(self, spec: JobSpec) -> tuple[str, int] | None:
        """Address and port that the job names for rank 0, in a fleet of one, unless an earlier run of the job may have
        it: that makes way."""
        port = spec.rendezvous.master_port
        own: set[int | str] = set()
        for run in self._unsettled(spec.name):
            own.add(run.job.spec.rendezvous.master_port)
            own |= {seat.assignment.master_port for seat in run.machine.seats.values()}
        if self._place is None or isinstance(port, str) or port in own:
            return None
        return self._place[0], port

    async def ask(self, run: Run, event: c.Event) -> None:
        """Hand in what an operator wants, and see it on disk. Raises Refused where the disk takes too long."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await run.driver.ask(event)
        except TimeoutError:
            why = self._journal.trouble or f"the disk does not answer for {ASK_TIMEOUT_S:g} s"
            hint = "make room: it is carried out as soon as it can be written down"
            raise Refused("F107", f"{run.job.run}: not written down yet: {why}", hint=hint) from None

    async def _make_way(self, run: Run, user: str, on_wait: Callable[[Run], None]) -> None:
        """Stop a run gracefully and wait until nothing is left of it. Raises Refused where that takes too long."""
        await self.ask(run, c.StopRequested(None, False, user))
        limit_s = stop_limit_s(run) + MAKE_WAY_S
        bell = run.changes.listen()
        try:
            async with asyncio.timeout(limit_s):
                while not run.is_settled:
                    on_wait(run)
                    bell.clear()
                    await _wait_a_little(bell)
        except TimeoutError:
            hint = f"supctl status {run.job.run}; start again once it is over"
            raise Refused("F108", f"{run.job.run} was not gone {limit_s:g} s after it was told", hint=hint) from None
        finally:
            run.changes.leave(bell)
        on_wait(run)

    def _unsettled(self, name: str) -> list[Run]:
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
        what = f"there is no job {word}" if word else "there is no job"
        raise Refused("F102", what, hint="supctl status", exit_code=ExitCode.NOT_FOUND)

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

    def on_runner_linked(self, run: Run, incarnation: str, channel: Channel) -> None:
        """A runner's connection is up; the newest one counts."""
        run.channels[incarnation] = channel

    def on_runner_heard(self, run: Run, node: str, incarnation: str, renewal: Renewal) -> None:
        """A renewal came in on a runner's connection. Of a flood some are left out: each says all of it."""
        if not run.driver.is_behind:
            run.driver.put(c.Heard(node, incarnation, renewal))

    def on_runner_unlinked(self, run: Run, node: str, incarnation: str, channel: Channel) -> None:
        """The connection is gone, which proves nothing: the lock does."""
        if run.channels.get(incarnation) is channel:
            del run.channels[incarnation]
        self._on_unlinked(node)

    # --- nodes ---------------------------------------------------------------------------------------------------

    async def on_runner_gone(self, node: str, buried: RunnerBuried) -> None:
        """A runner is proven gone; what it knew last is heard first. Returns when that is persisted."""
        run = self.runs.get(buried.run)
        if run is None:
            return
        if buried.last is not None:  # what it once offered is not on offer any more
            last = msgspec.structs.replace(buried.last, offer=None)
            run.driver.put(c.Heard(node, buried.incarnation, last))
        await run.driver.ask(c.RunnerGone(node, buried.incarnation))

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

    def seated(self, node: str) -> str:
        """The active run that has ranks or a runner on a node which are not proven gone; "" for none."""
        return next((run.job.run for run in self.active() if may_live_on(node, run.machine)), "")

    def _share_roster(self) -> None:
        """Tell all runs of the nodes there are; many changes in a short time once."""
        if not self._is_roster_due:
            self._is_roster_due = True
            wait_s = max(0.0, self._roster_shared_s + ROSTER_S - boot_s())
            asyncio.get_running_loop().call_later(wait_s, self._share_roster_now)

    def _share_roster_now(self) -> None:
        self._is_roster_due, self._roster_shared_s = False, boot_s()
        busy = self._busy()
        for run in self.active():
            run.driver.put(self._roster_for(run, busy))

    def _busy(self) -> Counter[str]:
        """How many active runs have ranks on each node."""
        return Counter(node for run in self.active() for node in run.machine.seats)

    def _roster_for(self, run: Run, busy: Mapping[str, int]) -> c.Roster:
        """The roster, with the number of other runs that have ranks on each node."""
        own = run.machine.seats
        nodes = (replace(one, other_runs=busy[one.name] - (one.name in own)) for one in self._roster())
        return c.Roster(tuple(nodes))

    # --- the machines --------------------------------------------------------------------------------------------

    def _take_up(self, stored: StoredRun) -> Run:
        allow_mixed = stored.job.submitter.allow_mixed
        machine = Coordinator(stored.job.spec, stored.record, self.epoch, random.random, allow_mixed=allow_mixed)

        async def perform(effect: c.Effect) -> None:
            await self._perform(run, effect)

        driver: Driver[c.Event, c.Effect] = Driver(machine, perform, c.Tick())
        run = Run(stored.job, machine, driver, stored.submitted_wall_s, stored.ended_wall_s)
        run.is_settled = machine.is_final
        self.runs[stored.run] = run
        driver.put(c.Opened())
        driver.put(self._roster_for(run, self._busy()))
        assert self._group is not None, "not running"
        self._group.create_task(driver.run(), name=f"run-{stored.run}")
        return run

    async def _perform(self, run: Run, effect: c.Effect) -> None:
        match effect:
            case c.Persist(record):
                if record.phase in c.FINAL and run.ended_wall_s is None:
                    run.ended_wall_s = wall_s()
                run.is_unwritten = True
                await self._journal.save_run(run.job.run, record, run.ended_wall_s)
                run.is_unwritten = False
                run.is_settled = record.phase in c.FINAL
                if record.phase in c.FINAL or record.phase is c.Phase.LAUNCHING:
                    self._share_roster()  # its ranks are on other nodes now, or on none
                log.info("run_phase_changed", run=run.job.run, phase=record.phase.value, generation=record.generation)
                run.changes.ring()
            case c.Send(_, incarnation, answer):
                channel = run.channels.get(incarnation)
                if channel is not None:
                    channel.send(encode(answer))
                run.changes.ring()
            case c.Want(nodes):
                self._on_wanted(run.job.run, nodes)
            case c.Note():
                self._note(run, effect)

    def _note(self, run: Run, note: c.Note) -> None:
        self._journal.add_event(_event(run.job.run, note), run.changes.ring)

    def _new_run_id(self, name: str) -> str:
        while True:
            run = f"{name}@{secrets.token_hex(3)}"
            if run not in self.runs:
                return run


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


async def _wait_a_little(event: asyncio.Event) -> None:
    """For the event, or until it is told again what is waited for, which may change with time alone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_TOLD_S):
            await event.wait()


def stop_limit_s(run: Run) -> float:
    """How long the stop of a run may take by its settings, until SIGKILL."""
    stop, table = run.machine.stop, run.job.spec.stop
    return table.pre_wait_s + (table.grace_s if stop is None or stop.grace_s is None else stop.grace_s)


def _check_size(job: Job) -> None:
    """A job goes to its runners in one frame, with a few bytes around it: what does not fit can never run."""
    size, limit = len(encode(job)), MAX_FRAME_BYTES - FRAME_ROOM_BYTES
    if size > limit:
        hint = 'pass less of the environment on, as in run.inherit_env = ["PATH", "HOME"]'
        raise Refused("F105", f"the job with its environment has {size} bytes, over the limit of {limit}", hint=hint)
