"""Ranks as text: the table of `supctl ps`, where many ranks that are alike are one line."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

from protocol.messages.control import RankStatus
from supervisor.cli.render import age, count, exit_of, table
from supervisor.cli.screen import Stream

FOLDED_ABOVE = 16
"""A job with more ranks than this is folded, unless it is said which ranks to show."""

HEADS = ("RANK", "NODE", "LOCAL", "PID", "STATE", "STEP", "BEAT", "EXIT", "PHASE", "")

LEEWAY_S = 2.0
"""A beat is as usual that is no older than twice the middle one, and this."""

SORTS: dict[str, Callable[[RankStatus], float]] = {
    "step": lambda rank: -1 if rank.step is None else rank.step,
    "beat": lambda rank: 0.0 if rank.silent_s is None else -rank.silent_s,
}
"""What needs a look comes first: the lowest step, the oldest beat."""


def ranks_table(ranks: Sequence[RankStatus], stream: Stream, *, is_folded: bool, is_wide: bool = False) -> list[str]:
    """A line a rank; or `is_folded`, a line for neighbours that are alike."""
    return table([HEADS, *_rows(ranks, is_folded=is_folded)], stream, is_wide=is_wide)


def jobs_table(
    jobs: Mapping[str, Sequence[RankStatus]], stream: Stream, *, is_folded: bool, is_wide: bool = False
) -> list[str]:
    """The same of several jobs, by name."""
    rows = [(name, *row) for name, ranks in jobs.items() for row in _rows(ranks, is_folded=is_folded)]
    return table([("JOB", *HEADS), *rows], stream, is_wide=is_wide)


def _rows(ranks: Sequence[RankStatus], *, is_folded: bool) -> list[Sequence[str]]:
    groups = _folded(ranks) if is_folded else [[rank] for rank in ranks]
    return [_row(group[0]) if len(group) == 1 else _row_of_many(group) for group in groups]


def _row(rank: RankStatus) -> Sequence[str]:
    return (
        str(rank.rank),
        rank.node,
        str(rank.local_rank),
        "-" if rank.pid is None else str(rank.pid),
        rank.state,
        count(rank.step),
        "-" if rank.ended_wall_s is not None else age(rank.silent_s),
        exit_of(rank),
        rank.phase or "-",
        rank.note,
    )


def _row_of_many(group: Sequence[RankStatus]) -> Sequence[str]:
    """For ranks that are alike: ranges, and a dot for what differs by nature."""
    first, last = group[0], group[-1]
    steps = [rank.step for rank in group if rank.step is not None]
    beats = [rank.silent_s for rank in group if rank.silent_s is not None and rank.ended_wall_s is None]
    low, high = min(steps, default=None), max(steps, default=None)
    alike = f"{len(group)} ranks alike"
    return (
        f"{first.rank}-{last.rank}",
        _nodes(group),
        ".",
        ".",
        first.state,
        count(low) if low == high else f"{count(low)}-{count(high)}",
        f"<{age(int(max(beats)) + 1)}" if beats else "-",
        exit_of(first),
        first.phase or "-",
        f"{alike}: {first.note}" if first.note else alike,
    )


def _nodes(group: Sequence[RankStatus]) -> str:
    """The node of these ranks, or what the names of theirs begin with: `gpu-0*`."""
    nodes = {rank.node for rank in group}
    first, last = min(nodes), max(nodes)
    begin = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return first if first == last else f"{''.join(letter for letter, _ in begin)}*"


class _Alike(NamedTuple):
    """What neighbours must have in common to be one line; an exception has its own rank in `exception`."""

    exception: int | None
    state: str
    exit: str
    phase: str
    note: str


def _folded(ranks: Sequence[RankStatus]) -> list[list[RankStatus]]:
    """The ranks in groups of neighbours that are alike; whoever is not where most are stands alone."""
    step = _middle([rank.step for rank in ranks if rank.step is not None])
    beat = _middle([rank.silent_s for rank in ranks if rank.silent_s is not None])

    def alike(rank: RankStatus) -> _Alike:
        is_usual = rank.ended_wall_s is not None or (
            (rank.step is None or step is None or abs(rank.step - step) <= 1)
            and (rank.silent_s is None or beat is None or rank.silent_s <= 2 * beat + LEEWAY_S)
        )
        exception = None if is_usual else rank.rank
        return _Alike(exception, rank.state, exit_of(rank), rank.phase, rank.note)

    return [list(group) for _, group in groupby(ranks, alike)]


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
