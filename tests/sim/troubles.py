"""What goes wrong, and when: each kind of trouble of the setup comes at random times of its own."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.coordinator_events import FINAL, LIVE, Phase, StopRequested
from protocol.fleet import ANSWERS_S, RECOVERY_S
from protocol.messages.member import Offer, Renewal
from tests.sim.network import NOTICE_S
from tests.sim.runner import Runner
from tests.sim.setup import HOST, twin_of
from tests.sim.strangers import KINDS, PATIENT, STAYS_S, Stranger
from tests.sim.workers import Worker

if TYPE_CHECKING:
    from tests.sim.world import World

RUNS_MAX = 2

STRANGERS_FORGOTTEN_S = ANSWERS_S + RECOVERY_S + 1.0
"""So long after a stranger has left, the node whose name it had may not get it back yet."""


class Troubles:
    """Brings trouble over a world until it is over. Each method returns whether there was anything to hurt."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.is_over = False
        for what in world.setup.every_s:
            self._plan(what)

    def _plan(self, what: str) -> None:
        clock = self.world.clock
        clock.after(clock.rng.expovariate(1.0 / self.world.setup.every_s[what]), lambda: self._strike(what))

    def _strike(self, what: str) -> None:
        if self.is_over:
            return
        if self.bring(what):
            self.world.clock.seen[f"fault: {what}"] += 1
        self._plan(what)

    def strike_after(self, moment: str, whom: object) -> None:
        """Something has happened after which trouble is aimed: it comes within half a second, or not."""
        clock = self.world.clock
        if self.is_over or not clock.chance(self.world.setup.aimed.get(moment, 0.0)):
            return
        clock.seen[f"fault: {moment}"] += 1
        clock.after(clock.rng.uniform(0.0, 0.5), lambda: self._strike_at(whom))

    def _strike_at(self, whom: object) -> None:
        if self.is_over:
            return
        match whom:
            case Runner():
                self._kill_runner(whom)
            case str():
                self.world.operate(whom, StopRequested(None, False, "me"))
            case _:
                self._kill_supd(HOST)

    def bring(self, what: str) -> bool:
        """Bring about one trouble, by its name."""
        return BRINGERS[what](self)

    # --- whom ----------------------------------------------------------------------------------------------------

    def _worker(self) -> Worker | None:
        living = [worker for run in self.world.journal.runs for worker in self.world.truth.living(run)]
        return self.world.clock.rng.choice(living) if living else None

    def _runner(self) -> Runner | None:
        machines = self.world.machines.values()
        living = [runner for m in machines for runner in m.runners.values() if runner.is_alive]
        return self.world.clock.rng.choice(living) if living else None

    def _node(self, *, may_be_host: bool = True) -> str:
        return self.world.clock.rng.choice([n for n in self.world.setup.names if may_be_host or n != HOST])

    def _place(self, *, may_be_host: bool = True) -> str:
        """A machine."""
        name = self._node(may_be_host=may_be_host)
        return twin_of(name) if name == self.world.setup.twin and self.world.clock.chance(0.5) else name

    def _active_run(self) -> str | None:
        active = [name for name, record in self.world.journal.runs.items() if record.phase not in FINAL]
        return self.world.clock.rng.choice(active) if active else None

    # --- processes -----------------------------------------------------------------------------------------------

    def _crash_worker(self) -> bool:
        worker = self._worker()
        if worker is not None:
            worker.crew.crash(worker, self.world.clock.rng.choice((1, 1, 77)), None)
        return worker is not None

    def _kill_worker(self) -> bool:
        worker = self._worker()
        if worker is not None:
            worker.crew.crash(worker, None, self.world.clock.rng.choice((9, 11)))
        return worker is not None

    def _kill_runner(self, runner: Runner) -> None:
        self.world.truth.shake(runner.machine.name)
        runner.kill()

    def _on_runner(self, act: Callable[[Runner], None]) -> bool:
        runner = self._runner()
        if runner is not None:
            act(runner)
            self.world.truth.shake(runner.machine.name, for_s=max(runner.thaws_s - self.world.clock.now_s, 0.0))
        return runner is not None

    def _kill_both(self, runner: Runner) -> None:
        runner.has_guard = False
        runner.kill()

    def _kill_supd(self, name: str) -> bool:
        supd = self.world.supds.get(name)
        if supd is None or not supd.is_alive:
            return False
        is_chance = "stranger" in self.world.setup.every_s and name != HOST and self.world.clock.chance(0.8)
        away_s = self._away_s() + (STRANGERS_FORGOTTEN_S if is_chance else 0.0)
        self.world.kill_supd(name, away_s)
        if is_chance:  # to get its name
            self._send_stranger(PATIENT, name, stays_s=away_s)
        return True

    def _slow_supd(self) -> bool:
        name, seconds = self._node(), self._while_s()
        supd = self.world.supds.get(name)
        if supd is None or not supd.is_alive:
            return False
        supd.freeze(seconds)
        self.world.truth.shake(name, for_s=seconds)
        supd.tell("is frozen")
        return True

    def _slow_machine(self) -> bool:
        name, seconds = self._node(), self._while_s()
        machine, supd = self.world.machines[name], self.world.supds.get(name)
        machine.freeze(seconds)
        self.world.truth.shake(name, for_s=seconds)
        machine.tell("is frozen for {:.1f} s", seconds)
        for process in (supd, *machine.runners.values()):
            if process is not None:
                process.freeze(seconds)
        return True

    def _kill_everything(self) -> bool:
        name = self._place()
        if name in self.world.supds:
            self.world.kill_everything(name, self._away_s())
        return name in self.world.supds

    def _away_s(self) -> float:
        return self.world.clock.rng.uniform(*self.world.setup.away_s)

    def _while_s(self) -> float:
        return self.world.clock.rng.choice((0.3, 2.0, 7.0)) * self.world.clock.rng.uniform(0.5, 1.5)

    # --- network and devices -------------------------------------------------------------------------------------

    def _break_connections(self) -> bool:
        name = self._node()
        self.world.truth.shake(name, for_s=NOTICE_S)
        return self.world.network.break_some(name) > 0

    def _cut_link(self) -> bool:
        name, seconds, clock = self._node(may_be_host=False), self._while_s(), self.world.clock
        self.world.network.cut_until_s[name] = clock.now_s + seconds
        self.world.truth.shake(name, for_s=max(seconds, NOTICE_S))
        if clock.chance(0.5):
            self.world.network.break_some(name)
        return True

    def _occupy_devices(self) -> bool:
        name, seconds = self._node(), self._while_s()
        self.world.machines[name].busy_until_s = self.world.clock.now_s + seconds
        self.world.truth.shake(name, for_s=seconds)
        return True

    def _stranger(self) -> bool:
        rng = self.world.clock.rng
        self._send_stranger(rng.choice(tuple(KINDS)), self._node(may_be_host=False), stays_s=rng.uniform(*STAYS_S))
        return True

    def _send_stranger(self, kind: str, name: str, *, stays_s: float) -> None:
        world = self.world
        Stranger(world.clock, world.network, world.find_host, kind, world.join_of(name), stays_s)
        world.clock.seen["fault: stranger"] += 1
        world.truth.shake(world.machines[name].name, for_s=stays_s + STRANGERS_FORGOTTEN_S)

    def _speak_as_runner(self) -> bool:
        """From a second state folder, say: it is nobody's proof of anything."""
        world, run, host = self.world, self._active_run(), self.world.host
        record = world.journal.runs[run] if run is not None else None
        if run is None or record is None or record.phase not in LIVE or host is None or run not in host.runs:
            return False
        alive = [seat.node for seat in record.seats if seat.node not in record.lost]
        if not alive or not set(alive) <= host.runs[run].machine.roll.runners.keys():
            return False
        offer = Offer(slots=1, address="10.0.0.z", port=5009)
        return host.speak(run, world.clock.rng.choice(alive), "stranger", Renewal(number=1, offer=offer))

    def _put_journal_back(self) -> bool:
        """To a record of an earlier generation, of the same runners; while nothing that operators want is in it."""
        world, run = self.world, self._active_run()
        truth = world.truth.runs[run] if run is not None else None
        if run is None or truth is None or not self.world.supds[HOST].is_alive:
            return False
        last, seats = truth.before, {(seat.node, seat.incarnation) for seat in truth.before.seats}
        if last.phase not in (Phase.LAUNCHING, Phase.RUNNING) or last.lost or truth.asked_stop or truth.untold:
            return False
        older = [
            record
            for record in truth.history
            if record.phase in (Phase.LAUNCHING, Phase.RUNNING)
            and record.generation < last.generation
            and not record.lost
            and {(seat.node, seat.incarnation) for seat in record.seats} == seats
        ]
        if older:
            world.put_back(run, world.clock.rng.choice(older))
        return bool(older)

    # --- operators -----------------------------------------------------------------------------------------------

    def _stop(self, *, now: bool) -> bool:
        run = self._active_run()
        if run is not None:
            self.world.operate(run, StopRequested(None, now, "me"))
        return run is not None

    def _restart(self, without: str = "") -> bool:
        run = self._active_run()
        if run is not None:
            self.world.restart(run, without)
        return run is not None

    def _start(self) -> bool:
        if self.world.runs_started >= RUNS_MAX:
            return False
        self.world.start_run()
        return True

    def _stop_twice(self) -> bool:
        run = self._active_run()
        if run is not None:
            self.world.operate(run, StopRequested(None, False, "me"))
            self.world.operate(run, StopRequested(0.2, self.world.clock.chance(0.5), "me"))
        return run is not None

    def _restart_twice(self) -> bool:
        run = self._active_run()
        if run is not None:
            self.world.restart(run, self._node())
            self.world.clock.after(self.world.clock.rng.uniform(0.0, 1.0), lambda: self.world.restart(run))
        return run is not None


