"""The rows of the table of losses: what befalls which node or path, for how long, and what becomes of the run then.

Node a hosts the coordinator. Rows with delay or loss have the default times of the lease, for which a lease of 2 s is
too short; all others have the fast ones.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from scripts.hosts.namespaces import both_ways, one_way
from tests.e2e.losses import LONG, LONGEST, SHORT, Course, Lease, Row
from tests.e2e.troubles import (
    Trouble,
    everything,
    guard,
    killed,
    path,
    runner,
    stepped,
    stopped,
    supd,
    worker,
)

UNTOUCHED, RESTARTS, GOES_ON, WAITS, EITHER = Course
HOUR_S = 3600

THREE, FOUR = "abc", "abcd"
"""The nodes of a fleet for processes; for links and groups, where half of them are two."""

BOTH = (SHORT, LONG)


def lasting(
    row: Row, *, long: Course = UNTOUCHED, given_up: str = "", late: str = "", daily: Collection[float] = (LONG,)
) -> list[Row]:
    """A row for 0.4, 2 and 12 lease times. The other arguments are for those in which it outlives the lease.

    `daily`: which of them CI plays. Where the same follows from all of them, the longer ones say more.
    """
    made = [replace(row, name=f"{row.name}-short", lasts=SHORT)]
    for word, lasts in (("long", LONG), ("longest", LONGEST)):
        name = f"{row.name}-{word}"
        made.append(replace(row, name=name, course=long, lasts=lasts, given_up=given_up, late=late))
    return [replace(one, is_daily=one.lasts in daily) for one in made]


def of_processes() -> Iterator[Row]:
    """Processes of node c, and of the host, are killed and paused; and a clock is stepped."""
    yield Row("worker-killed", killed(worker, "c"), RESTARTS)
    yield Row("runner-killed", killed(runner, "c"), RESTARTS)
    yield Row("guard-killed", killed(guard, "c"), UNTOUCHED)
    for node, name in (("c", ""), ("a", "host-")):
        yield from lasting(Row(f"{name}supd-killed", killed(supd, node), UNTOUCHED))
        yield from lasting(Row(f"{name}supd-stopped", stopped(supd, node), UNTOUCHED))
        row = Row(f"{name}runner-stopped", stopped(runner, node), UNTOUCHED)
        yield from lasting(row, long=GOES_ON, given_up=node, daily=BOTH)
    yield from lasting(Row("worker-stopped", stopped(worker, "c"), UNTOUCHED))
    yield from lasting(Row("guard-stopped", stopped(guard, "c"), UNTOUCHED))
    yield from lasting(Row("node-killed", killed(everything, "c"), RESTARTS), long=GOES_ON, given_up="c", daily=BOTH)
    row = Row("node-stopped", stopped(everything, "c"), UNTOUCHED)
    yield from lasting(row, long=GOES_ON, given_up="c", late="c", daily=BOTH)
    yield from lasting(Row("host-killed", killed(everything, "a"), RESTARTS), long=RESTARTS, daily=BOTH)
    yield from lasting(Row("host-stopped", stopped(everything, "a"), UNTOUCHED), long=RESTARTS, daily=BOTH)
    for node, name in (("c", "node"), ("a", "host")):
        yield from lasting(Row(f"{name}-clock-ahead", stepped(node, HOUR_S), UNTOUCHED), daily=(SHORT,))
        yield from lasting(Row(f"{name}-clock-behind", stepped(node, -HOUR_S), UNTOUCHED), daily=())


KINDS = {"cut": {"fate": "drop"}, "reset": {"fate": "reset"}, "reject": {"fate": "reject"}}
SLOW = {"delay": {"delay_ms": 200.0}, "loss": {"loss_pct": 20.0}}


def ways(some: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, Trouble]]:
    """Every way to end what they send each other."""
    for kind, how in KINDS.items():
        yield kind, path(both_ways(some, others), **how)
    yield "cut-there", path(one_way(some, others), fate="drop")
    yield "cut-back", path(one_way(others, some), fate="drop")


PAIRS = {"host-member": ("a", "c"), "member-member": ("b", "c")}
GROUPS = {"member-alone": ("c", "abd"), "host-alone": ("a", "bcd"), "halves": ("ab", "cd")}

SOAKED = {("halves", "reject"), ("halves", "cut-there"), ("halves", "cut-back"), ("host-alone", "reject")}
"""What CI leaves out: it is much like the others."""


def of_links() -> Iterator[Row]:
    """Whatever is between two nodes: others stand in for it."""
    for way, trouble in ways(*PAIRS["host-member"]):
        short, *longer = lasting(Row(f"host-member-{way}", trouble, UNTOUCHED))
        yield short
        for row in longer:
            yield replace(row, unreachable="c")
    for way, trouble in ways(*PAIRS["member-member"]):
        yield from lasting(Row(f"member-member-{way}", trouble, UNTOUCHED), daily=(LONG,) if way in KINDS else ())


def of_groups(lease: Lease) -> Iterator[Row]:
    """Nodes are cut off from all the others: the side without the coordinator ends its ranks.

    At the fast times a cut of 0.4 lease times leaves some 0.3 s until the fence for everything that comes after it: TCP
    sends again, runners connect again. That is usually enough.
    """
    short = UNTOUCHED if lease is Lease.DEFAULTS else EITHER
    for name, (some, others) in GROUPS.items():
        long = GOES_ON if name == "member-alone" else WAITS
        given_up = some if name == "member-alone" else others
        for way, trouble in ways(some, others):
            daily = BOTH if way == "cut" else () if (name, way) in SOAKED else (LONG,)
            yield from lasting(Row(f"{name}-{way}", trouble, short), long=long, given_up=given_up, daily=daily)


def of_slow_links() -> Iterator[Row]:
    """Delay and loss, between two and between groups."""
    for name, (some, others) in {**PAIRS, **GROUPS}.items():
        for kind, how in SLOW.items():
            row = Row(f"{name}-{kind}", path(both_ways(some, others), **how), UNTOUCHED)
            yield from lasting(row, daily=(SHORT,) if name in GROUPS else ())  # which are of many pairs
