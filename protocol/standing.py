"""A runner among the others of its generation: its lease with its guard, and the words it asks for and gives. Pure.

The rules of the lease are lease.py's; this is when they come into play, and what is told of them.
"""

import math

from protocol.dataclass import dataclass, field
from protocol.ids import NO_GENERATION
from protocol.lease import Lease, WordBook
from protocol.member_events import (
    AskWords,
    Effect,
    GiveWord,
    Hold,
    Meet,
    Questioned,
    Reached,
    Testify,
    WordAsked,
    WordHeard,
)
from protocol.messages.member import Assignment, Question, Testimony
from protocol.messages.witness import Word, WordWanted

MET_S = 15.0
"""So long after they are looked for, within 10 s, every witness that can be reached is reached."""


@dataclass(frozen=False)
class Standing:
    """Of one runner; boot-time seconds of its node."""

    lease: Lease
    generation: int = NO_GENERATION
    fenced_s: float | None = None  # this generation's ranks were killed: so long after the last answer
    _reached: frozenset[str] = frozenset()  # incarnations of witnesses that have a connection to us
    _assignment: Assignment | None = None
    _met_s: float | None = None  # when this generation's witnesses were looked for
    _held_s: float = math.inf  # until when the guard lets live what runs here
    _words: WordBook = field(default_factory=WordBook)

    def begin(self, generation: int, assignment: Assignment | None) -> None:
        """Another generation; None: it is never launched here."""
        self.generation, self._assignment, self.fenced_s, self._met_s = generation, assignment, None, None
        self.lease.begin(assignment)

    def take(self, event: Questioned | WordAsked | WordHeard | Reached, now_s: float) -> list[Effect]:
        """What a witness has to do with."""
        match event:
            case Questioned(question):
                return self._testify(question, now_s)
            case WordAsked(_, incarnation, wanted):
                return self._give_word(incarnation, wanted, now_s)
            case WordHeard(incarnation, word):
                if word.generation == self.generation:
                    self.lease.hears_word(incarnation, word)
            case Reached(incarnations):
                self._reached = incarnations
        return []

    def hold(self, *, is_settled: bool) -> list[Effect]:
        """Tell the guard until when it lets live what runs here, if that has changed."""
        until_s = math.inf if is_settled else self.lease.until_s
        if until_s == self._held_s:
            return []
        self._held_s = until_s
        return [Hold(None if until_s == math.inf else until_s)]

    def meet(self, now_s: float) -> list[Effect]:
        """Look for the witnesses of this generation, once."""
        if self._met_s is not None or self._assignment is None or not self._assignment.witnesses:
            return []
        self._met_s = now_s
        return [Meet(self._assignment.witnesses)]

    def ask(self, now_s: float) -> list[Effect]:
        """Turn to the witnesses, if that is due."""
        asking = self.lease.asks(now_s)
        if asking is None:
            return []
        return [*self.meet(now_s), AskWords(WordWanted(number=asking, generation=self.generation))]

    def _give_word(self, incarnation: str, wanted: WordWanted, now_s: float) -> list[Effect]:
        """Answer a runner that asks for our word. Also who has stopped gives it, as long as its own lease goes on: that
        is no reason for others to end. Who is at another generation does not."""
        is_ours = wanted.generation == self.generation and self.lease.gives_word(now_s)
        is_given = is_ours and self._words.may_give(incarnation, self.lease.timing, now_s)
        return [GiveWord(incarnation, Word(number=wanted.number, generation=wanted.generation, is_given=is_given))]

    def _testify(self, question: Question, now_s: float) -> list[Effect]:
        """Answer the coordinator."""
        if not self.lease.sees_epoch(question.epoch):
            return []
        word_s = self._words.tell(question.incarnation, now_s)
        number, epoch, node, incarnation = question.number, question.epoch, question.node, question.incarnation
        return [Testify(Testimony(number=number, epoch=epoch, node=node, incarnation=incarnation, word_s=word_s))]

    def unreached(self, now_s: float) -> tuple[str, ...]:
        """The witnesses that are not there, once all have been looked for."""
        if self._met_s is None or self._assignment is None or now_s < self._met_s + MET_S:
            return ()
        return tuple(w.node for w in self._assignment.witnesses if w.incarnation not in self._reached)
