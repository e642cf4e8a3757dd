"""What each run is granted of each node: the allotment (allotment.py) over what machines know and were told. Pure.

A machine takes in its rosters one after the other, later than they are made: what any of them grants that it may still
act on is held by its run.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from protocol import coordinator_events as c
from protocol.allotment import NO_LIMIT, Claim, Room, Share, allot, can_ever, free_slots, slots_needed
from protocol.coordinator import Coordinator
from protocol.coordinator_events import Grant, Phase, Roster, RosterNode
from protocol.dataclass import replace
from protocol.job import JobSpec
from protocol.pool import matches, natural
from protocol.text import some_of


class Told:
    """The rosters of one run that its machine may still act on."""

    def __init__(self) -> None:
        self._rosters: list[tuple[Roster, Mapping[str, Grant]]] = []  # with the grants where there is a limit; in order

    def add(self, roster: Roster) -> None:
        """It is on its way."""
        grants = {n.name: n.grant for n in roster.nodes if n.grant is not None and _room(n).is_limited}
        self._rosters.append((roster, grants))

    def is_newest(self, roster: Roster) -> bool:
        """Whether the last one that is on its way says the same."""
        return bool(self._rosters) and self._rosters[-1][0] == roster

    def heeded(self, seen: object) -> None:
        """The machine goes by the one that has these nodes: those before it are of the past."""
        last = next((i for i, (roster, _) in reversed([*enumerate(self._rosters)]) if roster.nodes is seen), 0)
        del self._rosters[:last]

    def grants(self, seen: object) -> list[Mapping[str, Grant]]:
        """What they grant, the newest first; `seen` are the nodes of the one that the machine goes by."""
        self.heeded(seen)
        return [grants for _, grants in reversed(self._rosters)]


class Sharer(Protocol):
    """A run."""

    machine: Coordinator
    told: Told
    is_settled: bool


def rosters(runs: Mapping[str, Sharer], nodes: Sequence[RosterNode]) -> dict[str, Roster]:
    """What each run is to be told of the nodes; `runs`, by name, in the order of acceptance. Who is settled holds
    nothing, and is told nothing."""
    open_runs = {name: run for name, run in runs.items() if not run.is_settled}
    for run in open_runs.values():
        run.told.heeded(run.machine.rendezvous.seen)
    busy = Counter(node for run in open_runs.values() if not run.machine.is_final for node in run.machine.seats)
    seen_by = {name: _with_others(nodes, busy, run.machine.seats) for name, run in open_runs.items()}
    rooms = {node.name: _room(node) for node in nodes}
    if not are_limited(nodes):
        return {name: Roster(tuple(seen)) for name, seen in seen_by.items()}
    shares = allot(rooms, [_claim(name, run, seen_by[name]) for name, run in open_runs.items()])
    return {
        name: Roster(tuple(_granted(node, rooms[node.name], shares[name].get(node.name)) for node in seen))
        for name, seen in seen_by.items()
    }


def are_limited(nodes: Iterable[RosterNode]) -> bool:
    """Whether there is anything to allot."""
    return any(_room(node).is_limited for node in nodes)


def free_by_node(runs: Iterable[Sharer], nodes: Iterable[RosterNode]) -> dict[str, int | None]:
    """Of each node: how many of its slots no run holds; None: there is no limit."""
    holdings = [held(run) for run in runs if not run.is_settled]
    return {n.name: free_slots(_room(n), [one[n.name] for one in holdings if n.name in one]) for n in nodes}


def held(run: Sharer) -> dict[str, list[Grant]]:
    """By node: what a run may be using, or may begin to use; what is best kept comes first.

    What its ranks have, be they those of a generation that has ended where it was told nothing since our start; what it
    was told; and everything of a node where something runs that nobody has told of.
    """
    machine, found = run.machine, defaultdict[str, list[Grant]](list)
    told = run.told.grants(machine.rendezvous.seen)
    has_live = machine.phase in c.LIVE
    for node, seat in machine.seats.items():
        if not machine.is_final and (not told or (has_live and node in machine.current.alive)):
            found[node].append(Grant(seat.assignment.devices))
    for grants in told:
        for node, grant in grants.items():
            found[node].append(grant)
    if machine.takeover is not None:
        for node in machine.roll.busy | machine.takeover.parts.keys():
            found[node].append(NO_LIMIT)
    return dict(found)


def never_fits(spec: JobSpec, nodes: Iterable[RosterNode]) -> str:
    """Why a job could not run on these nodes even if they were free; "": it could, or there are too few of them yet."""
    chosen, need, least = [n for n in nodes if matches(spec.topology, n)], slots_needed(spec), spec.topology.nnodes[0]
    fit = [n for n in chosen if can_ever(n.slots, need)]
    if len(chosen) < least or len(fit) >= least:
        return ""
    what = f"{need} slots" if need and need > 1 else "a slot"
    sizes = [f"{n.name} {len(n.slots)}" for n in sorted(chosen, key=lambda n: natural(n.name)) if n.slots is not None]
    if least == 1:
        return f"no node has {what}: {some_of(sizes)}"
    return f"the job wants {least} nodes with {what} each, and there {_are(len(fit))}: {some_of(sizes)}"


def _are(count: int) -> str:
    return f"{'is' if count == 1 else 'are'} {count or 'none'}"


def _claim(name: str, run: Sharer, seen: Iterable[RosterNode]) -> Claim:
    """A run that is held keeps what it has, and nobody has to wait for what it lacks."""
    machine, has = run.machine, held(run)
    least, most = machine.rendezvous.nnodes
    candidates = [] if machine.is_final else machine.rendezvous.candidates(seen)
    is_held = machine.phase is Phase.HELD
    return Claim(
        run=name,
        need=machine.rendezvous.need,
        least=0 if is_held else machine.rendezvous.least,
        wants=0 if is_held else least,
        most=most,
        nodes=[node.name for node in candidates if not is_held or node.name in has],
        away=frozenset(node.name for node in candidates if not (node.is_up or node.may_come)),
        held=has,
        has_ranks=machine.phase in c.LIVE or machine.takeover is not None,
    )


def _room(node: RosterNode) -> Room:
    return Room(node.slots, node.max_jobs)


def _with_others(nodes: Iterable[RosterNode], busy: Mapping[str, int], own: Collection[str]) -> list[RosterNode]:
    """The nodes, with the number of other runs that have ranks on each."""
    counts = ((node, busy.get(node.name, 0) - (node.name in own)) for node in nodes)
    return [replace(node, other_runs=count) if count else node for node, count in counts]


def _granted(node: RosterNode, room: Room, share: Share | None) -> RosterNode:
    if share is None:  # the run does not want it now
        return replace(node, grant=None) if room.is_limited else node
    return replace(node, grant=share.grant, lack=share.lack)
