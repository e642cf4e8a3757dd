"""A runner's lease, and the word it gives others: how long ranks may live of which nobody has heard (L1-L4). Pure.

L1 The lease runs from the *sending* of the newest renewal that was answered, for `fence_s`: what happens to an answer
on its way can only make it shorter. L2 With the word of *all* witnesses it runs for `fence_s` from the asking; without
witnesses it never ends. L3 An answer to a renewal that is older than that, or of a coordinator that has been replaced,
launches nothing and prolongs nothing. L4 The word goes to one side only: a witness that has told the coordinator about
a runner gives that runner none for `word_s`, and says when it has given the last one. Nor does a witness whose own
lease is over, also where its ranks had ended before: who is lost to the coordinator gives nobody its word (L8).

The coordinator's side is leases.py. All times are boot-time seconds of this node.
"""

import math
from typing import TypeVar

from protocol.messages.member import Answer, Assignment
from protocol.messages.witness import Word
from protocol.timing import ASK_S, DEFAULTS, Timing

K = TypeVar("K")

KEPT_MAX = 256
"""Renewals, and askings, of which it is remembered when they were sent: of more than a minute at four a second."""

WORDS_MAX = 10_000
"""Runners to which a word was given, or of which was told, that are remembered; the oldest are forgotten first."""


class Lease:
    """What this runner may rely on."""

    def __init__(self) -> None:
        self.until_s = math.inf  # what runs here has to be gone soon after
        self.answered_s = -math.inf  # when the newest renewal was sent that has been answered, by any path
        self.direct_s = -math.inf  # when the newest answer came in on our own connection
        self.epoch = 0
        self.timing: Timing = DEFAULTS
        self.is_fenced = False  # it was over; what ran here, if anything still did, was killed for that
        self._number = 0  # of that renewal
        self._sent: dict[int, float] = {}  # renewal -> when
        self._asked: dict[int, float] = {}  # asking -> when
        self._askings = 0
        self._witnesses: tuple[str, ...] = ()  # incarnations
        self._words: dict[str, float] = {}  # witness -> the newest asking that it gave its word to
        self._ask_at_s = -math.inf
        self._is_launched = False

    # --- the coordinator's answers -------------------------------------------------------------------------------

    def sent(self, number: int, now_s: float) -> None:
        """A renewal goes out."""
        _remember(self._sent, number, now_s, KEPT_MAX)

    def hears(self, answer: Answer, now_s: float, *, is_direct: bool) -> bool:
        """Take in an answer; returns whether its order counts: the past's does not (L3, R3)."""
        if not self.sees_epoch(answer.epoch) or answer.number < self._number:
            return False
        self._number = answer.number
        self.answered_s = max(self.answered_s, self._sent.get(answer.number, -math.inf))
        if is_direct:
            self.direct_s = now_s
        if self.is_running:
            self.until_s = max(self.until_s, self.answered_s + self.timing.fence_s)
        return True

    def sees_epoch(self, epoch: int) -> bool:
        """Whether this is the coordinator: who speaks with a lower epoch than another one has been replaced."""
        self.epoch = max(self.epoch, epoch)
        return epoch == self.epoch

    def may_launch(self, assignment: Assignment, now_s: float) -> bool:
        """Whether an order that came with the newest answer can be carried out, or comes too late (L3)."""
        return not assignment.witnesses or now_s < self.answered_s + assignment.timing.fence_s

    # --- the generation ------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the generation launched here has a lease that can end, and has not; also once its ranks have."""
        return bool(self._witnesses)

    def begin(self, assignment: Assignment | None) -> None:
        """A generation is launched; None: it never is, here."""
        self._is_launched = assignment is not None
        if assignment is not None:
            self.timing = assignment.timing
        self._witnesses = tuple(witness.incarnation for witness in assignment.witnesses) if assignment else ()
        self._words, self._ask_at_s, self.is_fenced = {}, -math.inf, False
        self.until_s = self.answered_s + self.timing.fence_s if self._witnesses else math.inf

    def fence(self) -> None:
        """It is over: nothing makes this generation live again here."""
        self._witnesses, self.is_fenced = (), True

    def is_over(self, now_s: float) -> bool:
        """Whether what runs here must be killed now, and nobody gets our word any more."""
        return now_s >= self.until_s and not self.is_fenced

    def gives_word(self, now_s: float) -> bool:
        """Whether others may get our word (L4). Who has launched nothing has no lease, and gives it as long as one
        would go on."""
        until_s = self.until_s if self._is_launched else self.answered_s + self.timing.fence_s
        return not self.is_fenced and now_s < until_s

    def is_unheard(self, now_s: float) -> bool:
        """Whether the coordinator does not reach us by itself: then renewals go by way of the witnesses, too."""
        return self.is_running and now_s > self.direct_s + self.timing.alone_s

    # --- the word of others --------------------------------------------------------------------------------------

    @property
    def deadline_s(self) -> float:
        """When it is over, or the witnesses are to be asked; infinite: never."""
        if not self.is_running:
            return math.inf
        return min(self.until_s, max(self.answered_s + self.timing.alone_s, self._ask_at_s))

    def asks(self, now_s: float) -> int | None:
        """The number of a new asking, if one is due; None: none is."""
        if not self.is_running or now_s < max(self.answered_s + self.timing.alone_s, self._ask_at_s):
            return None
        self._ask_at_s = now_s + ASK_S
        self._askings += 1
        _remember(self._asked, self._askings, now_s, KEPT_MAX)
        return self._askings

    def hears_word(self, witness: str, word: Word) -> None:
        """A witness answers. Only with the word of all of them the lease goes on (L2)."""
        asked_s = self._asked.get(word.number)
        if not word.is_given or asked_s is None or witness not in self._witnesses:
            return
        self._words[witness] = max(self._words.get(witness, -math.inf), asked_s)
        if len(self._words) == len(self._witnesses):
            self.until_s = max(self.until_s, min(self._words.values()) + self.timing.fence_s)


class WordBook:
    """What this runner, as a witness, has given and told. It outlives generations: what was given is still out."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}  # incarnation -> when it got our last word
        self._told: dict[str, float] = {}  # incarnation -> when the coordinator was last told about it

    def may_give(self, incarnation: str, timing: Timing, now_s: float) -> bool:
        """Whether this runner can have our word now; if so it counts as given (L4)."""
        if now_s < self._told.get(incarnation, -math.inf) + timing.word_s:
            return False
        _remember(self._given, incarnation, now_s, WORDS_MAX)
        return True

    def tell(self, incarnation: str, now_s: float) -> float | None:
        """How long ago this runner got our last word, for the coordinator; None: it never did."""
        _remember(self._told, incarnation, now_s, WORDS_MAX)
        given_s = self._given.get(incarnation)
        return None if given_s is None else max(0.0, now_s - given_s)


def _remember(table: dict[K, float], key: K, when_s: float, most: int) -> None:
    table.pop(key, None)
    table[key] = when_s
    if len(table) > most:
        del table[next(iter(table))]
