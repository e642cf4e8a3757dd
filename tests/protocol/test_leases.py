"""The leases of one generation as its coordinator counts them: the rules L5 to L9, with times of our choice."""

from collections.abc import Collection
from typing import Any

import pytest

from protocol.coordinator_events import Ask, Seat
from protocol.leases import LOOK_S, Leases, Seen
from protocol.messages import member
from protocol.messages.member import Offer
from protocol.seating import seats_for
from protocol.timing import DEFAULTS, GAP_S, Timing
from tests.protocol.build import offer

SUSPECT_S, TTL_S, FRESH_S = DEFAULTS.suspect_s, DEFAULTS.ttl_s, DEFAULTS.fresh_s


LONG_WORDS = Timing(word_s=60.0)
"""A testimony counts for longer than a lease lasts."""


def seats(nodes: str, *, has_witnesses: bool = True, timing: Timing = DEFAULTS, generation: int = 0) -> dict[str, Seat]:
    offers: dict[str, Offer] = {node: offer() for node in nodes}
    runners = {node: f"{node}1" for node in nodes}
    return seats_for(generation, offers, runners, "", timing, has_witnesses=has_witnesses)


class Stage:
    """The leases of some nodes, all heard and answered at 0; looked at every LOOK_S. `silent` nodes are not heard."""

    def __init__(self, nodes: str = "abc", *, silent: str = "c", has_witnesses: bool = True) -> None:
        self.leases = Leases(seats(nodes, has_witnesses=has_witnesses))
        self.nodes, self.silent = nodes, silent
        self.now_s = 0.0
        self.ended: set[str] = set()
        self.seen: list[tuple[float, Seen]] = []
        self.words: dict[str, float | None] = {}  # witness (incarnation) -> when it gave its last word to anybody
        self.mute: str = ""  # nodes whose runners answer no question

    def look(self) -> Seen:
        """One look; what is asked is answered at once."""
        assert self.leases.deadline_s is not None
        self.now_s = self.leases.deadline_s
        self.leases.see_clock(self.now_s)
        for node in self.nodes:
            if node not in self.silent:
                self.hear(node)
        seen = self.leases.look(self.now_s, self.ended, 1)
        for ask in seen.asks:
            if ask.incarnation[0] not in self.silent + self.mute:
                given_s = self.words.get(ask.incarnation)
                self.testify(ask, None if given_s is None else self.now_s - given_s)
        for node in seen.lost:
            self.leases.end(node, self.now_s)
            self.ended.add(node)
        self.seen.append((self.now_s, seen))
        return seen

    def run_to(self, until_s: float) -> None:
        while self.now_s + LOOK_S <= until_s + 1e-9:
            self.look()

    def hear(self, node: str, *, is_direct: bool = True) -> None:
        self.leases.hear(node, self.now_s, is_direct=is_direct)

    def testify(self, ask: Ask, word_s: float | None = None, **changed: Any) -> None:
        asked = ask.question
        told: dict[str, Any] = {"number": asked.number, "node": asked.node, "incarnation": asked.incarnation}
        testimony = member.Testimony(**told | {"word_s": word_s} | changed)
        self.leases.testify(ask.incarnation, testimony, self.now_s)

    @property
    def lost(self) -> dict[str, float]:
        """When each node was."""
        return {node: now_s for now_s, seen in self.seen for node in seen.lost}

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        return [change for _, seen in self.seen for change in seen.changed]

    @property
    def asks(self) -> list[tuple[float, str, str]]:
        """When which witness was asked about whom."""
        return [(now_s, ask.incarnation, ask.question.node) for now_s, seen in self.seen for ask in seen.asks]


# --- L6: silence -----------------------------------------------------------------------------------------------------


def test_who_is_silent_is_suspect_and_not_before() -> None:
    stage = Stage(silent="c")
    stage.run_to(SUSPECT_S)
    assert (stage.leases.state("c", SUSPECT_S), stage.changes, stage.asks) == ("", [], [])
    stage.look()
    assert stage.changes == [("c", "", "suspect")]
    assert stage.leases.state("c", stage.now_s) == "suspect"
    assert stage.leases.silent_s("c", stage.now_s) == stage.now_s


