"""Runners among each other: whose word a runner asks for, and to whom it gives its own."""

import pytest

from protocol import member_events as m
from protocol.member_events import (
    AskWords,
    Cleared,
    Effect,
    GiveWord,
    Hold,
    KillAll,
    Launched,
    Meet,
    Questioned,
    Reached,
    Renew,
    Tick,
    WordAsked,
    WordHeard,
    Wrote,
)
from protocol.messages import member
from protocol.messages.member import Part, Question, Run, Stop
from protocol.messages.witness import Word, WordWanted
from protocol.standing import MET_S
from protocol.timing import ASK_S, DEFAULTS
from tests.protocol.build import exited, witnessed
from tests.protocol.lease_stage import FENCE_S, OVER_S, fenced, gets, given_to, leased, of, stopped, ticks
from tests.protocol.runner_stage import Stage, idle

ALONE_S, WORD_S = DEFAULTS.alone_s, DEFAULTS.word_s


# --- witnesses -------------------------------------------------------------------------------------------------------


def test_the_witnesses_are_met_once_all_ranks_run() -> None:
    stage, given = given_to(witnessed()), witnessed()
    assert of(Meet, stage.at(1.0, Launched(0, (100, 101)))) == []
    stage.at(1.0, Wrote(0, 0))
    assert of(Meet, stage.at(1.0, Wrote(0, 1))) == [Meet(given.witnesses)]
    assert of(Meet, [effect for _, effect in ticks(stage, OVER_S)]) == []


def test_a_runner_that_hears_nothing_meets_its_witnesses_before_its_ranks_run() -> None:
    stage = given_to(witnessed())
    stage.at(1.0, Launched(0, (100, 101)))
    found = [effect for _, effect in ticks(stage, 1.0 + ALONE_S) if isinstance(effect, Meet | AskWords)]
    assert found == [Meet(witnessed().witnesses), AskWords(WordWanted(number=1, generation=0))]
    assert of(Meet, stage.at(3.1, Wrote(0, 0)) + stage.at(3.1, Wrote(0, 1))) == []


def test_who_hears_nothing_for_alone_asks_for_words_and_renews_by_all_ways_four_times_a_second() -> None:
    stage = leased()
    done = ticks(stage, OVER_S - 0.1)
    asked = [(now_s, effect.wanted.number) for now_s, effect in done if isinstance(effect, AskWords)]
    times = [1.0 + ALONE_S + ASK_S * place for place in range(10)]
    assert [now_s for now_s, _ in asked] == pytest.approx(times)
    assert [number for _, number in asked] == list(range(1, 11))
    renewed_by_all = {now_s for now_s, effect in done if isinstance(effect, Renew) and effect.by_witnesses}
    assert {now_s for now_s, _ in asked} <= renewed_by_all
    numbers = [effect.renewal.number for _, effect in done if isinstance(effect, Renew)]
    assert len(set(numbers)) == len(numbers)
    assert not any(effect.by_witnesses for now_s, effect in done if isinstance(effect, Renew) and now_s < 3.0)


def test_who_has_stopped_and_hears_nothing_renews_by_its_witnesses_and_asks_for_words_still() -> None:
    """Or else its "stopped" could never come by way of them."""
    stage = stopped()
    effects = [effect for now_s, effect in ticks(stage, 5.0) if now_s > 2.1 + ALONE_S]
    assert of(AskWords, effects) != []
    assert {effect.by_witnesses for effect in of(Renew, effects)} == {True}


def words(stage: Stage, now_s: float, *incarnations: str, number: int = 1, generation: int = 0) -> list[Effect]:
    said = Word(number=number, generation=generation, is_given=True)
    return [effect for one in incarnations for effect in stage.at(now_s, WordHeard(one, said))]


def test_with_the_word_of_all_the_lease_goes_on_from_the_asking() -> None:
    stage = leased()
    ticks(stage, 1.0 + ALONE_S)
    assert words(stage, 3.1, "b1") == []
    assert words(stage, 3.2, "c1") == [Hold(3.0 + FENCE_S)]
    assert of(KillAll, [effect for _, effect in ticks(stage, 3.0 + FENCE_S - 0.1)]) == []
    assert of(KillAll, [effect for _, effect in ticks(stage, 3.0 + FENCE_S)]) == [KillAll(0)]


def test_a_word_for_another_generation_is_none() -> None:
    stage = leased()
    ticks(stage, 1.0 + ALONE_S)
    assert words(stage, 3.2, "b1", "c1", generation=1) == []


def test_as_long_as_all_give_their_word_training_needs_no_coordinator() -> None:
    stage = leased()
    number = 0
    while (now_s := stage.member.deadline_s) is not None and now_s < 600.0:
        for effect in stage.at(now_s, Tick()):
            if isinstance(effect, AskWords):
                number = effect.wanted.number
                words(stage, now_s, "b1", "c1", number=number)
    assert (stage.part, number > 2000) == (Part.RUNNING, True)


def test_who_is_answered_only_by_witnesses_renews_by_them_and_asks_for_no_words() -> None:
    stage = leased()
    ticks(stage, 4.0)
    gets(stage, 4.0, Run(assignment=witnessed()), is_direct=False)
    now_s, done = 4.0, list[Effect]()
    while now_s < 30.0:
        assert stage.member.deadline_s is not None
        now_s = stage.member.deadline_s
        done += stage.at(now_s, Tick())
        gets(stage, now_s, Run(assignment=witnessed()), is_direct=False)
    assert {effect.by_witnesses for effect in of(Renew, done)} == {True}
    assert len(of(Renew, done)) == 26
    assert of(AskWords, done) == []
    gets(stage, now_s, Run(assignment=witnessed()))
    assert not of(Renew, stage.at(now_s + 1.0, Tick()))[0].by_witnesses


