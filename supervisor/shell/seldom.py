"""For log lines that would come again and again: each only once in a while."""

from collections.abc import Hashable

from supervisor.shell.clock import boot_s

EVERY_S = 60.0
KEYS_MAX = 1000
"""Of more, the one that was told first is forgotten, and may be told sooner than it should."""


class Seldom:
    """Says whether it is time to tell something again, by key."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._told: dict[Hashable, float] = {}  # in the order in which they were told

    def is_due(self, key: Hashable) -> bool:
        """Whether it was not told for `every_s`; if so, it counts as told now."""
        now_s = boot_s()
        if key in self._told and now_s - self._told[key] < self._every_s:
            return False
        self.forget(key)
        if len(self._told) >= KEYS_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = now_s
        return True

    def forget(self, key: Hashable) -> None:
        """It is over: if it comes again, it is told at once."""
        self._told.pop(key, None)
