"""A run in the words of `supctl status` and `ps`."""

from collections.abc import Callable

import pytest

from protocol.coordinator_events import RestartRequested, StopRequested, Tick
from protocol.job import RestartTable, StopTable
from protocol.messages import encode
from protocol.messages.control import RankStatus, RunStatus
from protocol.messages.member import Part
from protocol.view import run_status
from tests.protocol.build import exited, job_spec, rank, submitted
from tests.protocol.fleet import (
    CRASHED_AND_GONE,
    FINISHED,
    Fleet,
    backoff,
    forming,
    launching,
    running,
    stopping,
)


def seen(fleet: Fleet, now_s: float = 22.0, *, silent_s: float = 1.0) -> RunStatus:
    """As it looks if every runner that was ever heard was heard `silent_s` ago."""
    roll, leases = fleet.coordinator.roll, fleet.coordinator.current.leases
    roll.heard_s = dict.fromkeys(roll.heard_s, now_s - silent_s)
    for node in fleet.coordinator.seats.keys() & roll.heard_s.keys():
        leases.hear(node, now_s - silent_s, is_direct=True)
    return run_status(
        fleet.coordinator,
        submitted(fleet.spec),
        now_s,
        submitted_wall_s=1000.0,
        ended_wall_s=None,
        logs_dir="/logs",
        with_ranks=True,
    )


def with_event(begin: Callable[[], Fleet], *events: object) -> Callable[[], Fleet]:
    def make() -> Fleet:
        fleet = begin()
        for event in events:
            fleet.at(30.0, event)  # type: ignore[arg-type]
        return fleet

    return make


def after_a_failure() -> Fleet:
    fleet = stopping()
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    return fleet


def relaunching() -> Fleet:
    fleet = after_a_failure()
    fleet.offers(7.0, "a1", 0, port=4001)
    return fleet


def finished() -> Fleet:
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    return fleet


STOP = StopRequested(None, now=False, by="me")


@pytest.mark.parametrize(
    ("begin", "state", "phase", "waiting_for", "wait_left_s"),
    [
        (forming, "starting", "forming", "the runner on a", 578.0),
        (launching, "starting", "launching", "ranks 0-1 to start (first output, or 10 s alive)", None),
        (running, "running", "running", "", None),
        (stopping, "restarting", "stopping", "rank 1 to end (SIGKILL after 30 s)", None),
        (with_event(running, STOP), "stopping", "stopping", "ranks 0-1 to end (SIGKILL after 30 s)", None),
        (
            with_event(running, StopRequested(3.0, now=False, by="me")),
            "stopping",
            "stopping",
            "ranks 0-1 to end (SIGKILL after 3 s)",
            None,
        ),
        (
            with_event(running, StopRequested(None, now=True, by="me")),
            "stopping",
            "stopping",
            "ranks 0-1 to end (got SIGKILL)",
            None,
        ),
        (
            with_event(running, RestartRequested("", "me")),
            "restarting",
            "stopping",
            "ranks 0-1 to end (SIGKILL after 30 s)",
            None,
        ),
        (backoff, "restarting", "backoff", "the backoff before the next generation to pass", 2.75),
        (after_a_failure, "restarting", "forming", "the runner on a", 584.0),
        (
            relaunching,
            "restarting",
            "launching",
            "ranks 0-1 to start (first beat where there was one before, else first output, or 10 s alive)",
            None,
        ),
        (finished, "succeeded", "succeeded", "", None),
        (with_event(forming, STOP), "stopped", "stopped", "", None),
    ],
)
def test_every_phase_has_its_word_and_says_what_it_waits_for(
    begin: Callable[[], Fleet], state: str, phase: str, waiting_for: str, wait_left_s: float | None
) -> None:
    status = seen(begin())
    assert (status.state, status.phase, status.waiting_for, status.wait_left_s) == (
        state,
        phase,
        waiting_for,
        wait_left_s,
    )


def test_a_run_without_a_generation_shows_none_and_the_ranks_it_is_to_have() -> None:
    status = seen(forming())
    assert (status.generation, status.ranks, status.ranks_running, status.rank_list) == (None, 2, 0, ())


def test_a_wait_that_is_over_has_nothing_left() -> None:
    assert seen(backoff(), now_s=100.0).wait_left_s == 0.0


def test_a_runs_last_incident_is_the_reason_while_it_is_dealt_with_and_the_outcome_after() -> None:
    assert seen(stopping()).reason == "rank 0 on a (pid 100) killed by SIGSEGV"
    assert seen(relaunching()).reason == ""
    assert seen(finished()).reason == "every rank ended with 0"


