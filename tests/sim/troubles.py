"""What goes wrong, and when: each kind of trouble of the setup comes at random times of its own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from protocol.coordinator_events import FINAL, LIVE, Phase, StopRequested
from protocol.fleet import ANSWERS_S, RECOVERY_S
from protocol.messages.member import Offer, Renewal
from tests.sim.cuts import CUTS, LASTS_S, both_ways, mute, one_way, pair, ways_around
from tests.sim.network import CLOG_S, NOTICE_CUT_S, NOTICE_S, Way
from tests.sim.runner import Runner
from tests.sim.setup import BESIDE, MOVE, OFF_S, PHASE, twin_of
from tests.sim.strangers import KINDS, PATIENT, STAYS_S, Stranger
from tests.sim.upkeep import KEEPERS
from tests.sim.workers import Worker

if TYPE_CHECKING:
    from tests.sim.world import World

RUNS_MAX = 2

AFTER_PHASE_S = 0.6
"""So soon after a run has gone on to another phase comes what is aimed at that."""

UNHEARD_S = (0.3, 0.9)
"""Too short for any lease."""

CLOGGED_S = (0.3, 6.0)

STRANGERS_FORGOTTEN_S = ANSWERS_S + RECOVERY_S + 1.0
"""So long after a stranger has left, the node whose name it had may not get it back yet."""


class Troubles:
    """Brings trouble over a world until it is over. Each method returns whether there was anything to hurt."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.is_over = False
        self._cuts_until_s = 0.0  # until when it matters what was said in one of two cuts
        self._kinds = world.setup.kinds
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
        clock, setup = self.world.clock, self.world.setup
        if self.is_over:
            return
        if moment == PHASE and clock.chance(setup.strikes_phases):
            clock.after(clock.rng.uniform(0.0, AFTER_PHASE_S), self._strike_at_random)
        if not clock.chance(setup.aimed.get(moment, 0.0)):
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
                self._kill_supd(self.world.truth.host)

    def _strike_at_random(self) -> None:
        if not self.is_over:
            what = self.world.clock.rng.choice(self._kinds)
            if self.bring(what):
                self.world.clock.seen[f"fault: {what}"] += 1
                self.world.clock.seen["fault: just after a phase has changed"] += 1

    def bring(self, what: str) -> bool:
        """Bring about one trouble, by its name."""
        if self.world.moves.is_on and what not in BESIDE:
            return False
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
        return self.world.clock.rng.choice(
            [n for n in self.world.setup.names if may_be_host or n != self.world.truth.host]
        )

    @property
    def _host(self) -> str:
        return self.world.truth.host

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

    def _crash_unheard(self) -> bool:
        """What its runner says of it is lost for a moment, so that others are heard to have died of it before."""
        worker = self._worker()
        if worker is not None:
            self.world.network.cut([(worker.node, self._host)], self.world.clock.rng.uniform(*UNHEARD_S))
            worker.crew.crash(worker, 1, None)
        return worker is not None

    def _kill_worker(self) -> bool:
        worker = self._worker()
        if worker is not None:
            worker.crew.crash(worker, None, self.world.clock.rng.choice((9, 11)))
        return worker is not None

    def _kill_runner(self, runner: Runner) -> None:
        if runner.is_guarded:
            self.world.truth.shake(runner.machine.name)
            runner.kill()

    def _on_runner(self, act: Callable[[Runner], None]) -> bool:
        """Never where its guard is in trouble: nobody would see to the lease then."""
        runner = self._runner()
        if runner is None or not runner.is_guarded:
            return False
        act(runner)
        self.world.truth.shake(runner.machine.name, for_s=max(runner.thaws_s - self.world.clock.now_s, 0.0))
        return True

    def _on_guard(self, act: Callable[[Runner], None]) -> bool:
        """Never where its runner is in trouble."""
        runner = self._runner()
        if runner is None or not (runner.is_awake and runner.guard.is_alive):
            return False
        act(runner)
        return True

    def _freeze_guard(self, runner: Runner) -> None:
        seconds = self._while_s()
        runner.guard.freeze(seconds)
        runner.guard.tell("is frozen for {:.1f} s", seconds)

    def _kill_supd(self, name: str) -> bool:
        supd = self.world.supds.get(name)
        if supd is None or not supd.is_alive or (name == self._host and self.world.moves.is_on):
            return False
        is_host, has_strangers = name == self.world.truth.host, "stranger" in self.world.setup.every_s
        is_chance = has_strangers and not is_host and self.world.clock.chance(0.8)
        away_s = self._away_s() + (STRANGERS_FORGOTTEN_S if is_chance else 0.0)
        self.world.kill_supd(name, away_s)
        if is_chance:  # to get its name
            self._send_stranger(PATIENT, name, stays_s=away_s)
        return True

    def _kill_supds(self) -> bool:
        """All of them, which come back one by one."""
        return sum(self._kill_supd(name) for name in self.world.setup.names) > 0

    def _slow_supd(self, name: str, seconds: float | None = None) -> bool:
        seconds = seconds or self._while_s()
        supd = self.world.supds.get(name)
        if supd is None or not supd.is_alive:
            return False
        supd.freeze(seconds)
        self.world.truth.shake(name, for_s=seconds)
        supd.tell("is frozen")
        return True

    def _slow_machine(self) -> bool:
        self.world.freeze(self._node(), self._while_s())
        return True

    def _switch_off(self, *, wipes: bool = False) -> bool:
        place, clock = self._place(may_be_host=not wipes), self.world.clock
        is_on = self.world.machines[place].is_on and place in self.world.supds
        if is_on:
            self.world.switch_off(place, clock.rng.uniform(*OFF_S), wipes=wipes)
        return is_on

    def _kill_everything(self) -> bool:
        name = self._place()
        is_there = name in self.world.supds and self.world.machines[name].is_on
        if is_there:
            self.world.kill_everything(name, self._away_s())
        return is_there

    def _away_s(self) -> float:
        return self.world.clock.rng.uniform(*self.world.setup.away_s)

    def _while_s(self) -> float:
        return self.world.clock.rng.choice((0.3, 2.0, 4.0, 8.0)) * self.world.clock.rng.uniform(0.5, 1.5)

    # --- network and devices -------------------------------------------------------------------------------------

    def _break_connections(self) -> bool:
        name = self._node()
        self.world.truth.shake(name, for_s=NOTICE_S)
        return self.world.network.break_some(name) > 0

    def _break_hosts_connections(self) -> bool:
        """Those of its coordinator, and not of runners to each other."""
        connections = [c for c in self.world.network.connections if c.server is self.world.host]
        for connection in connections:
            connection.close(slowly=True)
        self.world.truth.shake(*self.world.setup.names, for_s=NOTICE_S)
        return bool(connections)

    def _cut(self, what: str) -> bool:
        rng = self.world.clock.rng
        self._cut_ways(CUTS[what](rng, self.world.setup.names), rng.choice(LASTS_S))
        return True

    def _cut_the_link(self) -> bool:
        self._cut_ways(self.world.setup.link, self.world.clock.rng.choice(LASTS_S))
        return bool(self.world.setup.link)

    def _cut_ways(self, ways: Sequence[Way], seconds: float, *, breaks: float = 0.5) -> None:
        world = self.world
        world.clock.tell("world", "cut for {:.1f} s: {}", seconds, " ".join("-".join(way) for way in ways))
        world.network.cut(ways, seconds)
        world.truth.shake(*(node for way in ways for node in way), for_s=seconds + NOTICE_CUT_S)
        if world.clock.chance(breaks):
            world.network.break_between(ways)

    def _move_cut(self) -> bool:
        """One node is cut off, and the host after it, or before: who has just been asked, or given a word, is reached
        by the other side now. It is about as long as a lease."""
        world, rng = self.world, self.world.clock.rng
        names, node, timing = world.setup.names, self._node(may_be_host=False), world.setup.timing
        cuts = [ways_around(node, names), ways_around(self._host, names)]
        rng.shuffle(cuts)
        first_s = rng.uniform(0.6, 1.0) * timing.fence_s
        self._cut_ways(cuts[0], first_s)
        world.clock.after(first_s, lambda: self._cut_ways(cuts[1], rng.uniform(0.5, 2.0) * timing.ttl_s))
        return True

    def _cut_twice(self) -> bool:
        """The host and a member, whose witnesses are elsewhere, are cut off from all, one after the other, as long as a
        lease lets them: what was said in the first cut must count in the second one, or must not any more."""
        world, rng, timing = self.world, self.world.clock.rng, self.world.setup.timing
        node = self._witnessed()
        if node is None or world.clock.now_s < self._cuts_until_s:
            return False
        of_node, of_host = (ways_around(one, world.setup.names) for one in (node, self._host))
        if world.clock.chance(0.4):  # all live by the word of others, then the last words given to one of them count
            cuts, first_s, pause_s = [of_host, of_node], timing.alone_s + rng.uniform(0.5, 2.0) * timing.fence_s, 0.0
        else:  # the witnesses have told that they have given no word, and give it soon after, or much later
            cuts, first_s = [of_node, of_host], rng.uniform(timing.suspect_s, (timing.suspect_s + timing.fence_s) / 2)
            pause_s = rng.choice((0.0, 0.0, timing.word_s + rng.uniform(0.0, 2.0)))
        second_s = rng.uniform(1.0, 2.0) * timing.ttl_s
        self._cuts_until_s = world.clock.now_s + first_s + pause_s + second_s
        self._cut_ways(cuts[0], first_s, breaks=0.0)
        world.clock.after(first_s + pause_s, lambda: self._cut_ways(cuts[1], second_s, breaks=0.0))
        return True

    def _kill_host_and_cut(self) -> bool:
        """The next coordinator is there at once, and cannot hear one of the nodes yet."""
        world, rng, timing = self.world, self.world.clock.rng, self.world.setup.timing
        if not world.is_host_up:
            return False
        link = both_ways([(self._host, self._node(may_be_host=False))])
        self._cut_ways(link, rng.uniform(1.0, 2.0) * timing.suspect_s)
        world.kill_supd(self._host, rng.uniform(0.1, 1.0))
        return True

    def _witnessed(self) -> str | None:
        """A node that has ranks, and witnesses, neither of them with the host."""
        run, host = self._active_run(), self._host
        record = self.world.journal.runs[run] if run is not None else None
        if record is None or record.phase not in LIVE:
            return None
        where = {seat.node: {witness.node for witness in seat.assignment.witnesses} for seat in record.seats}
        nodes = [node for node, others in where.items() if others and host not in (node, *others)]
        return self.world.clock.rng.choice(nodes) if nodes else None

    def _clog(self) -> bool:
        rng = self.world.clock.rng
        ways = rng.choice((one_way, pair, mute))(rng, self.world.setup.names)
        seconds = rng.uniform(*CLOGGED_S)
        self.world.network.clog(ways, seconds)
        self.world.truth.shake(*(node for way in ways for node in way), for_s=seconds + CLOG_S[1])
        if self.world.clock.chance(0.5):  # what is held comes in after the cut has begun
            self.world.clock.after(seconds, lambda: self._cut_ways(ways, rng.choice(LASTS_S)))
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
        if run is None or truth is None or not world.is_host_up or world.setup.keeps_isolated:
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
            world.put_back(run, world.clock.rng.choice(older), epochs=world.clock.rng.choice((0, 1, 3, 5)))
        return bool(older)

    def _lose_journal(self) -> bool:
        """While all that it holds is known to runners, and of each by others: it is of runs that are live, or over and
        gone."""
        world = self.world
        if not world.is_host_up or world.setup.keeps_isolated:
            return False
        if not world.is_all_told:
            return False
        to = self._new_host()
        if to and world.clock.chance(0.5):
            world.move_host(to)
        world.lose_journal()
        return True

    def _move_host(self) -> bool:
        """To another node, with the journal."""
        to = self._new_host()
        if to and self.world.is_host_up:
            self.world.move_host(to)
        return bool(to)

    def _move_beside(self) -> bool:
        """To another node, while the one that has hosted lives."""
        to, world = self._new_host(), self.world
        return bool(to) and world.is_host_up and world.moves.bring(to, self._slow_supd, self._cut_ways)

    def _new_host(self) -> str:
        """A node that can host; "": there is none now."""
        world = self.world
        can = [name for name, machine in world.machines.items() if machine.is_on and machine.is_awake]
        others = [name for name in can if name in world.supds and name not in (world.truth.host, world.setup.twin)]
        names = [name for name in others if name in world.setup.names]
        return world.clock.rng.choice(names) if names else ""

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

    def _lose_node(self) -> bool:
        """They say what is true: that machine is switched off."""
        world, host = self.world, self.world.host
        on = {machine.name for machine in world.machines.values() if machine.is_on}
        off = [
            name for place, name in ((p, m.name) for p, m in world.machines.items()) if place == name and name not in on
        ]
        if not off or host is None or not host.process.is_alive:
            return False
        node = world.clock.rng.choice(off)
        host.process.do(lambda: host.lose_node(node, "me"))
        return True

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
    **KEEPERS,
    "worker crash": Troubles._crash_worker,
    "worker crash that is told late": Troubles._crash_unheard,
    "worker killed": Troubles._kill_worker,
    "runner killed": lambda t: t._on_runner(Runner.kill),
    "runner dismissed": lambda t: t._on_runner(Runner.dismiss),
    "runner slow": lambda t: t._on_runner(lambda runner: runner.freeze(t._while_s())),
    "guard killed": lambda t: t._on_guard(Runner.kill_guard),
    "guard frozen": lambda t: t._on_guard(t._freeze_guard),
    "runner and guard killed": lambda t: t._on_runner(Runner.kill_both),
    "supd killed": lambda t: t._kill_supd(t._place(may_be_host=False)),
    "supd slow": lambda t: t._slow_supd(t._node(may_be_host=False)),
    "all supds killed": Troubles._kill_supds,
    "host killed": lambda t: t._kill_supd(t._host),
    "host slow": lambda t: t._slow_supd(t._host),
    "host moved": Troubles._move_host,
    MOVE: Troubles._move_beside,
    "machine slow": Troubles._slow_machine,
    "everything killed on a node": Troubles._kill_everything,
    "host's connections broken": Troubles._break_hosts_connections,
    "connections broken": Troubles._break_connections,
    **{what: partial(Troubles._cut, what=what) for what in CUTS},
    "the link cut": Troubles._cut_the_link,
    "cut that moves": Troubles._move_cut,
    "two cuts": Troubles._cut_twice,
    "host killed as a link is cut": Troubles._kill_host_and_cut,
    "clog": Troubles._clog,
    "machine off": Troubles._switch_off,
    "machine off, and its disk wiped": partial(Troubles._switch_off, wipes=True),
    "devices busy": Troubles._occupy_devices,
    "stranger": Troubles._stranger,
    "stranger speaks as a runner": Troubles._speak_as_runner,
    "journal put back": Troubles._put_journal_back,
    "journal lost": Troubles._lose_journal,
    "operator stops": lambda t: t._stop(now=False),
    "operator stops now": lambda t: t._stop(now=True),
    "operator stops twice": Troubles._stop_twice,
    "operator gives a node for lost": Troubles._lose_node,
    "operator restarts": Troubles._restart,
    "operator restarts twice": Troubles._restart_twice,
    "operator restarts without a node": lambda t: t._restart(t._node()),
    "operator starts another run": Troubles._start,
}
