"""A fleet from one seed: its machines, processes, users and troubles; first faults, then none, then its end."""

from dataclasses import replace
from functools import partial
from typing import Any

from protocol.coordinator_events import FINAL, Phase, RestartRequested, RunRecord, StopRequested
from protocol.messages.fleet import Join
from protocol.versions import VERSIONS
from tests.sim.host import Host, Journal
from tests.sim.invariants import Invariants
from tests.sim.kernel import Act, Clock, Write
from tests.sim.network import CALM, Network, Server
from tests.sim.runner import Machine, Runner
from tests.sim.setup import FORGETFUL, HOST, Setup, draw, state_of
from tests.sim.strangers import PLACE
from tests.sim.supd import NodeDisk, Supd
from tests.sim.troubles import Troubles
from tests.sim.workers import Worker

PORT = 29410
SETTLE_S = 60.0
"""R7: after the last fault a run is running, or over, within so much and the waits that its job names."""

DIES_WRITING = 0.006
"""How often a write is the last thing that a supd does, in every seed: much hangs on what is written before what is
said."""

WIND_UP_S = 30.0
"""After a run is over, nothing of it is left within so much and its grace."""


class World:
    """One fleet. `setup` None: the one that the seed draws."""

    def __init__(self, seed: int, setup: Setup | None = None, *, is_traced: bool = False) -> None:
        self.seed = seed
        self.clock = Clock(seed, is_traced=is_traced)
        self.setup = setup or draw(self.clock.rng)
        self.program = replace(self.setup.program)
        self.network = Network(self.clock)
        self.journal = Journal()
        self.truth = Invariants(self.clock, self.journal, self.setup)
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, NodeDisk] = {}
        self.supds: dict[str, Supd] = {}
        self.host: Host | None = None
        self.runs_started = 0
        self.has_faults = False
        for place in self.setup.places:
            name = place.rstrip("'")
            machine = self.machines[place] = Machine(self.clock, name, self.clock.rng.uniform(0.0, 1e5), place)
            machine.nproc = self.setup.nproc
            machine.digest = {"script": self.setup.digests.get(name, "one")}
            machine.is_broken = name in self.setup.broken
            self.disks[place] = NodeDisk(identity=state_of(place))
            self.clock.at(self.setup.late.get(place, 0.0), partial(self.start_supd, place))

    # --- phases --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole life of the fleet. Raises AssertionError where a rule is broken."""
        self.clock.after(self.setup.begins_s, self.start_run)
        self.clock.run_until(self.setup.calm_s)
        self.go_wrong(self.setup.faults_s)
        self.settle()
        self.wind_up()

    def go_wrong(self, seconds: float) -> None:
        """Let things go wrong for a while, as the setup says."""
        self.has_faults = self.truth.has_faults = True
        self.network.weather = self.setup.weather
        troubles = Troubles(self)
        self.truth.on_moment = troubles.strike_after
        self.clock.run_until(self.clock.now_s + seconds)
        troubles.is_over = True

    def settle(self) -> None:
        """Nothing goes wrong any more: every run must be running or over within the bound."""
        self.clock.tell("world", "the faults end")
        self.has_faults = False
        self.truth.quiet_since_s = self.clock.now_s
        self.network.weather = CALM
        self.network.cut_until_s.clear()
        self.program.unspawnable = self.program.fails_early = 0.0
        self.program.spread_s = 0.1
        for machine in self.machines.values():
            machine.busy_until_s = 0.0
        spec = self.setup.spec
        bound_s = SETTLE_S + spec.stop.pre_wait_s + spec.stop.grace_s
        bound_s += spec.restart.backoff_max_s + spec.rendezvous.join_timeout_s
        self.clock.run_until(self.clock.now_s + bound_s, self.has_settled)
        late = [name for name in self.journal.runs if not self.is_settled(name)]
        assert not late, f"R7: {late[0]} is still {self.journal.runs[late[0]].phase} {bound_s:g} s after the last fault"

    def wind_up(self) -> None:
        """Every run comes to its end, and nothing is left of it anywhere."""
        stop, program = self.setup.spec.stop, self.setup.program
        is_endless = program.trains_s is None
        for name, record in self.journal.runs.items():
            if record.phase not in FINAL and is_endless:
                self.operate(name, StopRequested(None, self.setup.stops_at_end == "now", "me"))
        bound_s = WIND_UP_S + stop.pre_wait_s + stop.grace_s + (program.trains_s or 0.0) + self.setup.program.spread_s
        bound_s += 0.0 if is_endless else SETTLE_S + self.setup.spec.rendezvous.join_timeout_s
        self.clock.run_until(self.clock.now_s + bound_s, self.is_empty)
        assert self.is_empty(), f"{bound_s:g} s after the end there is still: {', '.join(self.leftovers())}"
        for name in self.journal.runs:
            self.clock.seen[f"run: {self.journal.runs[name].phase}"] += 1

    def has_settled(self) -> bool:
        """Whether every process is there, and every run is running or over."""
        are_back = all(name in self.supds and self.supds[name].is_alive for name in self.setup.places)
        return are_back and bool(self.journal.runs) and all(map(self.is_settled, self.journal.runs))

    def is_settled(self, name: str) -> bool:
        """Whether a run is over, or all its ranks train."""
        record = self.journal.runs[name]
        return record.phase in FINAL or (record.phase is Phase.RUNNING and self.truth.is_whole(name, record))

    def leftovers(self) -> list[str]:
        """What there is still of any run."""
        left = [name for name, record in self.journal.runs.items() if record.phase not in FINAL]
        left += [f"runner {i}" for m in self.machines.values() for i, r in m.runners.items() if r.lock_is_held]
        left += [f"row {i}" for place in self.disks if self._has_its_name(place) for i in self.disks[place].given]
        return left

    def _has_its_name(self, place: str) -> bool:
        """Whether the machine there can tell what it knows, and nobody else under its name."""
        holder = self.journal.nodes.get(self.machines[place].name)
        return not self.setup.twin or (holder is not None and holder.identity == state_of(place))

    def is_empty(self) -> bool:
        """Whether nothing is left of any run."""
        return not self.leftovers()

    # --- processes -----------------------------------------------------------------------------------------------

    def start_supd(self, name: str) -> None:
        """Start the supd of a machine, where none runs."""
        if (old := self.supds.get(name)) is not None and old.is_alive:
            return
        machine, setup, rng = self.machines[name], self.setup, self.clock.rng
        self.truth.shake(machine.name)
        write = partial(self.write, name)
        supd = self.supds[name] = Supd(
            machine,
            self.disks[name],
            self.network,
            self.find_host,
            lambda supd: self.join_of(supd.machine.place),
            partial(self.start_runner, machine),
            lambda: self.has_faults and self.clock.chance(setup.start_fails),
            write,
            self.write_s,
            setup,
            self.truth.on_buried,
        )
        if name == HOST:
            self.host = Host(supd, self.journal, self.join_of(name), self.truth, self.reaches, write, rng.random)

    def kill_supd(self, name: str, away_s: float | None) -> None:
        """SIGKILL to the supd of a machine; it is started again after a while, None: never."""
        self.supds[name].kill()
        self.truth.shake(self.machines[name].name, for_s=away_s or 0.0)
        if away_s is not None:
            self.machines[name].after(away_s, partial(self.start_supd, name))

    def kill_everything(self, name: str, away_s: float | None) -> None:
        """SIGKILL to every process of a machine at once."""
        machine = self.machines[name]
        machine.tell("everything there is killed")
        for runner in machine.runners.values():
            runner.has_guard = False
            runner.kill()
            runner.crew.sweep()
        if self.supds[name].is_alive:
            self.kill_supd(name, away_s)

    def join_of(self, name: str) -> Join:
        """What the supd of a machine says of itself."""
        disk, node = self.disks[name], self.machines[name].name
        return Join(
            versions=VERSIONS,
            fleet="f",
            node=node,
            identity=disk.identity,
            incarnation=max(disk.starts, 1),
            address=name,
            port=PORT,
            join=(f"{HOST}:{PORT}",),
            labels=self.setup.labels.get(node, {}),
            wall_s=self.clock.now_s,
        )

    def find_host(self) -> tuple[Server, str] | None:
        """Who listens at the host's address."""
        return (self.host, HOST) if self.host is not None and self.host.process.is_alive else None

    def reaches(self, name: str) -> bool:
        """Whether the host reaches a supd at this address."""
        if name == PLACE:
            return True
        supd = self.supds.get(name)
        return (
            supd is not None
            and supd.is_alive
            and self.clock.now_s >= supd.thaws_s
            and not self.network.is_cut(self.machines[name].name, HOST)
        )

    def start_runner(self, machine: Machine, run: str, incarnation: str) -> None:
        """Give a run to a runner."""
        Runner(machine, self.network, self.find_host, self.truth, self.program, self.on_death, run, incarnation)

    def on_death(self, dead: Worker) -> None:
        """A rank has died: others of its generation may die of it, a little later."""
        program, rng = self.program, self.clock.rng
        for worker in self.truth.living(dead.run, dead.generation):
            if self.clock.chance(program.follows):
                self.clock.seen["fault: rank dies of another's death"] += 1
                worker.crew.machine.after(rng.uniform(0.05, 2.0), partial(worker.crew.crash, worker, 1, None))

    def write(self, name: str, commit: Act) -> Write:
        """A write of a node's journal, which may be slow, or the last thing that its supd does."""
        if self.has_faults and not self.setup.is_gentle and self.clock.chance(DIES_WRITING):
            self.clock.seen[f"fault: {'host' if name == HOST else 'supd'} killed in a write"] += 1
            return Write(0.0, partial(self._die_writing, name, commit))
        if self.has_faults and name != HOST and self.clock.chance(self.setup.aimed.get(FORGETFUL, 0.0)):
            self.clock.seen[f"fault: {FORGETFUL}"] += 1
            self.supds[name].after(1.3, lambda: self.kill_supd(name, self.clock.rng.uniform(*self.setup.away_s)))
            return Write(2.0, commit)  # all that a node's machine writes is that a runner's end is settled
        return Write(self.write_s(), commit)

    def _die_writing(self, name: str, commit: Act) -> None:
        if self.clock.chance(0.5):
            commit()
        self.kill_supd(name, self.clock.rng.uniform(*self.setup.away_s))

    def write_s(self) -> float:
        """How long a disk takes for a write."""
        if self.has_faults and self.clock.chance(self.setup.slow_write):
            self.clock.seen["fault: slow write"] += 1
            return self.clock.rng.uniform(0.01, 2.0)
        return 0.0

    def put_back(self, run: str, record: RunRecord) -> None:
        """The host is killed, and what its journal has of a run is older when it comes back."""
        self.kill_supd(HOST, self.clock.rng.uniform(*self.setup.away_s))
        self.journal.runs[run] = record
        self.truth.on_put_back(run, record)

    # --- operators -----------------------------------------------------------------------------------------------

    def start_run(self) -> None:
        """An operator starts a run: once it is accepted it is in the journal."""
        if self.host is None or not self.host.process.is_alive:
            if not self.journal.runs:
                self.clock.after(0.5, self.start_run)
            return
        self.runs_started += 1
        name = f"j@{self.runs_started}"
        self.journal.jobs[name] = self.setup.job(name)
        self.journal.runs[name] = RunRecord()
        self.truth.on_accepted(name)
        self.host.take_up(name)

    def operate(self, run: str, event: Any) -> None:
        """An operator wants something of a run, and is told once it is accepted."""
        host = self.host
        if host is None or not host.process.is_alive:
            return
        self.clock.tell("operator", "{}", event)
        host.process.do(lambda: host.ask(run, event, lambda: self.truth.on_told(run, event)))

    def restart(self, run: str, without: str = "") -> None:
        """An operator wants a new generation."""
        self.operate(run, RestartRequested("", "me", without))
