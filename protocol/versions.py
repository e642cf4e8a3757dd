"""Which versions of the protocol runner and coordinator speak, and which of them a connection uses.

A runner may be older than the supd it talks to, or newer: it lives as long as its run. So every release speaks
the last two versions there are (docs/protocol.md, "Versions").
"""

from collections.abc import Iterable

VERSIONS: tuple[int, ...] = (1,)
"""What this release speaks. Version 1 is the first."""


def agreed(theirs: Iterable[int], ours: Iterable[int] = VERSIONS) -> int | None:
    """The highest version that both speak; None where there is none."""
    return max(set(theirs) & set(ours), default=None)