def test_ranks_are_shown_from_their_spawn_to_their_end() -> None:
    fleet = launching()
    assert [r.state for r in seen(fleet).rank_list] == ["spawning", "spawning"]
    fleet.hears(2.0, "a1", Part.LAUNCHED, 0, rank(0), rank(1, started=False))
    status = seen(fleet)
    assert [(r.state, r.pid) for r in status.rank_list] == [("running", 100), ("initializing", 101)]
    assert status.ranks_running == 2
    fleet.hears(3.0, "a1", Part.STOPPING, 0, rank(0, exited(3)), rank(1, exited(signal=15, order=1, by_us=True)))
    assert seen(fleet).rank_list == (
        RankStatus(
            rank=0,
            node="a",
            local_rank=0,
            pid=100,
            state="exited",
            exit_code=3,
            shell_code=3,
            ended_wall_s=1000.0,
            ran_s=5.0,
            note="exited with code 3",
        ),
        RankStatus(
            rank=1,
            node="a",
            local_rank=1,
            pid=101,
            state="killed",
            signal="SIGTERM",
            shell_code=143,
            stopped_by_supervisor=True,
            ended_wall_s=1000.0,
            ran_s=5.0,
            note="stopped by supervisor",
        ),
    )


def test_the_ranks_of_a_lost_runner_are_lost_and_those_it_had_reported_as_ended_are_not() -> None:
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.RUNNING, 0, rank(0, exited(0)), rank(1))
    fleet.gone(6.0, "a1")
    assert [r.state for r in seen(fleet).rank_list] == ["exited", "lost", "running", "running"]


def test_ranks_that_nobody_has_ever_reported_are_not_shown_as_running_once_they_are_gone() -> None:
    fleet = launching()
    fleet.at(2.0, STOP)
    fleet.hears(3.0, "a1", Part.STOPPED, 0)
    assert [(r.state, r.note) for r in seen(fleet).rank_list] == [
        ("exited", "never spawned, or its end is not known here")
    ] * 2


def test_after_a_restart_of_the_coordinator_it_says_whom_it_has_not_heard_of_yet() -> None:
    for before in (running(), stopping()):
        again = Fleet(spec=before.spec, record=before.record)
        again.opens(20.0)
        assert seen(again).waiting_for == "the runner on a to report"


def test_how_the_ranks_of_a_run_have_ended_is_known_for_ever() -> None:
    for fleet in (finished(), with_event(running, STOP)()):
        fleet.hears(
            40.0, "a1", Part.STOPPED, 0, rank(0, exited(3, stderr_tail=(b"x" * 2000,) * 20)), rank(1, exited(0))
        )
        assert fleet.coordinator.is_final
        again = Fleet(spec=fleet.spec, record=fleet.record)
        assert seen(again).rank_list == seen(fleet).rank_list
        assert len(encode(fleet.record)) < 2000


def test_ranks_of_which_nothing_is_known_when_their_run_is_over_are_lost() -> None:
    fleet = running(spec=job_spec(restart=RestartTable(policy="never")))
    fleet.gone(5.0, "a1")
    again = Fleet(spec=fleet.spec, record=fleet.record)
    for one in (fleet, again):
        assert [r.state for r in seen(one).rank_list] == ["lost", "lost"]


def test_when_only_leftovers_are_left_that_is_what_it_waits_for() -> None:
    fleet = stopping()
    fleet.hears(6.0, "a1", Part.STOPPING, 0, *CRASHED_AND_GONE)
    assert seen(fleet).waiting_for == "what its ranks have left behind to end"
    fleet = running(spec=job_spec(stop=StopTable(finish_timeout_s=10.0)))
    fleet.hears(6.0, "a1", Part.RUNNING, 0, *FINISHED)
    fleet.at(20.0, Tick())
    assert seen(fleet).state == "running"


def test_budget_and_checkpoint_are_shown_as_they_stand() -> None:
    fleet = backoff()
    fleet.hears(22.0, "a1", Part.STOPPED, 1, *CRASHED_AND_GONE, saved_step=400)
    status = seen(fleet)
    assert (status.restarts_used, status.max_restarts, status.saved_step) == (2, 3, 400)


def test_the_ranks_are_left_out_where_nobody_asked_for_them() -> None:
    fleet = running()
    status = run_status(
        fleet.coordinator,
        submitted(fleet.spec),
        0.0,
        submitted_wall_s=0.0,
        ended_wall_s=None,
        logs_dir="",
        with_ranks=False,
    )
    assert (status.rank_list, status.ranks_running) == ((), 2)


def test_the_beat_of_a_rank_grows_older_while_its_runner_is_silent() -> None:
    fleet = running()
    ranks = (rank(0, started=True, silent_s=0.5), rank(1, started=True))
    fleet.hears(5.0, "a1", Part.RUNNING, 0, *ranks)
    assert [r.silent_s for r in seen(fleet, silent_s=0.0).rank_list] == [0.5, None]
    assert [r.silent_s for r in seen(fleet, silent_s=12.0).rank_list] == [12.5, None]


def test_a_runner_that_has_not_reported_for_a_while_is_itself_what_is_waited_for() -> None:
    assert seen(running(), silent_s=4.0).waiting_for == ""
    by_hand = "end its runner there, and its supd proves that: kill -9 $(ps -o ppid= 100) on a"
    told = f"proof for a (silent for 12 s): {by_hand}; where its supd knows of none: supctl node lost a"
    assert seen(running(), silent_s=12.0).waiting_for == told