BRINGERS: dict[str, Callable[[Troubles], bool]] = {
    "worker crash": Troubles._crash_worker,
    "worker killed": Troubles._kill_worker,
    "runner killed": lambda t: t._on_runner(Runner.kill),
    "runner dismissed": lambda t: t._on_runner(Runner.dismiss),
    "runner slow": lambda t: t._on_runner(lambda runner: runner.freeze(t._while_s())),
    "guard killed": lambda t: t._on_runner(Runner.kill_guard),
    "runner and guard killed": lambda t: t._on_runner(t._kill_both),
    "supd killed": lambda t: t._kill_supd(t._place(may_be_host=False)),
    "supd slow": Troubles._slow_supd,
    "host killed": lambda t: t._kill_supd(HOST),
    "machine slow": Troubles._slow_machine,
    "everything killed on a node": Troubles._kill_everything,
    "connections broken": Troubles._break_connections,
    "link cut": Troubles._cut_link,
    "devices busy": Troubles._occupy_devices,
    "stranger": Troubles._stranger,
    "stranger speaks as a runner": Troubles._speak_as_runner,
    "journal put back": Troubles._put_journal_back,
    "operator stops": lambda t: t._stop(now=False),
    "operator stops now": lambda t: t._stop(now=True),
    "operator stops twice": Troubles._stop_twice,
    "operator restarts": Troubles._restart,
    "operator restarts twice": Troubles._restart_twice,
    "operator restarts without a node": lambda t: t._restart(t._node()),
    "operator starts another run": Troubles._start,
}
