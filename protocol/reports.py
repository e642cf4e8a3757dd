"""What the runners of a generation have reported, taken together. Pure functions.

`seats` has every node of the generation, `parts` the newest renewal of each node that has reported since its launch.
"""

from collections.abc import Callable, Iterable, Mapping

from protocol.coordinator_events import Seat
from protocol.messages.member import Part, Renewal
from protocol.seating import ranks_of

Seats = Mapping[str, Seat]
Parts = Mapping[str, Renewal]


def all_finished(seats: Seats, parts: Parts) -> bool:
    """Whether every rank has ended with 0."""
    return _all(seats, parts, lambda part: part.part is Part.FINISHED)


def all_launched(seats: Seats, parts: Parts) -> bool:
    """Whether no runner is still starting its ranks."""
    return _all(seats, parts, lambda part: part.part in (Part.RUNNING, Part.FINISHED))


def all_started(seats: Seats, parts: Parts) -> bool:
    """Whether every rank has started, by what its runner says of it now."""
    started = sum(rank.started for part in parts.values() for rank in part.ranks)
    return started == sum(seat.assignment.nproc for seat in seats.values())


def _all(seats: Seats, parts: Parts, holds: Callable[[Renewal], bool]) -> bool:
    """Whether it holds of every seated runner's report; never of one that has not reported."""
    reports = [parts.get(node) for node in seats]
    return all(report is not None and holds(report) for report in reports)


def any_ended(parts: Parts) -> bool:
    """Whether a rank has."""
    return any(rank.exit is not None for part in parts.values() for rank in part.ranks)


def unended(seat: Seat, parts: Parts) -> tuple[int, ...]:
    """The ranks of a seat of whose end nobody knows."""
    ended = {rank.rank for part in parts.values() for rank in part.ranks if rank.exit is not None}
    return tuple(rank for rank in ranks_of(seat) if rank not in ended)


def longest_life_s(parts: Parts) -> float | None:
    """Of the ranks that have ended; None: of none is it known."""
    return max((r.exit.ran_s for part in parts.values() for r in part.ranks if r.exit is not None), default=None)


def last_step(parts: Parts) -> tuple[int, float] | None:
    """The step that every rank which shows steps has reached, and for how long the rank behind has shown nothing."""
    shown = [(r.step, r.silent_s or 0.0) for part in parts.values() for r in part.ranks if r.step is not None]
    return min(shown, default=None)


def saved_step(renewals: Iterable[Renewal]) -> int | None:
    """The last checkpoint that any runner has seen."""
    return max((r.saved_step for r in renewals if r.saved_step is not None), default=None)
