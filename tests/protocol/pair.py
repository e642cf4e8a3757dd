"""A coordinator and the runners of one node, back to back in seeded time: real machines, no IO.

The network loses, doubles and delays; workers, runners and the coordinator die. What must never happen is
checked here, at every step; what must happen once the faults have ended is the test's.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from protocol import coordinator_events as c
from protocol import member_events as m
from protocol.coordinator import Coordinator
from protocol.job import JobSpec
from protocol.member import Member
from protocol.messages.member import Answer, Assignment, Offer, RankExit, Renewal, StallState
from protocol.signals import SIGABRT, SIGKILL
from tests.protocol.timeline import Do, Timeline

NODE = "n1"
NPROC = 2


@dataclass
class Runner:
    """A runner's shell: its machine, its workers, and what it has on disk."""

    incarnation: str
    member: Member
    workers: set[tuple[int, int]] = field(default_factory=set)  # (generation, rank) of living main processes
    hung: set[tuple[int, int]] = field(default_factory=set)  # those of them that make no progress
    beats: int = 0
    record: Renewal | None = None
    is_alive: bool = True


@dataclass
class Net:
    """What the network does to a message; all zero for a kind one."""

    loss: float = 0.0
    double: float = 0.0
    delay_s: float = 0.0
    held: float = 0.0  # share of messages that are ten times as late


