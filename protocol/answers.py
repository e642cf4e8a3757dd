"""Whether the ranks have answered the pre-signal of a stop that nobody's failure has brought. Pure."""

from protocol import verdict
from protocol.coordinator_events import Note
from protocol.generation import Generation
from protocol.job import StopTable


class Answers:
    """Of one stop at a time. A checkpoint that is seen after it has begun is the answer of all ranks."""

    def __init__(self) -> None:
        self.is_complete = False
        self._began_s: float | None = None  # None: there is no such stop
        self._saves = 0  # safe points before it
        self._is_told = False  # who has not answered

    def rest(self) -> None:
        """There is no such stop."""
        self.is_complete, self._began_s, self._is_told = False, None, False

    def see(self, generation: Generation, table: StopTable, pre_wait_s: float, now_s: float) -> list[Note]:
        """The generation that is ended, as it stands; returns what is to be told."""
        if self._began_s is None:
            self._began_s, self._saves = now_s, generation.saves.count
        if not generation.reports.unanswered or generation.saves.count > self._saves:
            self.is_complete = True
        if self.is_complete or self._is_told or now_s < self._began_s + pre_wait_s:
            return []
        self._is_told = True
        ranks = tuple(r for node in generation.seats for r in generation.silent_ranks(node))
        return [_unanswered(ranks, generation.number, table.pre_signal, pre_wait_s)] if ranks else []

    def deadline_s(self, pre_wait_s: float) -> float | None:
        """When the wait for answers is over; None: nobody waits."""
        is_waiting = self._began_s is not None and not self.is_complete and not self._is_told
        return self._began_s + pre_wait_s if is_waiting and self._began_s is not None else None


def _unanswered(ranks: tuple[int, ...], generation: int, signal: str, pre_wait_s: float) -> Note:
    who = verdict.rank_list(ranks)
    text = f"{who} did not answer {signal} within {pre_wait_s:g} s (stop.pre_wait)"
    return Note("stop.unanswered", text, generation, {"ranks": len(ranks), "waited_s": pre_wait_s})
