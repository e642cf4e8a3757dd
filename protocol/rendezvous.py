"""Which nodes a run may have, on which it wants a runner, and when enough of them are there for a generation. Pure.

A run is on `topology.nnodes` = MIN:MAX nodes. It goes at once with as many as it wants (MAX to "grow"; with "standby"
MIN, of whom the first generation also waits for those that come before them in order). With MIN it goes as soon as
nobody else may come, at the latest after `last_call`. Below MIN it waits, by name, and fails after `join_timeout`.
Where an operator wants more nodes than come, it goes as before that.

Of a node that has slots a run gets some or none (allotment.py); without it does not count. Where nodes are enough, and
only slots are missing, a run waits for as long as other runs have them.

Places are stable: a node keeps its place in the order of ranks for as long as nobody has inherited it; who is new
takes the lowest place that is free.
"""

import math
from collections.abc import Collection, Iterable, Mapping

from protocol.allotment import lacked
from protocol.dataclass import dataclass
from protocol.job import JobSpec
from protocol.pool import Pool, matches, natural
from protocol.text import one_line, some_of


@dataclass(frozen=True)
class Before:
    """What was before the generation that is gathered for."""

    is_none: bool  # it is the first
    port: int | None  # of rank 0, which must be another one now; None: it need not
    busy: Collection[str] = ()  # nodes where something may be alive
    is_patient: bool = False  # nodes were taken away, and others are waited for for as long as it takes


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


