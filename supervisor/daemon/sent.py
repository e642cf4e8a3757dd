"""Signals that this supd is sent. Jobs may have one for a notice that the node will be taken away."""

import signal
from collections import Counter
from collections.abc import Callable, Mapping

ENDS = (signal.SIGTERM, signal.SIGINT)
"""They end supd, too."""

TOLD = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""They do nothing more."""


class Sent:
    """How often each was sent, since this process began."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._tell: Callable[[Mapping[str, int]], None] = lambda _counts: None

    def add(self, number: signal.Signals) -> None:
        """One more."""
        self._counts[number.name] += 1
        self._tell(self._counts)

    def tell(self, tell: Callable[[Mapping[str, int]], None]) -> None:
        """From now on `tell` hears of each; of those that came before at once."""
        self._tell = tell
        if self._counts:
            tell(self._counts)
