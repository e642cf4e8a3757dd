"""The coordinator is moved to another node while the one that has hosted until then is alive.

It plays what supervisor/daemon/{moving,leadership}.py do: `supd run --coordinator` asks whether the old host lives, and
--old-is-dead asks nobody; the old one gives way as soon as it finds the new one. Until then both give orders, and each
supd, and each runner by what its supd has written down, follows the one that it has found.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from protocol.coordinator_events import Event, Note, Phase, RunRecord, Send
from protocol.timing import DRIFT, KILL_S
from tests.sim.cuts import ways_around
from tests.sim.host import Host
from tests.sim.network import NOTICE_CUT_S, Server, Way
from tests.sim.runner import Machine
from tests.sim.supd import Supd

if TYPE_CHECKING:
    from collections.abc import Collection

    from protocol import fleet_events as f
    from protocol.coordinator import Coordinator
    from protocol.fleet import Fleet
    from protocol.messages.control import RunStatus
    from protocol.messages.fleet import Join
    from tests.sim.invariants import Invariants
    from tests.sim.world import World

LOOK_S = 1.0
"""Between two looks of a host at whether another one has begun, as in leadership.py."""

ASK_S = 2.0
"""How long such a look takes where somebody does not answer."""

ASK_AGAIN_S = 0.5

SLACK_S = 1.0
"""A host that was heard so shortly after it was asked may have ended just then."""


class Moves:
    """Who hosts beside the newest host, and who follows whom. One move at a time."""

    def __init__(self, world: "World") -> None:
        self.elder: Host | None = None  # the one before, while it has not given way
        self.elder_place = ""
        self.is_asking = False
        self._began_s = math.inf  # when the newest one began, by the false word that the elder is dead
        self._world = world

    @property
    def is_on(self) -> bool:
        """Whether a move is going on, until the old host has given way."""
        return self.is_asking or self.are_two

    @property
    def are_two(self) -> bool:
        """Whether two coordinators are alive."""
        if self.elder is not None and not self.elder.process.is_alive:
            self._on_over()
        return self.elder is not None

    def find(self, machine: Machine, supd: Supd | None = None) -> tuple[Server, str] | None:
        """Whom a supd of that machine joins; where `supd` is None, whom a runner there looks for."""
        newest = self._world.find_host()
        if not self.are_two or self.elder is None:
            return newest
        elder = self.elder, self.elder_place
        if machine.place == self.elder_place or newest is None:
            return elder
        if machine.place == newest[1]:
            return newest
        both: list[tuple[Host, str]] = [elder, newest] if machine.follows == self.elder_place else [newest, elder]
        if supd is None:
            return both[0]
        return next((host for host in both if self._is_found(supd, *host)), None)

    def _is_found(self, supd: Supd, host: Host, place: str) -> bool:
        return host.process.is_awake and host.epoch >= supd.epoch and not self._are_apart(place, supd.machine.place)

    # --- the move ------------------------------------------------------------------------------------------------

    def bring(
        self, to: str, freeze: Callable[[str, float], object], cut: Callable[[Sequence[Way], float], None]
    ) -> bool:
        """An operator moves the coordinator there while the old one is well, frozen or cut off, with --old-is-dead or
        without. Returns whether that has begun.

        Nothing else separates the two: what comes of that is not promised, nor of a cut while nobody answers. Nor where
        the old one is alone with ranks of its own, which it would have go on.
        """
        world, rng, host = self._world, self._world.clock.rng, self._world.truth.host
        how, seconds = rng.choice(("well", "well", "frozen", "cut off")), rng.uniform(4.0, 22.0)
        table = world.setup.spec.topology
        has_rank = host not in table.exclude and (world.truth.must_go_on or table.nnodes[0] < 2)
        is_cut = any(until_s > world.clock.now_s for until_s in world.network.cut_until_s.values())
        if is_cut or (how == "frozen" and world.setup.link) or (how == "cut off" and has_rank):
            return False
        if how == "frozen":
            freeze(host, seconds)
        elif how == "cut off":
            cut(ways_around(host, world.setup.names), seconds)
            world.clock.after(seconds + 0.001, self.look)  # else it may give orders until it looks: not promised either
        return self.begin(to, old_is_dead=rng.random() < 0.7, with_journal=rng.random() < 0.5)

    def begin(self, to: str, *, old_is_dead: bool, with_journal: bool) -> bool:
        """An operator starts the supd there anew, as the host; False where its supd has not heard of the present one
        (it would begin an epoch that is known already)."""
        world, supd = self._world, self._world.supds[to]
        host = world.host
        if self.are_two or self.is_asking or host is None or not (with_journal or supd.epoch == host.epoch):
            return False
        self.is_asking = True
        world.kill_supd(to, None)
        began_s = world.clock.now_s
        if old_is_dead:
            world.clock.after(ASK_S / 2, lambda: self._switch(to, with_journal=with_journal, is_asked=False))
        else:
            self._ask(to, began_s, lambda: self._switch(to, with_journal=with_journal, is_asked=True))
        return True

    def _ask(self, to: str, began_s: float, then: Callable[[], None]) -> None:
        """As `Others.see_that_the_host_is_gone`."""
        world, now_s, ttl_s = self._world, self._world.clock.now_s, self._world.setup.timing.ttl_s
        if world.supds[to].is_alive:
            self.is_asking = False  # somebody has started it as it was
            return
        voices, is_silent = self._voices(to)
        newest_s = max([*voices, *self._answered(to)], default=-ttl_s)
        is_unknown = is_silent and not voices
        if newest_s > began_s + SLACK_S or (is_unknown and now_s > began_s + ttl_s):
            world.clock.seen["refused: move while the old host lives, or may"] += 1
            self.is_asking = False
            world.start_supd(to)
        elif now_s > max(newest_s, began_s) + ttl_s and not is_unknown:
            then()
        else:
            world.clock.after(ASK_AGAIN_S, lambda: self._ask(to, began_s, then))

    def _voices(self, to: str) -> tuple[list[float], bool]:
        """When others have heard the host, and whether somebody does not say so who may be it. It itself says that it
        will be heard."""
        voices, is_silent = [], False
        for place, machine in self._world.machines.items():
            supd = self._world.supds.get(place)
            if place == to or (machine.is_on and supd is None):
                continue
            is_reached = machine.is_on and machine.is_awake and not self._are_apart(to, place)
            if is_reached and supd is not None and not supd.is_alive:
                continue  # its machine says that nobody is there
            if is_reached and supd is not None and supd.is_awake and place == self._world.truth.host:
                voices.append(math.inf)
            elif is_reached and supd is not None and supd.is_awake and supd.heard_s is not None:
                voices.append(supd.heard_s)
            else:
                is_silent = True
        return voices, is_silent

    def _answered(self, to: str) -> list[float]:
        """When runners there that don't reach the host were answered by it, by way of others."""
        machine = self._world.machines[to]
        lone = [runner for runner in machine.runners.values() if runner.is_alive and runner.line.connection is None]
        return [machine.boot.true_s(runner.answered_s) for runner in lone if runner.answered_s is not None]

    def _are_apart(self, here: str, there: str) -> bool:
        machines = self._world.machines
        return self._world.network.is_cut_off(machines[here].name, machines[there].name)

    def _switch(self, to: str, *, with_journal: bool, is_asked: bool) -> None:
        """It begins: with a copy of the old one's journal, or without; in an epoch above its."""
        self.is_asking = False
        world = self._world
        old = world.host
        is_possible = (with_journal or world.is_all_told) and not (old is None or old.is_starting)
        if old is None or not is_possible or not old.process.is_alive or world.supds[to].is_alive:
            world.start_supd(to)
            return
        world.clock.tell(
            "operator", "moves the coordinator to {}, {} journal", to, "with" if with_journal else "without a"
        )
        self.elder, self.elder_place = old, world.truth.host
        self._began_s = math.inf if is_asked else world.clock.now_s
        old.watcher = Bystander(world.truth)
        old.gives_way = self._give_way
        for machine in world.machines.values():
            machine.follows = self.elder_place
        world.succeed(to, with_journal=with_journal)
        world.machines[to].follows = to
        self._mark()
        world.clock.after(world.clock.rng.uniform(0.0, LOOK_S), partial(self._look, old))

    # --- the old one ---------------------------------------------------------------------------------------------

    def _look(self, old: Host) -> None:
        """It looks for another host; where somebody does not answer that takes a while."""
        if self.are_two and self.elder is old:
            self.look()
            self._world.clock.after(self._world.clock.rng.uniform(LOOK_S, LOOK_S + ASK_S), partial(self._look, old))
            self._mark()

    def look(self) -> None:
        """The old one, if there is one, looks now."""
        if self.are_two and self.elder is not None:
            self.elder.process.do(self._give_way)

    def _give_way(self) -> None:
        """If it finds the newest host, or somebody who has heard it, it ends hosting, and joins that one."""
        world, newest = self._world, self._world.truth.host
        others = (place for place, machine in world.machines.items() if machine.follows == newest)
        if not self.are_two or all(self._are_apart(self.elder_place, place) for place in others):
            return
        world.clock.seen["taken: host that gives way"] += 1
        world.clock.tell("world", "the coordinator on {} gives way", self.elder_place)
        world.kill_supd(self.elder_place, world.clock.rng.uniform(0.01, 0.1))
        self._on_over()

    def _on_over(self) -> None:
        self._see_torn()
        self.elder = None
        self._world.truth.shake(*self._world.setup.names, for_s=NOTICE_CUT_S)

    def _mark(self) -> None:
        """Two hosts are alive: nothing is as usual. Who is answered by one that is cut off from the other one goes on
        there, which is not promised to end in time (docs/operations.md)."""
        world = self._world
        self._see_torn()
        world.truth.shake(*world.setup.names, for_s=LOOK_S + ASK_S + NOTICE_CUT_S)
        if world.network.is_cut_off(self.elder_place, world.truth.host):
            runners = world.machines[self.elder_place].runners.values()
            world.truth.apart |= {(r.incarnation, r.member.generation) for r in runners if r.member is not None}

    def _see_torn(self) -> None:
        """Where it was said to be dead, the newest one counts leases from its own beginning: who is answered by the old
        one later than that, and not by the newest, may be lost while it lives (docs/operations.md)."""
        world, elder = self._world, self.elder
        until_s = world.clock.now_s + LOOK_S + ASK_S + world.setup.timing.fence_s * (1 + DRIFT) + KILL_S
        for machine in world.machines.values():
            for runner in machine.runners.values():
                is_answered = runner.answered_s is not None and machine.boot.true_s(runner.answered_s) > self._began_s
                if is_answered and elder is not None and world.truth.heard.get(runner.incarnation, 0) <= elder.epoch:
                    world.truth.torn[runner.incarnation] = until_s, elder.epoch


