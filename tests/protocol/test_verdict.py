"""Who failed first, and how that is told."""

import pytest

from protocol import verdict
from protocol.messages.control import Incident
from protocol.messages.member import Part, RankExit, SpawnFailure
from tests.protocol.build import exited, rank, renewal


def test_the_rank_that_ended_first_by_itself_is_the_cause() -> None:
    report = renewal(
        1,
        Part.STOPPING,
        3,
        rank(0, exited(1, order=2)),
        rank(1, exited(signal=15, order=0, by_us=True)),
        rank(2, exited(signal=9, order=1, core_dumped=False, stderr_tail=(b"last words",))),
        rank(3),
    )
    assert verdict.incident(5, "n1", report) == Incident(
        number=5,
        generation=3,
        cause="signal",
        summary="rank 2 on n1 (pid 102) killed by SIGKILL, sender unknown",
        node="n1",
        rank=2,
        local_rank=2,
        pid=102,
        signal="SIGKILL",
        shell_code=137,
        wall_s=1000.0,
        stderr_tail=(b"last words",),
        cause_key="SIGKILL",
    )


def test_ranks_that_ended_with_0_or_by_our_own_stop_are_no_failure() -> None:
    report = renewal(1, Part.STOPPING, 0, rank(0, exited(0)), rank(1, exited(1, by_us=True)))
    assert verdict.incident(1, "n1", report) is None


def test_a_rank_that_could_not_be_spawned_comes_before_its_victims() -> None:
    failure = SpawnFailure(rank=1, path="/no/python", reason="No such file or directory")
    report = renewal(1, Part.STOPPING, 0, rank(0, exited(1)), spawn_failure=failure)
    found = verdict.incident(1, "n1", report)
    assert found == Incident(
        number=1,
        generation=0,
        cause="spawn",
        summary="rank 1 on n1 could not be spawned: /no/python: No such file or directory",
        node="n1",
        rank=1,
        cause_key="spawn of /no/python: No such file or directory",
    )


@pytest.mark.parametrize(
    ("exit", "told", "cause"),
    [
        (exited(3), "exited with code 3", "exit"),
        (exited(signal=11, core_dumped=True), "killed by SIGSEGV (core dumped)", "signal"),
        (exited(signal=15), "killed by SIGTERM", "signal"),
        (exited(signal=9), "killed by SIGKILL, sender unknown", "signal"),
        (exited(signal=9, oom="limit 1 GiB"), "killed by SIGKILL, out of memory (limit 1 GiB)", "out-of-memory"),
    ],
)
def test_an_end_is_told_as_it_is_known(exit: RankExit, told: str, cause: str) -> None:
    found = verdict.incident(1, "n1", renewal(1, Part.STOPPING, 0, rank(0, exit)))
    assert found is not None
    assert (found.summary, found.cause) == (f"rank 0 on n1 (pid 100) {told}", cause)


def test_only_ranks_that_outlived_our_stop_count_as_killed_while_stopping() -> None:
    report = renewal(
        1,
        Part.STOPPED,
        0,
        rank(0, exited(signal=9)),
        rank(1, exited(signal=9, by_us=True)),
        rank(2, exited(signal=15, by_us=True)),
        rank(3),
    )
    assert verdict.killed_while_stopping([report]) == (1,)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((2, 0, 1, 5), "ranks 0-2, 5"),
        (tuple(range(0, 20, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more"),
        (tuple(range(4096)), "ranks 0-4095"),
    ],
)
def test_ranks_are_listed_in_ranges_and_never_too_many(ranks: tuple[int, ...], text: str) -> None:
    assert verdict.rank_list(ranks) == text


def test_ranks_that_do_not_finish_are_named_with_the_limit() -> None:
    found = verdict.unfinished(2, 1, "n1", (1, 2), 30.0)
    assert found.summary == "ranks 1-2 had not ended 30 s after the first rank had (stop.finish_timeout)"
    assert (found.cause, found.rank, found.generation) == ("finish-timeout", 1, 1)
