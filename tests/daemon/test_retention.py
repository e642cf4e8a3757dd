"""supervisor/daemon/retention.py"""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.daemon.retention import DAY_S, Keep, surplus

NOW_S = 1000 * DAY_S


def days_ago(**runs: float) -> dict[str, float]:
    return {run: NOW_S - ago * DAY_S for run, ago in runs.items()}


def test_the_newest_runs_are_kept_and_the_others_go_the_oldest_first() -> None:
    assert surplus(days_ago(a=4, b=1, c=3, d=2), Keep(2, 30), NOW_S) == ["a", "c"]


def test_what_ended_too_long_ago_goes_however_few_there_are() -> None:
    assert surplus(days_ago(a=31, b=29.9, c=400, d=1), Keep(50, 30), NOW_S) == ["c", "a"]


def test_the_run_that_ended_last_stays_also_where_the_clock_has_leapt_by_years() -> None:
    assert surplus(days_ago(a=2000, b=2001), Keep(50, 30), NOW_S) == ["b"]
    assert surplus({}, Keep(), NOW_S) == []


@given(st.dictionaries(st.text("ab", max_size=3), st.floats(0, 2000)), st.integers(1, 5), st.floats(1, 1000))
def test_whoever_goes_ended_no_later_than_all_that_stay(ended: dict[str, float], runs: int, days: float) -> None:
    gone = surplus(ended, Keep(runs, days), NOW_S)
    left = ended.keys() - set(gone)
    assert len(left) <= runs
    assert all(ended[one] <= ended[other] for one in gone for other in left)
