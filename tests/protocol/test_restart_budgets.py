"""Budgets by cause, their window, the ceiling of a cause, and runs that come no further."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.job import RestartTable
from protocol.restart import (
    CAUSE_IN_A_ROW_MAX,
    CAUSES_MAX,
    MAX_INFRA_RESTARTS,
    MAX_RESTARTS,
    Again,
    Failure,
    GiveUp,
    Ledger,
    budget_of,
    charge,
    decide,
    resumed,
)

FRESH = Ledger()
SOUND = RestartTable(max_restarts=-1, no_progress_limit=0)
"""Nothing but the ceiling ends a run."""


def failure(
    cause: str = "SIGSEGV",
    *,
    infra: bool = False,
    step: int | None = None,
    at_s: float = 0.0,
    exit_code: int | None = None,
) -> Failure:
    return Failure(
        cause="node lost" if infra else cause,
        is_infrastructure=infra,
        exit_code=exit_code,
        has_ever_started=True,
        had_started=True,
        ran_s=1.0,
        seen_step=step,
        time_s=at_s,
    )


def story(table: RestartTable, failures: Iterable[Failure], ledger: Ledger = FRESH) -> list[Again | GiveUp]:
    """The decisions about one failure after the other, up to the one that ends the run."""
    decisions: list[Again | GiveUp] = []
    for one in failures:
        decision, ledger = decide(table, ledger, one, 0.0)
        decisions.append(decision)
        if isinstance(decision, GiveUp):
            break
    return decisions


def payers(decisions: Iterable[Again | GiveUp]) -> list[str]:
    return [decision.budget for decision in decisions if isinstance(decision, Again)]


# --- who pays ----------------------------------------------------------------------------------------------------


def test_a_loss_is_charged_to_a_budget_of_its_own_and_leaves_the_programs_alone() -> None:
    table = RestartTable(max_restarts=1, max_infra_restarts=2)
    decisions = story(table, [failure(infra=True), failure(), failure(infra=True), failure(infra=True)])
    assert payers(decisions) == [MAX_INFRA_RESTARTS, MAX_RESTARTS, MAX_INFRA_RESTARTS]
    assert decisions[-1] == GiveUp("infrastructure restart budget spent (2 of 2)", budget=MAX_INFRA_RESTARTS)


def test_with_count_membership_a_lost_node_costs_what_a_failure_does() -> None:
    table = RestartTable(max_restarts=1, count_membership=True)
    decisions = story(table, [failure(infra=True), failure(infra=True)])
    assert (payers(decisions), decisions[-1]) == (
        [MAX_RESTARTS],
        GiveUp("restart budget spent (1 of 1)", budget=MAX_RESTARTS),
    )


def test_a_change_of_membership_that_is_charged_is_one_restart_less() -> None:
    table = RestartTable(max_restarts=2, count_membership=True)
    ledger = charge(table, charge(table, Ledger(), 0.0), 0.0)
    assert budget_of(table, ledger, MAX_RESTARTS, 0.0).is_spent
    assert story(table, [failure()], ledger) == [GiveUp("restart budget spent (2 of 2)", budget=MAX_RESTARTS)]


def test_restarts_that_are_older_than_the_window_are_paid_back() -> None:
    table = RestartTable(max_restarts=2, restart_window_s=100.0)
    times_s = [0.0, 50.0, 100.0, 149.9]
    decisions = story(table, [failure(f"cause {at_s}", at_s=at_s) for at_s in times_s])
    assert [d.why for d in decisions] == [
        "restart 1 of 2 within 100 s",
        "restart 2 of 2 within 100 s",
        "restart 2 of 2 within 100 s",
        "restart budget spent (2 of 2 within 100 s)",
    ]


@settings(deadline=None)
@given(
    gaps_s=st.lists(st.floats(0, 60), max_size=60),
    limit=st.integers(0, 5),
    window_s=st.sampled_from([0.0, 10.0, 100.0]),
    infra=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_no_window_ever_has_more_charged_restarts_than_its_budget(
    gaps_s: list[float], limit: int, window_s: float, infra: list[bool]
) -> None:
    table = RestartTable(max_restarts=limit, max_infra_restarts=limit, restart_window_s=window_s, no_progress_limit=0)
    ledger, at_s = Ledger(), 0.0
    charged: list[tuple[str, float]] = []
    for number, gap_s in enumerate(gaps_s):
        at_s += gap_s
        one = failure(f"cause {number}", infra=infra[number], step=number, at_s=at_s)
        decision, ledger = decide(table, ledger, one, 0.0)
        if isinstance(decision, GiveUp):
            continue  # an operator lets it go on, and its budgets are as they were
        charged.append((decision.budget, at_s))
        recent = [key for key, when_s in charged if window_s == 0 or at_s - when_s < window_s]
        assert recent.count(MAX_RESTARTS) <= limit >= recent.count(MAX_INFRA_RESTARTS)
        assert len(ledger.stamps) <= limit >= len(ledger.infra_stamps)


# --- the ceiling of a cause --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(ranks=st.lists(st.integers(0, 5000), min_size=CAUSE_IN_A_ROW_MAX + 1, max_size=CAUSE_IN_A_ROW_MAX + 1))
def test_one_cause_ends_a_run_that_pays_nothing_whatever_the_ranks_are(ranks: list[int]) -> None:
    """A rank is in no signature, so that one that changes buys nothing."""
    for one in (failure(infra=True), failure("RuntimeError at train.py:31"), failure(exit_code=33)):
        decisions = story(msgspec.structs.replace(SOUND, always_on_exit=(33,)), [one for _ in ranks])
        assert [type(d) for d in decisions] == [*[Again] * CAUSE_IN_A_ROW_MAX, GiveUp]
        assert "26 failures of one cause" in decisions[-1].why


def test_the_ceiling_counts_each_cause_also_where_two_take_turns() -> None:
    causes = ["SIGSEGV", "ValueError at a.py:1"] * (CAUSE_IN_A_ROW_MAX + 1)
    assert len(story(SOUND, map(failure, causes))) == 2 * CAUSE_IN_A_ROW_MAX + 1


def test_progress_begins_the_count_of_every_cause_anew() -> None:
    steps = [step for step in range(3) for _ in range(CAUSE_IN_A_ROW_MAX)]
    assert not any(isinstance(d, GiveUp) for d in story(SOUND, [failure(step=step) for step in steps]))


def test_causes_without_end_are_not_counted_without_end() -> None:
    ledger = Ledger()
    for number in range(3 * CAUSES_MAX):
        decision, ledger = decide(SOUND, ledger, failure(f"cause {number}"), 0.0)
        assert isinstance(decision, Again)
        decision, ledger = decide(SOUND, ledger, failure("SIGSEGV"), 0.0)
        if isinstance(decision, GiveUp):
            break
    assert number == CAUSE_IN_A_ROW_MAX  # it was not forgotten for the many others
    assert len(ledger.causes) <= CAUSES_MAX


# --- no progress -------------------------------------------------------------------------------------------------


def test_the_same_cause_at_the_same_step_ends_the_run_at_the_limit() -> None:
    decisions = story(RestartTable(), [failure(step=40)] * 5)
    why = "no progress: 3 failures in a row of one cause (SIGSEGV) at step 40 (restart.no_progress_limit)"
    assert decisions[2:] == [GiveUp(why, made_no_progress=True)]


def test_another_cause_or_a_higher_step_in_between_is_no_row() -> None:
    assert len(story(RestartTable(), [failure("a", step=1), failure("b", step=1)] * 3)) == 6
    assert len(story(RestartTable(), [failure(step=step) for step in (1, 1, 2, 2, 3, 3)])) == 6


def test_a_lower_step_than_the_last_is_no_progress_either() -> None:
    assert isinstance(story(RestartTable(), [failure(step=step) for step in (9, 8, 7)])[-1], GiveUp)


@settings(deadline=None)
@given(st.lists(st.sampled_from([None, None, 7]), max_size=20))
def test_progress_that_is_not_known_never_counts_as_none(steps: list[int | None]) -> None:
    """Only failures in a row whose steps are all known may end a run by `no_progress_limit`."""
    decisions = story(RestartTable(max_restarts=-1), [failure(step=step) for step in steps])
    ends = [number for number, decision in enumerate(decisions) if isinstance(decision, GiveUp)]
    assert all(steps[number - 2 : number + 1] == [7, 7, 7] for number in ends)


def test_lost_nodes_say_nothing_about_the_programs_progress() -> None:
    assert len(story(RestartTable(), [failure(infra=True, step=40)] * 9)) == 9


def test_a_code_after_which_the_job_always_wants_a_restart_is_no_lack_of_progress() -> None:
    table = RestartTable(always_on_exit=(33,))
    assert len(story(table, [failure("exit code 33", exit_code=33, step=1)] * 9)) == 9


def test_no_progress_limit_zero_is_no_limit() -> None:
    assert len(story(RestartTable(no_progress_limit=0), [failure(step=1)] * 10)) == 10


# --- held, and gone on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "failures"),
    [
        (RestartTable(max_restarts=0), [failure()]),
        (RestartTable(max_infra_restarts=0), [failure(infra=True)]),
        (RestartTable(), [failure(step=1)] * 3),
        (SOUND, [failure()] * (CAUSE_IN_A_ROW_MAX + 1)),
    ],
)
def test_what_is_spent_holds_a_run_where_the_job_says_so_and_lets_it_begin_anew_by_hand(
    table: RestartTable, failures: list[Failure]
) -> None:
    table = msgspec.structs.replace(table, on_budget_spent="hold")
    ledger = Ledger()
    for one in failures:
        decision, ledger = decide(table, ledger, one, 0.0)
    assert isinstance(decision, GiveUp)
    assert decision.is_held
    after = resumed(ledger)
    assert after == Ledger(step=ledger.step, saved_step=ledger.saved_step)
    if table.max_restarts != 0 and table.max_infra_restarts != 0:
        assert isinstance(decide(table, after, failures[0], 0.0)[0], Again)


def test_what_the_job_rules_out_and_a_failure_at_the_start_are_not_held() -> None:
    never = RestartTable(policy="never", on_budget_spent="hold")
    codes = RestartTable(never_on_exit=(2,), on_budget_spent="hold")
    early = msgspec.structs.replace(RestartTable(on_budget_spent="hold"))
    for table, one in ((never, failure()), (codes, failure(exit_code=2))):
        assert not any(d.is_held for d in story(table, [one]) if isinstance(d, GiveUp))
    at_start = Failure(cause="exit code 1", exit_code=1, has_ever_started=False, had_started=False, ran_s=0.1)
    (decision,) = story(early, [at_start])
    assert isinstance(decision, GiveUp)
    assert not decision.is_held


# --- ledgers of earlier versions ---------------------------------------------------------------------------------


def test_a_ledger_of_an_earlier_version_is_read_and_means_what_it_meant() -> None:
    old = msgspec.msgpack.encode({"used": 2, "streak": 3, "lost": 25, "saved_step": 40, "ports": 1})
    ledger = msgspec.msgpack.decode(old, type=Ledger)
    assert (ledger.used, ledger.streak, ledger.saved_step, ledger.ports) == (2, 3, 40, 1)
    assert isinstance(decide(RestartTable(), ledger, failure(infra=True), 0.0)[0], GiveUp)  # the 26th loss in a row
    assert isinstance(decide(RestartTable(), ledger, failure(infra=True, step=41), 0.0)[0], Again)  # it has moved on
    assert story(RestartTable(max_restarts=2), [failure()], ledger) == [
        GiveUp("restart budget spent (2 of 2)", budget=MAX_RESTARTS)
    ]
