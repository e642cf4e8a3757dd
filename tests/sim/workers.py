"""The ranks of a runner: programs that start, train, finish, crash, die of each other's death, or don't want to end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from protocol.ids import NO_GENERATION
from protocol.member_events import Cleared, Exited, Launched, Wrote
from protocol.messages.member import Assignment, RankExit, SpawnFailure
from protocol.signals import SIGKILL
from protocol.timing import KILL_S
from tests.sim.kernel import Process
from tests.sim.marker import Marker

PATIENCE_S = 5.0
"""So long after SIGKILL what is still there counts as gone, as in supervisor/runner/workers.py."""

LOOK_S = 0.05
"""Between two looks for what is left."""


@dataclass
class Program:
    """What every rank of a job does, and how well it behaves. Times are in seconds; probabilities per rank."""

    spawns_s: tuple[float, float] = (0.01, 0.3)
    starts_s: tuple[float, float] = (0.05, 1.0)
    trains_s: float | None = None  # from its spawn to its end with 0; None: for ever
    spread_s: float = 1.0  # how much later than the first the last rank finishes
    ends_s: tuple[float, float] = (0.0, 0.4)  # after the stop signal
    deaf: float = 0.0  # ends only by SIGKILL
    leaves: float = 0.0  # leaves processes behind that end only by SIGKILL
    kills_s: tuple[float, float] = (0.0, 0.01)  # from SIGKILL to the last instruction
    stuck: float = 0.0  # is in the kernel's hands for a while when it is killed
    stuck_s: tuple[float, float] = (1.0, 4.0)
    obeys: float = 0.2  # ends with 0 when it gets the stop signal
    follows: float = 0.4  # dies of it when another rank has died
    unspawnable: float = 0.0
    fails_early: float = 0.0  # exits with 1 soon after its spawn
    saves_s: tuple[float, float] | None = None  # between two checkpoints of rank 0; None: there are none
    warning: int = 0  # a signal that it handles: it saves, if it is rank 0, and says that it is done; 0: none
    answers: float = 1.0  # says so
    marker: Marker = field(default_factory=Marker)


class Onlooker(Protocol):
    """Who sees what the ranks really do: the invariants."""

    def on_spawned(self, worker: "Worker") -> None:
        """A rank is there."""

    def on_ended(self, worker: "Worker") -> None:
        """Nothing of a rank can run user code any more."""

    def on_fenced(self, crew: "Crew") -> None:
        """Its runner, or the guard there, sees that the lease is over."""

    def on_failed(self, worker: "Worker") -> None:
        """A rank has failed by itself, or could not even be spawned."""

    def on_saved(self, worker: "Worker") -> None:
        """A rank has written a checkpoint."""


class Worker:
    """One rank: its main process, and what that leaves behind."""

    def __init__(self, crew: "Crew", assignment: Assignment, rank: int, pid: int) -> None:
        clock = crew.machine.clock
        self.crew = crew
        self.run = crew.run
        self.node = crew.node
        self.incarnation = crew.incarnation
        self.assignment = assignment
        self.generation = assignment.generation
        self.rank = rank
        self.pid = pid
        self.spawned_s = clock.now_s
        self.is_there = True  # the main process, to be reaped
        self.main_runs = True  # user code
        self.rest_runs = clock.chance(crew.program.leaves)
        self.rest_is_there = self.rest_runs
        self.is_killed = False  # its main process was sent SIGKILL
        self.rest_is_killed = False
        self.is_deaf = clock.chance(crew.program.deaf)
        self.is_done = False  # it has said that no more beats come
        self.exit: tuple[int | None, int | None] | None = None  # code and signal of the main process

    @property
    def may_run(self) -> bool:
        """Whether any of it can still run user code."""
        return self.main_runs or self.rest_runs


class Crew:
    """The workers of one runner, and what the runner sees of them. Workers live in `machine`, and outlive their runner
    for as long as nobody sweeps them."""

    def __init__(
        self,
        machine: Process,
        onlooker: Onlooker,
        program: Program,
        run: str,
        node: str,
        incarnation: str,
        put: Callable[[object], None],
        on_death: Callable[[Worker], None],
    ) -> None:
        self.machine = machine
        self.onlooker = onlooker
        self.program = program
        self.run = run
        self.node = node
        self.incarnation = incarnation
        self.workers: dict[int, Worker] = {}
        self.generation = NO_GENERATION  # that they are of, were any of it spawned or not
        self.revision = 0  # of the job that its runner serves
        self._put = put  # an event, into the runner's machine, if the runner lives
        self._on_death = on_death
        self._untold: list[object] | None = None  # what the ranks do while they are being spawned
        self._is_cleared = False
        self._pids = 100
        self.is_unwatched = False  # runner and guard are dead at once: only their supd can end what is left

    # --- what the runner does ------------------------------------------------------------------------------------

    def launch(self, assignment: Assignment) -> None:
        """Spawn the ranks; Launched follows, and only then what they do."""
        clock = self.machine.clock
        self.workers, self._untold, self._is_cleared = {}, [], False
        self.generation = assignment.generation
        failure: SpawnFailure | None = None
        for local in range(assignment.nproc):
            rank = assignment.first_rank + local
            if clock.chance(self.program.unspawnable):
                clock.seen["fault: rank could not be spawned"] += 1
                self.onlooker.on_failed(Worker(self, assignment, rank, 0))
                failure = SpawnFailure(rank=rank, path="/x", reason="no such file")
                break
            self._pids += 1
            worker = self.workers[rank] = Worker(self, assignment, rank, self._pids)
            self.onlooker.on_spawned(worker)
            self._live(worker)
        pids = tuple(worker.pid for worker in self.workers.values())
        event = Launched(assignment.generation, pids, failure)
        self.machine.after(clock.rng.uniform(*self.program.spawns_s), lambda: self._launched(event))

    def _launched(self, event: Launched) -> None:
        self._put(event)
        untold, self._untold = self._untold or [], None
        for told in untold:
            self._put(told)

    def signal(self, rank: int, number: int) -> None:
        """A signal to the main process of a rank."""
        worker = self.workers[rank]
        if not worker.main_runs:
            return
        clock = self.machine.clock
        if number == SIGKILL:
            self._kill_main(worker)
        elif number == self.program.warning:
            self._warn(worker)
        elif worker.is_deaf:
            clock.seen["fault: rank ignores the stop signal"] += 1
        else:
            code, by = (0, None) if clock.chance(self.program.obeys) else (None, number)
            self.machine.after(clock.rng.uniform(*self.program.ends_s), lambda: self._end(worker, code, by))

    def clear(self, generation: int, wait_s: float) -> None:
        """End what is left of the generation, with SIGKILL after a while; one Cleared follows."""
        if self._left:
            self.machine.after(wait_s, lambda: self._kill_rest(generation))
        elif not self._is_cleared:
            self._clear(generation)

    def kill_all(self) -> bool:
        """The lease is over: SIGKILL to all there is. It reaches the last of them within KILL_S. Returns whether there
        was anything that had not got it."""
        self.onlooker.on_fenced(self)
        mains = [worker for worker in self.workers.values() if worker.is_there and not worker.is_killed]
        rests = [worker for worker in self.workers.values() if worker.rest_is_there and not worker.rest_is_killed]
        for worker in mains:
            self._kill_main(worker, KILL_S)
        for worker in rests:
            self._kill_rest_of(worker, KILL_S)
        return bool(mains or rests)

    def _kill_main(self, worker: Worker, within_s: float = 0.0) -> None:
        """SIGKILL to a main process: first its code stops, and a little later it can be reaped."""
        if worker.is_killed:
            return
        worker.is_killed = True
        stops_s = self._kills_s(within_s)
        self.machine.after(stops_s, lambda: self._stop_code(worker, main=True))
        self.machine.after(stops_s + self._leaves_s(), lambda: self._end(worker, None, SIGKILL))

    def _kill_rest_of(self, worker: Worker, within_s: float = 0.0) -> None:
        if worker.rest_is_killed:
            return
        worker.rest_is_killed = True
        stops_s = self._kills_s(within_s)
        self.machine.after(stops_s, lambda: self._stop_code(worker, rest=True))
        self.machine.after(stops_s + self._leaves_s(), lambda: self._bury_rest(worker))

    def _kills_s(self, within_s: float) -> float:
        return self.machine.clock.rng.uniform(*((0.0, within_s) if within_s else self.program.kills_s))

    def _leaves_s(self) -> float:
        """How long the kernel keeps a process that was killed."""
        clock = self.machine.clock
        if not clock.chance(self.program.stuck):
            return 0.005
        clock.seen["fault: killed process waits for the kernel"] += 1
        return clock.rng.uniform(*self.program.stuck_s)

    @staticmethod
    def _bury_rest(worker: Worker) -> None:
        worker.rest_is_there = False

    @property
    def _left(self) -> list[Worker]:
        """Of which something is still there."""
        return [worker for worker in self.workers.values() if worker.is_there or worker.rest_is_there]

    def _has(self, generation: int) -> bool:
        """Whether its processes are of this one, and not of the next, of which none may be there yet."""
        return {worker.generation for worker in self.workers.values()} == {generation}

    def _kill_rest(self, generation: int) -> None:
        if self._is_cleared or not self._has(generation):
            return
        for worker in self._left:
            self._kill_rest_of(worker)
        self._see_whether_clear(generation, self.machine.clock.now_s + PATIENCE_S)

    def _see_whether_clear(self, generation: int, gives_up_s: float) -> None:
        if self._is_cleared or not self._has(generation):
            return
        left, clock = self._left, self.machine.clock
        if left and clock.now_s < gives_up_s:
            self.machine.after(LOOK_S, lambda: self._see_whether_clear(generation, gives_up_s))
            return
        clock.seen["fault: killed process outlives the patience"] += len(left)
        self._clear(generation, tuple(worker.pid for worker in left))

    def _clear(self, generation: int, stuck_pids: tuple[int, ...] = ()) -> None:
        self._is_cleared = True
        self.machine.after(0.002, lambda: self._put(Cleared(generation, stuck_pids)))

    def sweep(self) -> None:
        """SIGKILL to all that is left, from outside: the guard, or supd."""
        for worker in self.workers.values():
            if worker.is_there and worker.exit is None:
                worker.is_there, worker.exit = False, (None, SIGKILL)
            worker.rest_is_there = False
            self._stop_code(worker, main=True, rest=True)
        self.is_unwatched = False

    def orphan(self) -> None:
        """Their runner is dead: the kernel ends main processes, but for those that have seen to it that it does not."""
        for worker in self.workers.values():
            if self.machine.clock.chance(0.5):
                self._stop_code(worker, main=True)

    # --- what happens to them ------------------------------------------------------------------------------------

    def crash(self, worker: Worker, code: int | None, signal: int | None) -> None:
        """Its program fails by itself, or somebody else kills it."""
        if worker.main_runs:
            self.onlooker.on_failed(worker)
            self._end(worker, code, signal)

    def _live(self, worker: Worker) -> None:
        clock, program = self.machine.clock, self.program
        rng = clock.rng
        self.machine.after(rng.uniform(*program.starts_s), lambda: self._write(worker))
        if program.trains_s is not None:
            self.machine.after(program.trains_s + rng.uniform(0.0, program.spread_s), lambda: self.finish(worker))

        if program.saves_s is not None and worker.rank == 0:
            self.machine.after(rng.uniform(*program.saves_s), lambda: self._save(worker, again=True))
        if clock.chance(program.fails_early):
            clock.seen["fault: rank fails as it starts"] += 1
            self.machine.after(clock.rng.uniform(0.0, 1.5), lambda: self.crash(worker, 1, None))

    def _save(self, worker: Worker, *, again: bool) -> None:
        """It goes on from the step that was saved last, and is ten steps further now."""
        saves_s = self.program.saves_s
        if not worker.main_runs or saves_s is None:
            return
        self.program.marker.write(worker.generation, (self.program.marker.step or 0) + 10, self.machine.clock.now_s)
        self.onlooker.on_saved(worker)
        if again:
            self.machine.after(self.machine.clock.rng.uniform(*saves_s), lambda: self._save(worker, again=True))

    def _warn(self, worker: Worker) -> None:
        """Its program has the pre-signal: it saves, and says that it is done."""
        rng = self.machine.clock.rng
        if worker.rank == 0:
            self.machine.after(rng.uniform(0.0, 1.5), lambda: self._save(worker, again=False))
        if self.machine.clock.chance(self.program.answers):
            self.machine.after(rng.uniform(0.0, 1.0), lambda: self._be_done(worker))
        else:
            self.machine.clock.seen["fault: rank does not answer the pre-signal"] += 1

    @staticmethod
    def _be_done(worker: Worker) -> None:
        worker.is_done = worker.main_runs

    def _write(self, worker: Worker) -> None:
        if worker.main_runs:
            self._tell(Wrote(worker.generation, worker.rank))

    def finish(self, worker: Worker) -> None:
        """Its program ends with 0."""
        if worker.main_runs:
            self._end(worker, 0, None)

    def _end(self, worker: Worker, code: int | None, signal: int | None) -> None:
        """The main process is gone, and can be reaped."""
        if not worker.is_there:
            return
        clock = self.machine.clock
        worker.is_there, worker.exit = False, (code, signal)
        self._stop_code(worker, main=True)
        if self._is_cleared:
            return  # it had counted as gone
        exit = RankExit(
            code=code,
            signal=signal,
            order=0,
            wall_s=clock.now_s,
            ran_s=clock.now_s - worker.spawned_s,
            stopped_by_us=False,
        )
        self._tell(Exited(worker.generation, worker.rank, exit, self.machine.now_s))
        if (code, signal) != (0, None):
            self._on_death(worker)

    def _stop_code(self, worker: Worker, *, main: bool = False, rest: bool = False) -> None:
        """User code of it stops running."""
        did_run = worker.may_run
        worker.main_runs &= not main
        worker.rest_runs &= not rest
        if did_run and not worker.may_run:
            self.onlooker.on_ended(worker)

    def _tell(self, event: object) -> None:
        if self._untold is not None:
            self._untold.append(event)
        else:
            self._put(event)

    @property
    def may_run(self) -> bool:
        """Whether any of them can still run user code."""
        return any(worker.may_run for worker in self.workers.values())
