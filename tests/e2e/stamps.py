"""What stamper.py has left: who ran when, on all nodes of a fleet, by the one clock of the machine."""

import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Span:
    """One rank of one generation, from its first instruction to its last (seconds since boot)."""

    node: str
    generation: int
    rank: int
    pid: int
    began_s: float
    ended_s: float


def spans(folder: Path) -> list[Span]:
    """All that have run, in the order in which they began."""
    found = []
    for path in folder.glob("*.*.*.*"):
        node, generation, rank, pid = path.name.split(".")
        stamps = path.read_bytes()
        if len(stamps) == 16:  # less: it was killed before it had stamped
            found.append(Span(node, int(generation), int(rank), int(pid), *struct.unpack("=dd", stamps)))
    return sorted(found, key=lambda span: span.began_s)


def overlaps(found: Collection[Span], *, without: Collection[str] = ()) -> list[tuple[Span, Span]]:
    """Each two that ran at once and may not (R1, R2): of two generations, or of one rank.

    `without`: nodes whose ranks may be late to end.
    """
    return [
        (one, other)
        for one in found
        for other in found
        if one.node not in without and _is_wrong(one, other) and one.ended_s >= other.began_s
    ]


def _is_wrong(one: Span, other: Span) -> bool:
    """That they run at once, where `one` is the older."""
    is_twice = one.generation == other.generation and one.rank == other.rank and one.began_s < other.began_s
    return one.generation < other.generation or is_twice
