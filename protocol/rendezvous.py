"""Which nodes a run may have, on which it wants a runner, and when enough of them are there for a generation. Pure.

A run is on `topology.nnodes` = MIN:MAX nodes. It goes at once with as many as it wants (MAX to "grow"; with "standby"
MIN, of whom the first generation also waits for those that come before them in order). With MIN it goes as soon as
nobody else may come, at the latest after `last_call`. Below MIN it waits, by name, and fails after `join_timeout`.

Slots are stable: a node keeps its place in the order of ranks for as long as nobody has inherited it; who is new
takes the lowest place that is free.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.coordinator_events import RosterNode, Want
from protocol.job import JobSpec, TopologyTable
from protocol.messages.member import Offer
from protocol.seating import is_sound
from protocol.text import one_line, some_of

FRESH_S = 3.0
"""How old an offer may be. It comes with each renewal, once a second: who has been silent for longer does not count."""

ATTEMPTS_MAX = 5
"""How often in a row a runner may fail to start on a node before the run does without it; it is tried each second."""

GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Before:
    """What was before the generation that is gathered for."""

    is_none: bool  # it is the first
    port: int | None  # of rank 0, which must be another one now; None: it need not
    busy: Collection[str] = ()  # nodes where something may be alive


@dataclass(frozen=True)
class Go:
    """Launch on these nodes, in the order of their ranks."""

    nodes: tuple[str, ...]
    slots: dict[str, int]  # of these and of those that may still come back to theirs


@dataclass(frozen=True)
class Wait:
    """Go on waiting, for what; `until_s` is when that ends by itself."""

    text: str
    until_s: float | None = None


@dataclass(frozen=True)
class Hopeless:
    """There will be no generation."""

    reason: str
    lacks_nodes: bool = False


def matches(topology: TopologyTable, node: RosterNode) -> bool:
    """Whether a job may run on a node at all."""
    is_named = not topology.nodes or _is_one_of(node.name, topology.nodes)
    has_labels = all(node.labels.get(key) == value for key, value in topology.node_labels.items())
    return is_named and not _is_one_of(node.name, topology.exclude) and has_labels


def _is_one_of(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


class Rendezvous:
    """Gathers the nodes of one run. Times are boot-time seconds of the coordinator's node."""

    def __init__(self, spec: JobSpec, slots: Mapping[str, int], *, allow_mixed: bool) -> None:
        self._topology, self._table = spec.topology, spec.rendezvous
        self._allow_mixed = allow_mixed
        self._named = tuple(filter(self._is_named, self._topology.nodes))  # without a glob
        self.slots = dict(slots)
        self.unfit: dict[str, str] = {}  # node -> why it cannot run this job
        self._roster: dict[str, RosterNode] = {}
        self._offers: dict[str, tuple[Offer, float]] = {}  # node -> its offer, and when that was heard
        self._failed: dict[str, int] = {}  # node -> starts of a runner that failed in a row
        self.deadline_s: float | None = None  # when time alone may change what was decided last
        self._since_s: float | None = None  # when this rendezvous began
        self._enough_since_s: float | None = None  # when MIN nodes were there
        self._without = ""
        self.lapsed: set[str] = set()  # nodes that were lost, and not heard since: nobody waits for them
        self.wanted: frozenset[str] = frozenset()  # nodes that have to have a runner, as was said last
        self._wants_cause: tuple[object, object] = (None, None)
        self._ranked: tuple[str, ...] | None = None  # the eligible nodes, best first; None: to be sorted anew

    # --- what is known -------------------------------------------------------------------------------------------

    def begin(self, without: str, now_s: float) -> None:
        """Gather for a generation, which leaves out this node ("": none)."""
        self._since_s, self._enough_since_s = now_s, None
        self._without, self._ranked = without, None
        # What starts have failed of may have passed; what a runner itself says of its node still holds.
        self.unfit = {node: one_line(offer.problem) for node, (offer, _) in self._offers.items() if offer.problem}
        self._failed.clear()

    def rest(self) -> None:
        """The generation is launched, or there will be none: nobody is gathered until the next `begin`."""
        self._since_s = self._enough_since_s = self.deadline_s = None
        self._without, self._ranked = "", None

    def see(self, nodes: Iterable[RosterNode]) -> None:
        """The nodes of the fleet."""
        self._roster = {node.name: node for node in nodes}
        self._ranked = None

    def knows(self, node: str) -> bool:
        """Whether it is, or was, a node of the fleet."""
        return node in self._roster or node in self.slots

    def is_up(self, node: str) -> bool:
        """Whether the supd of a node answers."""
        return node in self._roster and self._roster[node].is_up

    def hear(self, node: str, offer: Offer | None, now_s: float) -> bool:
        """What a node's runner offers; None: it runs something. Returns whether the node is unfit for a new reason."""
        self._failed.pop(node, None)
        self.find(node)
        if offer is None:
            self._offers.pop(node, None)
            return False
        self._offers[node] = offer, now_s
        if offer.problem:
            return self._cannot(node, offer.problem)
        if self.unfit.pop(node, None) is not None:
            self._ranked = None
        return False

    def forget(self, node: str) -> None:
        """Its runner is gone."""
        self._offers.pop(node, None)

    def lose(self, node: str) -> None:
        """It is silent, and its lease is over: others come before it until it is heard again."""
        self.forget(node)
        self.lapsed.add(node)
        self._ranked = None

    def find(self, node: str) -> bool:
        """It is heard; returns whether it was lost."""
        was_lost = node in self.lapsed
        if was_lost:
            self.lapsed.remove(node)
            self._ranked = None
        return was_lost

    def fail(self, node: str, reason: str) -> bool:
        """The start of a runner has failed; returns whether that was once too often, so that the node is unfit."""
        self._failed[node] = self._failed.get(node, 0) + 1
        if self._failed[node] < ATTEMPTS_MAX:
            return False
        return self._cannot(node, f"no runner could be started: {reason}")

    def _cannot(self, node: str, why: str) -> bool:
        is_news = self.unfit.get(node) != one_line(why)
        self.unfit[node] = one_line(why)
        self._ranked = None
        return is_news

    # --- which nodes ---------------------------------------------------------------------------------------------

    def _is_named(self, pattern: str) -> bool:
        """Whether an entry of `nodes` names one node, which is not excluded."""
        return not GLOB.search(pattern) and not _is_one_of(pattern, self._topology.exclude)

    @property
    def eligible(self) -> tuple[str, ...]:
        """The nodes that may take part, best first: who was not lost, who has a slot, who answers, who has less to do,
        then in order."""
        if self._ranked is None:
            fit = (n for n in self._roster.values() if n.name not in self.unfit and n.name != self._without)
            chosen = (n for n in fit if matches(self._topology, n))
            self._ranked = tuple(n.name for n in sorted(chosen, key=self._rank))
        return self._ranked

    @property
    def pool(self) -> tuple[str, ...]:
        """The nodes that are to have a runner: as many as the run can use, spares included."""
        return self.eligible[: self._topology.nnodes[1]]

    def new_wants(self, not_asked: frozenset[str] | None) -> list[Want]:
        """Which nodes have to have a runner, if that has changed: those of the pool but these; None: no node.

        A set is made anew only where what it follows from is another object: with a thousand nodes it is large.
        """
        cause = (not_asked, None if not_asked is None else self.eligible)
        if all(now is before for now, before in zip(cause, self._wants_cause, strict=True)):
            return []
        self._wants_cause = cause
        wanted = frozenset() if not_asked is None else frozenset(self.pool) - not_asked
        if wanted == self.wanted:
            return []
        self.wanted = wanted
        return [Want(wanted)]

    def _rank(self, node: RosterNode) -> tuple[bool, bool, bool, int, tuple[object, ...]]:
        holds = node.name in self.slots
        return (
            node.name in self.lapsed,
            not holds,
            not node.is_up,
            0 if holds else node.other_runs,
            self._place(node.name),
        )

    def _place(self, name: str) -> tuple[object, ...]:
        """Where a node stands by `rank_order`; nodes that are not there come last."""
        node, order = self._roster.get(name), self._topology.rank_order
        if order == "join":
            return (node is None, node.joined if node else 0, *natural(name))
        if order.startswith("label:"):
            label = node.labels.get(order.removeprefix("label:")) if node else None
            return (label is None, natural(label or ""), *natural(name))
        return natural(name)

    def missed(self, node: str) -> str:
        """Why the run cannot do without this node; "": it can."""
        if node not in self._roster:
            return f"there is no node {node} in the fleet"
        left = [n for n in self.eligible if n != node and self._roster[n].is_up]
        least = self._topology.nnodes[0]
        if len(left) >= least:
            return ""
        here = f" ({some_of(left)})" if left else ""
        return f"{len(left)} node{'' if len(left) == 1 else 's'}{here} would be left, and the job wants {least}"

    def spares(self, seated: Collection[str]) -> tuple[str, ...]:
        """The nodes that stand by, while these have ranks."""
        return tuple(n for n in self.pool if n not in seated and n in self._offers and self._roster[n].is_up)

    # --- when ----------------------------------------------------------------------------------------------------

    def may_decide(self) -> bool:
        """Whether there can be anything to decide, quickly: a thousand offers come one by one."""
        return bool(self.unfit) or len(self._offers) >= self._topology.nnodes[0]

    def decide(self, before: Before, now_s: float) -> Go | Wait | Hopeless:
        """Whether a generation can begin."""
        assert self._since_s is not None, "decided outside a rendezvous"
        are_enough = len(self._there(now_s)) >= self._topology.nnodes[0]
        if not are_enough:
            self._enough_since_s = None
        elif self._enough_since_s is None:
            self._enough_since_s = now_s
        decision = self.foresee(before, now_s)
        late_s = self._since_s + self._table.join_timeout_s
        self.deadline_s = late_s if now_s < late_s else None
        if isinstance(decision, Wait) and decision.until_s is not None:
            self.deadline_s = decision.until_s
        return decision

    def foresee(self, before: Before, now_s: float) -> Go | Wait | Hopeless:
        """What would be decided now, if it were: for those who look on."""
        if self._since_s is None:
            return Wait("the nodes of the fleet")
        if before.busy:  # R1; a runner was ahead of a coordinator that had lost its memory
            return Wait(f"what runs on {some_of(sorted(before.busy))} to end")
        least, most = self._topology.nnodes
        late_s = self._since_s + self._table.join_timeout_s
        if self.unfit and len(self.eligible) + len(self._absent()) + len(self._unmet()) < least:
            node, why = next(iter(self.unfit.items()))
            return Hopeless(f"{node}: {why}")
        there = self._there(now_s)
        if len(there) < least:
            lack = self._lack(there, least)
            if now_s < late_s:
                return Wait(lack, late_s)
            waited_s = self._table.join_timeout_s
            return Hopeless(f"too few nodes after {waited_s:g} s (rendezvous.join_timeout): {lack}", lacks_nodes=True)
        enough_since_s = now_s if self._enough_since_s is None else self._enough_since_s
        last_call_s = enough_since_s + self._table.last_call_s
        wanted = self._topology.nnodes_wanted
        missing = self._may_come(there)
        is_full = len(there) >= (most if before.is_none else wanted)
        if missing and not is_full and now_s < last_call_s:
            return Wait(f"{self._names(missing)}, which may still come (last call)", last_call_s)
        chosen = self._seated(there[:wanted])
        odd = "" if self._allow_mixed else self._odd(chosen)
        if odd:
            return Hopeless(odd) if before.is_none or now_s >= late_s else Wait(odd, late_s)
        if self._offers[chosen[0]][0].port == before.port:
            return Wait(f"another port on {chosen[0]} than the last generation's")
        return Go(chosen, self._slots_of(chosen))

    def offer(self, node: str) -> Offer:
        """What a node offers, of those that were chosen."""
        return self._offers[node][0]

    def _there(self, now_s: float) -> list[str]:
        """The nodes whose offers can be counted on, best first."""
        fresh = {n for n, (offer, heard_s) in self._offers.items() if is_sound(offer) and now_s - heard_s <= FRESH_S}
        return [node for node in self.eligible if node in fresh]

    def _may_come(self, there: Collection[str]) -> list[str]:
        """Who is not there and may be soon: nodes that answer, or did a moment ago, and nodes that the job names."""
        present = set(there)
        pool = (self._roster[name] for name in self.pool if name not in present and name not in self.lapsed)
        return [*(node.name for node in pool if node.is_up or node.may_come), *self._absent()]

    def _absent(self) -> list[str]:
        """Nodes that the job names and the fleet does not know."""
        return [name for name in self._named if name not in self._roster and name != self._without]

    def _unmet(self) -> list[str]:
        """Nodes that have a place and have not joined: the coordinator has lost its journal since they got it."""
        return [n for n in self.slots if n not in self._roster and n not in self._named and n != self._without]

    def _lack(self, there: Collection[str], least: int) -> str:
        offers = ((node, self._offers[node][0]) for node in self.pool if node in self._offers)
        held = {node: offer.waits_for for node, offer in offers if offer.waits_for}
        present = {*there, *held}
        missing = [*(name for name in self.pool if name not in present), *self._absent()]
        if least == 1 and (missing or held):
            return "; ".join([*held.values(), *([self._names(missing)] if missing else [])])
        more = least - len(present) - len(missing)
        others = f"{more} more node{'s' if more > 1 else ''} to join the fleet" if more > 0 else ""
        whom = " and ".join(filter(None, (*held.values(), self._names(missing) if missing else "", others)))
        here = f", {some_of(there)} {'are' if len(there) > 1 else 'is'} there" if there else ""
        return f"{whom} ({len(there)} of {least} nodes{here}{self._left_out()})"

    def _left_out(self) -> str:
        """The nodes of the fleet that do not help, and why."""
        other = [node.name for node in self._roster.values() if not matches(self._topology, node)]
        names = some_of(sorted(other, key=natural))
        told = f"; {names} in the fleet, not in [topology] nodes, exclude, node_labels" if other else ""
        told += "".join(f"; {node}: {why}" for node, why in list(self.unfit.items())[:3])
        return f"{told}; {self._without} is left out" if self._without else told

    def _names(self, nodes: Iterable[str]) -> str:
        """`the runner on a, b; c (unreachable); d (has not joined the fleet)`."""
        known = {name: self._roster.get(name) for name in nodes}
        coming = [name for name, node in known.items() if node is not None and node.is_up]
        away = [name for name, node in known.items() if node is not None and not node.is_up]
        absent = [name for name, node in known.items() if node is None]
        told = [f"the runner on {some_of(coming)}"] if coming else []
        told += [f"{some_of(away)} (unreachable)"] if away else []
        told += [f"{some_of(absent)} ({'have' if len(absent) > 1 else 'has'} not joined the fleet)"] if absent else []
        return "; ".join(told)

    # --- slots and digests ---------------------------------------------------------------------------------------

    def _seated(self, chosen: Iterable[str]) -> tuple[str, ...]:
        slots = self._slots_of(chosen)
        return tuple(sorted(chosen, key=slots.__getitem__))

    def _slots_of(self, chosen: Iterable[str]) -> dict[str, int]:
        """Everybody's slot once these have theirs: others keep one that nobody has inherited."""
        held = {node: self.slots[node] for node in chosen if node in self.slots}
        taken = set(held.values())
        free = (slot for slot in range(len(self.slots) + len(self._roster) + 1) if slot not in taken)
        new = sorted((node for node in chosen if node not in held), key=self._place)
        given = held | dict(zip(new, free, strict=False))
        away = {n: slot for n, slot in self.slots.items() if n not in given and slot not in given.values()}
        return given | away

    def _odd(self, chosen: Collection[str]) -> str:
        """Which node would not run the same as the others, and in what; "": they all would."""
        digests = {node: self._offers[node][0].digest for node in chosen}
        for what in dict.fromkeys(key for digest in digests.values() for key in digest):
            by_value: dict[str, list[str]] = {}
            for node, digest in digests.items():
                by_value.setdefault(digest.get(what, "none"), []).append(node)
            if len(by_value) > 1:
                kinds = sorted(by_value.items(), key=lambda kind: len(kind[1]))
                said = " and ".join(f"{value} on {some_of(nodes)}" for value, nodes in kinds[:4])
                return f"nodes would not run the same: {what} is {said} (supctl start --allow-mixed launches anyway)"
        return ""


def natural(name: str) -> tuple[object, ...]:
    """A key that sorts gpu-2 before gpu-10."""
    return tuple(
        (1, int(piece), piece) if piece.isdecimal() else (0, 0, piece) for piece in re.split(r"([0-9]+)", name) if piece
    )
