"""What must hold of the node table at every moment (docs/protocol.md, N3-N6, N10)."""

import math
from collections.abc import Collection

from protocol.coordinator_events import FINAL, LIVE
from protocol.fleet import ANSWERS_S, LOOK_S, RECOVERY_S, Fleet
from protocol.messages.fleet import Join
from protocol.timing import DRIFT
from tests.sim.setup import state_of
from tests.sim.truth import Facts

_SLACK_S = 0.05


class TableRules:
    """Sees who is taken in, and holds what the table says of nodes against what was heard of them."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._clock = facts.clock
        self._holders: dict[str, Join] = {}
        self._heard_s: dict[str, float] = {}
        self._newest: dict[int, int] = {}  # link -> the highest number of a report on it
        self._since_s = 0.0  # when the present coordinator began

    def on_begun(self) -> None:
        """The host's supd starts."""
        self._since_s = self._clock.now_s
        self._newest.clear()

    def on_journal_lost(self) -> None:
        """Nobody knows any more who has which name."""
        self._holders.clear()

    def on_declared_lost(self, node: str, *, is_up: bool) -> None:
        """An operator gives their word that nothing of some runs is there; where it does not answer, of any."""
        self._facts.declared.add(node)
        if not is_up:
            self._holders.pop(node, None)

    def on_heard(self, node: str) -> None:
        """A node reports, on the connection that it was taken in by."""
        self._heard_s[node] = self._clock.now_s

    def on_reported(self, link: int, number: int, *, is_overtaken: bool) -> None:
        """A report is taken for one that a newer one overtook, or not: on one connection the higher number is newer."""
        newest = self._newest.get(link, 0)
        assert is_overtaken is (number < newest), f"report {number} after {newest} on link {link}"
        self._newest[link] = max(newest, number)

    def on_admitted(self, join: Join) -> None:
        """N3, N4, N5: a name changes hands only once its holder is away, and nothing lives there."""
        name, holder = join.node, self._holders.get(join.node)
        is_host = name == self._facts.host  # which asks nobody
        is_successor = holder is not None and _is_successor(holder, join)
        if holder is not None and not is_successor and not is_host:
            known_s = max(self._heard_s.get(name, -math.inf), self._since_s)
            assert self._clock.now_s >= known_s + RECOVERY_S / (1 + DRIFT), (
                f"N5: {name} is given away, and its holder may come back"
            )
        state = join.identity.partition(",")[0]
        # A copy cannot be told from the folder itself where it comes with a start that the table has not heard of (N4).
        is_it = state == state_of(join.address)  # else it is a known copy, or a stranger
        if not is_successor:  # else a runner that was lost when the name changed hands may have come back since
            self._check_nothing_lives(name, but_of=state if is_it else "")
        self._holders[name] = join
        self._heard_s[name] = self._clock.now_s

    def _check_nothing_lives(self, name: str, *, but_of: str) -> None:
        facts = self._facts
        for (place, run), runner in facts.runners.items():
            record, phase = facts.record_of(run), facts.runs[run].phase
            if name not in self._holders and facts.is_journal_lost:
                continue  # nobody knows whose name it was
            if state_of(place) == but_of or runner.machine.name != name or not runner.lock_is_held or phase in FINAL:
                continue
            has_seat = any(seat.incarnation == runner.incarnation for seat in record.seats)
            is_seated = has_seat and phase in LIVE and name not in record.lapsed
            is_heard = runner.is_alive and facts.is_steady(name) and facts.is_steady(facts.host)
            is_known = is_seated or is_heard
            assert not is_known, f"N5: {name} is given away while {runner.incarnation} lives"

    def on_looked(self, table: Fleet, links: Collection[int]) -> None:
        """N6: who is up has an open connection, and was heard a moment ago. N10: a drain lasts until it is lifted."""
        for name in self._facts.nodes.drains.keys() - self._facts.nodes.lifting:
            record = table.record_of(name)
            assert record is not None, f"N8: {name} is forgotten"
            assert record.drain is not None, f"N10: the drain of {name} is forgotten"
        if not self._facts.is_steady(self._facts.host):
            return  # it was held up, or has just started
        for node in table.roster():
            if not node.is_up or node.name == self._facts.host:
                continue
            assert table.link_of(node.name) in links, f"N6: {node.name} is up without a connection"
            silent_s = self._clock.now_s - self._heard_s[node.name]
            assert silent_s <= (ANSWERS_S + LOOK_S) / (1 - DRIFT) + _SLACK_S, (
                f"N6: {node.name} is up, and silent for {silent_s:.1f} s"
            )


def _is_successor(holder: Join, join: Join) -> bool:
    """Whether it is the holder itself, or a later start of its state folder (N4)."""
    if join.identity != holder.identity:
        return False
    is_itself = (join.incarnation, join.address) == (holder.incarnation, holder.address)
    return is_itself or join.incarnation > holder.incarnation
