"""From where the ranks of a generation go on: from what was saved last, and all from the same step. Pure."""

from protocol.coordinator_events import Note
from protocol.messages.member import Renewal
from protocol.pace import Pace

APART_S = 2.0
"""Ranks are looked at once a second, and not all at once: as much may lie between the first steps that two show."""


class Resumption:
    """Of one generation; each of its events is told once. What a rank shows first is as in its reports."""

    def __init__(self, resume_step: int | None) -> None:
        """`resume_step`: the last one that was seen saved before."""
        self._resume_step = resume_step
        self._is_behind = self._is_apart = False  # was told
        self._lowest: tuple[int, int, str] | None = None  # step, rank, node
        self._highest: tuple[int, int, str] | None = None

    def see(self, node: str, renewal: Renewal, pace: Pace, now_s: float) -> list[Note]:
        """A report, and the pace of the job so far; returns what is to be told."""
        if self._is_apart and (self._is_behind or self._resume_step is None):
            return []
        for rank in renewal.ranks:
            if rank.first_step is not None:
                shown = rank.first_step, rank.rank, node
                self._lowest = min(shown, self._lowest or shown)
                self._highest = max(shown, self._highest or shown)
        return [note for note in (self._behind(renewal), self._apart(renewal, pace.rate(now_s))) if note is not None]

    def _behind(self, renewal: Renewal) -> Note | None:
        saved = self._resume_step
        if self._is_behind or self._lowest is None or saved is None:
            return None
        step, rank, node = self._lowest
        if step >= saved:
            return None
        self._is_behind = True
        text = f"rank {rank} on {node} goes on from step {step}; step {saved} was seen saved"
        return Note(
            "resume.behind",
            text,
            renewal.generation,
            {"node": node, "rank": rank, "step": step, "saved_step": saved},
        )

    def _apart(self, renewal: Renewal, rate: float | None) -> Note | None:
        if self._is_apart or self._lowest is None or self._highest is None or rate is None:
            return None
        (low, rank, node), (high, other, there) = self._lowest, self._highest
        if high - low <= 1 + APART_S * rate:
            return None
        self._is_apart = True
        text = f"rank {rank} on {node} goes on from step {low}, rank {other} on {there} from step {high}"
        return Note(
            "resume.apart",
            text,
            renewal.generation,
            {"node": node, "rank": rank, "lowest_step": low, "highest_step": high},
        )
