"""How fast a job's step goes up, from what its ranks report about once a second. Pure."""

from collections import deque
from typing import NamedTuple

WINDOW_S = 60.0
"""The rate is that of the last minute; of the last step, where steps take longer."""

GAPS_MAX = 10.0
"""After so many of its usual gaps (and the whole window) without a step, the rate is 0."""


POINTS_MAX = 300
"""However often ranks report."""


SILENT_MAX_S = 365 * 86400.0
"""A runner that says more is not believed."""


class _Point(NamedTuple):
    """When a step was reached."""

    at_s: float
    step: int


class Pace:
    """The steps of one generation; the next one begins with a new Pace."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=POINTS_MAX)  # rising; the last two always stay

    def saw(self, step: int, silent_s: float, now_s: float) -> None:
        """The job's step is `step`, and was reached `silent_s` ago. A step that falls starts all over."""
        if self._points and step < self._points[-1].step:
            self._points.clear()
        if self._points and step == self._points[-1].step:
            return
        at_s = now_s - (silent_s if 0.0 < silent_s < SILENT_MAX_S else 0.0)
        self._points.append(_Point(max(at_s, self._points[-1].at_s) if self._points else at_s, step))
        while len(self._points) > 2 and self._points[1].at_s <= at_s - WINDOW_S:
            self._points.popleft()

    @property
    def step(self) -> int | None:
        """The last one that was seen."""
        return self._points[-1].step if self._points else None

    def silent_s(self, now_s: float) -> float | None:
        """Since the step last went up; None: it was never seen."""
        return max(now_s - self._points[-1].at_s, 0.0) if self._points else None

    def rate(self, now_s: float) -> float | None:
        """Steps a second, lately; None before two of them were seen."""
        if len(self._points) < 2:
            return None
        first, last = self._points[0], self._points[-1]
        ran_s = last.at_s - first.at_s
        if ran_s <= 0:
            return None
        usual_gap_s = ran_s / (len(self._points) - 1)
        if now_s - last.at_s > max(WINDOW_S, GAPS_MAX * usual_gap_s):
            return 0.0
        return (last.step - first.step) / ran_s

    def eta_s(self, total_steps: int, now_s: float) -> float | None:
        """Seconds until `total_steps` at this rate; None where it is not known, or nothing moves."""
        rate = self.rate(now_s)
        if not rate or self.step is None:
            return None
        return max(total_steps - self.step, 0) / rate