class Bystander:
    """Sees what a coordinator does beside a newer one: what it gives out counts for all who have not heard that one."""

    def __init__(self, truth: "Invariants") -> None:
        self._truth = truth
        self.table = _Nobody()

    def on_accepted(self, run: str) -> None:
        """A run is in its journal."""

    def on_taken_over(self, run: str, incarnation: str) -> None:
        """A run that was not known."""

    def on_persisted(self, run: str, record: RunRecord) -> None:
        """What it gives out."""
        self._truth.on_given_by_elder(run, record)

    def on_noted(self, run: str, note: Note) -> None:
        """It tells its users."""
        self._truth.clock.tell(f"{run}, old", "{}: {}", note.kind, note.text)

    def on_sent(self, run: str, machine: "Coordinator", send: Send) -> None:
        """An order is given."""

    def on_wanted(self, run: str, machine: "Coordinator", nodes: frozenset[str]) -> None:
        """Runners are asked for."""

    def on_event(self, run: str, machine: "Coordinator", event: Event) -> None:
        """A machine is about to be handed an event."""

    def on_looked(self, run: str, machine: "Coordinator", status: "RunStatus", now_s: float) -> None:
        """Somebody has looked at a run."""

    def on_phase(self, run: str, before: Phase, machine: "Coordinator") -> None:
        """A machine has gone on to another phase."""


class _Nobody:
    """Sees nothing of a node table."""

    def on_begun(self) -> None:
        """The host's supd starts."""

    def on_heard(self, node: str) -> None:
        """A node reports."""

    def on_reported(self, link: "f.Link", number: int, *, is_overtaken: bool) -> None:
        """A report is taken."""

    def on_admitted(self, join: "Join") -> None:
        """A node is about to be taken in."""

    def on_declared_lost(self, node: str, *, is_up: bool) -> None:
        """An operator gives their word on it."""

    def on_looked(self, table: "Fleet", links: "Collection[f.Link]") -> None:
        """Somebody has looked at the table."""
