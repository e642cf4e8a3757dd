"""A runner's lease, and the words that are given: the rules L1 to L4, with times of our choice."""

import math

import pytest

from protocol.lease import KEPT_MAX, WORDS_MAX, Lease, WordBook
from protocol.messages.member import Answer, Wait
from protocol.messages.witness import Word
from protocol.timing import ASK_S, DEFAULTS, Timing
from tests.protocol.build import assignment, witnessed

FENCE_S, ALONE_S, WORD_S = DEFAULTS.fence_s, DEFAULTS.alone_s, DEFAULTS.word_s


def answer(number: int, epoch: int = 1) -> Answer:
    return Answer(number=number, epoch=epoch, order=Wait())


def held(by: str = "bc", timing: Timing = DEFAULTS) -> Lease:
    """Renewal 1 was sent at 10.0, and the answer of 10.5 began a generation."""
    lease = Lease()
    lease.sent(1, 10.0)
    assert lease.hears(answer(1), 10.5, is_direct=True)
    lease.begin(witnessed(by=by, timing=timing))
    return lease


def asked(lease: Lease, now_s: float) -> int:
    number = lease.asks(now_s)
    assert number is not None
    return number


def word(number: int, *, is_given: bool = True) -> Word:
    return Word(number=number, generation=0, is_given=is_given)


# --- L1: from the sending --------------------------------------------------------------------------------------------


def test_a_lease_runs_from_the_sending_of_the_renewal_and_not_from_the_answer() -> None:
    lease = held()
    assert lease.until_s == 10.0 + FENCE_S
    assert not lease.is_over(10.0 + FENCE_S - 0.001)
    assert lease.is_over(10.0 + FENCE_S)


def test_each_answer_prolongs_it_by_what_its_own_renewal_is_worth() -> None:
    lease = held()
    lease.sent(2, 11.0)
    lease.sent(3, 12.0)
    lease.hears(answer(2), 13.0, is_direct=True)
    assert lease.until_s == 11.0 + FENCE_S
    lease.hears(answer(3), 13.1, is_direct=False)
    assert lease.until_s == 12.0 + FENCE_S


def test_an_answer_that_was_overtaken_counts_for_nothing() -> None:
    lease = held()
    lease.sent(2, 11.0)
    lease.hears(answer(2), 11.1, is_direct=True)
    assert not lease.hears(answer(1), 12.0, is_direct=True)
    assert (lease.until_s, lease.direct_s) == (11.0 + FENCE_S, 11.1)


def test_an_answer_that_is_pushed_counts_its_order_and_prolongs_nothing() -> None:
    lease = held()
    assert lease.hears(answer(1), 14.0, is_direct=True)
    assert lease.until_s == 10.0 + FENCE_S


def test_an_answer_to_what_was_never_sent_prolongs_nothing() -> None:
    """Or to a renewal of so long ago that nobody remembers it."""
    lease = held()
    assert lease.hears(answer(7), 12.0, is_direct=True)
    assert lease.until_s == 10.0 + FENCE_S
    assert not lease.may_launch(witnessed(1), 10.0 + FENCE_S)
    fresh = Lease()
    assert fresh.hears(answer(0), 12.0, is_direct=True)
    assert not fresh.may_launch(witnessed(), 12.0)


def test_renewals_of_long_ago_are_forgotten_and_the_newest_are_not() -> None:
    lease = held()
    for number in range(2, KEPT_MAX + 3):
        lease.sent(number, 10.0 + number / 1000)
    lease.hears(answer(2), 10.4, is_direct=True)
    assert lease.until_s == 10.0 + FENCE_S
    lease.hears(answer(3), 10.4, is_direct=True)
    assert lease.until_s == 10.003 + FENCE_S


def test_a_lease_that_is_over_is_over_once_and_nothing_revives_that_generation() -> None:
    lease = held()
    lease.fence()
    assert not lease.is_over(99.0)
    lease.sent(2, 15.0)
    lease.hears(answer(2), 15.0, is_direct=True)
    number = lease.asks(16.0)
    assert (lease.is_fenced, lease.is_running, number, lease.until_s) == (True, False, None, 10.0 + FENCE_S)


