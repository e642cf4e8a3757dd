"""The times of the lease, and what has to hold between them (architecture.md; protocol/timing.py)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.timing import DRIFT, FRESH, GAP_S, KILL_S, Timing, flaws

FAST = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)
"""For tests on real networks; about the shortest that there are."""


@pytest.mark.parametrize("timing", [Timing(), FAST], ids=["defaults", "fast"])
def test_the_defaults_and_the_fast_times_are_without_flaws(timing: Timing) -> None:
    assert [*flaws(timing)] == []


@pytest.mark.parametrize(
    ("timing", "key", "other", "least_s"),
    [
        (Timing(renew_s=1.2), "alone", "renew", 2.4),
        (Timing(alone_s=1.9), "alone", "renew", 2.0),
        (Timing(suspect_s=1.9), "suspect", "alone", 2.0),
        (replace(FAST, suspect_s=GAP_S), "suspect", "", 1.01),
        (Timing(alone_s=3.9, suspect_s=4.0), "fence", "alone", 4.55),
        (replace(FAST, fence_s=1.4), "fence", "alone", 1.45),
        (Timing(ttl_s=4.9), "ttl", "fence", 5.0),
        (replace(FAST, ttl_s=1.93), "ttl", "fence", 1.94),
        (Timing(suspect_s=4.5), "ttl", "suspect", 5.2),
        (Timing(word_s=0.7), "word", "", 0.78),
    ],
)
def test_each_inequality_that_is_broken_alone_names_its_key_and_the_least_that_it_has_to_be(
    timing: Timing, key: str, other: str, least_s: float
) -> None:
    assert [(flaw.key, flaw.other, flaw.least_s) for flaw in flaws(timing)] == [(key, other, least_s)]


def test_a_flaw_says_the_inequality_in_words_with_its_numbers() -> None:
    assert [flaw.why for flaw in flaws(Timing(ttl_s=4.9))] == [
        "`fence` (4.5 s) and 0.4 s to kill every rank, by clocks up to 1% off"
    ]


TIMES = st.integers(1, 3600_000).map(lambda ms: ms / 1000) | st.integers(100, 6000).map(lambda ms: ms / 1000)


@given(st.builds(Timing, **dict.fromkeys(("renew_s", "alone_s", "suspect_s", "fence_s", "ttl_s", "word_s"), TIMES)))
def test_whoever_writes_what_the_flaws_say_gets_times_that_hold(timing: Timing) -> None:
    while flaw := next(flaws(timing), None):
        field = f"{flaw.key}_s"
        assert getattr(timing, field) < flaw.least_s, "or it would never end"
        timing = replace(timing, **{field: flaw.least_s})
    assert timing.fence_s * (1 + DRIFT) + KILL_S <= timing.ttl_s * (1 - DRIFT) + 1e-6
    assert timing.fresh_s < timing.word_s * (1 - DRIFT)


def test_no_word_is_given_from_the_question_on_for_as_long_as_a_testimony_counts() -> None:
    assert FRESH < 1 - DRIFT


@pytest.mark.parametrize("wrong_s", [0.0, -1.0, 3601.0])
def test_a_time_of_the_wire_is_over_0_and_at_most_an_hour(wrong_s: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"renew_s": wrong_s}, Timing)
