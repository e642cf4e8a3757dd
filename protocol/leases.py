"""The leases of one generation as its coordinator counts them: who is silent, and who is lost (L5-L9). Pure.

L5 A node's lease is counted for `ttl_s` from when the last renewal of its runner was heard, by any path, and answered;
what is said unasked names that one, and prolongs nothing. L6 Silence is no loss: who was not heard for `suspect_s` is
suspect, and its witnesses are asked; who is heard only by way of a witness is unreachable, and goes on. L7 Lost is a
node whose lease is over, *and* of which one witness has answered a question that is younger than `fresh_s`, *and* whose
every word of that witness is older than `ttl_s`: what it ran is killed by then, and cannot get the word of all any
more. L8 A witness that is itself lost, or proven gone, counts as such an answer `ttl_s` later; one that was lost and is
heard again (it has launched nothing, then, and may give its word for as long as it is answered) does so `fence_s` later
still. Without witnesses there is only proof. L9 A coordinator that begins anew, or was held up, counts all leases as
answered now.

The runner's side is lease.py. All times are boot-time seconds of the coordinator's node.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping

from protocol.coordinator_events import Ask, Seat
from protocol.dataclass import dataclass, field
from protocol.messages.member import Question, Testimony, Witness
from protocol.timing import ASK_AGAIN_S, GAP_S

LOOK_S = ASK_AGAIN_S
"""How often it is looked at who is silent; much more often than GAP_S."""

QUESTION_BITS = 32
"""Questions about a generation are numbered from `generation << QUESTION_BITS` on."""

QUESTIONS_MAX = 100_000
"""Questions without an answer that are remembered: of a second, where all of the largest fleet are silent."""


@dataclass(frozen=False)
class _Held:
    """What is known of one node's lease."""

    heard_s: float  # the last renewal, by any path; each is answered
    direct_s: float  # the last one on its runner's own connection
    ask_at_s: float = -math.inf  # when its witnesses are to be asked (again)
    shown: str = ""  # the state that was told last
    is_heard: bool = False  # since the coordinator has begun, or was held up


@dataclass(frozen=False)
class _Told:
    """What a witness has told of a runner."""

    asked_s: float = -math.inf  # the newest question that it has answered
    word_s: float = -math.inf  # when it gave its last word, at the latest


@dataclass(frozen=False)
class Seen:
    """What a look has shown."""

    asks: list[Ask] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    changed: list[tuple[str, str, str]] = field(default_factory=list)  # node, its state before, and now