def test_the_next_generation_has_a_lease_of_its_own() -> None:
    lease = held()
    lease.fence()
    lease.sent(2, 20.0)
    lease.hears(answer(2), 20.1, is_direct=True)
    lease.begin(witnessed(1, timing=Timing(fence_s=7.0, ttl_s=9.0)))
    assert (lease.is_fenced, lease.is_running, lease.until_s) == (False, True, 27.0)


def test_a_generation_that_is_never_launched_here_has_none() -> None:
    lease = held()
    lease.begin(None)
    assert not lease.is_over(1e9)


# --- L2: the word of all ---------------------------------------------------------------------------------------------


def test_without_witnesses_a_lease_is_never_over_and_nobody_is_asked() -> None:
    lease = held(by="")
    assert not lease.is_over(1e9)
    assert lease.asks(1e9) is None
    assert not lease.is_unheard(1e9)
    assert lease.deadline_s == math.inf


def test_witnesses_are_asked_once_there_was_no_answer_for_alone_and_then_again_and_again() -> None:
    lease = held()
    assert lease.deadline_s == 10.0 + ALONE_S
    assert lease.asks(10.0 + ALONE_S - 0.001) is None
    assert lease.asks(12.0) == 1
    assert lease.deadline_s == 12.0 + ASK_S
    assert lease.asks(12.2) is None
    assert lease.asks(12.0 + ASK_S) == 2
    lease.sent(2, 12.3)
    lease.hears(answer(2), 12.4, is_direct=True)
    assert lease.asks(12.5) is None
    assert lease.deadline_s == 12.3 + ALONE_S


def test_a_lease_goes_on_from_the_asking_with_the_word_of_all_and_not_of_any() -> None:
    lease = held(by="bcd")
    number = asked(lease, 13.0)
    for node in ("b1", "c1"):
        lease.hears_word(node, word(number))
        assert lease.until_s == 10.0 + FENCE_S
    lease.hears_word("d1", word(number))
    assert lease.until_s == 13.0 + FENCE_S


def test_of_the_askings_that_they_have_answered_the_oldest_counts() -> None:
    lease = held()
    first, second = asked(lease, 12.0), asked(lease, 13.0)
    lease.hears_word("b1", word(second))
    lease.hears_word("c1", word(first))
    assert lease.until_s == 12.0 + FENCE_S
    lease.hears_word("b1", word(first))  # late: its newest word stands
    lease.hears_word("c1", word(second))
    assert lease.until_s == 13.0 + FENCE_S


@pytest.mark.parametrize(
    ("who", "said"),
    [
        pytest.param("c1", word(1, is_given=False), id="refused"),
        pytest.param("c1", word(9), id="an asking that never was"),
        pytest.param("z1", word(1), id="a stranger"),
        pytest.param("b1", word(1), id="the same one twice"),
    ],
)
def test_no_word_of_one_witness_is_no_word_of_all(who: str, said: Word) -> None:
    lease = held()
    assert asked(lease, 13.0) == 1
    lease.hears_word("b1", word(1))
    lease.hears_word(who, said)
    assert lease.until_s == 10.0 + FENCE_S


def test_words_never_make_a_lease_shorter_than_the_coordinators_answer() -> None:
    lease = held()
    number = asked(lease, 12.0)
    lease.sent(2, 13.0)
    lease.hears(answer(2), 13.1, is_direct=False)
    for node in ("b1", "c1"):
        lease.hears_word(node, word(number))
    assert lease.until_s == 13.0 + FENCE_S


def test_the_words_for_a_generation_do_not_count_for_the_next() -> None:
    lease = held()
    number = asked(lease, 13.0)
    lease.hears_word("b1", word(number))
    lease.begin(witnessed(1))
    lease.hears_word("c1", word(number))
    assert lease.until_s == 10.0 + FENCE_S


def test_who_hears_the_coordinator_only_by_witnesses_keeps_to_that_way() -> None:
    lease = held()
    assert not lease.is_unheard(10.5 + ALONE_S)
    lease.sent(2, 12.5)
    lease.hears(answer(2), 12.6, is_direct=False)
    assert lease.asks(12.7) is None
    assert lease.is_unheard(12.7)
    lease.hears(answer(2), 12.8, is_direct=True)
    assert not lease.is_unheard(12.9)


