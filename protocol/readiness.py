"""Whether a planned change may come: the checkpoints that were seen, and the ranks that have answered the pre-signal.

    order: a save is awaited ──┐
    ranks have the pre-signal ─┴──▶ look every 0.1 s
    else                       ───▶ look with the renewals, once a second

Both die with their generation (R5); only the step that was saved last outlives it.
"""

from collections.abc import Collection, Mapping

from protocol.ids import NO_GENERATION
from protocol.member_events import LookForDone, LookForSave, Saved, SeenDone

LOOK_S = 0.1
"""Between two looks while somebody waits for what they may show."""


class Readiness:
    """Of one runner's ranks; public fields are for reading. All times are boot-time seconds."""

    def __init__(self, *, is_watched: bool) -> None:
        """`is_watched`: there is a way to see a checkpoint."""
        self.saved_step: int | None = None  # the last one that was seen, in whatever generation
        self.saves = 0  # that were seen while the ranks of this generation lived
        self.answered: set[int] = set()  # ranks that have said `supd.done()` since they got the pre-signal
        self._is_watched = is_watched
        self._generation = NO_GENERATION
        self._is_awaited = False  # by a planned change
        self._is_warned = False  # its ranks are sent the pre-signal
        self._before: Mapping[int, int | None] | None = None  # what was seen of `done` before the pre-signal
        self._looked_s = 0.0

    def begin(self, generation: int) -> None:
        """Another generation: nothing of the one before counts."""
        self._generation, self.saves, self.answered = generation, 0, set()
        self._is_awaited, self._is_warned, self._before = False, False, None

    def expect(self, *, is_awaited: bool) -> None:
        """A planned change waits for the next checkpoint, or does not any more."""
        self._is_awaited = is_awaited

    def warn(self) -> list[LookForSave | LookForDone]:
        """The pre-signal is about to be sent: what was done or saved before it is no answer."""
        if self._is_warned:
            return []
        self._is_warned = True
        saved = [LookForSave(self._generation, settles=True)] if self._is_watched else []
        return [*saved, LookForDone(self._generation)]

    # --- looking -------------------------------------------------------------------------------------------------

    def deadline_s(self, live: Collection[int], warned: Collection[int]) -> float | None:
        """When to look again; None: not before the next renewal. `warned`: ranks that have the pre-signal only."""
        hurries = self._seeks_saves(live, warned) or self._seeks_answers(warned)
        return self._looked_s + LOOK_S if hurries else None

    def look(
        self, live: Collection[int], warned: Collection[int], now_s: float, *, is_renewing: bool
    ) -> list[LookForSave | LookForDone]:
        """Look for what may be new; `is_renewing`: it is about to be told anyway."""
        due_s = self.deadline_s(live, warned)
        is_due = due_s is not None and now_s >= due_s
        if not (is_due or is_renewing):
            return []
        self._looked_s = now_s
        found: list[LookForSave | LookForDone] = []
        if self._seeks_saves(live, warned) or (is_renewing and live and self._is_watched):
            found.append(LookForSave(self._generation))
        if self._seeks_answers(warned):
            found.append(LookForDone(self._generation))
        return found

    def _seeks_saves(self, live: Collection[int], warned: Collection[int]) -> bool:
        return self._is_watched and bool(warned or (live and self._is_awaited))

    def _seeks_answers(self, warned: Collection[int]) -> bool:
        return not self.answered.issuperset(warned)

    # --- what was seen -------------------------------------------------------------------------------------------

    def on_saved(self, event: Saved, live: Collection[int]) -> bool:
        """Take in a checkpoint; whether it is one to be told at once.

        Told later, it could be taken for an answer to a stop that comes meanwhile.
        """
        if event.generation != self._generation:
            return False
        self.saved_step = event.step
        if not (event.is_new and live):
            return False
        self.saves += 1
        return True

    def on_done(self, event: SeenDone, warned: Collection[int]) -> bool:
        """Take in which ranks have said that they are done; whether one of them has so answered the pre-signal."""
        if event.generation != self._generation:
            return False
        if self._before is None:
            self._before = event.counts
            return False
        known, before = len(self.answered), self._before
        self.answered |= {
            rank for rank, count in event.counts.items() if rank in warned and count not in (None, before.get(rank))
        }
        return len(self.answered) > known