def test_the_witnesses_of_a_suspect_are_asked_at_once_and_again_every_0_3_s() -> None:
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(4.5)
    times = [now_s for now_s, witness, about in stage.asks if witness == "a1"]
    assert times == pytest.approx([3.3, 3.6, 3.9, 4.2, 4.5])
    assert {(witness, about) for _, witness, about in stage.asks} == {("a1", "c"), ("b1", "c")}


def test_every_question_has_a_number_of_its_own_and_the_epoch_of_its_coordinator() -> None:
    stage = Stage(silent="c")
    stage.run_to(4.5)
    questions = [ask.question for _, seen in stage.seen for ask in seen.asks]
    assert len({question.number for question in questions}) == len(questions)
    assert {(question.node, question.incarnation, question.epoch) for question in questions} == {("c", "c1", 1)}


def test_who_is_heard_only_by_way_of_a_witness_is_unreachable_and_never_lost() -> None:
    stage = Stage(silent="c")
    while stage.now_s < 20.0:
        stage.look()
        stage.hear("c", is_direct=False)
    assert stage.changes == [("c", "", "unreachable")]
    assert (stage.lost, stage.asks) == ({}, [])
    assert stage.leases.state("c", stage.now_s) == "unreachable"
    stage.hear("c")
    stage.look()
    assert stage.changes[-1] == ("c", "unreachable", "")


def test_who_is_heard_again_is_neither() -> None:
    stage = Stage(silent="c")
    stage.run_to(4.0)
    stage.hear("c")
    stage.look()
    assert stage.changes == [("c", "", "suspect"), ("c", "suspect", "")]


def test_a_change_is_told_once() -> None:
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(20.0)
    assert stage.changes == [("c", "", "suspect")]


def test_it_is_looked_no_more_often_than_every_0_3_s() -> None:
    leases = Leases(seats("ab"))
    assert leases.deadline_s == LOOK_S
    assert leases.look(10.0, (), 1).asks != []
    assert leases.look(10.0 + LOOK_S / 2, (), 1) == Seen()
    assert leases.deadline_s == 10.0 + LOOK_S


def test_a_node_alone_is_missed_by_nobody() -> None:
    leases = Leases(seats("a"))
    assert leases.deadline_s is None
    leases.see_clock(99.0)
    assert leases.look(99.0, (), 1) == Seen()


# --- L7: one lease, one word -----------------------------------------------------------------------------------------


def test_lost_is_who_has_had_no_answer_for_the_whole_lease_and_of_whom_one_witness_testifies() -> None:
    for mute in ("", "a", "b"):
        stage = Stage(silent="c")
        stage.mute = mute
        stage.run_to(20.0)
        assert stage.lost == {"c": pytest.approx(5.1)}, "the first look at which the lease is over"


def test_by_its_lease_alone_nobody_is_lost() -> None:
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(60.0)
    assert stage.lost == {}


def test_a_lease_is_counted_from_the_last_renewal_by_any_path() -> None:
    """L5."""
    for is_direct in (True, False):
        stage = Stage(silent="c")
        stage.run_to(2.7)
        stage.hear("c", is_direct=is_direct)
        stage.run_to(20.0)
        assert stage.lost == {"c": pytest.approx(7.8)}


def test_a_witness_that_has_given_its_word_lately_frees_nobody() -> None:
    stage = Stage(silent="c")
    stage.mute, stage.words["a1"] = "b", 3.0
    stage.run_to(20.0)
    assert stage.lost == {"c": pytest.approx(8.1)}, "the first look at which that word is over"


def test_each_witness_counts_by_itself_and_the_word_of_another_one_changes_nothing() -> None:
    stage = Stage(silent="c")
    stage.words["a1"] = 4.8
    stage.run_to(20.0)
    assert stage.lost == {"c": pytest.approx(5.1)}


@pytest.mark.parametrize(("asked_s", "lost"), [(3.3, {}), (3.9, {"c": 5.4})])
def test_a_testimony_counts_for_a_while_from_the_question_on(asked_s: float, lost: dict[str, float]) -> None:
    """So long its witness gives the runner no word, though its answer may come late."""
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(asked_s)
    [ask, _] = stage.seen[-1][1].asks
    stage.run_to(4.8)
    stage.testify(ask)
    stage.leases.hear("c", 0.2, is_direct=True)  # so that its lease is over when the older testimony counts no more
    assert 3.3 + FRESH_S < 0.2 + TTL_S < 3.9 + FRESH_S
    stage.run_to(20.0)
    assert stage.lost == pytest.approx(lost)