class Rendezvous(Pool):
    """Gathers the nodes of one run. Times are boot-time seconds of the coordinator's node."""

    def __init__(self, spec: JobSpec, slots: Mapping[str, int], *, allow_mixed: bool) -> None:
        super().__init__(spec, slots)
        self._allow_mixed = allow_mixed
        self.deadline_s: float | None = None  # when time alone may change what was decided last
        self._enough_since_s: float | None = None  # when MIN nodes were there
        self._since_s: float | None = None  # when this rendezvous began
        self._was_short = False  # of slots, at the last look
        self.awaited: Collection[str] = ()  # nodes whose runner was let go: the next one may come later than a spare's

    def begin(self, without: str, now_s: float) -> None:
        """Gather for a generation, which leaves out this node ("": none)."""
        self._since_s, self._enough_since_s = now_s, None
        self._without = without
        self._change()
        # What starts have failed of may have passed; what a runner itself says of its node still holds.
        self.unfit = {node: one_line(offer.problem) for node, (offer, _) in self._offers.items() if offer.problem}
        self._failed.clear()

    def rest(self) -> None:
        """The generation is launched, or there will be none: nobody is gathered until the next `begin`."""
        self._since_s = self._enough_since_s = self.deadline_s = None
        self._without, self.awaited = "", ()
        self._change()

    def launch(self, seats: Collection[str], slots: Mapping[str, int]) -> None:
        """These nodes have the places of the newest generation."""
        self.slots, self.leaving.seated = dict(slots), frozenset(seats)
        self.rest()

    def part(self) -> None:
        """Nothing is left of the newest generation, and what follows is an operator's to say: who is to have one of its
        nodes free has it free."""
        self.leaving.seated = ()
        self._change()

    # --- when ----------------------------------------------------------------------------------------------------

    def may_decide(self) -> bool:
        """Whether there can be anything to decide, quickly: a thousand offers come one by one."""
        return bool(self.unfit) or len(self._offers) >= self.least

    def decide(self, before: Before, now_s: float) -> Go | Wait | Hopeless:
        """Whether a generation can begin."""
        assert self._since_s is not None, "decided outside a rendezvous"
        is_short = self.lacks_slots
        if is_short or self._was_short:  # `join_timeout` is for nodes; other runs may take as long as they want
            self._since_s = now_s
        self._was_short = is_short
        are_enough = len(self._there(now_s)) >= self.least
        if not are_enough:
            self._enough_since_s = None
        elif self._enough_since_s is None:
            self._enough_since_s = now_s
        decision = self.foresee(before, now_s)
        late_s = self._late_s(before)
        self.deadline_s = late_s if now_s < late_s < math.inf and not self._was_short else None
        if isinstance(decision, Wait) and decision.until_s is not None:
            self.deadline_s = decision.until_s
        return decision

    def foresee(self, before: Before, now_s: float) -> Go | Wait | Hopeless:
        """What would be decided now, if it were: for those who look on."""
        if self._since_s is None:
            return Wait("the nodes of the fleet")
        if before.busy:  # R1; a runner was ahead of a coordinator that had lost its memory
            return Wait(f"what runs on {some_of(sorted(before.busy))} to end")
        least = self.least
        late_s = self._late_s(before)
        until_s = late_s if late_s < math.inf else None
        if self.lacks_slots:
            return Wait(lacked(least, self.need, self.candidates(self._roster.values())))
        might_come = len(self._absent()) + len(self._unmet())
        if self.unfit and len(self.candidates(self._roster.values())) + might_come < least:
            node, why = next(iter(self.unfit.items()))
            return Hopeless(f"{node}: {why}")
        there = self._there(now_s)
        if len(there) < least:
            lack = self._lack(there, least)
            if now_s < late_s:
                return Wait(f"{lack}, without limit (preemption.then)" if before.is_patient else lack, until_s)
            waited_s = self._table.join_timeout_s
            return Hopeless(f"too few nodes after {waited_s:g} s (rendezvous.join_timeout): {lack}", lacks_nodes=True)
        enough_since_s = now_s if self._enough_since_s is None else self._enough_since_s
        last_call_s = enough_since_s + self._table.last_call_s
        missing = self._may_come(there)
        hoped = self.topology_of(len(there) + len(missing))
        enough = hoped.nnodes[1] if before.is_none else hoped.nnodes_wanted
        is_full = len(self._sure(there)) >= enough and not any(node in self.awaited for node in missing)
        if missing and not is_full and now_s < last_call_s:
            return Wait(f"{self._names(missing)}, which may still come (last call)", last_call_s)
        wanted = self.topology_of(len(there)).nnodes_wanted
        chosen = self._seated(there[:wanted])
        odd = "" if self._allow_mixed else self._odd(chosen)
        if odd:
            return Hopeless(odd) if before.is_none or now_s >= late_s else Wait(odd, until_s)
        if self._offers[chosen[0]][0].port == before.port:
            return Wait(f"another port on {chosen[0]} than the last generation's")
        return Go(chosen, self._slots_of(chosen))

    def _late_s(self, before: Before) -> float:
        """When nodes have been waited for for too long; infinity: never."""
        assert self._since_s is not None, "late outside a rendezvous"
        return math.inf if before.is_patient else self._since_s + self._table.join_timeout_s

    def _may_come(self, there: Collection[str]) -> list[str]:
        """Who is not there and may be soon: nodes that answer, or did a moment ago, and nodes that the job names."""
        present, pool = set(there), self.pool
        worth = pool[: self._worth(pool)]
        others = (self._roster[name] for name in worth if name not in present and name not in self.lapsed)
        return [*(node.name for node in others if node.is_up or node.may_come), *self._absent()]

    @property
    def lacks_slots(self) -> bool:
        """Whether there are nodes enough, and other runs have what it would need of them."""
        return self._since_s is not None and len(self.eligible) < self.least and self.may_suffice()

    def lack_beside(self, there: Collection[str]) -> str:
        """What a generation of as many nodes as are wanted waits for beside these nodes; "": for nothing."""
        least = self._topology.nnodes[0]
        if len(there) >= least:
            return ""
        candidates = [n for n in self.candidates(self._roster.values()) if n.is_up or n.may_come]
        if len(self.eligible) < least <= len(candidates):
            return lacked(least - len(there), self.need, [n for n in candidates if n.name not in there])
        return self._lack(there, least)

    def _lack(self, there: Collection[str], least: int) -> str:
        offers = ((node, self._offers[node][0]) for node in self.pool if node in self._offers)
        held = {node: offer.waits_for for node, offer in offers if offer.waits_for}
        present = {*there, *held}
        missing = [*(name for name in self.pool if name not in present), *self._absent()]
        if least == 1 and (missing or held):
            return "; ".join([*held.values(), *([self._names(missing)] if missing else [])])
        more = least - len(present) - len(missing)
        others = f"{more} more node{'s' if more > 1 else ''} to join the fleet{self._lifted()}" if more > 0 else ""
        whom = " and ".join(filter(None, (*held.values(), self._names(missing) if missing else "", others)))
        here = f", {some_of(there)} {'are' if len(there) > 1 else 'is'} there" if there else ""
        return f"{whom} ({len(there)} of {least} nodes{here}{self._left_out()})"

    def _lifted(self) -> str:
        """Which command brings nodes of the fleet back that are to be left."""
        left = [n.name for n in self._roster.values() if matches(self._topology, n) and self.leaving.why(n)]
        return f" (or supctl undrain {some_of(sorted(left, key=natural), 3)})" if left else ""

    def _left_out(self) -> str:
        """The nodes of the fleet that do not help, and why."""
        other = [node.name for node in self._roster.values() if not matches(self._topology, node)]
        names = some_of(sorted(other, key=natural))
        told = f"; {names} in the fleet, not in [topology] nodes, exclude, node_labels" if other else ""
        whys = [*self.unfit.items(), *((n.name, self.leaving.why(n)) for n in self._roster.values())]
        told += "".join(f"; {node}: {why}" for node, why in [one for one in whys if one[1]][:3])
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
        new = sorted((node for node in chosen if node not in held), key=self._placed)
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