def unreached(stage: Stage, until_s: float) -> list[tuple[float, tuple[str, ...]]]:
    """What its renewals say of its witnesses; each is answered at once."""
    said = []
    while (now_s := stage.member.deadline_s) is not None and now_s <= until_s:
        said += [(now_s, effect.renewal.unreached) for effect in of(Renew, stage.at(now_s, Tick()))]
        gets(stage, now_s, Run(assignment=witnessed()))
    return said


def test_witnesses_that_are_not_reached_are_named_once_all_have_been_looked_for() -> None:
    stage = leased()
    assert {names for _, names in unreached(stage, 1.0 + MET_S - 0.1)} == {()}
    assert unreached(stage, 1.0 + MET_S)[-1] == (1.0 + MET_S, ("b", "c"))
    stage.at(16.5, Reached(frozenset({"c1"})))
    assert unreached(stage, 17.0)[-1] == (17.0, ("b",))
    stage.at(17.5, Reached(frozenset({"b1", "c1"})))
    assert unreached(stage, 18.0)[-1] == (18.0, ())


# --- as a witness ----------------------------------------------------------------------------------------------------


def wants(stage: Stage, now_s: float, generation: int = 0, who: str = "b1") -> bool:
    """Whether a runner that asks for a word gets it."""
    [effect] = of(GiveWord, stage.at(now_s, WordAsked(who[0], who, WordWanted(number=7, generation=generation))))
    assert (effect.incarnation, effect.word.number, effect.word.generation) == (who, 7, generation)
    return bool(effect.word.is_given)


def question(number: int = 1, epoch: int = 0) -> Questioned:
    return Questioned(Question(number=number, epoch=epoch, node="b", incarnation="b1"))


def test_a_runner_gives_its_word_to_others_of_its_generation() -> None:
    assert wants(leased(), 2.0)
    assert wants(given_to(witnessed()), 1.5)


def test_a_runner_that_has_stopped_or_finished_or_stops_still_gives_its_word() -> None:
    assert wants(stopped(), 3.0)
    stage = leased()
    gets(stage, 2.0, Stop(generation=0))
    assert (stage.part, wants(stage, 2.5)) == (Part.STOPPING, True)
    stage = leased()
    for rank in (0, 1):
        stage.exits(2.0, rank, exited(0))
    stage.at(2.0, Cleared(0))
    assert (stage.part, wants(stage, 2.5)) == (Part.FINISHED, True)


def test_a_stopped_runner_whose_lease_is_over_gives_no_word() -> None:
    """It is lost by then, and so the coordinator takes it for one that gives none."""
    stage = stopped()
    assert wants(stage, 1.9 + FENCE_S)
    ticks(stage, 1.9 + FENCE_S)
    assert not wants(stage, 2.1 + FENCE_S)


def test_a_stopped_runner_that_others_give_their_word_gives_its_own() -> None:
    """One that has stopped is no reason for others to end, however long the coordinator is away."""
    stage = stopped()
    while (now_s := stage.member.deadline_s) is not None and now_s < 60.0:
        for effect in of(AskWords, stage.at(now_s, Tick())):
            words(stage, now_s, "b1", "c1", number=effect.wanted.number)
    assert wants(stage, 60.0)


def test_a_runner_that_was_fenced_gives_no_word() -> None:
    assert not wants(leased(), OVER_S)  # also where it sees that only now
    assert not wants(fenced(), 6.0)


def test_a_runner_gives_no_word_for_another_generation_than_its_own() -> None:
    assert not wants(leased(), 2.0, generation=1)
    assert not wants(leased(witnessed(1)), 2.0, generation=0)
    assert not wants(idle(), 2.0, generation=0)
    stage = stopped()
    stage.at(3.0, Tick())
    gets(stage, 3.0, Stop(generation=1))  # it never launches that one, and has heard of it
    assert not wants(stage, 3.0)


def test_the_coordinator_is_told_how_long_ago_the_last_word_was_given() -> None:
    stage = leased()
    [first] = stage.at(2.0, question())
    assert first == m.Testify(member.Testimony(number=1, epoch=0, node="b", incarnation="b1", word_s=None))
    stage = leased()
    wants(stage, 2.0)
    [second] = stage.at(2.75, question(2))
    assert second == m.Testify(member.Testimony(number=2, epoch=0, node="b", incarnation="b1", word_s=0.75))


def test_who_has_told_the_coordinator_gives_no_word_for_a_while() -> None:
    """L4: and says so."""
    stage = leased()
    stage.at(2.0, question())
    assert not wants(stage, 2.0 + WORD_S - 0.1)
    assert wants(stage, 2.0 + WORD_S - 0.1, who="c1")
    assert wants(stage, 2.0 + WORD_S)


def test_words_that_were_given_in_one_generation_are_told_in_the_next() -> None:
    """They still count for who got them."""
    stage = stopped()
    wants(stage, 3.0)
    stage.at(3.5, Tick())
    gets(stage, 3.5, Run(assignment=witnessed(1)))
    [told] = of(m.Testify, stage.at(4.0, question()))
    assert told.testimony.word_s == 1.0


def test_a_coordinator_that_was_replaced_gets_no_testimony_and_its_question_binds_nobody() -> None:
    stage = leased()
    gets(stage, 1.5, Run(assignment=witnessed()), epoch=3)
    assert stage.at(2.0, question(epoch=2)) == []
    assert wants(stage, 2.1)
    assert stage.at(2.2, question(epoch=4)) != []
    assert gets(stage, 2.3, Stop(generation=0), epoch=3) == []
