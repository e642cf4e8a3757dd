"""Which run may use which slots of which node, where several share the nodes of a fleet. Pure.

A node has slots, one a rank: names of accelerators, or "" where it has none; or no limit (None). The rules it keeps
(docs/protocol.md):
A1 no slot is given to two runs: what a run holds (what it was granted and may still act on, and what its ranks have) is
free for others only once it holds it no longer. A2 runs are served in the order in which they were accepted; while one
waits, later ones get nothing of a node that it could use: nobody overtakes, nobody starves. A3 a run without ranks gets
as many nodes as it needs, or none of those that are limited. A4 what a run has on a node it keeps for as long as it
wants that node, so that its devices stay the same over its generations.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from protocol.coordinator_events import Grant, RosterNode
from protocol.dataclass import dataclass, field
from protocol.job import JobSpec
from protocol.text import some_of

LACKS_TOLD = 3
"""Of how many nodes it is told who has their slots."""

_NOTHING = ("", "-1", "NoDevFiles")  # as the first entry of CUDA_VISIBLE_DEVICES: no device

Slots = tuple[str, ...] | None

NO_LIMIT = Grant()
NOTHING = Grant(())


@dataclass(frozen=True)
class Room:
    """What a node has."""

    slots: Slots = None
    max_jobs: int = 0  # runs at once; 0: no limit

    @property
    def is_limited(self) -> bool:
        """Whether there can be too little of it."""
        return self.slots is not None or self.max_jobs > 0


@dataclass(frozen=True)
class Claim:
    """What a run wants, and what it holds."""

    run: str
    need: int | None  # slots of each node; None: all of them
    least: int  # nodes, without which it does nothing
    most: int
    nodes: Sequence[str]  # that it could use, best first
    away: Collection[str] = ()  # of these: nodes that do not answer, and count only where there are too few others
    held: Mapping[str, Sequence[Grant]] = field(default_factory=dict)  # what it may use there now; the first is kept
    has_ranks: bool = False  # or may have some that nobody has told of yet
    wants: int = 0  # nodes for which it waits, and goes on with `least` meanwhile


@dataclass(frozen=True)
class Share:
    """What a run gets of a node."""

    grant: Grant | None  # None: nothing yet
    lack: str = ""  # why; "" with None: it could have it, and has enough


def slots_needed(spec: JobSpec) -> int | None:
    """How many slots a job takes of each of its nodes; None: all that there are.

    One that hides the accelerators from itself takes none; one that names some takes the whole node.
    """
    own = spec.run.env.get("CUDA_VISIBLE_DEVICES")
    if own is not None:
        return 0 if own.split(",")[0].strip() in _NOTHING else None
    nproc = spec.topology.nproc_per_node
    return nproc if isinstance(nproc, int) else None


def suits(grant: Grant | None, need: int | None) -> bool:
    """Whether a generation may begin with this, where the job takes so many slots."""
    if grant is None or grant.devices is None or need is None:
        return grant is not None
    return len(grant.devices) == need


def can_ever(slots: Slots, need: int | None) -> bool:
    """Whether a node has room enough, were it free."""
    return slots is None or (len(slots) >= need if need is not None else bool(slots))


def allot(rooms: Mapping[str, Room], claims: Iterable[Claim]) -> dict[str, dict[str, Share]]:
    """Of each run: what it gets of each of its nodes that the fleet has. `claims` are in the order of acceptance."""
    claims = tuple(claims)
    table = _Table(rooms, claims)
    return {claim.run: table.serve(claim) for claim in claims}


def lacked(least: int, need: int | None, nodes: Iterable[RosterNode]) -> str:
    """What a run waits for: `2 nodes with 8 slots free; gpu-01: its 8 slots are vit@ab12cd's`."""
    if need == 0:
        what = f"{_count(least, 'node')} with room for a job"
    else:
        what = f"{_count(least, 'node')} with {'all slots' if need is None else _count(need, 'slot')} free"
    lacking = [f"{node.name}: {node.lack}" for node in nodes if node.lack]
    more = [f"{_count(len(lacking) - LACKS_TOLD, 'more node')}"] if len(lacking) > LACKS_TOLD else []
    return "; ".join([what, *lacking[:LACKS_TOLD], *more])


def free_slots(room: Room, held: Iterable[Sequence[Grant]]) -> int | None:
    """How many slots of a node no run holds; None: there is no limit. `held` has what each run holds there."""
    if room.slots is None:
        return None
    return len(_free(room.slots, [_union(grants) for grants in held]))


class _Table:
    """All nodes, with who holds what; and who waits for them."""

    def __init__(self, rooms: Mapping[str, Room], claims: Sequence[Claim]) -> None:
        self._rooms = rooms
        self._held: dict[str, dict[str, Counter[str] | None]] = {node: {} for node in rooms}  # None: everything
        self._waiting: dict[str, str] = {}  # node -> the run that waits for it
        self._free: dict[str, list[int]] = {}  # node -> its free slots, as they stand: of a thousand nodes few change
        self._told: dict[str, str] = {}  # node -> whose its slots are, as they stand
        for claim in claims:
            for node, grants in claim.held.items():
                if node in rooms and rooms[node].is_limited:
                    self._held[node][claim.run] = _union(grants)

    def serve(self, claim: Claim) -> dict[str, Share]:
        """What this run gets, when all before it have got theirs."""
        known = [node for node in claim.nodes if node in self._rooms]
        usable = [node for node in known if can_ever(self._rooms[node].slots, claim.need)]
        there = [node for node in usable if node not in claim.away]
        usable = there if len(there) >= max(claim.least, claim.wants) else usable
        granted = self._pick(claim, usable, keeps=True)
        is_short = len(granted) < claim.least
        if is_short and not claim.has_ranks:  # A3; what it has left it may have to give to one before it
            granted = self._pick(claim, usable, keeps=False) if len(usable) < claim.least else {}
        for node, grant in granted.items():
            self._take(node, claim.run, grant)
        if is_short or len(granted) < claim.wants <= len(usable):
            for node in usable:
                self._waiting.setdefault(node, claim.run)  # A2
        may_have_all = not is_short or claim.has_ranks or len(usable) < claim.least
        return {node: self._share(node, claim, granted.get(node), may_have_all=may_have_all) for node in known}

    def _pick(self, claim: Claim, usable: Iterable[str], *, keeps: bool) -> dict[str, Grant]:
        """Grants on the best nodes that have room; with `keeps` also on those that it has already, and another waits
        for."""
        granted: dict[str, Grant] = {}
        for node in usable:
            if len(granted) == claim.most:
                break
            grant = self._grant(node, claim, keeps=keeps)
            if grant is not None:
                granted[node] = grant
        return granted

    def _share(self, node: str, claim: Claim, grant: Grant | None, *, may_have_all: bool) -> Share:
        if grant is None and may_have_all and not self._rooms[node].is_limited:
            grant = NO_LIMIT  # nobody has less of it: whom it wants beyond those it needs is its own affair
        return Share(grant, "" if grant is not None else self._lack(node, claim))

    def _grant(self, node: str, claim: Claim, *, keeps: bool) -> Grant | None:
        room, holders = self._rooms[node], self._held[node]
        has_it = claim.run in holders
        if room.is_limited and self._is_kept(node, claim) and not (keeps and has_it):
            return None
        if room.max_jobs and len(holders) >= room.max_jobs and not has_it:
            return None
        if room.slots is None:
            return NO_LIMIT
        return _chosen(room.slots, self._free_for(node, claim.run), claim.need, claim.held.get(node, ()))

    def _is_kept(self, node: str, claim: Claim) -> bool:
        """Whether an earlier run waits for what this one would take."""
        takes_any = claim.need != 0 or self._rooms[node].max_jobs > 0
        return node in self._waiting and takes_any

    def _others(self, node: str, run: str) -> dict[str, Counter[str] | None]:
        return {holder: held for holder, held in self._held[node].items() if holder != run}

    def _take(self, node: str, run: str, grant: Grant) -> None:
        if self._rooms[node].is_limited:
            before = self._held[node].get(run, Counter())
            now = _union([grant])
            self._held[node][run] = None if before is None or now is None else before | now
            self._free.pop(node, None)
            self._told.pop(node, None)

    def _free_for(self, node: str, run: str) -> list[int]:
        """The places of slots that no other run holds."""
        slots = self._rooms[node].slots or ()
        if run in self._held[node]:
            return _free(slots, self._others(node, run).values())
        if node not in self._free:
            self._free[node] = _free(slots, self._held[node].values())
        return self._free[node]

    def _whose(self, node: str, run: str) -> str:
        slots = self._rooms[node].slots or ()
        if run in self._held[node]:
            return _whose(slots, self._others(node, run))
        if node not in self._told:
            self._told[node] = _whose(slots, self._held[node])
        return self._told[node]

    def _lack(self, node: str, claim: Claim) -> str:
        """Why a run gets nothing of a node; "": it could."""
        room = self._rooms[node]
        if not can_ever(room.slots, claim.need):
            has = len(room.slots or ())
            return f"it has {_count(has, 'slot')}, and the job takes {claim.need or 'at least 1'} of a node"
        holders = self._held[node]
        if room.max_jobs and len(holders) >= room.max_jobs and claim.run not in holders:
            return f"it takes {_count(room.max_jobs, 'job')} at once (node.max_jobs): {some_of(sorted(holders))}"
        count = len(room.slots or ()) if claim.need is None else claim.need
        if room.slots is not None and len(self._free_for(node, claim.run)) < count:
            return self._whose(node, claim.run)
        if self._is_kept(node, claim) and self._waiting[node] != claim.run:
            return f"{self._waiting[node]} was accepted before, and waits for it"
        return ""


def _union(grants: Iterable[Grant]) -> Counter[str] | None:
    """All that a run holds of a node by several grants, of which it uses one at a time; None: everything."""
    names: Counter[str] = Counter()
    for grant in grants:
        if grant.devices is None:
            return None
        names |= Counter(grant.devices)
    return names


def _free(slots: Sequence[str], others: Iterable[Counter[str] | None]) -> list[int]:
    """The places of slots that nobody holds, lowest first."""
    taken: Counter[str] = Counter()
    for held in others:
        if held is None:
            return []
        taken += held
    free = []
    for place, name in enumerate(slots):
        if taken[name] > 0:
            taken[name] -= 1
        else:
            free.append(place)
    return free


def _chosen(slots: Sequence[str], free: Sequence[int], need: int | None, held: Iterable[Grant]) -> Grant | None:
    """As many free slots as are needed: those it holds already, else neighbours, else the lowest."""
    if need == 0:
        return NOTHING
    count = len(slots) if need is None else need
    if len(free) < count:
        return None
    names = Counter(slots[place] for place in free)
    for grant in held:
        if grant.devices is not None and len(grant.devices) == count and Counter(grant.devices) <= names:
            return grant
    starts = range(len(free) - count + 1)
    first = next((start for start in starts if free[start + count - 1] - free[start] == count - 1), 0)
    return Grant(tuple(slots[place] for place in free[first : first + count]))


def _whose(slots: Sequence[str], others: Mapping[str, Counter[str] | None]) -> str:
    """`its 8 slots are vit@ab12cd's`, `4 of its 8 slots are vit@ab12cd's, 2 bert@9f2c11's`."""
    total = len(slots)
    counts = {run: total if held is None else held.total() for run, held in others.items()}
    counts = {run: count for run, count in counts.items() if count}
    if len(counts) == 1 and next(iter(counts.values())) >= total:
        return f"its {_count(total, 'slot')} {'are' if total > 1 else 'is'} {next(iter(counts))}'s"
    told = [f"{count} {run}'s" for run, count in counts.items()]
    first, *rest = told[:3] or ["0"]
    number, _, whose = first.partition(" ")
    verb = "is" if number == "1" else "are"
    more = [f"{len(told) - 3} more runs have some"] if len(told) > 3 else []
    return ", ".join([f"{number} of its {_count(total, 'slot')} {verb} {whose}", *rest, *more])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
