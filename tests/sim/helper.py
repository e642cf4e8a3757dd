"""The operator who helps where the machines cannot help themselves, once nothing goes wrong any more."""

from typing import TYPE_CHECKING

from protocol.coordinator_events import LIVE, Phase, ResumeRequested
from tests.sim.strangers import PLACE
from tests.sim.truth import HELPED_S
from tests.sim.upkeep import undrain_now

if TYPE_CHECKING:
    from tests.sim.world import World


class Helper:
    """Looks at a world now and then."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def help(self) -> None:
        """Where nobody is left to prove what is true, an operator gives their word: where a disk was lost, or a journal
        replaced by an older one or none before what it had been told mattered. Where a generation cannot be taken over,
        that is a restart. They also do what a supd says that is refused."""
        world, truth, host = self.world, self.world.truth, self.world.host
        self._start_copied()
        self._use_all_nodes()
        assert host is not None, "there has never been a host"
        living = {runner.incarnation for runner in truth.runners.values() if runner.lock_is_held}
        for run, record in world.journal.runs.items():
            for seat in record.seats if record.phase in LIVE else ():
                is_forgotten = seat.node in truth.wiped or run in truth.aged or truth.had_two
                is_open = is_forgotten and seat.node not in (*record.lost, *record.lapsed)
                if is_open and seat.incarnation not in living:
                    host.lose_node(seat.node, "me")
        for driven in list(host.runs.values()):
            for node in sorted(driven.machine.roll.busy):
                is_forgotten = node in truth.wiped or driven.name in truth.aged
                if is_forgotten and driven.machine.roll.runners[node] not in living:
                    host.lose_node(node, "me")
        is_long = world.clock.now_s > (truth.quiet_since_s or 0.0) + 1.5 * HELPED_S
        for driven in list(host.runs.values()) if is_long else ():
            if driven.machine.takeover is not None:
                assert host.status_of(driven.name).waiting_for, f"R7: {driven.name} does not say for whom it waits"
                world.clock.seen["taken: generation that nobody can name"] += 1
                world.restart(driven.name)
        world.clock.after(HELPED_S, self.help)

    def _start_copied(self) -> None:
        """F305: the name is held by a copy of the state folder, and is got back by a start that no copy can know of."""
        world = self.world
        for place, supd in world.supds.items():
            disk, holder = world.disks[place], world.journal.nodes.get(world.machines[place].name)
            is_copied = holder is not None and (holder.identity, holder.address) == (disk.identity, PLACE)
            if is_copied and supd.is_alive:
                world.kill_supd(place, 0.5)

    def _use_all_nodes(self) -> None:
        """Who is held goes on; where a run waits for nodes, those are used again that are to be free, or were given
        notice."""
        for name, record in self.world.journal.runs.items():
            if record.phase is Phase.HELD:
                self.world.operate(name, ResumeRequested("me"))
            if record.phase is Phase.FORMING and self.world.is_host_up and not self.world.may_wait(name, record):
                for node in sorted({*self.world.truth.nodes.drains, *record.preempted}):
                    undrain_now(self.world, node)
