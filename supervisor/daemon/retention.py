"""Which finished runs are too many, or too old, to be remembered ([state] keep_runs and keep_days)."""

from collections.abc import Mapping
from typing import NamedTuple

from supervisor.shell.config import KEEP_DAYS, KEEP_RUNS

DAY_S = 86400.0


class Keep(NamedTuple):
    """How much is remembered."""

    runs: int = KEEP_RUNS  # finished ones
    days: float = KEEP_DAYS  # since their end


KEEP = Keep()
"""As by default."""


def surplus(ended: Mapping[str, float], keep: Keep, now_s: float) -> list[str]:
    """The runs that go, the oldest first; `ended` says when each was over, in seconds since 1970.

    The one that ended last stays, whatever the clock says: who looks for what became of it must find it.
    """
    newest_first = sorted(ended, key=lambda run: (ended[run], run), reverse=True)
    too_old_s = now_s - keep.days * DAY_S
    gone = [run for place, run in enumerate(newest_first) if place >= keep.runs or (place and ended[run] < too_old_s)]
    return gone[::-1]