class World(Timeline):
    """One run on one node."""

    def __init__(self, spec: JobSpec, seed: int) -> None:
        super().__init__(0.0)
        self.spec = spec
        self.rng = random.Random(seed)
        self.net = Net(loss=0.1, double=0.1, delay_s=0.3, held=0.1)
        self.journal = c.RunRecord()
        self.epoch = 0
        self.coordinator: Coordinator | None = None
        self.runner: Runner | None = None
        self.is_starting_runner = False
        self.incarnations = 0
        self.dead: set[str] = set()  # incarnations
        self.gone: list[Runner] = []  # dead, and not yet told to the coordinator
        self.launched: list[int] = []  # generations, in the order in which they were spawned
        self.faulty: set[int] = set()  # generations that had a reason to end
        self.start_coordinator()

    # --- time ----------------------------------------------------------------------------------------------------

    def soon(self, do: Callable[[], None], longest_s: float = 0.1) -> None:
        """Do something at a random moment from now on."""
        self.after(self.rng.uniform(0, longest_s), do)

    def due(self) -> Iterator[tuple[float, Do]]:
        """The ticks of both machines."""
        if self.coordinator is not None and (due_s := self.coordinator.deadline_s) is not None:
            yield due_s, lambda: self.tell(c.Tick())
        if (runner := self.runner) is not None and (due_s := runner.member.deadline_s) is not None:
            yield due_s, lambda: self.give(runner, m.Tick())

    # --- the coordinator's shell ---------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Begin anew from the journal: what supd does after a kill -9."""
        self.epoch += 1
        self.coordinator = Coordinator(self.spec, self.journal, self.epoch, self.rng.random)
        self.tell(c.Opened())
        self.tell(c.Roster((c.RosterNode(NODE, is_up=True),)))
        if self.runner is not None:
            self.give(self.runner, m.Linked(up=True))
        for runner in self.gone:
            self.soon(lambda runner=runner: self.bury(runner))  # type: ignore[misc]

    def tell(self, event: c.Event) -> None:
        """Hand the coordinator an event, if it is there."""
        if self.coordinator is None:
            return
        for effect in self.coordinator.handle(event, self.now_s):
            match effect:
                case c.Persist(record):
                    self.journal = record
                    if any(seat.incarnation in self.dead for seat in record.seats):
                        self.faulty.add(record.generation)
                case c.Send(_, incarnation, answer):
                    self.transmit(lambda i=incarnation, a=answer: self._deliver(i, a))  # type: ignore[misc]
                case c.Want(nodes):
                    if NODE in nodes:
                        self._ensure_runner()
                case c.Note() | c.Blame():
                    pass
                case c.Ask():
                    raise AssertionError("a node alone has no witnesses")

    def transmit(self, deliver: Callable[[], None]) -> None:
        """One message on its way, at the mercy of the network; none outlives its connection."""
        epoch = self.epoch

        def arrive() -> None:
            if self.epoch == epoch:
                deliver()

        for _ in range(1 + (self.rng.random() < self.net.double)):
            if self.rng.random() >= self.net.loss:
                self.soon(arrive, 0.01 + self.net.delay_s * (10 if self.rng.random() < self.net.held else 1))

    def _deliver(self, incarnation: str, answer: Answer) -> None:
        if self.runner is not None and self.runner.incarnation == incarnation:
            self.give(self.runner, m.Answered(answer))

    # --- supd ----------------------------------------------------------------------------------------------------

    def _ensure_runner(self) -> None:
        if self.runner is None and not self.gone and not self.is_starting_runner:
            self.is_starting_runner = True
            self.soon(self._start_runner)

    def _start_runner(self) -> None:
        self.is_starting_runner = False
        if self.coordinator is None:
            return  # supd is gone, and the runner it had ready with it
        self.incarnations += 1
        member = Member(self.spec, self.now_s, orphan_wait_s=3600, linger_s=60)
        self.runner = Runner(f"r{self.incarnations}", member)
        self.give(self.runner, m.Linked(up=True))

    def bury(self, runner: Runner) -> None:
        """Its lock is free and its tree is swept: the coordinator hears what it knew last, then of its end."""
        if self.coordinator is None or runner not in self.gone:
            return
        self.gone.remove(runner)
        if runner.record is not None:
            self.tell(c.Heard(NODE, runner.incarnation, runner.record))
        self.tell(c.RunnerGone(NODE, runner.incarnation))
        if NODE in self.coordinator.rendezvous.wanted:
            self._ensure_runner()  # what is wanted is said again and again

    # --- the runner's shell --------------------------------------------------------------------------------------

    def give(self, runner: Runner, event: m.Event) -> None:
        """Hand a runner an event, if it lives."""
        if not runner.is_alive:
            return
        for effect in runner.member.handle(event, self.now_s):
            self._perform(runner, effect)

    def _perform(self, runner: Runner, effect: m.Effect) -> None:
        match effect:
            case m.Spawn(assignment):
                self._spawn(runner, assignment)
            case m.Signal(rank, number, _):
                self._signal(runner, rank, number)
            case m.Abort(ranks):
                for rank in ranks:
                    self._signal(runner, rank, SIGABRT)
            case m.Clear(generation, _):
                self.soon(lambda: self._cleared(runner, generation))
            case m.LookUpOffer(not_port):
                port = self.rng.choice([p for p in range(1000, 1010) if p != not_port])
                self.give(runner, m.Offered(Offer(slots=NPROC, address="127.0.0.1", port=port)))
            case m.Persist(renewal):
                runner.record = renewal
            case m.Renew(renewal):
                self.transmit(lambda: self.tell(c.Heard(NODE, runner.incarnation, renewal)))
            case m.End():
                self.end_runner()
            case m.Look(generation):
                self.give(runner, m.Looked(generation, self._samples(runner)))
            case m.Inspect(generation, ranks):
                states = {rank: StallState.ALIVE for rank in ranks if (generation, rank) in runner.workers}
                self.give(runner, m.Inspected(generation, states))
            case m.TermLeftovers() | m.KeepStacks() | m.LookForSave() | m.LookForDone() | m.Announce():
                pass
            case m.Hold() | m.KillAll() | m.Meet() | m.AskWords() | m.GiveWord() | m.Testify():
                raise AssertionError("a node alone has no lease that ends, and no witnesses")

    def _signal(self, runner: Runner, rank: int, number: int) -> None:
        if number == SIGKILL or self.rng.random() < 0.8:
            generation = runner.member.generation
            self.soon(lambda: self.end_worker(runner, generation, rank, signal=number))

    def _spawn(self, runner: Runner, assignment: Assignment) -> None:
        generation = assignment.generation
        assert not runner.workers, f"two generations alive: {runner.workers} and {generation}"
        assert generation not in self.launched, f"generation {generation} was spawned twice"
        self.launched.append(generation)
        assert generation == 0 or self.faulty & set(range(generation)), "a restart without a failure"
        self.faulty -= set(range(generation))
        runner.workers = {(generation, rank) for rank in range(NPROC)}
        self.give(runner, m.Launched(generation, tuple(100 + rank for rank in range(NPROC))))
        for rank in range(NPROC):
            self.soon(lambda rank=rank: self.give(runner, m.Wrote(generation, rank)))  # type: ignore[misc]

    def end_worker(self, runner: Runner, generation: int, rank: int, *, signal: int) -> None:
        """A rank's main process ends, if it lives; its runner is told a moment later."""
        if not runner.is_alive or (generation, rank) not in runner.workers:
            return
        runner.workers.remove((generation, rank))
        ended_s = self.now_s
        exit = RankExit(signal=signal, order=0, wall_s=0.0, ran_s=1.0, stopped_by_us=False)
        self.soon(lambda: self.give(runner, m.Exited(generation, rank, exit, ended_s)))

    def _samples(self, runner: Runner) -> dict[int, m.Sample]:
        runner.beats += 1
        return {
            worker[1]: m.Sample(count=1 if worker in runner.hung else 1 + runner.beats) for worker in runner.workers
        }

    def _cleared(self, runner: Runner, generation: int) -> None:
        if runner.is_alive and runner.member.generation == generation and runner.member.part not in m.SETTLED:
            self.give(runner, m.Cleared(generation))

    # --- faults --------------------------------------------------------------------------------------------------

    def crash_worker(self) -> None:
        """A rank of the newest generation dies by itself."""
        if self.runner is not None and self.runner.workers:
            generation, rank = self.rng.choice(sorted(self.runner.workers))
            self.faulty.add(generation)
            self.end_worker(self.runner, generation, rank, signal=11)

    def hang_worker(self) -> None:
        """A rank of the newest generation makes no progress any more."""
        if self.runner is not None and self.runner.workers:
            generation, rank = self.rng.choice(sorted(self.runner.workers))
            self.faulty.add(generation)
            self.runner.hung.add((generation, rank))

    def end_runner(self) -> None:
        """The runner dies, and its guard ends what it had started."""
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.is_alive = False
            self.dead.add(runner.incarnation)
            self.faulty |= {seat.assignment.generation for seat in self.journal.seats}
            self.gone.append(runner)
            self.soon(lambda: self.bury(runner), 1.0)

    def restart_run(self) -> None:
        """The operator wants a new generation."""
        if self.coordinator is not None:
            self.faulty.add(self.journal.generation)
            self.tell(c.RestartRequested("because", "me"))

    def restart_coordinator(self) -> None:
        """It is killed, and away for a while; what it had not persisted is lost."""
        if self.coordinator is not None:
            self.coordinator = None
            if self.runner is not None:
                self.give(self.runner, m.Linked(up=False))
            self.soon(self.start_coordinator, 5.0)
