"""The restart policy: how often, how soon, at whose expense."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.dataclass import replace
from protocol.job import RestartTable
from protocol.restart import (
    CAUSE_IN_A_ROW_MAX,
    MAX_RESTARTS,
    Again,
    Failure,
    GiveUp,
    Ledger,
    backoff_s,
    decide,
)

TABLE = RestartTable(max_restarts=3, backoff_s=5.0, backoff_max_s=120.0, stable_after_s=600.0)


def failure(
    *,
    exit_code: int | None = 1,
    ran_s: float = 1.0,
    saved_step: int | None = None,
    started: bool = True,
    ever: bool | None = None,
    infrastructure: bool = False,
    cause: str = "",
    seen_step: int | None = None,
    at_s: float = 0.0,
) -> Failure:
    return Failure(
        cause=cause or ("node lost" if infrastructure else f"exit code {exit_code}"),
        seen_step=seen_step,
        time_s=at_s,
        is_infrastructure=infrastructure,
        exit_code=exit_code,
        has_ever_started=started if ever is None else ever,
        had_started=started,
        ran_s=ran_s,
        saved_step=saved_step,
    )


def story(table: RestartTable, failures: list[Failure], jitter: float = 0.0) -> list[Again | GiveUp]:
    """The decisions about one failure after the other."""
    ledger, decisions = Ledger(), []
    for one in failures:
        decision, ledger = decide(table, ledger, one, jitter)
        decisions.append(decision)
    return decisions


def delays(decisions: list[Again | GiveUp]) -> list[float | None]:
    return [d.delay_s if isinstance(d, Again) else None for d in decisions]


def test_a_job_that_always_crashes_gets_exactly_its_restarts_with_a_growing_wait_and_then_fails() -> None:
    """H49."""
    decisions = story(TABLE, [failure()] * 4, jitter=0.5)
    assert decisions == [
        Again(0.0, MAX_RESTARTS, "restart 1 of 3"),
        Again(3.75, MAX_RESTARTS, "restart 2 of 3"),
        Again(7.5, MAX_RESTARTS, "restart 3 of 3"),
        GiveUp("restart budget spent (3 of 3)", budget=MAX_RESTARTS),
    ]


def test_a_stable_time_of_zero_neither_lifts_the_limit_nor_the_wait() -> None:
    """H49: with a minimum uptime of zero every failure would count as progress."""
    table = RestartTable(max_restarts=3, backoff_s=5.0, stable_after_s=0.0)
    assert delays(story(table, [failure()] * 4)) == [0.0, 2.5, 5.0, None]


def test_a_job_that_ran_longer_than_its_stable_time_restarts_at_once_but_still_pays() -> None:
    """H49: `stable_after` resets the wait, `max_restarts` counts over the whole run (docs/job-file.md)."""
    decisions = story(TABLE, [failure(), failure(), failure(ran_s=601.0), failure(ran_s=601.0)])
    assert delays(decisions) == [0.0, 2.5, 0.0, None]


def test_a_long_time_before_all_ranks_had_started_is_no_progress() -> None:
    assert delays(story(TABLE, [failure(), failure(ran_s=601.0, started=False, ever=True)])) == [0.0, 2.5]


def test_a_higher_checkpoint_resets_the_wait_and_the_same_or_a_lower_one_does_not() -> None:
    steps = [100, 100, 200, 150, 200, 201]
    table = RestartTable(max_restarts=-1, backoff_s=5.0, no_progress_limit=0)
    assert delays(story(table, [failure(saved_step=step) for step in steps])) == [0.0, 2.5, 0.0, 2.5, 5.0, 0.0]


def test_the_first_checkpoint_of_a_run_is_progress_even_at_step_zero() -> None:
    assert delays(story(TABLE, [failure(), failure(saved_step=0)])) == [0.0, 0.0]


def test_the_wait_doubles_up_to_its_cap_and_never_falls_below_half_of_it() -> None:
    table = RestartTable(max_restarts=-1, backoff_s=5.0, backoff_max_s=12.0)
    assert delays(story(table, [failure()] * 6, jitter=0.0)) == [0.0, 2.5, 5.0, 6.0, 6.0, 6.0]


@settings(deadline=None)
@given(restarts=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_a_wait_lies_between_half_of_its_ceiling_and_all_of_it(restarts: int, jitter: float) -> None:
    ceiling_s = min(120.0, 5.0 * 2.0 ** min(restarts - 1, 60))
    assert ceiling_s / 2 <= backoff_s(restarts, 5.0, 120.0, jitter) <= ceiling_s


@settings(deadline=None)
@given(restarts=st.integers(1, 50), one=st.floats(0, 1, exclude_max=True), other=st.floats(0, 1, exclude_max=True))
def test_whatever_the_jitter_a_later_wait_is_not_shorter(restarts: int, one: float, other: float) -> None:
    assert backoff_s(restarts, 5.0, 1e20, one) <= backoff_s(restarts + 1, 5.0, 1e20, other)


def test_a_lost_runner_is_not_charged_but_waits_like_a_failure() -> None:
    decisions = story(TABLE, [failure(infrastructure=True, exit_code=None)] * 5)
    assert delays(decisions) == [0.0, 2.5, 5.0, 10.0, 20.0]
    assert not any(d.charged for d in decisions if isinstance(d, Again))


def test_a_lost_runner_restarts_a_job_that_had_not_started_and_one_whose_budget_is_spent() -> None:
    lost = failure(infrastructure=True, started=False)
    assert isinstance(decide(TABLE, Ledger(used=3), lost, 0.0)[0], Again)


def test_policy_never_gives_up_at_any_failure() -> None:
    table = RestartTable(policy="never", always_on_exit=(1,))
    for one in (failure(), failure(infrastructure=True)):
        assert story(table, [one]) == [GiveUp('restart.policy is "never"')]


def test_an_exit_code_in_never_on_exit_fails_the_run_whatever_is_left_of_the_budget() -> None:
    table = RestartTable(max_restarts=-1, never_on_exit=(2,))
    assert story(table, [failure(exit_code=1), failure(exit_code=2)]) == [
        Again(0.0, MAX_RESTARTS, "restart 1"),
        GiveUp("exit code 2 is in restart.never_on_exit"),
    ]


def test_an_exit_code_in_always_on_exit_restarts_uncharged_also_before_the_start_and_after_the_budget() -> None:
    table = RestartTable(max_restarts=0, always_on_exit=(33,))
    decision, ledger = decide(table, Ledger(), failure(exit_code=33, started=False), 0.0)
    assert decision == Again(0.0, "", "exit code 33 is in restart.always_on_exit")
    assert (ledger.used, ledger.streak) == (0, 1)


def test_a_signal_is_in_neither_list() -> None:
    table = RestartTable(never_on_exit=(9, 137), always_on_exit=(15,))
    assert isinstance(story(table, [failure(exit_code=None)])[0], Again)


def test_a_failure_before_the_start_fails_the_run_unless_the_job_says_restart() -> None:
    early = failure(started=False)
    assert story(TABLE, [early]) == [GiveUp('it never started, and restart.on_startup_failure is "fail"')]
    assert story(RestartTable(on_startup_failure="restart"), [early]) == [Again(0.0, MAX_RESTARTS, "restart 1 of 10")]


def test_a_failure_before_the_start_of_a_later_generation_is_an_ordinary_one() -> None:
    assert story(TABLE, [failure(started=False, ever=True)]) == [Again(0.0, MAX_RESTARTS, "restart 1 of 3")]


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_the_budget_is_exact(limit: int) -> None:
    decisions = story(RestartTable(max_restarts=limit), [failure()] * (limit + 1))
    assert [isinstance(d, Again) for d in decisions] == [True] * limit + [False]


def test_minus_one_restart_is_no_limit() -> None:
    failures = [failure(saved_step=step) for step in range(2000)]
    assert all(isinstance(d, Again) for d in story(RestartTable(max_restarts=-1), failures))


def test_a_run_that_only_ever_loses_its_runner_is_given_up_in_the_end() -> None:
    decisions = story(TABLE, [failure(infrastructure=True)] * (CAUSE_IN_A_ROW_MAX + 1))
    assert [type(decision) for decision in decisions] == [*[Again] * CAUSE_IN_A_ROW_MAX, GiveUp]


def lost_port() -> Failure:
    return replace(failure(started=False), lost_its_port=True)


def test_a_lost_port_is_made_good_at_once_and_uncharged_three_times_in_a_row() -> None:
    """H39, where a failure before the start is retried, and where it is not."""
    patient = RestartTable(max_restarts=1, on_startup_failure="restart")
    decisions = story(patient, [lost_port()] * 6)
    assert [d.charged for d in decisions if isinstance(d, Again)] == [False, False, False, True]
    assert delays(decisions)[:4] == [0.0, 0.0, 0.0, 0.0]
    assert decisions[-1] == GiveUp("restart budget spent (1 of 1)", budget=MAX_RESTARTS)
    decisions = story(TABLE, [lost_port()] * 4)
    assert delays(decisions) == [0.0, 0.0, 0.0, None]
    assert decisions[-1] == GiveUp('it never started, and restart.on_startup_failure is "fail"')


def test_lost_ports_are_counted_only_in_a_row_and_make_no_later_wait_longer() -> None:
    decisions = story(TABLE, [lost_port(), lost_port(), failure(), *[lost_port()] * 3, failure()])
    assert delays(decisions) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.5]
    assert [d.charged for d in decisions if isinstance(d, Again)] == [False, False, True, False, False, False, True]


def test_a_lost_port_does_not_restart_a_run_that_is_never_to_be_restarted() -> None:
    assert story(RestartTable(policy="never"), [lost_port()]) == [GiveUp('restart.policy is "never"')]
    table = RestartTable(never_on_exit=(1,))
    assert story(table, [lost_port()]) == [GiveUp("exit code 1 is in restart.never_on_exit")]


def test_a_hang_ends_the_run_where_the_job_wants_that() -> None:
    ends = replace(failure(), ends_run=True)
    assert story(TABLE, [ends]) == [GiveUp('hang.action is "fail"')]
