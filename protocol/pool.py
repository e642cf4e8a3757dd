"""The nodes of the fleet as one run sees them: which it may have, how good they are, and what they offer. Pure.

When they are enough for a generation: rendezvous.py. A node that the run is to leave (departures.py), or that has had
trouble (exclusion.py), is used where there are too few others, or not at all.
"""

import fnmatch
import math
import re
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from protocol.allotment import slots_needed, suits
from protocol.coordinator_events import RosterNode, Want
from protocol.dataclass import dataclass
from protocol.departures import Departures
from protocol.exclusion import Exclusions
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
class Outlook:
    """Nodes, by what another generation could make of them; best first."""

    stay: tuple[str, ...]  # have ranks, and may have some again
    join: tuple[str, ...]  # have none, and offer themselves
    drained: tuple[RosterNode, ...]  # have ranks, and are to be free
    last_resorts: tuple[str, ...]  # those that would be used where there are too few others: draining, or excluded


def matches(topology: TopologyTable, node: RosterNode) -> bool:
    """Whether a job may run on a node at all."""
    is_named = not topology.nodes or _is_one_of(node.name, topology.nodes)
    has_labels = all(node.labels.get(key) == value for key, value in topology.node_labels.items())
    return is_named and not _is_one_of(node.name, topology.exclude) and has_labels


