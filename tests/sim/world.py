"""A fleet from one seed: its machines, processes, users and troubles; first faults, then none, then its end."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from protocol.coordinator_events import (
    FINAL,
    Phase,
    RestartRequested,
    RunRecord,
    StopRequested,
)
from protocol.messages.fleet import Join
from protocol.timing import DRIFT
from protocol.versions import VERSIONS
from tests.sim.burials import REMEMBER_S
from tests.sim.draws import Nodes, setup_of
from tests.sim.helper import Helper
from tests.sim.host import Host, Journal
from tests.sim.invariants import Invariants
from tests.sim.kernel import Act, BootClock, Clock, Write
from tests.sim.marker import Marker
from tests.sim.moves import Moves
from tests.sim.network import CALM, NOTICE_CUT_S, Network
from tests.sim.runner import Machine, Runner
from tests.sim.setup import FORGETFUL, Setup, state_of
from tests.sim.strangers import PLACE
from tests.sim.supd import NodeDisk, Supd
from tests.sim.troubles import Troubles
from tests.sim.truth import HELPED_S
from tests.sim.workers import Program, Worker

PORT = 29410
SETTLE_S = 60.0
"""R7: after the last fault a run is running, or over, within so much and the waits that its job names."""

BACK_S = 10.0
"""Within so much after the last fault every supd is back, however long it was to be away."""

DIES_WRITING = 0.006
"""How often a write is the last thing that a supd does, in every seed: much hangs on what is written before what is
said."""

DIES_STARTING = 0.1
"""How often the host dies as it takes a run in."""

WIND_UP_S = 30.0
"""After a run is over, nothing of it is left within so much and its grace."""


class World:
    """One fleet. `setup` None: the one that the seed draws, of so many `nodes`."""

    def __init__(
        self, seed: int, setup: Setup | None = None, *, nodes: Nodes | None = None, is_traced: bool = False
    ) -> None:
        self.seed = seed
        self.clock = Clock(seed, is_traced=is_traced)
        self.setup = setup or setup_of(seed, self.clock.rng, nodes)
        self.program = replace(self.setup.program)
        self.programs: dict[str, Program] = {}  # by run
        self.network = Network(self.clock)
        self.journal = Journal()
        self.truth = Invariants(self.clock, self.journal, self.setup)
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, NodeDisk] = {}
        self.supds: dict[str, Supd] = {}
        self.host: Host | None = None
        self.moves = Moves(self)
        self.runs_started = 0
        self.has_faults = False
        for place in self.setup.places:
            name = place.rstrip("'")
            boot = BootClock(self.clock.rng.uniform(0.0, 1e5), 1.0 + self.clock.rng.uniform(-DRIFT, DRIFT))
            machine = self.machines[place] = Machine(self.clock, name, boot, place)
            machine.nproc = self.setup.nproc
            machine.digest = {"script": self.setup.digests.get(name, "one")}
            machine.is_broken = name in self.setup.broken
            self.disks[place] = NodeDisk(identity=state_of(place))
            self.clock.at(self.setup.late.get(place, 0.0), partial(self.start_supd, place))

    # --- phases --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole life of the fleet. Raises AssertionError where a rule is broken."""
        for at_s in (self.setup.begins_s, *(further.at_s for further in self.setup.further)):
            self.clock.after(at_s, self.start_run)
        self.clock.run_until(self.setup.calm_s)
        if self.setup.must_go_on:
            assert self.has_settled(), "R7: nothing has happened, and the run does not run"
            self.truth.must_go_on = True
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
        self.network.heal()
        self.moves.look()
        for program in (self.program, *self.programs.values()):
            program.unspawnable = program.fails_early = 0.0
            program.spread_s = 0.1
        for machine in self.machines.values():
            machine.busy_until_s = 0.0
            machine.after(self.clock.rng.uniform(0.0, BACK_S), partial(self.start_supd, machine.place))
        spec = self.setup.spec
        self.clock.after(HELPED_S, Helper(self).help)
        bound_s = SETTLE_S + spec.stop.pre_wait_s + spec.stop.grace_s
        bound_s += spec.restart.backoff_max_s + spec.rendezvous.join_timeout_s
        self.clock.run_until(self.clock.now_s + bound_s, self.has_settled)
        self.truth.must_go_on = False
        late = [name for name in self.journal.runs if not self.is_settled(name)]
        lost = sorted(self.truth.started - self.journal.runs.keys())
        assert not lost, f"R8: the start of {lost[0]} was accepted, and is not on disk"
        assert not late, f"R7: {late[0]} is still {self.journal.runs[late[0]].phase} {bound_s:g} s after the last fault"

    def wind_up(self) -> None:
        """Every run comes to its end, and nothing is left of it anywhere."""
        stop, program = self.setup.spec.stop, self.setup.program
        is_endless = any(self.setup.trains_s(name) is None for name in self.journal.runs)
        self._end_runs(is_endless=is_endless)
        bound_s = WIND_UP_S + stop.pre_wait_s + stop.grace_s + (program.trains_s or 0.0) + self.setup.program.spread_s
        bound_s += 0.0 if is_endless else SETTLE_S + self.setup.spec.rendezvous.join_timeout_s
        bound_s += REMEMBER_S if self.truth.is_journal_lost else 0.0  # ends of runners that nobody can place
        self.clock.run_until(self.clock.now_s + bound_s, self.is_empty)
        living = [w for run in self.truth.runs for w in self.truth.living(run)]
        assert not living, f"R1: {len(living)} ranks live on after the end"
        left = list(self.leftovers())
        assert not left, f"{bound_s:g} s after the end there is still: {', '.join(left)}"
        for name in self.journal.runs:
            self.clock.seen[f"run: {self.journal.runs[name].phase}"] += 1

    def _end_runs(self, *, is_endless: bool) -> None:
        """Operators stop what does not end by itself, and again what has not heard of it."""
        for name, record in self.journal.runs.items():
            if record.phase not in FINAL and record.stop is None and (is_endless or record.phase is Phase.HELD):
                self.operate(name, StopRequested(None, self.setup.stops_at_end == "now", "me"))
        self.clock.after(5.0, partial(self._end_runs, is_endless=is_endless))

    def has_settled(self) -> bool:
        """Whether every process is there, and every run is running or over."""
        if self.moves.is_on or not all(name in self.supds and self.supds[name].is_alive for name in self.setup.places):
            return False
        served = {r.run for m in self.machines.values() for r in m.runners.values() if r.is_alive and r.member}
        are_known = served <= self.journal.runs.keys() and (bool(self.journal.runs) or self.truth.is_journal_lost)
        are_begun = len(self.truth.runs) == self.runs_started
        return are_begun and are_known and all(map(self.is_settled, self.journal.runs))

    def is_settled(self, name: str) -> bool:
        """Whether a run is over, or all its ranks train."""
        record = self.journal.runs[name]
        is_over = record.phase in FINAL or record.phase is Phase.HELD
        is_running = record.phase is Phase.RUNNING and self.truth.is_whole(name, record)
        return is_over or (is_running and not self.truth.owes(name, record)) or self.may_wait(name, record)

    def may_wait(self, name: str, record: RunRecord) -> bool:
        """Whether other runs have what a run needs."""
        is_known = self.host is not None and name in self.host.runs
        return is_known and record.phase is Phase.FORMING and self.truth.may_wait(name)

    def leftovers(self) -> Iterator[str]:
        """What there is still of any run."""
        yield from (name for name, record in self.journal.runs.items() if record.phase not in FINAL)
        for machine in self.machines.values():
            yield from (f"runner {i}" for i, runner in machine.runners.items() if runner.lock_is_held)
        for place, disk in self.disks.items():
            if disk.given and self._has_its_name(place):
                yield from (f"row {i}" for i in disk.given)

    def _has_its_name(self, place: str) -> bool:
        """Whether the machine there can tell what it knows, and nobody else under its name."""
        name = self.machines[place].name
        holder = self.journal.nodes.get(name)
        return name != self.setup.twin or (holder is not None and holder.identity == self.disks[place].identity)

    def is_empty(self) -> bool:
        """Whether nothing is left of any run."""
        return next(self.leftovers(), None) is None

    # --- processes -----------------------------------------------------------------------------------------------

    def start_supd(self, name: str) -> None:
        """Start the supd of a machine, where none runs."""
        if ((old := self.supds.get(name)) is not None and old.is_alive) or not self.machines[name].is_on:
            return
        machine, setup, rng = self.machines[name], self.setup, self.clock.rng
        self.truth.shake(machine.name)
        self.truth.on_supd_started(machine.name)
        write = partial(self.write, name)
        supd = self.supds[name] = Supd(
            machine,
            self.disks[name],
            self.network,
            lambda supd: self.moves.find(machine, supd),
            lambda supd: self.join_of(supd.machine.place),
            partial(self.start_runner, machine),
            lambda: self.has_faults and self.clock.chance(setup.start_fails),
            write,
            self.write_s,
            setup,
            self.truth.on_buried,
        )
        if name == self.truth.host:
            self.host = Host(
                supd,
                self.journal,
                self.join_of(name),
                self.truth,
                partial(self.reaches, name),
                write,
                rng.random,
                setup,
            )

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
            runner.kill_both()
            runner.crew.sweep()
        if self.supds[name].is_alive:
            self.kill_supd(name, away_s)

    def freeze(self, name: str, seconds: float) -> None:
        """A whole machine stands still for so long."""
        machine = self.machines[name]
        machine.tell("is frozen for {:.1f} s", seconds)
        runners = machine.runners.values()
        processes = [machine, *runners, *(runner.guard for runner in runners)]
        for process in [*processes, self.supds[name]] if name in self.supds else processes:
            process.freeze(seconds)
        self.truth.shake(name, for_s=seconds)
        self.truth.on_frozen(machine)

    def switch_off(self, name: str, off_s: float, *, wipes: bool = False) -> None:
        """The power of a machine goes, and comes again after a while: with its disk, or (`wipes`) with an empty one."""
        machine = self.machines[name]
        machine.tell("is switched off for {:.1f} s{}", off_s, ", and its disk is wiped" if wipes else "")
        machine.is_on = False
        self.truth.shake(machine.name, for_s=off_s + NOTICE_CUT_S)
        for runner in machine.runners.values():
            self.network.vanish(runner)
            runner.kill_both()
            runner.crew.sweep()
        if (supd := self.supds.get(name)) is not None:
            self.network.vanish(supd)
            supd.kill()
        self.clock.after(off_s, partial(self._switch_on, name, wipes=wipes))

    def _switch_on(self, name: str, *, wipes: bool) -> None:
        machine, disk = self.machines[name], self.disks[name]
        machine.is_on = True
        machine.starts_again()
        if wipes:
            self.disks[name] = NodeDisk(identity=f"{disk.identity}, new", made=disk.made)
            machine.records.clear()
            machine.runners.clear()
            self.truth.wiped.add(machine.name)
        machine.after(self.clock.rng.uniform(0.1, 1.0), partial(self.start_supd, name))

    def join_of(self, name: str) -> Join:
        """What the supd of a machine says of itself."""
        disk, node, supd = self.disks[name], self.machines[name].name, self.supds.get(name)
        return Join(
            epoch=0 if supd is None else supd.epoch,
            versions=VERSIONS,
            fleet="f",
            node=node,
            identity=disk.identity,
            incarnation=max(disk.starts, 1),
            address=name,
            port=PORT,
            join=(f"{self.truth.host}:{PORT}",),
            labels=self.setup.labels.get(node, {}),
            wall_s=self.clock.now_s,
            slots=self.setup.slots,
            max_jobs=self.setup.max_jobs,
        )

    def find_host(self) -> tuple[Host, str] | None:
        """Who listens at the host's address."""
        return (self.host, self.truth.host) if self.host is not None and self.is_host_up else None

    def reaches(self, host: str, name: str) -> bool:
        """Whether a host reaches a supd at this address."""
        if name == PLACE:
            return True
        supd = self.supds.get(name)
        return (
            supd is not None
            and supd.is_alive
            and supd.is_awake
            and not self.network.is_cut_off(self.machines[name].name, host)
        )

    def start_runner(self, machine: Machine, run: str, incarnation: str) -> None:
        """Give a run to a runner."""
        Runner(
            machine,
            self.network,
            partial(self.moves.find, machine),
            self.truth,
            self._program_of(run),
            self.on_death,
            run,
            incarnation,
        )

    def _program_of(self, run: str) -> Program:
        if run not in self.programs:
            self.programs[run] = replace(self.program, trains_s=self.setup.trains_s(run), marker=Marker())
        return self.programs[run]

    def on_death(self, dead: Worker) -> None:
        """A rank has died: others of its generation may die of it, a little later."""
        program, rng = self.program, self.clock.rng
        for worker in self.truth.living(dead.run, dead.generation):
            if self.clock.chance(program.follows):
                self.clock.seen["fault: rank dies of another's death"] += 1
                worker.crew.machine.after(rng.uniform(0.05, 2.0), partial(worker.crew.crash, worker, 1, None))

    def write(self, name: str, commit: Act) -> Write:
        """A write of a node's journal, which may be slow, or the last thing that its supd does."""
        may_die = self.has_faults and not self.setup.is_gentle and not (self.moves.are_two and name == self.truth.host)
        if may_die and self.clock.chance(DIES_WRITING):
            self.clock.seen[f"fault: {'host' if name == self.truth.host else 'supd'} killed in a write"] += 1
            return Write(0.0, partial(self._die_writing, name, commit))
        if self.has_faults and name != self.truth.host and self.clock.chance(self.setup.aimed.get(FORGETFUL, 0.0)):
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

    def put_back(self, run: str, record: RunRecord, *, epochs: int = 0) -> None:
        """The host is killed, and what its journal has of a run is older when it comes back; and so many epochs lower
        is what it has counted."""
        self.kill_supd(self.truth.host, self.clock.rng.uniform(*self.setup.away_s))
        self.journal.runs[run] = record
        self.journal.epoch = max(self.journal.epoch - epochs, 1)
        self.truth.on_put_back(run, record)

    def move_host(self, to: str) -> None:
        """The coordinator is moved to another node with its journal. Both supds are killed for that."""
        old, self.truth.host = self.truth.host, to
        for name in (old, to):
            self.kill_supd(name, self.clock.rng.uniform(*self.setup.away_s))
        for supd in self.supds.values():
            supd.meet_another_host()
            supd.line.drop()

    @property
    def is_host_up(self) -> bool:
        """Whether the coordinator lives."""
        return self.host is not None and self.host.process.is_alive

    def lose_journal(self) -> None:
        """The host is killed, and knows nothing when it comes back."""
        self.kill_supd(self.truth.host, self.clock.rng.uniform(*self.setup.away_s))
        self.truth.on_journal_lost()
        self.journal.forget()
        for supd in self.supds.values():
            supd.meet_another_host()

    @property
    def is_all_told(self) -> bool:
        """Whether all that the journal holds is known to runners, and of each by others: it is of runs that are live,
        or over and gone."""
        held = {r.run for m in self.machines.values() for r in m.runners.values() if r.lock_is_held}
        return all(
            (record.phase in FINAL and run not in held) or self.truth.is_told_by_runners(run, record)
            for run, record in self.journal.runs.items()
        )

    def succeed(self, to: str, *, with_journal: bool) -> None:
        """Another node hosts as well, from a copy of the journal or an empty one; in an epoch above its."""
        old = self.journal
        if not with_journal:
            self.truth.on_journal_lost()
        new = (
            Journal(old.epoch, dict(old.jobs), dict(old.runs), dict(old.nodes)) if with_journal else Journal(old.epoch)
        )
        self.journal = self.truth.journal = new
        self.truth.host, self.truth.had_two = to, True
        self.start_supd(to)

    # --- operators -----------------------------------------------------------------------------------------------

    def start_run(self, name: str = "") -> None:
        """An operator starts a run, and asks for it again until they are told, or it is in the journal."""
        if not name:
            self.runs_started += 1
            name = f"j@{self.runs_started}"
        if name in self.truth.runs or name in self.truth.started:
            return
        self.clock.after(0.5, partial(self.start_run, name))
        if self.host is None or not self.is_host_up:
            return
        self.host.accept(self.setup.job(name), lambda: self.truth.on_started(name))
        if self.has_faults and not self.setup.is_gentle and not self.moves.is_on and self.clock.chance(DIES_STARTING):
            self.clock.seen["fault: host killed in a start"] += 1
            self.kill_supd(self.truth.host, self.clock.rng.uniform(*self.setup.away_s))

    def operate(self, run: str, event: Any) -> None:
        """An operator wants something of a run, and is told once it is accepted."""
        host = self.host
        if host is None or not host.process.is_alive:
            return
        self.clock.tell("operator", "{}", event)
        host.process.do(partial(self._ask, host, run, event))

    def _ask(self, host: Host, run: str, event: Any) -> None:
        """A restart of what nobody has told of says that nobody runs it: that is said where it is true."""
        is_word = isinstance(event, RestartRequested) and host.runs[run].machine.takeover is not None
        if not (is_word and self.truth.may_spawn(run)):
            host.ask(run, event, partial(self._on_told, host, run, event))

    def _on_told(self, host: Host, run: str, event: Any) -> None:
        if host is self.host:  # what one has accepted that was replaced meanwhile may be known to nobody
            self.truth.on_told(run, event)

    def restart(self, run: str, without: str = "") -> None:
        """An operator wants a new generation."""
        self.operate(run, RestartRequested("", "me", without))