@pytest.mark.parametrize(
    "changed", [{"number": 999}, {"incarnation": "b1"}, {"incarnation": "c2"}], ids=["unknown", "another", "successor"]
)
def test_an_answer_to_no_question_of_this_generation_changes_nothing(changed: dict[str, Any]) -> None:
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(4.8)
    for ask in stage.seen[-1][1].asks:
        stage.testify(ask, **changed)
    stage.run_to(6.0)
    assert stage.lost == {}


def test_an_answer_about_another_runner_than_was_asked_about_changes_nothing() -> None:
    stage = Stage(silent="bc")
    stage.mute = "a"
    stage.run_to(4.8)
    for ask in stage.seen[-1][1].asks:
        stage.testify(ask, incarnation="c1" if ask.question.node == "b" else "b1")
    stage.run_to(6.0)
    assert stage.lost == {}


def test_an_answer_of_another_than_was_asked_changes_nothing() -> None:
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(4.8)
    for ask in stage.seen[-1][1].asks:
        stage.testify(Ask("z1", ask.question))
    stage.run_to(6.0)
    assert stage.lost == {}


def test_who_was_not_asked_does_not_spoil_the_answer_of_who_was() -> None:
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(4.8)
    for ask in stage.seen[-1][1].asks:
        stage.testify(Ask("z1", ask.question))
        stage.testify(ask)
    stage.run_to(6.0)
    assert stage.lost.keys() == {"c"}


def test_a_question_is_answered_once() -> None:
    """A held copy of an answer does not say how long ago the word was given."""
    stage = Stage(silent="c")
    stage.mute = "ab"
    stage.run_to(4.8)
    [ask, _] = stage.seen[-1][1].asks
    stage.testify(ask, 0.1)  # a word at 4.7
    stage.testify(ask, None)
    stage.run_to(20.0)
    assert stage.lost == {}


def test_without_witnesses_nobody_is_ever_lost() -> None:
    stage = Stage(silent="c", has_witnesses=False)
    stage.run_to(60.0)
    assert (stage.lost, stage.asks) == ({}, [])
    assert stage.changes == [("c", "", "suspect")]


def test_on_whom_the_generation_has_ended_cannot_be_missed() -> None:
    stage = Stage(silent="c")
    stage.ended = {"c"}
    stage.run_to(20.0)
    assert (stage.lost, stage.changes) == ({}, [])


def test_each_seat_keeps_the_times_that_its_generation_began_with() -> None:
    offers = {node: offer() for node in "ab"}
    fast = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)
    stage = Stage("ab", silent="b")
    stage.leases = Leases(seats_for(0, offers, {"a": "a1", "b": "b1"}, "", fast, has_witnesses=True))
    stage.run_to(5.0)
    assert stage.lost == {"b": pytest.approx(2.1)}


def test_a_late_answer_to_a_question_about_another_generation_is_no_answer_about_this_one() -> None:
    """The runners are the same ones, and a connection may hold back what was said on it."""

    def asked(generation: int) -> set[int]:
        leases = Leases(seats("abc", generation=generation))
        found = set()
        for look in range(1, 40):
            found |= {ask.question.number for ask in leases.look(look * LOOK_S, (), 1).asks}
        return found

    assert asked(3)
    assert not asked(3) & asked(4)


# --- L8: witnesses that are gone -------------------------------------------------------------------------------------


def test_a_witness_that_is_proven_gone_counts_a_lease_later() -> None:
    stage = Stage("abc", silent="bc")
    stage.mute = "a"
    stage.leases.end("b", 0.9)
    stage.ended = {"b"}
    stage.run_to(20.0)
    assert stage.lost == {"c": pytest.approx(6.0)}


def test_a_witness_that_is_lost_counts_a_lease_later() -> None:
    """With one that is mute, and never lost, c has nobody else."""
    stage = Stage("abc", silent="bc")
    about_b = lambda ask: ask.question.node == "b"  # noqa: E731
    stage.mute = "a"
    while stage.now_s < 20.0:
        for ask in filter(about_b, stage.look().asks):
            if ask.incarnation == "a1":
                stage.testify(ask)
    assert stage.lost["b"] == pytest.approx(5.1)
    assert stage.lost["c"] == pytest.approx(10.2)


