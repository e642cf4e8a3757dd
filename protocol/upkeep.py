"""What operators want of nodes, and what nodes have been through: its words and limits. Pure; the rules: fleet.py."""

from protocol.coordinator_events import Note
from protocol.fleet_events import Drain, NodeRecord
from protocol.text import one_line

TROUBLES_MAX = 50
TROUBLES_S = 30 * 86400.0
"""So many incidents are remembered of a node, and none for longer."""


def too_old(troubles_s: tuple[float, ...], now_s: float) -> int:
    """How many of these are: they stand first."""
    return sum(now_s - at_s > TROUBLES_S for at_s in troubles_s)


def wish(drain: Drain) -> str:
    """`to be free (swap NIC), as ada says`."""
    return one_line(f"to be free{f' ({drain.reason})' if drain.reason else ''}, as {drain.by} says")


def draining(node: str, drain: Drain, left_s: float) -> Note:
    """An operator wants a node free, or wants it otherwise than before."""
    when = "at their next checkpoint, else " if drain.at_checkpoint else ""
    soon = "now" if left_s <= 0 else f"in {left_s:.0f} s"
    text = f"{node} is {wish(drain)}: it takes no new work, and runs leave it {when}{soon}"
    return Note(
        "node.draining",
        text,
        None,
        {
            "node": node,
            "by": drain.by,
            "reason": drain.reason,
            "at_checkpoint": drain.at_checkpoint,
            "left_s": round(left_s, 3),
        },
    )


def drained(node: str, drain: Drain) -> Note:
    """No run has ranks there any more."""
    text = f"{node} is free: no run has ranks there"
    return Note("node.drained", text, None, {"node": node, "by": drain.by, "reason": drain.reason})


def undrained(before: NodeRecord, by: str) -> Note:
    """An operator wants a node used again."""
    return Note("node.undrained", f"{before.name} is used again, as {by} says", None, {"node": before.name, "by": by})
