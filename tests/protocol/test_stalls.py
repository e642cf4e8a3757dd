"""How ranks that hang are told of."""

import pytest

from protocol import stalls
from protocol.messages.member import RankReport
from tests.protocol.build import rank, stalled


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (stalled(3, step=40), "alive, no beat for 10.3 s, limit 10 s (hang.step_timeout), last step 40"),
        (
            stalled(3, state="stopped", step=40),
            (
                "stopped (T), no beat for 10.3 s, limit 10 s (hang.step_timeout), last step 40; "
                "someone sent it SIGSTOP, or a debugger holds it"
            ),
        ),
        (
            stalled(3, state="uninterruptible", phase="checkpoint", setting="hang.phases.checkpoint"),
            (
                "in D state, no beat for 10.3 s, limit 10 s (hang.phases.checkpoint), in phase checkpoint; "
                "it waits in the kernel, mostly for a disk, a network file system or a driver"
            ),
        ),
        (
            stalled(3, state="gone", step=0),
            (
                "gone, no beat for 10.3 s, limit 10 s (hang.step_timeout), last step 0; "
                "the process that beat has ended, the rank's main process has not"
            ),
        ),
        (
            stalled(3, setting="hang.init_timeout"),
            "alive, no first beat for 10.3 s, limit 10 s (hang.init_timeout)",
        ),
        (rank(3), ""),
    ],
)
def test_a_stall_is_told_with_all_that_is_known_and_no_guess(report: RankReport, text: str) -> None:
    assert stalls.how(report) == text
    assert stalls.describe(report, "gpu-01") == f"rank 3 on gpu-01 (pid 103) hangs: {text}"


@pytest.mark.parametrize(
    ("reports", "first"),
    [
        ((stalled(0, step=5), stalled(1, state="stopped", step=9)), 1),  # who cannot run
        ((stalled(0, step=9), stalled(1, step=5)), 1),  # who is behind
        ((stalled(0, step=9), stalled(1)), 1),  # who has shown none
        ((stalled(0, step=9), stalled(1, step=9, silent_s=11.0)), 1),  # who has been silent for longest
        ((stalled(0, step=5, action="warn"), stalled(1, step=9)), 1),  # who ends the generation
        ((stalled(0, action="warn"), rank(1)), None),
    ],
)
def test_the_culprit_is_the_one_that_the_others_most_likely_wait_for(
    reports: tuple[RankReport, ...], first: int | None
) -> None:
    for order in (reports, reports[::-1]):
        found = stalls.culprit(order)
        assert (found.rank if found is not None else None) == first


def test_silences_that_differ_by_no_more_than_a_look_tell_nobody_from_the_others() -> None:
    reports = (
        stalled(3, step=9, silent_s=10.4),
        stalled(1, step=9, silent_s=10.0),
        stalled(0, step=9, silent_s=9.8),
        stalled(2, step=11),
    )
    for order in (reports, reports[::-1]):
        assert [report.rank for report in stalls.culprits(order)] == [1, 3]
        first = stalls.culprit(order)
        assert first is not None
        assert first.rank == 1
