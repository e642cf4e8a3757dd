"""Planned changes of a run: which are wanted, what each waits for, and when it goes. Pure.

A change is no order that was given once: what is wanted follows, at every look, from the fleet and the job.

    drain   a node of the generation is to be free
    grow    nodes offer themselves that could have ranks
    scale   an operator wants other numbers of nodes than it has

It goes at a *safe point* (docs/protocol.md, P1): the moment after a checkpoint was seen in the generation that runs;
only one that was seen after the change could go counts. At its deadline it goes without one. Whatever else ends the
generation goes before it.
"""

import math
from collections.abc import Iterator

from protocol.coordinator_events import Note
from protocol.dataclass import dataclass, replace
from protocol.departures import what
from protocol.job import JobSpec
from protocol.messages.upkeep import PLAN_DEADLINE_S
from protocol.pool import Outlook
from protocol.text import range_text, some_of

NEXT_SAVE = "the next checkpoint"
SETTLE_S = 2.0
"""Offers and rosters come each second: what a change lacks is only told once it has lacked that for so long."""

NO_SAVES = "its deadline: the job has no [checkpoint]"
WITHOUT_SAVE = "at its deadline, without a checkpoint"


@dataclass(frozen=True)
class Change:
    """One that is wanted. It goes at the next safe point, if `at_save`, and at `go_s`; not while it `lacks` something.
    Times are boot-time seconds of the coordinator's node."""

    key: str  # the same for as long as the same is wanted: "drain gpu-02", "grow", "scale"
    what: str  # for people: "gpu-02 is to be free (swap NIC)"
    why: str = ""  # the same once it goes: "gpu-03 joins"; "": as `what`
    waits_for: str = NEXT_SAVE
    lacks: str = ""  # why it cannot go yet, whatever is saved
    looks_for: str = ""  # what it lacks, where that may only not have come yet
    at_save: bool = True
    go_s: float = math.inf
    how: str = WITHOUT_SAVE  # it goes at `go_s`
    look_s: float = math.inf  # when time alone may end what it lacks
    is_membership: bool = False  # restart.count_membership is about it

    @property
    def awaits_save(self) -> bool:
        """Whether the next checkpoint lets it go."""
        return self.at_save and not self.lacks

    @property
    def due_s(self) -> float:
        """When time alone makes a difference to it."""
        return self.look_s if self.lacks else self.go_s

    @property
    def text(self) -> str:
        """What is to come, and what that waits for."""
        return f"{self.what}; {self.lacks or f'it waits for {self.waits_for}'}"

    def young(self, settled_s: float) -> "Change":
        """The same until then: what it lacks may come at once."""
        return replace(self, lacks=f"it looks for {self.looks_for}", look_s=settled_s)


@dataclass(frozen=True)
class Situation:
    """Of a run whose generation lives."""

    spec: JobSpec
    nnodes: tuple[int, int]  # as scaled
    least: int  # without so many there is no generation
    outlook: Outlook
    generation: int
    nodes: int  # of the generation
    is_running: bool  # every rank has started
    lives_since_s: float
    saves: int  # safe points of this generation so far
    saved_step: int | None
    scale_lacks: str  # what an operator's scale waits for, whatever is saved; "": nothing
    scale_s: float | None  # an operator's scale waits for a safe point until then; None: there is none
    is_spent: bool  # the restart budget, where that is to pay for a change of membership

    def without_saves(self, change: Change) -> Change:
        """The same where there are no safe points."""
        is_watched = self.spec.checkpoint.is_watched or not change.at_save
        return change if is_watched else replace(change, at_save=False, waits_for=NO_SAVES)


@dataclass(frozen=True)
class _Able:
    """Since when a change can go, and how many safe points there had been."""

    since_s: float
    saves: int
    at_save: bool  # whether it waits for one: what was saved while it waited for something else does not count


class Plans:
    """What is wanted of one run. `changes` is as it was looked at last."""

    def __init__(self) -> None:
        self.changes: tuple[Change, ...] = ()
        self._able: dict[str, _Able] = {}
        self._since_s: dict[str, float] = {}  # key -> when it was wanted first
        self._told: set[str] = set()  # keys of changes of which was told that they are to come
        self._generation: int | None = None

    @property
    def awaits_save(self) -> bool:
        """Whether a checkpoint would let one go."""
        return any(change.awaits_save for change in self.changes)

    @property
    def deadline_s(self) -> float | None:
        """When to look again, whatever happens; None: never."""
        due_s = min((change.due_s for change in self.changes), default=math.inf)
        return due_s if due_s < math.inf else None

    def wants(self, key: str) -> bool:
        """Whether that change is wanted."""
        return any(change.key == key for change in self.changes)

    def rest(self) -> None:
        """No generation lives that could end for a change."""
        self.changes, self._able, self._since_s = (), {}, {}

    def look(self, now: Situation, now_s: float) -> tuple[tuple[Change, ...], list[Note]]:
        """Which changes go now, and what is to be told."""
        is_new, self._generation = now.generation != self._generation, now.generation
        if is_new:
            self._able = {}
        grows = self._able.get("grow")
        wanted = tuple(_wanted(now, now_s if grows is None else grows.since_s, now_s))
        keys = {change.key for change in wanted}
        self._since_s = {key: self._since_s.get(key, now_s) for key in keys}
        settled_s = {key: since_s + SETTLE_S for key, since_s in self._since_s.items()}
        young = {c.key for c in wanted if c.lacks and c.looks_for and now_s < settled_s[c.key]}
        self.changes = tuple(c.young(settled_s[c.key]) if c.key in young else c for c in wanted)
        notes = [] if is_new else [_dropped(key, now.generation) for key in sorted(self._told - keys)]
        self._told &= keys
        able, known = {c.key: _Able(now_s, now.saves, c.at_save) for c in self.changes if not c.lacks}, self._able
        are_same = {key for key in able.keys() & known.keys() if known[key].at_save == able[key].at_save}
        self._able = {key: known[key] if key in are_same else new for key, new in able.items()}
        going = tuple(c for c in self.changes if c.key in able and self._goes(c, now, now_s))
        notes += [_begun(change, now, now_s) for change in going]
        if not going:
            told = keys - young
            notes += [_planned(c, now.generation, now_s) for c in self.changes if c.key in told - self._told]
            self._told |= told
        self._told -= {change.key for change in going}
        return going, notes

    def _goes(self, change: Change, now: Situation, now_s: float) -> bool:
        return now_s >= change.go_s or (change.at_save and now.saves > self._able[change.key].saves)


