"""One generation as its coordinator knows it: who has which ranks, what they report, where nothing of it is left.

What was learned about a generation dies with it (R5): the next one is another object.
"""

from collections.abc import Iterable, Mapping

from protocol.coordinator_events import Seat
from protocol.leases import Leases
from protocol.messages.member import Part, Renewal
from protocol.pace import Pace
from protocol.reports import Reports
from protocol.resumption import Resumption
from protocol.saves import Saves
from protocol.seating import fits, lost_its_port
from protocol.verdict import without_tails

STEPS_S = 1.0
"""How often the steps of all ranks are looked at: each of a thousand runners reports as often."""

NOBODY: frozenset[str] = frozenset()


class Generation:
    """Seats and what has become of them. Times are boot-time seconds of the coordinator's node."""

    def __init__(
        self,
        number: int,
        seats: Iterable[Seat],
        *,
        lost: Iterable[str] = (),
        lapsed: Iterable[str] = (),
        stalled: tuple[int, ...] = (),
        parts: Mapping[str, Renewal] | None = None,
        launched_s: float | None = None,
        known_s: float | None = None,
    ) -> None:
        """What is given by name is what the journal holds of it. `launched_s` is None where that was before the start
        of the coordinator; `known_s` is the run's own time from which on it is known."""
        self.number = number
        self.seating = tuple(seats)  # by node_rank
        self.seats = {seat.node: seat for seat in self.seating}
        self.incarnations = frozenset(seat.incarnation for seat in self.seating)  # of its runners
        self.reports = Reports(self.seats, parts)
        self.lost = set(lost)  # nodes whose runner is proven gone
        self.lapsed = set(lapsed)  # nodes whose lease is over
        self.last_parts = dict(parts or {})  # node -> the last report there will be (without what its ranks said last)
        self.gone = self.lost | self.lapsed  # nodes where nothing of this generation is alive
        self.alive = frozenset(self.seats.keys() - self.gone)  # nodes whose seated runner may be
        self.reports.unanswered -= self.gone
        self.leases = Leases(self.seats, launched_s or 0.0)
        self.unwitnessed: set[str] = set()  # nodes of which was told that they reach none of their witnesses
        self.stalled = stalled  # ranks of which was told that they make no progress
        self.pace = Pace()  # of its steps
        self.saves = Saves(is_begun_here=launched_s is not None)
        self.resumption = Resumption(self.seating[0].assignment.resume_step if self.seating else None)
        self.launched_s = launched_s
        self.known_s = known_s
        self._looked_s: float | None = None  # when the steps were

    def concerns(self, node: str, incarnation: str, renewal: Renewal) -> bool:
        """Whether a report is about this generation, from the runner that has the seat, and can be true."""
        seat = self.seats.get(node)
        if seat is None or seat.incarnation != incarnation or renewal.generation != self.number:
            return False
        return fits(seat, renewal)

    def take_in(self, node: str, renewal: Renewal, now_s: float) -> None:
        """A report that concerns this generation."""
        self.saves.see(node, renewal)
        self.reports.take_in(node, renewal)
        if node in self.gone:
            self.reports.unanswered.discard(node)
        if self._looked_s is None or now_s >= self._looked_s + STEPS_S:
            self._looked_s = now_s
            if (step := self.reports.last_step) is not None:
                self.pace.saw(*step, now_s)

    def end_on(self, node: str) -> None:
        """Nothing of it is alive on this node, as its runner says."""
        self.gone.add(node)
        self.reports.unanswered.discard(node)

    def lose(self, node: str, now_s: float) -> None:
        """The runner of this node is proven gone."""
        self.lost.add(node)
        self._miss(node, now_s)

    def lapse(self, node: str, now_s: float) -> None:
        """The lease of this node is over: whatever its runner does, nothing of this generation runs there."""
        self.lapsed.add(node)
        self._miss(node, now_s)

    def _miss(self, node: str, now_s: float) -> None:
        self.gone.add(node)
        self.reports.unanswered.discard(node)
        self.alive -= {node}
        self.leases.end(node, now_s)
        self.keep(node)

    def keep(self, *nodes: str) -> None:
        """No more is heard of these nodes about this generation: what they said last is for the journal."""
        known = {node: without_tails(self.reports.parts[node]) for node in nodes if node in self.reports.parts}
        self.last_parts = {**self.last_parts, **known}  # a new one: records that were made before hold the old one

    @property
    def is_seen(self) -> bool:
        """Whether it is known to be the newest: this coordinator has begun it, or has heard all its runners at it."""
        return self.launched_s is not None or all(node in self.reports.parts for node in self.alive)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is alive anywhere."""
        return len(self.gone) == len(self.seats)

    def finished_on(self, node: str) -> bool:
        """Whether every rank of this node has ended with 0."""
        part = self.reports.parts.get(node)
        return part is not None and part.part is Part.FINISHED

    @property
    def unended(self) -> tuple[str, tuple[int, ...]] | None:
        """The first node with ranks of whose end nobody knows, and these; None: all have ended, as far as is known."""
        late = ((node, self.reports.unended(seat)) for node, seat in self.seats.items())
        return next(((node, ranks) for node, ranks in late if ranks), None)

    def silent_ranks(self, node: str) -> tuple[int, ...]:
        """The ranks of a node that live, as far as is known, and have not answered the pre-signal."""
        return () if node in self.gone else self.reports.silent(node)

    def has_lost_its_port(self, culprit: int | None) -> bool:
        """Whether rank 0 found the port taken that was chosen for it."""
        node, seat = next(iter(self.seats.items()))
        return lost_its_port(culprit, seat, self.reports.parts.get(node))

    @property
    def master_port(self) -> int | None:
        """The port of rank 0; None: there has been no generation."""
        return self.seating[0].assignment.master_port if self.seating else None

    def known_for_s(self, run_s: float) -> float:
        """Of the run's own time, at which it is now."""
        return 0.0 if self.known_s is None else max(0.0, run_s - self.known_s)

    def ran_s(self, run_s: float) -> float:
        """The longest life of a rank; where nobody is left to tell, for how long the generation is known."""
        life_s = self.reports.longest_life_s
        return self.known_for_s(run_s) if life_s is None else life_s

    def lasted_s(self, now_s: float, run_s: float) -> float:
        """From the launch on; where that was before the start of the coordinator, as it ran."""
        return self.ran_s(run_s) if self.launched_s is None else now_s - self.launched_s
