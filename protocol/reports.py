"""What the runners of a generation have reported, counted as it comes in: a thousand of them report every second."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from protocol import stalls
from protocol.coordinator_events import Seat
from protocol.messages.member import Part, Renewal
from protocol.seating import ranks_of


class Reports:
    """The newest report of each seated runner since the launch, and what they say together. Taking one in costs what
    that one is long, however many there are."""

    def __init__(self, seats: Mapping[str, Seat], parts: Mapping[str, Renewal] | None = None) -> None:
        """`parts` are reports by node that are known already."""
        self.parts: dict[str, Renewal] = {}
        self._nodes = len(seats)
        self._ranks = sum(seat.assignment.nproc for seat in seats.values())
        self._launched = self._finished = self._started = self._ended = 0
        self.unanswered = set(seats)  # nodes with a rank that is alive and has not answered the pre-signal
        for node, renewal in (parts or {}).items():
            self.take_in(node, renewal)

    def take_in(self, node: str, renewal: Renewal) -> None:
        """A report that fits the seat of its node; it stands for the one before."""
        if (before := self.parts.get(node)) is not None:
            self._count(before, -1)
        self.parts[node] = renewal
        self._count(renewal, 1)
        if all(rank.exit is not None or rank.has_answered for rank in renewal.ranks) and renewal.ranks:
            self.unanswered.discard(node)
        else:
            self.unanswered.add(node)

    def _count(self, renewal: Renewal, by: int) -> None:
        self._launched += by * (renewal.part in (Part.RUNNING, Part.FINISHED))
        self._finished += by * (renewal.part is Part.FINISHED)
        for rank in renewal.ranks:
            self._started += by * rank.started
            self._ended += by * (rank.exit is not None)

    @property
    def all_finished(self) -> bool:
        """Whether every rank has ended with 0."""
        return self._finished == self._nodes > 0

    @property
    def all_launched(self) -> bool:
        """Whether no runner is still starting its ranks."""
        return self._launched == self._nodes > 0

    @property
    def all_started(self) -> bool:
        """Whether every rank has started, by what its runner says of it now."""
        return self._started == self._ranks > 0

    @property
    def any_ended(self) -> bool:
        """Whether a rank has."""
        return self._ended > 0

    def unended(self, seat: Seat) -> tuple[int, ...]:
        """The ranks of a seat of whose end nobody knows."""
        part = self.parts.get(seat.node)
        ended = {rank.rank for rank in part.ranks if rank.exit is not None} if part is not None else set()
        return tuple(rank for rank in ranks_of(seat) if rank not in ended)

    def silent(self, node: str) -> tuple[int, ...]:
        """The ranks of a node that are alive, as far as is known, and have not answered the pre-signal."""
        part = self.parts.get(node)
        return () if part is None else tuple(r.rank for r in part.ranks if r.exit is None and not r.has_answered)

    @property
    def longest_life_s(self) -> float | None:
        """Of the ranks that have ended; None: of none is it known."""
        lives = (r.exit.ran_s for part in self.parts.values() for r in part.ranks if r.exit is not None)
        return max(lives, default=None)

    @property
    def last_step(self) -> tuple[int, float] | None:
        """The step that every rank which shows steps has reached, and for how long (s) the rank behind has shown
        nothing."""
        ranks = (r for part in self.parts.values() for r in part.ranks)
        return min(((r.step, r.silent_s or 0.0) for r in ranks if r.step is not None), default=None)


def saved_step(renewals: Iterable[Renewal]) -> int | None:
    """The last checkpoint that any runner has seen."""
    return max((r.saved_step for r in renewals if r.saved_step is not None), default=None)


def lasting(report: Renewal) -> Renewal:
    """The report but for what is not worth a write: what ranks show of their progress changes all the time."""
    ranks = (
        replace(
            r,
            step=None,
            total_steps=None,
            loss=None,
            phase="",
            silent_s=None,
            stall=r.stall if stalls.fatal([r]) else None,
            remark="",
            first_step=None,
            has_answered=False,
            exit=r.exit and replace(r.exit, ago_s=0.0),
        )
        for r in report.ranks
    )
    return replace(report, number=0, epoch=0, offer=None, unreached=(), assignment=None, ranks=tuple(ranks))
