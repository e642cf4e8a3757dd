"""A runner with its guard and its record: the real machine of a member, in a process that may die or be slow."""

from collections.abc import Callable
from typing import Any, Protocol

from protocol.job import Job
from protocol.member import Member
from protocol.member_events import (
    NOTHING,
    Clear,
    Dismissed,
    Effect,
    End,
    Inspect,
    Inspected,
    Linked,
    Look,
    Looked,
    LookUpOffer,
    Offered,
    Ordered,
    Persist,
    Renew,
    Signal,
    Spawn,
    Tick,
)
from protocol.messages.member import Answer, Offer, Renewal, Welcome
from tests.sim.kernel import Clock, Loop, Process, Write
from tests.sim.network import Line, Network, Server
from tests.sim.workers import Crew, Program, Witness, Worker

ORPHAN_WAIT_S = 25.0
LINGER_S = 10.0


class Machine(Process):
    """A machine: what its node offers, and what lies on its disk. It is no process, and never dies. `place` is where it
    is reached: the name of its node, but for a second machine with that name."""

    def __init__(self, clock: Clock, name: str, boot_s: float, place: str) -> None:
        super().__init__(clock, name, boot_s)
        self.place = place
        self.records: dict[str, Renewal] = {}  # incarnation -> what a runner has put on disk
        self.runners: dict[str, Runner] = {}  # whose lock is held, or whose tree is not swept
        self.nproc = 1
        self.digest: dict[str, str] = {}
        self.busy_until_s = 0.0  # its devices are somebody else's
        self.is_broken = False  # it can run no rank


class Seen(Witness, Protocol):
    """Who sees what runners do."""

    def on_runner_started(self, runner: "Runner") -> None:
        """There is another one."""

    def on_runner_ended(self, runner: "Runner") -> None:
        """It is gone, or was told to end by somebody who is not the coordinator."""

    def on_reported(self, runner: "Runner", renewal: Renewal) -> None:
        """It tells the coordinator."""

    def on_part(self, runner: "Runner", before: Any, after: Any) -> None:
        """A member's part of its generation has changed."""

    def on_ordered(self, runner: "Runner", member: Member, order: Any) -> None:
        """An order reaches it."""


