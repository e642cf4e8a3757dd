"""protocol/runner_starts.py: failed starts are counted by node, and tried again after a while."""

from protocol.runner_starts import RUNNER_ATTEMPTS_MAX, RUNNER_RETRY_S, RunnerStarts


def test_so_many_in_a_row_on_one_node_are_too_many_and_one_that_comes_begins_the_count_anew() -> None:
    starts = RunnerStarts()
    assert [starts.has_failed("a") for _ in range(RUNNER_ATTEMPTS_MAX)] == [False] * (RUNNER_ATTEMPTS_MAX - 1) + [True]
    assert not starts.has_failed("b")
    starts.has_come("a")
    assert not starts.has_failed("a")


def test_a_retry_is_due_once() -> None:
    starts = RunnerStarts()
    assert not starts.is_due(1e9)
    starts.retry_after(10.0)
    assert starts.retry_at_s == 10.0 + RUNNER_RETRY_S
    assert [starts.is_due(10.0 + after_s) for after_s in (0.0, RUNNER_RETRY_S, RUNNER_RETRY_S)] == [False, True, False]
    assert starts.retry_at_s is None
