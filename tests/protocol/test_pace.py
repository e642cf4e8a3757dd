"""Rate, ETA and silence of a job's steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.errors import JobInvalid
from protocol.job import ProgressTable
from protocol.job_file import read_job
from protocol.messages.control import RunStatus
from protocol.messages.member import Part
from protocol.pace import Pace
from protocol.view import run_status
from tests.protocol.build import job_spec, rank, submitted
from tests.protocol.fleet import CRASHED_AND_GONE, FINISHED, Fleet, running

START_S = 1000.0


def paced(*points: tuple[float, int]) -> Pace:
    """A pace that saw these steps, so many seconds after START_S."""
    pace = Pace()
    for after_s, step in points:
        pace.saw(step, 0.0, START_S + after_s)
    return pace


def test_there_is_no_rate_before_two_steps_were_seen() -> None:
    assert paced().rate(START_S) is None
    assert paced((0, 7), (5, 7)).rate(START_S + 5) is None
    assert paced((0, 7)).eta_s(100, START_S) is None


def test_renewals_once_a_second_show_the_rate_of_steps_that_are_quicker() -> None:
    pace = paced(*((second, int(second * 3.3)) for second in range(120)))
    assert pace.rate(START_S + 119) == pytest.approx(3.3, rel=0.02)
    assert pace.eta_s(392 + 330, START_S + 119) == pytest.approx(100, rel=0.02)


def test_steps_that_take_longer_than_the_window_have_a_rate_too() -> None:
    pace = paced((0, 1), (90, 2), (180, 3), (240, 3))
    assert pace.rate(START_S + 240) == pytest.approx(1 / 90)


def test_the_rate_is_that_of_the_last_minute() -> None:
    slow = [(second, second) for second in range(100)]
    quick = [(100 + second, 100 + 10 * second) for second in range(61)]
    assert paced(*slow, *quick).rate(START_S + 160) == pytest.approx(10, rel=0.02)


def test_a_job_that_has_long_shown_no_step_has_the_rate_0_and_no_eta() -> None:
    pace = paced((0, 0), (1, 1), (2, 2))
    assert pace.rate(START_S + 60) == pytest.approx(1)
    assert pace.rate(START_S + 63) == 0.0
    assert pace.eta_s(10, START_S + 63) is None
    assert pace.silent_s(START_S + 63) == 61


def test_what_is_done_takes_no_more_time() -> None:
    assert paced((0, 0), (1, 10)).eta_s(5, START_S + 1) == 0.0


def test_a_step_that_falls_starts_all_over() -> None:
    pace = paced((0, 100), (10, 200), (11, 5))
    assert (pace.step, pace.rate(START_S + 11)) == (5, None)


def test_a_step_counts_from_when_the_runner_saw_it() -> None:
    pace = Pace()
    pace.saw(5, 30.0, START_S)
    assert pace.silent_s(START_S + 1) == 31


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(), st.floats(0, 1e6)), max_size=50),
    st.integers(0, 2**63 - 1),
)
def test_no_report_makes_it_raise_or_gives_a_negative_number(
    reports: list[tuple[int, float, float]], total_steps: int
) -> None:
    pace, now_s = Pace(), START_S
    for step, silent_s, gap_s in reports:
        now_s += gap_s
        pace.saw(step, silent_s, now_s)
        assert (pace.rate(now_s) or 0.0) >= 0
        assert (pace.eta_s(total_steps, now_s) or 0.0) >= 0
        silent = pace.silent_s(now_s)
        assert silent is not None
        assert silent >= 0


# --- in the coordinator ------------------------------------------------------------------------------------------


def at_steps(fleet: Fleet, now_s: float, *steps: int | None) -> None:
    ranks = (replace(rank(number), step=step, silent_s=0.0) for number, step in enumerate(steps))
    fleet.hears(now_s, "a1", Part.RUNNING, 0, *ranks)


def test_the_jobs_step_is_the_one_that_every_rank_which_shows_steps_has_reached() -> None:
    fleet = running()
    at_steps(fleet, 10.0, None, 7)
    assert fleet.coordinator.current.pace.step == 7
    at_steps(fleet, 11.0, 9, 8)
    assert fleet.coordinator.current.pace.step == 8
    assert fleet.coordinator.current.pace.rate(11.0) == pytest.approx(1)


def test_nothing_of_the_pace_outlives_its_generation() -> None:
    fleet = running()
    at_steps(fleet, 10.0, 7, 8)
    fleet.hears(11.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    fleet.offers(12.0, "a1", 0, port=4001)
    assert fleet.coordinator.generation == 1
    assert fleet.coordinator.current.pace.step is None


def status_of(fleet: Fleet, now_s: float) -> RunStatus:
    """The run as `supctl status` is told of it."""
    return run_status(
        fleet.coordinator,
        submitted(fleet.spec),
        now_s,
        submitted_wall_s=1000.0,
        ended_wall_s=None,
        logs_dir="/logs",
        with_ranks=False,
    )


def test_a_run_tells_how_far_it_is_how_fast_and_how_long_it_still_takes() -> None:
    fleet = running()
    ranks = [replace(rank(number), step=0, total_steps=100, loss=2.5, silent_s=0.0) for number in range(2)]
    for second in range(11):
        moved = (replace(report, step=2 * second) for report in ranks)
        fleet.hears(10.0 + second, "a1", Part.RUNNING, 0, *moved)
    status = status_of(fleet, 21.0)
    assert (status.step, status.total_steps, status.loss, status.silent_s) == (20, 100, 2.5, 1.0)
    assert status.rate == pytest.approx(2.0)
    assert status.eta_s == pytest.approx(40.0)


def test_the_total_that_the_job_file_gives_wins_over_what_ranks_report() -> None:
    fleet = running(spec=job_spec(progress=ProgressTable(total_steps=60)))
    fleet.hears(10.0, "a1", Part.RUNNING, 0, replace(rank(0), step=1, total_steps=100), rank(1))
    assert status_of(fleet, 10.0).total_steps == 60


def test_a_run_that_is_over_keeps_its_step_and_has_no_rate() -> None:
    fleet = running()
    at_steps(fleet, 10.0, 1, 1)
    at_steps(fleet, 11.0, 2, 2)
    ended = (replace(report, step=9) for report in FINISHED)
    fleet.hears(12.0, "a1", Part.FINISHED, 0, *ended)
    status = status_of(fleet, 13.0)
    assert (status.state, status.step, status.rate, status.silent_s) == ("succeeded", 9, None, None)


# --- in the job file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["x" * 1000, "((a{1000}){1000}){1000}", "a{101}(b{1,}c{100}){0}"])
def test_a_pattern_that_would_fill_the_runners_memory_is_refused(pattern: str) -> None:
    with pytest.raises(JobInvalid, match="too large a regular expression"):
        read_job(job_with_pattern(pattern), "job.toml")


@pytest.mark.parametrize(
    "pattern", ["x" * 900, r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2} (\d{1,18}){0,18}", "a{100}b{100}"]
)
def test_a_pattern_of_usual_size_is_taken(pattern: str) -> None:
    assert read_job(job_with_pattern(pattern), "job.toml").spec.progress.log_pattern.endswith(pattern)


def job_with_pattern(pattern: str) -> bytes:
    text = rf"(?P<step>\d+){pattern}"
    return f"name = 'a'\n[run]\nscript = 'x'\n[progress]\nlog_pattern = '{text}'\n".encode()