class Runner(Process):
    """One runner on one machine, for one run."""

    def __init__(
        self,
        machine: Machine,
        network: Network,
        find: Callable[[], tuple[Server, str] | None],
        witness: Seen,
        program: Program,
        on_death: Callable[[Worker], None],
        run: str,
        incarnation: str,
    ) -> None:
        super().__init__(machine.clock, incarnation, machine.now_s - machine.clock.now_s)
        self.machine = machine
        self.run = run
        self.incarnation = incarnation
        self.has_guard = True
        self.member: Member | None = None  # until it has heard what its job is
        self.crew = Crew(machine, witness, program, run, machine.name, incarnation, self.put, on_death)
        self._network = network
        self._witness = witness
        self._loop: Loop | None = None
        self._epoch = 0
        machine.runners[incarnation] = self
        witness.on_runner_started(self)
        hello = {"node": machine.name, "run": run, "incarnation": incarnation}
        self.line = Line(
            self, network, machine.name, find, lambda: hello, self._on_answer, lambda: self.put(Linked(up=False))
        )
        self.after(ORPHAN_WAIT_S, self._give_up_unmet)

    @property
    def lock_is_held(self) -> bool:
        """Whether the runner or its guard lives."""
        return self.is_alive or self.has_guard

    # --- what it hears -------------------------------------------------------------------------------------------

    def put(self, event: object) -> None:
        """Hand its machine an event, if it lives; once it is awake."""
        self.do(lambda: self._put(event))

    def _put(self, event: object) -> None:
        if self._loop is not None and self.member is not None:
            before = self.member.part
            self._loop.put(event)
            if self.member.part is not before:
                self._witness.on_part(self, before, self.member.part)

    def _on_answer(self, message: Welcome | Answer) -> None:
        if message.epoch < self._epoch:
            self.clock.seen["refused: word of a coordinator that was replaced"] += 1
            return
        self._epoch = message.epoch
        match message:
            case Welcome(job=job):
                self._begin(job)
                self._put(Linked(up=True))
            case Answer(order=order):
                if self.member is not None:
                    self._witness.on_ordered(self, self.member, order)
                    self._put(Ordered(order))

    def _begin(self, job: Job) -> None:
        if self.member is None:
            self.member = Member(job.spec, self.now_s, orphan_wait_s=ORPHAN_WAIT_S, linger_s=LINGER_S)
            self._loop = Loop(self, self.member, self._perform, Tick())

    def _give_up_unmet(self) -> None:
        if self.member is None:
            self._end()

    # --- what it does --------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Write | None:
        match effect:
            case Spawn(assignment):
                self.tell("spawns g{} ranks {}+{}", assignment.generation, assignment.first_rank, assignment.nproc)
                self.crew.launch(assignment)
            case Look(generation):
                live = {n: NOTHING for n, worker in self.crew.workers.items() if worker.is_there}
                self._later(Looked(generation, live))
            case Inspect(generation):
                self._later(Inspected(generation, {}))
            case Signal(rank, number):
                self.crew.signal(rank, number)
            case Clear(generation, kill_at_s):
                self.crew.clear(generation, max(kill_at_s - self.now_s, 0.0))
            case LookUpOffer(not_port):
                offer = self._offer(not_port)
                self.after(self.clock.rng.uniform(0.005, 0.1), lambda: self.put(Offered(offer)))
            case Persist(renewal):
                return Write(0.0, lambda: self._record(renewal))
            case Renew(renewal):
                self._witness.on_reported(self, renewal)
                self.line.send(renewal)
            case End():
                self._end()
            case _:  # what is for hangs and for leftovers that obey
                pass
        return None

    def _later(self, event: object) -> None:
        self.after(0.0, lambda: self.put(event))

    def _record(self, renewal: Renewal) -> None:
        self.machine.records[self.incarnation] = renewal

    def _offer(self, not_port: int | None) -> Offer:
        machine, address = self.machine, f"10.0.0.{self.machine.name}"
        if machine.is_broken:
            return Offer(slots=0, address=address, port=0, problem="no device")
        if self.clock.now_s < machine.busy_until_s:
            return Offer(slots=0, address=address, port=0, waits_for=f"devices of {machine.name}")
        port = self.clock.rng.choice([p for p in (5001, 5002, 5003) if p != not_port])
        return Offer(slots=machine.nproc, address=address, port=port, digest=machine.digest)

    def _end(self) -> None:
        """It has nothing left to do: an orderly end, and its guard's after it."""
        self.tell("ends")
        assert not self.crew.may_run, f"{self.incarnation} ends before its workers"
        self._witness.on_runner_ended(self)
        super().kill()
        self._network.end_of(self)
        self._guard_sweeps()

    # --- what happens to it --------------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """SIGTERM, by somebody who is not the coordinator."""
        self._witness.on_runner_ended(self)
        if self.member is None:
            self.do(self._end)
        else:
            self.put(Dismissed())

    def kill(self) -> None:
        """SIGKILL: the guard then sweeps, if it lives."""
        if not self.is_alive:
            return
        self._witness.on_runner_ended(self)
        self.tell("is killed{}", "" if self.has_guard else ", without a guard")
        super().kill()
        self._network.end_of(self)
        self._guard_sweeps()

    def kill_guard(self) -> None:
        """SIGKILL to the guard: the runner starts another."""
        if self.has_guard:
            self.tell("loses its guard")
            self.has_guard = False
            self.after(self.clock.rng.uniform(0.01, 0.1), self._new_guard)

    def _new_guard(self) -> None:
        self.has_guard = True

    def _guard_sweeps(self) -> None:
        if self.has_guard:
            self.machine.after(self.clock.rng.uniform(0.005, 0.5), self._guard_swept)

    def _guard_swept(self) -> None:
        if self.has_guard:
            self.crew.sweep()
            self.has_guard = False
