"""The coordinator in the host's supd: the real node table, a real machine for each run, and their journal.

It plays what supervisor/daemon/{jobs,nodes,members}.py do around them, and nothing outlives it but the journal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protocol import fleet_events as f
from protocol import node_orders as o
from protocol.absence import unproven
from protocol.coordinator import Coordinator
from protocol.coordinator_events import (
    FINAL,
    Ask,
    Blame,
    Effect,
    Event,
    Heard,
    NodeLost,
    Note,
    Opened,
    Persist,
    Phase,
    Reloaded,
    RestartRequested,
    RunnerFailed,
    RunnerGone,
    RunRecord,
    Send,
    Testified,
    Tick,
    Want,
)
from protocol.fleet import Fleet, in_use, may_live_on
from protocol.grants import Told
from protocol.job import Job
from protocol.messages.control import RunStatus
from protocol.messages.fleet import Join, Joined, NodeReport, RunnerBuried
from protocol.messages.member import AnswerFor, Hello, JobTold, JobWanted, Renewal, RenewalOf, Testimony, Welcome
from protocol.takeover import told_run
from protocol.view import run_status
from tests.sim.burials import Burials
from tests.sim.kernel import Act, Loop, Process, Write
from tests.sim.network import Connection
from tests.sim.setup import Setup
from tests.sim.sharing import Sharing
from tests.sim.watchers import Watcher

START_S = 0.01
"""How long it takes at the least to put a start on the disk."""

LOOK_S = 1.0
"""How often somebody looks at the status of all runs."""


@dataclass
class Journal:
    """What the host's state folder holds."""

    epoch: int = 0
    jobs: dict[str, Job] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    nodes: dict[str, f.NodeRecord] = field(default_factory=dict)

    def forget(self) -> None:
        """It is lost: there is an empty one."""
        self.epoch = 0
        self.jobs.clear()
        self.runs.clear()
        self.nodes.clear()


@dataclass
class Guest:
    """Who a connection belongs to."""

    number: int
    node: str
    hello: Hello | None = None  # of a runner
    is_welcome: bool = False
    join: Join | None = None  # of a node


@dataclass
class Run:
    """One run: its machine, and who has a connection."""

    name: str
    machine: Coordinator
    loop: Loop
    is_settled: bool  # it is over, and that is on disk
    connections: dict[str, Connection] = field(default_factory=dict)  # by incarnation
    told: Told = field(default_factory=Told)