class Leases:
    """Who may still run something of a generation, by time alone."""

    def __init__(self, seats: Mapping[str, Seat], now_s: float = 0.0) -> None:
        self._seats = seats
        self._held = {node: _Held(now_s, now_s) for node in seats}
        self._gone_s: dict[str, float] = {}  # node -> from when on its runner, of which nothing is left, gives no word
        self._told: dict[tuple[str, str], _Told] = {}  # witness, runner (incarnations)
        # number -> witness, runner, epoch, when
        self._questions: OrderedDict[int, tuple[str, str, int, float]] = OrderedDict()
        # No question has the number of one about another generation: its answer may come late, and would count as ours.
        self._numbers = max((seat.assignment.generation for seat in seats.values()), default=0) << QUESTION_BITS
        self._looked_s = now_s

    @property
    def deadline_s(self) -> float | None:
        """When it is to be looked at; None: never, since nobody can be missed by anybody."""
        return self._looked_s + LOOK_S if len(self._seats) > 1 else None

    # --- what is heard and said ----------------------------------------------------------------------------------

    def begin(self, now_s: float, gone: Collection[str] = ()) -> None:
        """Count all leases as answered now (L9); on `gone` nodes nothing is left, who knows since when. (One that was
        lost may have been heard again just before.)"""
        for held in self._held.values():
            held.heard_s, held.direct_s, held.is_heard = now_s, now_s, False
        self._questions.clear()
        for told in self._told.values():
            told.asked_s = -math.inf
        self._gone_s |= {node: self._word_ends_s(node, now_s) for node in gone if node not in self._gone_s}
        self._looked_s = now_s

    def see_clock(self, now_s: float) -> None:
        """Before anything else is done at this time: was there a gap in which nobody could be heard (L9)?"""
        if self.deadline_s is not None and now_s > self._looked_s + GAP_S:
            self.begin(now_s)

    def hear(self, node: str, now_s: float, *, is_direct: bool) -> None:
        """A renewal of the seated runner has come in, and will be answered (L5)."""
        held = self._held[node]
        held.heard_s, held.is_heard = now_s, True
        if is_direct:
            held.direct_s = now_s
        if node in self._gone_s:
            self._gone_s[node] = self._word_ends_s(node, now_s)

    def testify(self, witness: str, testimony: Testimony, now_s: float) -> None:
        """A witness, known by the incarnation of its connection, has answered. What is no answer to a question of this
        coordinator about this generation changes nothing: the next one begins to number them anew."""
        asked = self._questions.get(testimony.number)
        if asked is None or asked[:2] != (witness, testimony.incarnation) or testimony.epoch not in (None, asked[2]):
            return
        del self._questions[testimony.number]
        told = self._told.setdefault((witness, testimony.incarnation), _Told())
        told.asked_s = max(told.asked_s, asked[3])
        if testimony.word_s is not None:
            told.word_s = max(told.word_s, now_s - testimony.word_s)

    def end(self, node: str, now_s: float) -> None:
        """Nothing of the runner there is left: it is lost, or proven gone."""
        self._gone_s.setdefault(node, now_s)

    def _word_ends_s(self, node: str, heard_s: float) -> float:
        """When a runner that has been heard gives its word no more, at the latest (L4)."""
        return heard_s + self._seats[node].assignment.timing.fence_s

    # --- judgement -----------------------------------------------------------------------------------------------

    def look(self, now_s: float, ended: Collection[str], epoch: int) -> Seen:
        """See who is silent; nothing can be missed of those on which the generation has `ended`."""
        seen = Seen()
        if self.deadline_s is None or now_s < self.deadline_s:
            return seen
        self._looked_s = now_s
        for node, held in self._held.items():
            if node in ended:
                continue
            state = self._state(node, held, now_s)
            if state == "suspect":
                if self._is_lost(node, now_s):
                    seen.lost.append(node)
                    continue
                seen.asks += self._questions_about(node, held, epoch, now_s)
            if state != held.shown and (state or held.is_heard):
                seen.changed.append((node, held.shown, state))
                held.shown = state
        return seen

    def state(self, node: str, now_s: float) -> str:
        """ "suspect", "unreachable" (only a witness hears its runner), or "": neither."""
        held = self._held.get(node)
        return "" if held is None or node in self._gone_s else self._state(node, held, now_s)

    def silent_s(self, node: str, now_s: float) -> float:
        """Since its runner was heard."""
        return max(0.0, now_s - self._held[node].heard_s)

    def _state(self, node: str, held: _Held, now_s: float) -> str:
        limit_s = self._seats[node].assignment.timing.suspect_s
        if now_s > held.heard_s + limit_s:
            return "suspect"
        return "unreachable" if now_s > held.direct_s + limit_s else ""

    def _is_lost(self, node: str, now_s: float) -> bool:
        given = self._seats[node].assignment
        is_over = now_s >= self._held[node].heard_s + given.timing.ttl_s
        return is_over and any(self._frees(witness, node, now_s) for witness in given.witnesses)

    def _frees(self, witness: Witness, node: str, now_s: float) -> bool:
        """Whether this witness has given no word that still counts, and will give none while it matters (L7, L8)."""
        seat = self._seats[node]
        timing = seat.assignment.timing
        gone_s = self._gone_s.get(witness.node)
        if gone_s is not None and now_s >= gone_s + timing.ttl_s:
            return True
        told = self._told.get((witness.incarnation, seat.incarnation), _Told())
        is_fresh = now_s < told.asked_s + timing.fresh_s
        return is_fresh and now_s >= told.word_s + timing.ttl_s

    def _questions_about(self, node: str, held: _Held, epoch: int, now_s: float) -> Iterator[Ask]:
        if now_s < held.ask_at_s:
            return
        held.ask_at_s = now_s + ASK_AGAIN_S
        runner = self._seats[node].incarnation
        for witness in self._seats[node].assignment.witnesses:
            self._numbers += 1
            self._questions[self._numbers] = witness.incarnation, runner, epoch, now_s
            if len(self._questions) > QUESTIONS_MAX:
                self._questions.popitem(last=False)
            question = Question(number=self._numbers, epoch=epoch, node=node, incarnation=runner)
            yield Ask(witness.incarnation, question)