def _is_one_of(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


class Pool:
    """The nodes of one run. Times are boot-time seconds of the coordinator's node."""

    def __init__(self, spec: JobSpec, slots: Mapping[str, int]) -> None:
        self.leaving = Departures()
        self.exclusions = Exclusions(spec.restart.exclude_node_after)
        self.slots = dict(slots)
        self.version = 0  # goes up with each change of what nodes there are, and offer
        self.unfit: dict[str, str] = {}  # node -> why it cannot run this job
        self.seen: Iterable[RosterNode] = ()  # the roster that was handed in last
        self._roster: dict[str, RosterNode] = {}
        self._offers: dict[str, tuple[Offer, float]] = {}  # node -> its offer, and when that was heard
        self._failed: dict[str, int] = {}  # node -> starts of a runner that failed in a row
        self._without = ""
        self.ignorant: set[str] = set()  # nodes whose runner may know of no allotment: it would use any device there
        self.lapsed: set[str] = set()  # nodes that were lost, and not heard since: nobody waits for them
        self.wanted: frozenset[str] = frozenset()  # nodes that have to have a runner, as was said last
        self._wants_cause: tuple[object, object] = (None, None)
        self._ranked: tuple[str, ...] | None = None  # the eligible nodes, best first; None: to be sorted anew
        self.reload(spec)

    # --- what is known -------------------------------------------------------------------------------------------

    def reload(self, spec: JobSpec) -> None:
        """The job is this one from now on."""
        self._topology, self._table = spec.topology, spec.rendezvous
        self._before: tuple[int, int] | None = None  # numbers of nodes that do until there are enough for those
        self.exclusions.after = spec.restart.exclude_node_after
        self.exclusions.see(self._roster.values())
        self._slots_needed = slots_needed(spec)
        self._named = tuple(filter(self._is_named, self._topology.nodes))  # without a glob
        self.unfit.clear()
        self._change()

    @property
    def topology(self) -> TopologyTable:
        """The job's, with the numbers of nodes that an operator wants."""
        return self._topology

    def scale(self, nnodes: tuple[int, int], before: tuple[int, int] | None) -> None:
        """The run is on as many nodes from now on; or on those `before` for as long as there are too few."""
        self._topology, self._before = replace(self._topology, nnodes=nnodes), before
        self._change()

    @property
    def least(self) -> int:
        """Without so many nodes there is no generation."""
        least = self._topology.nnodes[0]
        return least if self._before is None else min(least, self._before[0])

    def topology_of(self, nodes: int) -> TopologyTable:
        """What holds for a generation for which there are so many nodes."""
        if self._before is None or nodes >= self._topology.nnodes[0]:
            return self._topology
        return replace(self._topology, nnodes=self._before)

    def _change(self) -> None:
        self._ranked = None
        self.version += 1

    def _count(self, node: str, is_news: bool) -> None:
        """What a node with ranks offers makes no difference to others."""
        self.version += is_news and node not in self.leaving.seated

    def see(self, nodes: Iterable[RosterNode]) -> None:
        """The nodes of the fleet."""
        self.seen = nodes
        self._roster = {node.name: node for node in nodes}
        self.leaving.see(nodes)
        self.exclusions.see(nodes)
        self._change()

    def give_notice(self, preempted: Mapping[str, str]) -> None:
        """These nodes were given notice, each in this start of its supd."""
        self.leaving.preempted = preempted
        self._change()

    def blame(self, node: str) -> None:
        """An incident of this run began on a node."""
        self.exclusions.blame(node)
        self._change()

    def look(self, now_s: float) -> None:
        """What time it is."""
        if self.leaving.look(now_s) | self.exclusions.look(now_s):
            self._change()

    def knows(self, node: str) -> bool:
        """Whether it is, or was, a node of the fleet."""
        return node in self._roster or node in self.slots

    def start(self, node: str) -> str:
        """Which start of its supd that is; "": it is not known."""
        return self._roster[node].start if node in self._roster else ""

    def signals(self, node: str) -> frozenset[str]:
        """Those that its supd was sent."""
        return self._roster[node].signals if node in self._roster else frozenset()

    def lets_go(self, node: str) -> bool:
        """Whether a runner that has nothing to do there is to end: the node is to be free, or looked at anew once its
        exclusion is over."""
        known = self._roster.get(node)
        if known is None:
            return False
        is_left_out = self.exclusions.holds(node) and not self.uses(node)
        return is_left_out or (known.drain is not None and self.leaving.is_out(known))

    def is_up(self, node: str) -> bool:
        """Whether the supd of a node answers."""
        return node in self._roster and self._roster[node].is_up

    def hear(self, node: str, offer: Offer | None, now_s: float) -> bool:
        """What a node's runner offers; None: it runs something. Returns whether the node is unfit for a new reason."""
        self._failed.pop(node, None)
        self.find(node)
        if offer is None:
            self.forget(node)
            return False
        if offer.knows_devices == (node in self.ignorant):
            self.ignorant ^= {node}
            self._change()
        known, heard_s = self._offers.get(node, (None, -math.inf))
        self._offers[node] = offer, now_s
        if offer.problem:
            return self._cannot(node, offer.problem)
        is_news = known is None or is_sound(known) != is_sound(offer) or now_s - heard_s > FRESH_S
        self._count(node, is_news)
        if self.unfit.pop(node, None) is not None:
            self._change()
        return False

    def forget(self, node: str) -> None:
        """Its runner offers nothing."""
        self._count(node, self._offers.pop(node, None) is not None)

    def bury(self, node: str) -> None:
        """Its runner is gone."""
        self.forget(node)
        if node in self.ignorant:
            self.ignorant.remove(node)
            self._change()

    def lose(self, node: str) -> None:
        """It is silent, and its lease is over: others come before it until it is heard again."""
        self.forget(node)
        self.lapsed.add(node)
        self._change()

    def find(self, node: str) -> bool:
        """It is heard; returns whether it was lost."""
        was_lost = node in self.lapsed
        if was_lost:
            self.lapsed.remove(node)
            self._change()
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
        if is_news:
            self._change()
        return is_news

    def offer(self, node: str) -> Offer:
        """What a node offers, of those that were chosen: no more ranks with an accelerator than it was granted."""
        offer, devices = self._offers[node][0], self.devices(node)
        if self._topology.nproc_per_node in ("auto", "gpu") and devices and any(devices):
            return replace(offer, slots=min(offer.slots, len(devices)))
        return offer

    def devices(self, node: str) -> tuple[str, ...] | None:
        """What the run was granted of a node, of those that were chosen."""
        grant = self._roster[node].grant
        assert grant is not None, "chosen without a grant"
        return grant.devices

    # --- which nodes ---------------------------------------------------------------------------------------------

    def uses(self, node: str) -> bool:
        """Whether the run might have ranks on this node."""
        return node in self.eligible

    def may_use(self, node: str) -> bool:
        """Whether the job would ever run on it."""
        return node in self._roster and matches(self._topology, self._roster[node])

    def offers_soundly(self, node: str) -> bool:
        """Whether its runner could run ranks."""
        return node in self._offers and is_sound(self._offers[node][0])

    def _is_named(self, pattern: str) -> bool:
        """Whether an entry of `nodes` names one node, which is not excluded."""
        return not GLOB.search(pattern) and not _is_one_of(pattern, self._topology.exclude)

    @property
    def eligible(self) -> tuple[str, ...]:
        """The nodes that may take part, best first: the candidates on which the run was granted what it needs."""
        if self._ranked is None:
            candidates = self.candidates(self._roster.values())
            self._ranked = tuple(n.name for n in self._suiting(candidates))
        return self._ranked

    @property
    def need(self) -> int | None:
        """How many slots the run takes of each of its nodes; None: all that there are."""
        limited = (n for n in self.ignorant if n in self._roster and self._roster[n].slots is not None)
        return None if self._slots_needed and any(limited) else self._slots_needed

    def _suiting(self, nodes: Iterable[RosterNode]) -> list[RosterNode]:
        """Those of which the run was granted what it needs: all, where a runner knows of no allotment."""
        need = self.need
        return [n for n in nodes if suits(n.grant, need) and (n.name not in self.ignorant or self._is_whole(n))]

    def _is_whole(self, node: RosterNode) -> bool:
        devices = None if node.grant is None else node.grant.devices
        return devices is None or self._slots_needed == 0 or devices == node.slots

    def candidates(self, nodes: Iterable[RosterNode]) -> list[RosterNode]:
        """Those of these nodes that might take part, whatever is free there, best first: who was not lost, who has a
        slot, who answers, who has less to do, then in order. A node that is excluded does where there are too few."""
        fit = (n for n in nodes if n.name not in self.unfit and n.name != self._without)
        stays = (n for n in fit if not self.leaving.is_out(n))
        ranked = sorted((n for n in stays if matches(self._topology, n)), key=self._rank)
        sound = [n for n in ranked if not self.exclusions.holds(n.name)]
        staying = [n for n in sound if not self.leaving.is_last_resort(n)]
        return sound if sum(n.is_up for n in staying) >= self.least else ranked

    @property
    def nnodes(self) -> tuple[int, int]:
        """Between how many nodes it is."""
        return self._topology.nnodes

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

    def _is_last_resort(self, node: RosterNode) -> bool:
        return self.leaving.is_last_resort(node) or self.exclusions.holds(node.name)

    def _rank(self, node: RosterNode) -> tuple[bool, bool, bool, bool, bool, bool, int, tuple[object, ...]]:
        holds = node.name in self.slots
        return (
            self.leaving.is_last_resort(node),  # else a drain would not end
            self.exclusions.holds(node.name),
            node.name in self.lapsed,
            self.exclusions.is_on_parole(node.name),
            not holds,
            not node.is_up,
            0 if holds else node.other_runs,
            self._place(node.name, node),
        )

    def _placed(self, name: str) -> tuple[object, ...]:
        return self._place(name, self._roster.get(name))

    def _place(self, name: str, node: RosterNode | None) -> tuple[object, ...]:
        """Where a node stands by `rank_order`; nodes that are not there come last."""
        order = self._topology.rank_order
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
        return self.missed_all((node,))

    def missed_all(self, nodes: Collection[str]) -> str:
        """Why the run cannot do without any of these nodes of the fleet; "": it can."""
        left = [n.name for n in self._usable() if n.name not in nodes and n.is_up]
        least = self.least
        if len(left) >= least:
            return ""
        here = f" ({some_of(left)})" if left else ""
        return f"{len(left)} node{'' if len(left) == 1 else 's'}{here} would be left, and the job wants {least}"

    def outlook(self, seated: Collection[str], now_s: float) -> Outlook:
        """What could be made of a generation that is on these nodes."""
        sure, there = self._sure(self.eligible), {n for n in self._there(now_s) if self._roster[n].is_up}
        return Outlook(
            stay=tuple(n for n in sure if n in seated),
            join=tuple(n for n in sure if n not in seated and n in there),
            drained=tuple(self._roster[n] for n in seated if n in self._roster and self._roster[n].drain is not None),
            last_resorts=tuple(n for n in self.eligible if n not in sure and (n in seated or n in there)),
        )

    def spares(self, seated: Collection[str]) -> tuple[str, ...]:
        """The nodes that stand by, while these have ranks."""
        return tuple(n for n in self.pool if n not in seated and n in self._offers and self._roster[n].is_up)

    def _there(self, now_s: float) -> list[str]:
        """The nodes whose offers can be counted on, best first."""
        fresh = {n for n, (offer, heard_s) in self._offers.items() if is_sound(offer) and now_s - heard_s <= FRESH_S}
        there = [node for node in self.eligible if node in fresh]
        return there[: self._worth(there)]

    def _worth(self, nodes: Collection[str]) -> int:
        """How many of these, which are sorted, would be used, but for how many the job wants: all that the run is not
        to leave, and as many more as it needs."""
        return max(len(self._sure(nodes)), self.topology_of(len(nodes)).nnodes[0])

    def _sure(self, nodes: Iterable[str]) -> list[str]:
        """Of these nodes of the fleet, those that the run is not to leave."""
        return [node for node in nodes if not self._is_last_resort(self._roster[node])]

    def _absent(self) -> list[str]:
        """Nodes that the job names and the fleet does not know."""
        return [name for name in self._named if name not in self._roster and name != self._without]

    def _unmet(self) -> list[str]:
        """Nodes that have a place and have not joined: the coordinator has lost its journal since they got it."""
        return [n for n in self.slots if n not in self._roster and n not in self._named and n != self._without]

    def may_suffice(self, without: Collection[str] = ()) -> bool:
        """Whether nodes enough are there, or may be soon, whatever is free on them."""
        return self._left(without) >= self.least

    def may_go_on(self) -> bool:
        """The same, where nodes may also join that have a place, whether the job names them or not."""
        away = (n for n in self.slots if n not in self._roster and n != self._without)
        return self._left() + sum(n not in self.leaving.preempted for n in away) >= self.least

    def _left(self, without: Collection[str] = ()) -> int:
        candidates = self.candidates(self._roster.values())
        return sum((n.is_up or n.may_come) and n.name not in without for n in candidates)

    def _usable(self) -> list[RosterNode]:
        """The candidates that it has been granted, or could be."""
        candidates = self.candidates(self._roster.values())
        return self._suiting(candidates) + [n for n in candidates if not (n.grant or n.lack)]


def natural(name: str) -> tuple[object, ...]:
    """A key that sorts gpu-2 before gpu-10."""
    return tuple(
        (1, int(piece), piece) if piece.isdecimal() else (0, 0, piece) for piece in re.split(r"([0-9]+)", name) if piece
    )
