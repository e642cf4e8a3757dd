"""A small fleet for stories: it lives by itself, and nothing goes wrong but what is told."""

from collections.abc import Iterable

from protocol.coordinator_events import Phase, RunRecord
from protocol.job import JobSpec, ProgressTable, RendezvousTable, RestartTable, RunTable, StopTable, TopologyTable
from tests.sim.cuts import both_ways
from tests.sim.network import CALM, Way
from tests.sim.runner import Runner
from tests.sim.setup import Setup
from tests.sim.workers import Program, Worker
from tests.sim.world import World

RUN = "j@1"


class Story:
    """A fleet of nodes with these names where nothing goes wrong but what the story tells."""

    def __init__(
        self,
        nnodes: tuple[int, int] = (3, 3),
        extra_nodes: str = "standby",
        *,
        names: str = "abc",
        exclude: tuple[str, ...] = (),
        restart: RestartTable | None = None,
    ) -> None:
        spec = JobSpec(
            name="j",
            run=RunTable(script="t.py"),
            topology=TopologyTable(nnodes=nnodes, nproc_per_node=1, extra_nodes=extra_nodes, exclude=exclude),
            rendezvous=RendezvousTable(join_timeout_s=30.0, last_call_s=5.0),
            restart=restart or RestartTable(start_after_s=0.5, backoff_s=0.0),
            stop=StopTable(grace_s=5.0),
            progress=ProgressTable(source="none"),
        )
        program = Program(follows=0.0, obeys=0.0)
        self.world = World(0, Setup(names=tuple(names), spec=spec, program=program, weather=CALM, every_s={}))
        self.world.clock.after(0.5, self.world.start_run)
        self.let_pass(5.0)
        assert self.record.phase is Phase.RUNNING

    @property
    def record(self) -> RunRecord:
        """The run, as it is on disk."""
        return self.world.journal.runs[RUN]

    @property
    def nodes(self) -> list[str]:
        """Who has ranks, in the order of ranks."""
        return [seat.node for seat in self.record.seats]

    @property
    def waits_for(self) -> str:
        """What an operator is told about what the run waits for."""
        host = self.world.host
        assert host is not None
        return host.status_of(RUN).waiting_for

    @property
    def gathers_until_s(self) -> float:
        """When the run, which gathers nodes, fails for want of them, in the world's time."""
        host = self.world.host
        assert host is not None
        deadline_s = host.runs[RUN].machine.rendezvous.deadline_s
        assert deadline_s is not None
        return self.world.machines[self.world.truth.host].boot.true_s(deadline_s)

    def let_pass(self, seconds: float) -> None:
        """Let time pass."""
        self.world.clock.run_until(self.world.clock.now_s + seconds)

    def rank_on(self, node: str) -> Worker:
        """The rank that runs on a node."""
        return next(worker for worker in self.world.truth.living(RUN) if worker.node == node)

    def runner_on(self, node: str) -> Runner:
        """The runner of a node."""
        return next(r for r in self.world.machines[node].runners.values() if r.is_alive)

    def kill_runner(self, node: str) -> None:
        """SIGKILL to the runner of a node; its guard lives."""
        self.runner_on(node).kill()

    def crash(self, node: str) -> None:
        """The rank there exits with 1."""
        victim = self.rank_on(node)
        victim.crew.crash(victim, 1, None)

    def cut(self, ways: Iterable[Way], seconds: float) -> None:
        """Let nothing through there for so long."""
        self.world.network.cut(ways, seconds)
        self.world.truth.shake(*(node for way in ways for node in way), for_s=seconds)

    def cut_off(self, node: str, seconds: float) -> None:
        """Let nothing through to and from a node for so long."""
        self.cut(both_ways([(node, other) for other in self.world.setup.names if other != node]), seconds)

    def ends_well(self) -> None:
        """The run comes to rest, and to its end, and nothing is left of it."""
        self.world.settle()
        self.world.wind_up()
