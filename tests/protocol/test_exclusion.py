"""H47: a node that fails again and again is left out for a while, for longer each time, and not for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.coordinator_events import RosterNode
from protocol.exclusion import (
    CULPRITS_MAX,
    EXCLUDE_MAX_S,
    EXCLUDE_S,
    PAROLE_S,
    WITHIN_S,
    Culprits,
    Exclusions,
    cool_down_s,
    exclusion,
)


def test_one_incident_excludes_nothing_and_two_within_an_hour_do() -> None:
    assert exclusion([10.0], 2) is None
    found = exclusion([10.0, 20.0], 2)
    assert found is not None
    assert (found.until_s, found.incidents, found.times) == (20.0 + EXCLUDE_S, 2, 1)


def test_incidents_that_are_an_hour_apart_say_nothing_together() -> None:
    assert exclusion([0.0, WITHIN_S, 2 * WITHIN_S], 2) is None
    assert exclusion([0.0, WITHIN_S - 1], 2) is not None


def test_zero_excludes_never() -> None:
    assert exclusion([1.0] * 50, 0) is None


def test_each_time_is_twice_as_long_as_the_one_before_up_to_a_day() -> None:
    assert [cool_down_s(times) for times in (1, 2, 3)] == [EXCLUDE_S, 2 * EXCLUDE_S, 4 * EXCLUDE_S]
    assert cool_down_s(50) == EXCLUDE_MAX_S
    again_s = 20.0 + EXCLUDE_S
    found = exclusion([10.0, 20.0, again_s, again_s + 1], 2)
    assert found is not None
    assert (found.times, found.until_s) == (2, again_s + 1 + 2 * EXCLUDE_S)


def test_what_happens_to_other_jobs_while_it_is_excluded_adds_nothing() -> None:
    assert exclusion([10.0, 20.0, 30.0, 40.0], 2) == exclusion([10.0, 20.0], 2)


def test_after_it_a_node_is_on_parole_for_an_hour() -> None:
    found = exclusion([10.0, 20.0], 2)
    assert found is not None
    over_s = found.until_s
    assert [found.holds(at_s) for at_s in (over_s - 1, over_s)] == [True, False]
    assert [found.is_on_parole(at_s) for at_s in (over_s - 1, over_s, over_s + PAROLE_S)] == [False, True, False]


@settings(deadline=None)
@given(st.lists(st.floats(0, 2_000_000), max_size=50).map(sorted), st.integers(1, 5))
def test_no_past_excludes_a_node_for_longer_than_a_day_after_its_last_incident(
    troubles: list[float], after: int
) -> None:
    found = exclusion(troubles, after)
    if found is not None:
        assert found.until_s <= troubles[-1] + EXCLUDE_MAX_S


def node(name: str, *troubles: float) -> RosterNode:
    return RosterNode(name, is_up=True, troubles=troubles)


def test_a_job_knows_when_time_alone_changes_something() -> None:
    known = Exclusions(2)
    known.look(30.0)
    known.see([node("a"), node("b", 10.0, 20.0)])
    assert (known.holds("a"), known.holds("b"), list(known.texts(30.0))) == (False, True, ["b"])
    assert known.deadline_s == 20.0 + EXCLUDE_S
    assert not known.look(known.deadline_s - 1)
    assert known.look(20.0 + EXCLUDE_S)
    assert (known.holds("b"), known.is_on_parole("b"), known.deadline_s) == (False, True, 20.0 + EXCLUDE_S + PAROLE_S)
    known.see([node("a"), node("b")])  # an operator has lifted it
    assert not known.is_on_parole("b")
    assert known.deadline_s is None


@pytest.mark.parametrize(("left_s", "said"), [(899.0, "15 min"), (61.0, "1 min"), (1.0, "1 min")])
def test_how_long_it_still_lasts_is_told_in_minutes(left_s: float, said: str) -> None:
    found = exclusion([10.0, 20.0], 2)
    assert found is not None
    assert found.text(found.until_s - left_s) == f"{said} more, 2 incidents within an hour"


def test_an_incident_of_the_run_itself_counts_before_the_fleet_tells_of_it_and_only_once() -> None:
    known = Exclusions(2)
    known.look(10.0)
    known.see([node("b", 5.0)])
    known.blame("b")
    assert known.holds("b")
    known.see([node("b", 5.0, 10.1)])  # the same one
    assert known.all["b"].incidents == 2
    known.see([node("b")])
    assert not known.holds("b")


# --- failures of the program -------------------------------------------------------------------------------------


def test_a_crash_loop_is_put_down_to_one_node_at_most() -> None:
    known = Culprits()
    blamed = [known.blames("ValueError at t.py:3", node, "abc") for node in "aabbca"]
    assert blamed == [True, True, False, False, False, True]
    assert known.blames("SIGSEGV", "b", "abc"), "another cause"


def test_a_run_on_one_node_puts_its_failures_down_to_none() -> None:
    assert not Culprits().blames("SIGSEGV", "a", "a")


def test_the_causes_that_are_remembered_are_bounded() -> None:
    known = Culprits()
    assert all(known.blames(f"exit code {code}", "a", "ab") for code in range(CULPRITS_MAX + 1))
    assert known.blames("exit code 0", "b", "ab"), "forgotten"
    assert not known.blames("exit code 2", "b", "ab")