# --- what is wanted --------------------------------------------------------------------------------------------------


def _wanted(now: Situation, grows_s: float, now_s: float) -> Iterator[Change]:
    """`grows_s`: since when the run could have grown."""
    yield from _drains(now, now_s)
    scales = _scale(now)
    grows = _grow(now, grows_s, now_s) if scales is None else None
    yield from (change for change in (scales, grows) if change is not None)


def _drains(now: Situation, now_s: float) -> Iterator[Change]:
    least = now.least
    left = len(now.outlook.stay) + len(now.outlook.join)
    kept = now.outlook.last_resorts[: max(0, least - left)]  # as the next generation would have it
    is_short = left + len(kept) < least  # even with those: nothing would follow
    forced = {node.name for node in now.outlook.drained if node.drain is not None and not node.drain.at_checkpoint}
    left_then = left + sum(name not in forced for name in now.outlook.last_resorts)
    for node in now.outlook.drained:
        drain = node.drain
        assert drain is not None, "drained without a drain"
        change = Change(f"drain {node.name}", f"{node.name} {what(node)}", go_s=drain.go_s)
        if not drain.at_checkpoint:
            then = f", then for another node (rendezvous.join_timeout): {_count(left_then, least)}"
            waits_for = f"its time{then if left_then < least else ''}"
            yield replace(change, at_save=False, waits_for=waits_for, how=f"as {drain.by} wants")
            continue
        lacks = f"no spare: {_count(left, least)}" if is_short or node.name in kept else ""
        yield now.without_saves(replace(change, lacks=lacks, looks_for="a spare"))


def _count(left: int, least: int) -> str:
    return f"{left} node{'' if left == 1 else 's'} would be left, the job wants {least}"


def _scale(now: Situation) -> Change | None:
    if now.scale_s is None:
        return None
    least, most = now.nnodes
    may_grow = now.spec.topology.extra_nodes == "grow" and now.nodes < most
    if least <= now.nodes <= most and not (may_grow and now.outlook.join):
        return None
    told = f"{now.nodes} node{'s' if now.nodes > 1 else ''} to become {range_text(least, most)}"
    lacks = f"it waits for {now.scale_lacks}" if now.scale_lacks else ""
    change = Change("scale", told, lacks=lacks, looks_for="nodes", go_s=now.scale_s, is_membership=True)
    return now.without_saves(change)


def _grow(now: Situation, grows_s: float, now_s: float) -> Change | None:
    topology, most = now.spec.topology, now.nnodes[1]
    if topology.extra_nodes != "grow" or not now.is_running or now.nodes >= most or not now.outlook.join:
        return None
    joins = now.outlook.join[: most - now.nodes]
    change = Change(
        "grow",
        f"{some_of(joins)} could join",
        f"{some_of(joins)} {'joins' if len(joins) == 1 else 'join'}",
        go_s=grows_s + PLAN_DEADLINE_S,
        is_membership=True,
    )
    if not now.spec.checkpoint.is_watched and not topology.grow_without_checkpoint:
        why = "it has no [checkpoint] (topology.grow_without_checkpoint = true lets it join at once)"
        return replace(change, lacks=why)
    if now.is_spent:
        return replace(change, lacks="restart.max_restarts is spent, and restart.count_membership counts it")
    ready_s = now.lives_since_s + topology.grow_min_interval_s
    if now_s < ready_s:
        why = f"the generation lives for {topology.grow_min_interval_s:g} s first (topology.grow_min_interval)"
        return replace(change, lacks=why, look_s=ready_s)
    if not now.spec.checkpoint.is_watched:
        return replace(change, at_save=False, go_s=now_s, how="at once: the job has no [checkpoint]")
    return change


# --- what is told of it ----------------------------------------------------------------------------------------------


def _planned(change: Change, generation: int, now_s: float) -> Note:
    left_s = round(max(0.0, change.go_s - now_s), 3) if change.go_s < math.inf else None
    late = "" if change.lacks or left_s is None else f", for at most {left_s:.0f} s"
    return Note(
        "change.planned",
        f"{change.text}{late}",
        generation,
        {"change": change.key, "waits_for": change.lacks or change.waits_for, "deadline_s": left_s},
    )


def _begun(change: Change, now: Situation, now_s: float) -> Note:
    why, step = change.how, now.saved_step
    if now_s < change.go_s:
        why = "after a checkpoint" if step is None else f"after the checkpoint of step {step}"
    text = f"{change.why or change.what}: {why}"
    return Note("change.begun", text, now.generation, {"change": change.key, "why": why, "saved_step": step})


def _dropped(key: str, generation: int) -> Note:
    return Note("change.dropped", f"{key}: it is not wanted any more", generation, {"change": key})


def reason(changes: tuple[Change, ...]) -> str:
    """Why a generation ends for these, for its workers and the next one's."""
    return "; ".join(change.why or change.what for change in changes)