def test_a_witness_that_was_lost_and_is_heard_again_may_give_its_word_and_counts_only_once_that_has_ended() -> None:
    """It has launched nothing, say: then no lease of its own was over, and it gives its word while it is answered."""
    stage = Stage("abc", silent="bc")
    stage.mute = "ab"  # it is not reached
    stage.leases.end("b", 0.9)
    stage.ended = {"b"}
    stage.run_to(3.0)
    stage.hear("b")
    heard_s = stage.now_s
    stage.run_to(30.0)
    [(node, lost_s)] = stage.lost.items()
    assert node == "c"
    assert 0 <= lost_s - (heard_s + DEFAULTS.fence_s + TTL_S) <= LOOK_S


def test_two_that_are_silent_at_once_are_both_lost_if_one_other_is_there() -> None:
    stage = Stage("abc", silent="bc")
    stage.run_to(20.0)
    assert stage.lost == {"b": pytest.approx(5.1), "c": pytest.approx(5.1)}


def test_where_all_are_silent_nobody_is_lost() -> None:
    stage = Stage("abc", silent="abc")
    stage.run_to(60.0)
    assert stage.lost == {}


# --- L9: counted anew ------------------------------------------------------------------------------------------------


def begins_at(stage: Stage, when_s: float, gone: Collection[str] = ()) -> None:
    stage.run_to(when_s)
    stage.leases.begin(when_s, gone)
    stage.now_s = when_s


def test_a_coordinator_that_begins_anew_counts_every_lease_as_answered_now() -> None:
    stage = Stage(silent="c")
    begins_at(stage, 4.8)
    stage.run_to(20.0)
    assert stage.lost == {"c": pytest.approx(9.9)}
    assert next(now_s for now_s, *_ in stage.asks if now_s > 4.8) == pytest.approx(8.1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_answers_to_questions_of_before_are_none_any_more(when: str) -> None:
    stage = Stage(silent="c")
    stage.leases = Leases(seats("abc", timing=LONG_WORDS))
    stage.mute = "ab"
    stage.run_to(4.8)
    [ask, _] = stage.seen[-1][1].asks
    if when == "before":
        stage.testify(ask)
    begins_at(stage, 4.8)
    if when == "after":
        stage.testify(ask)
    stage.run_to(20.0)
    assert stage.lost == {}


def test_words_that_were_told_before_still_count() -> None:
    stage = Stage(silent="c")
    stage.words["a1"], stage.mute = 4.5, "b"
    begins_at(stage, 4.8)
    stage.mute, stage.words = "b", {}  # it does not say it again
    stage.run_to(20.0)
    assert stage.lost == {"c": pytest.approx(9.9)}


def test_a_coordinator_that_was_held_up_counts_every_lease_anew() -> None:
    stage = Stage(silent="c")
    stage.run_to(4.8)
    stage.leases.see_clock(4.9 + GAP_S)
    stage.run_to(20.0)
    assert stage.lost == {"c": pytest.approx(11.0)}


def test_a_short_gap_is_none() -> None:
    leases = Leases(seats("ab"))
    leases.look(3.0, (), 1)
    leases.see_clock(3.0 + GAP_S)
    assert leases.silent_s("b", 4.0) == 4.0
    leases.see_clock(3.0 + GAP_S + 0.001)
    assert leases.silent_s("b", 4.001) == 0.0


def test_who_was_gone_before_a_restart_counts_a_lease_after_its_last_word() -> None:
    """When that was known is not on disk, nor whether it was heard again and answered just before."""
    stage = Stage("abc", silent="bc")
    stage.mute = "a"
    stage.ended = {"b"}
    begins_at(stage, 3.0, gone="b")
    stage.run_to(20.0)
    [(node, lost_s)] = stage.lost.items()
    assert node == "c"
    assert 0 <= lost_s - (3.0 + DEFAULTS.fence_s + TTL_S) <= LOOK_S


def test_of_whom_nothing_is_left_there_is_no_state() -> None:
    stage = Stage(silent="c")
    stage.run_to(6.0)
    assert stage.leases.state("c", stage.now_s) == ""
    assert stage.leases.state("z", stage.now_s) == ""