class Host:
    """The coordinator, for as long as the host's supd lives. `own` is what its node says of itself."""

    def __init__(
        self,
        process: Process,
        journal: Journal,
        own: Join,
        watcher: Watcher,
        reaches: Callable[[str], bool],
        write: Callable[[Act], Write],
        draw: Callable[[], float],
        setup: Setup,
    ) -> None:
        journal.epoch += 1
        self.process = process
        self.journal = journal
        self.epoch = journal.epoch
        self.runs: dict[str, Run] = {}
        self._own = own.node
        self._own_place = own.node, own.identity, own.address
        self.watcher = watcher
        self.gives_way: Callable[[], None] | None = None  # to a newer one, if it finds it; None: there is none
        self._reaches = reaches
        self._write = write
        self._draw = draw
        self._setup = setup
        self.is_reloading = False  # another revision of a job is on its way to the disk
        self._accepting: set[str] = set()  # runs that are on their way to the disk
        self._greeted: set[str] = set()  # runners that know our epoch from us
        self._links: dict[f.Link, Connection] = {}
        self._own_link: f.Link | None = None
        self._count = 0
        self._orders = o.NodeOrders(self.epoch)
        self._burials = Burials(process, lambda node, incarnation: self._manage(o.Settled(node, incarnation)))
        self._nodes = Fleet(own, self.epoch, self._seated)
        self._table = Loop(process, self._nodes, self._perform_table, f.Tick())
        self._sharing = Sharing(process, self.runs, self._nodes.roster, self._see_seats)
        self._in_use: frozenset[str] | None = None
        watcher.table.on_begun()
        self._table.put(f.Opened(tuple(journal.nodes.values()), self._wall_s))
        for run in journal.runs:
            self.take_up(run)
        self._see_seats()
        process.after(LOOK_S, self._look)

    # --- runs ----------------------------------------------------------------------------------------------------

    def take_up(self, name: str) -> None:
        """Drive a run of the journal."""
        job = self.journal.jobs[name]
        machine = Coordinator(
            job.spec,
            self.journal.runs[name],
            self.epoch,
            self._draw,
            allow_mixed=job.submitter.allow_mixed,
            timing=self._setup.timing,
            keeps_isolated=self._setup.keeps_isolated,
        )
        loop = Loop(self.process, _Seen(name, machine, self), lambda e: self._perform(run, e), Tick())
        run = self.runs[name] = Run(name, machine, loop, is_settled=machine.is_final)
        loop.put(Opened())
        if job.revision > self.journal.runs[name].revision:  # it was on disk, and the machine had not heard of it
            loop.put(Reloaded(job.spec, job.revision, "me"))
        self._burials.known(name, self._bury)

    def accept(self, job: Job, then: Act) -> None:
        """An operator's start, which may be asked for again; `then` is what they are told, once it is on disk."""
        if job.run in self._accepting or job.run in self.runs:
            return
        self._accepting.add(job.run)
        write = self._write(lambda: self._begin(job))
        self.process.writes.append(write)
        self.process.after(max(write.takes_s, START_S), lambda: self._accepted(job.run, write, then))

    @property
    def is_starting(self) -> bool:
        """Whether a start is on its way to the disk."""
        return not self._accepting <= self.journal.runs.keys()

    def _begin(self, job: Job) -> None:
        self.journal.jobs[job.run] = job
        self.journal.runs[job.run] = RunRecord()
        self.watcher.on_accepted(job.run)

    def _accepted(self, run: str, write: Write, then: Act) -> None:
        self.process.writes.remove(write)
        write.commit()
        if self.process.is_alive:  # else it was killed in that write
            self.take_up(run)
            self._sharing.tell(run)
            then()

    def reload(self, run: str, job: Job, then: Act) -> None:
        """An operator wants a run to go on with another revision of its job: that is on disk first."""
        self.is_reloading = True
        write = self._write(lambda: self.journal.jobs.update({run: job}))
        self.process.writes.append(write)
        self.process.after(write.takes_s, lambda: self._reloaded(run, job, write, then))

    def _reloaded(self, run: str, job: Job, write: Write, then: Act) -> None:
        self.is_reloading = False
        self.process.writes.remove(write)
        write.commit()
        if self.process.is_alive:
            self.runs[run].loop.put(Reloaded(job.spec, job.revision, "me"), then)

    def keep_up(self, event: f.DrainRequested | f.UndrainRequested, then: Act) -> None:
        """An operator wants a node free, or used again; `then` as in `ask`."""
        if self._nodes.record_of(event.node) is None:
            self.process.clock.seen["refused: upkeep of a node that is not known"] += 1
            return
        self._table.put(event, then)
        self._sharing.heed()

    def ask(self, run: str, event: Event, then: Callable[[], None]) -> None:
        """An operator's wish; `then` is what the operator is told, once it is on disk."""
        machine = self.runs[run].machine
        if isinstance(event, RestartRequested) and event.without and machine.rendezvous.missed(event.without):
            self.process.clock.seen["refused: restart without a node that the run needs"] += 1
            return
        if isinstance(event, RestartRequested) and machine.refuses_restart:
            self.process.clock.seen["refused: restart of what nobody knows yet"] += 1
            return
        self.runs[run].loop.put(event, then)

    def lose_node(self, node: str, by: str) -> None:
        """An operator's word that nothing runs on a node any more."""
        machines = {name: run.machine for name, run in self.runs.items()}
        is_up = self._nodes.is_up(node)
        found = unproven(node, machines, partial(self._orders.lacks, node) if is_up else None, self.process.now_s)
        if not found.needs_word and (is_up or found.heard):
            self.process.clock.seen["refused: word on a node that answers"] += 1
            return
        self.watcher.table.on_declared_lost(node, is_up=is_up)
        self._table.put(f.DeclaredLost(node))
        for name in found.needs_word:
            self.runs[name].loop.put(NodeLost(node, by))

    def speak(self, run: str, node: str, incarnation: str, renewal: Renewal) -> bool:
        """Somebody else says that it is the runner of a node; False where the run is not being handled now."""
        loop = self.runs[run].loop
        if loop.is_idle:
            loop.put(Heard(node, incarnation, renewal))
            return True
        return False

    def _look(self) -> None:
        """Somebody looks at the table, and at every run."""
        self.watcher.table.on_looked(self._nodes, self._links)
        for run in self.runs.values():
            self.watcher.on_looked(run.name, run.machine, self.status_of(run.name), self.process.now_s)
        self.process.after(LOOK_S, self._look)

    def status_of(self, name: str) -> RunStatus:
        """A run, as people are shown it."""
        job, machine = self.journal.jobs[name], self.runs[name].machine
        return run_status(
            machine, job, self.process.now_s, submitted_wall_s=0.0, ended_wall_s=None, logs_dir="", with_ranks=True
        )

    def _perform(self, run: Run, effect: Effect) -> Write | None:
        match effect:
            case Persist(record):
                return self._write(lambda: self._commit(run, record))
            case Send(node, incarnation, answer, via):
                self.watcher.on_sent(run.name, run.machine, effect)
                self._say(run, via or incarnation, AnswerFor(node, incarnation, answer) if via else answer)
            case Ask(incarnation, question):
                self.process.clock.seen["asked: question"] += 1
                self._say(run, incarnation, question)
            case Want(nodes):
                self.watcher.on_wanted(run.name, run.machine, nodes)
                self._manage(o.Wanted(run.name, nodes))
                self._sharing.share()
                self._see_seats()
            case Note():
                self.watcher.on_noted(run.name, effect)
            case Blame(node):
                self._table.put(f.Troubled(node, self._wall_s))
        return None

    @staticmethod
    def _say(run: Run, incarnation: str, message: object) -> None:
        """To a runner, on its own connection."""
        connection = run.connections.get(incarnation)
        if connection is not None:
            connection.send_down(message)

    def _commit(self, run: Run, record: RunRecord) -> None:
        self.journal.runs[run.name] = record
        self.watcher.on_persisted(run.name, record)
        run.is_settled = record.phase in FINAL
        self._burials.written(run.name, record)
        if self.process.is_alive and record.phase is not Phase.STOPPING:
            self._sharing.share()
            self._see_seats()

    # --- nodes ---------------------------------------------------------------------------------------------------

    def _seated(self, node: str) -> str:
        return next((run.name for run in self.runs.values() if may_live_on(node, run.machine)), "")

    @property
    def _wall_s(self) -> float:
        return self.process.clock.now_s

    def _see_seats(self) -> None:
        """Runs may have ranks on other nodes than before."""
        now = in_use(run.machine for run in self.runs.values())
        if now is not None and now != self._in_use:
            self._in_use = now
            self._table.put(f.Seated(now))

    def _perform_table(self, effect: f.Effect) -> Write | None:
        match effect:
            case f.Persist(record):
                self.journal.nodes[record.name] = record
            case f.Forget(name):
                self._manage(o.Forgotten(name))
                self.journal.nodes.pop(name, None)
            case f.Probe(link, address):
                ok = self._reaches(address)
                wait_s = self.process.clock.rng.uniform(0.001, 0.02) if ok else 3.0
                self.process.after(wait_s, lambda: self._table.put(f.Probed(link, ok, "" if ok else "no answer")))
            case f.Admit(link, joined):
                if link in self._links:
                    self._admit(self._links[link], joined)
            case f.Refuse(link, refused):
                if link in self._links:
                    self._links[link].greet(refused)
            case f.Drop(link):
                if link in self._links:
                    self._links[link].close()
            case f.RosterChanged():
                self._sharing.share()
            case Note():
                pass
        return None

    def _admit(self, connection: Connection, joined: Joined) -> None:
        guest: Guest = connection.guest
        assert guest.join is not None
        self.watcher.table.on_admitted(guest.join)
        self._manage(o.Admitted(guest.node, (guest.join.identity, guest.join.incarnation)))
        connection.greet(joined)

    def _manage(self, event: o.Event) -> None:
        """Hand an event to the machine of the orders, and do what it says."""
        for effect in self._orders.handle(event):
            match effect:
                case o.Order(node):
                    self._order(node)
                case o.Gone(node, buried):
                    self._bury(node, buried)
                case o.Failed(node, run, reason):
                    if run in self.runs:
                        self.runs[run].loop.put(RunnerFailed(node, reason))

    def _order(self, node: str) -> None:
        link = self._own_link if node == self._own else self._nodes.link_of(node)
        if link in self._links:
            self._links[link].send_down(self._orders.order_for(node))

    def _bury(self, node: str, buried: RunnerBuried) -> None:
        """What a runner knew last is heard, and then that it is gone; its node may forget it once that is on disk."""
        run = self.runs.get(buried.run)
        if run is None:
            self._burials.of_nobody(node, buried)
            return
        if buried.last is not None:
            run.loop.put(Heard(node, buried.incarnation, buried.last, is_record=True))
        is_heard = partial(self._burials.taken_in, run.name, run.machine, node, buried.incarnation)
        run.loop.put(RunnerGone(node, buried.incarnation), is_heard)

    def _on_report(self, connection: Connection, report: NodeReport) -> None:
        guest: Guest = connection.guest
        is_own = guest.number == self._own_link
        if not is_own and self._nodes.node_of(guest.number) is None:
            self.process.clock.seen["ignored: report on a link that was given up"] += 1
            return
        if not is_own:
            self.watcher.table.on_heard(guest.node)
            self._table.put(f.Heard(guest.number))
        is_overtaken = self._orders.is_overtaken(guest.node, report)
        self.watcher.table.on_reported(guest.number, report.number, is_overtaken=is_overtaken)
        if is_overtaken:
            self.process.clock.seen["ignored: report of a node that a newer one overtook"] += 1
        if report.signals != self._nodes.signals_of(guest.node):
            self._table.put(f.Signalled(None if is_own else guest.number, report.signals))
        self._manage(o.Reported(guest.node, report))

    # --- connections ---------------------------------------------------------------------------------------------

    def on_open(self, connection: Connection, hello: Any) -> None:
        """A node joins, or a runner says hello."""
        self._count += 1
        number = self._count
        if isinstance(hello, Join):
            if hello.epoch > self.epoch and self.gives_way is None:
                self._raise_epoch(hello.epoch)
            connection.guest = Guest(number, hello.node, None, join=hello)
            self._links[number] = connection
            if (hello.node, hello.identity, hello.address) == self._own_place:
                self._own_link = number
                self._admit(connection, Joined(version=1, epoch=self.epoch, host=self._own))
            else:
                self._table.put(f.Asked(number, hello, self._wall_s))
            return
        connection.guest = Guest(number, hello.node, hello)
        if hello.epoch > self.epoch or (hello.epoch == self.epoch and hello.incarnation not in self._greeted):
            if self.gives_way is not None:
                self.gives_way()  # where it does not, it would begin the newest epoch: that is not played here
                connection.close()
                return
            self._raise_epoch(hello.epoch)
        self._greet(connection, hello)

    def _greet(self, connection: Connection, hello: Hello) -> None:
        """Welcome a runner, or ask it for its job."""
        self._greeted.add(hello.incarnation)
        run = self.runs.get(hello.run)
        if run is None:
            connection.greet(JobWanted(version=1, epoch=self.epoch))
            return
        connection.guest.is_welcome = True
        run.connections[hello.incarnation] = connection
        connection.greet(Welcome(version=1, epoch=self.epoch, job=self.journal.jobs[run.name]))

    def _raise_epoch(self, seen: int) -> None:
        """There was a coordinator of that epoch, or there is."""
        self.process.clock.seen["taken: epoch of another coordinator"] += 1
        self.epoch = self.journal.epoch = seen + 1
        for run in self.runs.values():
            run.machine.epoch = self.epoch
        self._nodes.epoch = self._orders.epoch = self.epoch

    def _on_job(self, connection: Connection, hello: Hello, job: Job) -> None:
        """A run that was not known: it is in the journal first."""
        if hello.run not in self.runs:
            self.journal.jobs[hello.run] = job
            self.journal.runs[hello.run] = told_run()
            self.watcher.on_taken_over(hello.run, hello.incarnation)
            self.take_up(hello.run)
        self._greet(connection, hello)

    def on_message(self, connection: Connection, message: Any) -> None:
        """A node reports, or a runner says something."""
        guest: Guest = connection.guest
        if isinstance(message, NodeReport):
            self._on_report(connection, message)
            return
        hello = guest.hello
        assert hello is not None, message
        if isinstance(message, JobTold):
            self._on_job(connection, hello, message.job)
        elif guest.is_welcome:  # else it says the same again when it is
            self._on_runner(self.runs[hello.run].loop, hello, message)

    @staticmethod
    def _on_runner(loop: Loop, hello: Hello, message: Renewal | RenewalOf | Testimony) -> None:
        match message:
            case Renewal():
                loop.put(Heard(hello.node, hello.incarnation, message))
            case RenewalOf(node, incarnation, renewal):
                loop.put(Heard(node, incarnation, renewal, via=hello.incarnation))
            case Testimony():
                loop.put(Testified(hello.node, hello.incarnation, message))

    def on_closed(self, connection: Connection) -> None:
        """A connection is gone, which proves nothing."""
        guest: Guest = connection.guest
        if guest.hello is not None:
            run = self.runs.get(guest.hello.run)
            if run is not None and run.connections.get(guest.hello.incarnation) is connection:
                del run.connections[guest.hello.incarnation]
            return
        self._links.pop(guest.number, None)
        if guest.node != self._own:
            self._table.put(f.Unlinked(guest.number))


class _Seen:
    """A machine whose every event is seen by the watcher."""

    def __init__(self, run: str, machine: Coordinator, host: Host) -> None:
        self._run, self._machine, self._host = run, machine, host

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Take in one event; return its effects in order."""
        phase = self._machine.phase
        self._host.watcher.on_event(self._run, self._machine, event)
        effects = self._machine.handle(event, now_s)
        if self._machine.phase is not phase:
            self._host.watcher.on_phase(self._run, phase, self._machine)
        return effects

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due."""
        return self._machine.deadline_s