# --- L3: void orders -------------------------------------------------------------------------------------------------


def test_an_order_that_answers_too_old_a_renewal_launches_nothing() -> None:
    lease = held()
    assert lease.may_launch(witnessed(1), 10.0 + FENCE_S - 0.001)
    assert not lease.may_launch(witnessed(1), 10.0 + FENCE_S)
    assert lease.may_launch(assignment(1), 1e9)  # without witnesses


def test_how_old_it_may_be_is_said_by_the_order_itself() -> None:
    lease = held()
    assert lease.may_launch(witnessed(1, timing=Timing(fence_s=9.0, ttl_s=11.0)), 18.9)
    assert not lease.may_launch(witnessed(1, timing=Timing(fence_s=2.0)), 12.0)


def test_a_coordinator_that_was_replaced_is_not_heard_any_more() -> None:
    lease = held()
    lease.sent(2, 11.0)
    assert not lease.hears(answer(2, epoch=0), 11.1, is_direct=True)
    assert lease.hears(answer(2, epoch=3), 11.2, is_direct=True)
    assert not lease.hears(answer(2, epoch=2), 11.3, is_direct=True)
    assert (lease.epoch, lease.until_s, lease.direct_s) == (3, 11.0 + FENCE_S, 11.2)


# --- L4: the word ---------------------------------------------------------------------------------------------------


def test_who_has_a_lease_gives_others_its_word_as_long_as_it_goes_on() -> None:
    """Also once its ranks have ended; who is lost to the coordinator gives nobody its word."""
    lease = held()
    assert lease.gives_word(10.0 + FENCE_S - 0.001)
    assert not lease.gives_word(10.0 + FENCE_S)
    lease.sent(2, 14.0)
    lease.hears(answer(2), 14.1, is_direct=True)
    assert lease.gives_word(10.0 + FENCE_S)
    lease.fence()
    assert not lease.gives_word(14.2)


def test_who_has_launched_nothing_gives_its_word_as_long_as_a_lease_would_go_on() -> None:
    lease = held()
    lease.begin(None)
    assert lease.gives_word(10.0 + FENCE_S - 0.001)
    assert not lease.gives_word(10.0 + FENCE_S)


def test_whose_lease_never_ends_always_gives_its_word() -> None:
    assert held(by="").gives_word(1e9)


# --- L4: it goes to one side only ------------------------------------------------------------------------------


def test_a_word_is_given_to_whoever_the_coordinator_has_not_asked_about() -> None:
    book = WordBook()
    book.tell("y1", 10.0)
    assert book.may_give("x1", DEFAULTS, 10.0)


def test_after_it_has_told_the_coordinator_a_witness_gives_no_word_for_a_while() -> None:
    book = WordBook()
    book.tell("x1", 10.0)
    assert not book.may_give("x1", DEFAULTS, 10.0)
    assert not book.may_give("x1", DEFAULTS, 10.0 + WORD_S - 0.001)
    assert book.may_give("x1", DEFAULTS, 10.0 + WORD_S)
    book.tell("x1", 12.5)
    book.tell("x1", 13.0)
    assert not book.may_give("x1", DEFAULTS, 12.5 + WORD_S)


def test_a_witness_tells_how_long_ago_it_gave_its_last_word_and_not_when_it_refused() -> None:
    book = WordBook()
    assert book.tell("x1", 5.0) is None
    assert not book.may_give("x1", DEFAULTS, 6.0)
    assert book.tell("x1", 7.0) is None
    assert book.may_give("x1", DEFAULTS, 10.0)
    assert book.may_give("x1", DEFAULTS, 11.0)
    assert book.tell("x1", 13.5) == 2.5
    assert book.tell("y1", 13.5) is None
    assert book.tell("x1", 10.9) == 0.0


def test_the_oldest_words_are_forgotten_first() -> None:
    book = WordBook()
    for number in range(WORDS_MAX + 1):
        book.may_give(f"x{number}", DEFAULTS, 1.0)
    assert book.tell("x0", 2.0) is None
    assert book.tell("x1", 2.0) == 1.0
