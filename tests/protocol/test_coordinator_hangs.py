"""What becomes of ranks that stall: told, shown, and where the job wants it the end of their generation."""

from typing import Any

import msgspec
import pytest

from protocol.coordinator_events import Effect, Note
from protocol.job import HangTable, RestartTable
from protocol.messages.member import Part, RankReport, Stop
from tests.protocol.build import exited, job_spec, rank, stalled
from tests.protocol.fleet import CRASHED_AND_GONE, Fleet, launching, notes, orders, persisted, running
from tests.protocol.test_view import seen

ABRT, TERM = 6, 15
STACKS = (b"Fatal Python error: Aborted", b'  File "train.py", line 7 in step')


def note(effects: list[Effect]) -> Note:
    [found] = [effect for effect in effects if isinstance(effect, Note)]
    return found


def warned(*, number: int = 0, **more: Any) -> RankReport:
    return stalled(number, action="warn", **more)


def test_a_rank_that_stalls_is_told_once_and_so_is_that_it_moves_again() -> None:
    fleet = running()
    effects = fleet.hears(20.0, "a1", Part.RUNNING, 0, warned(step=40, silent_s=10.3), rank(1))
    told = note(effects)
    assert told.kind == "rank.stalled"
    assert told.text == (
        "rank 0 on a (pid 100) hangs: alive, no beat for 10.3 s, limit 10 s (hang.step_timeout), last step 40"
    )
    assert told.detail == {
        "node": "a",
        "rank": 0,
        "pid": 100,
        "state": "alive",
        "silent_s": 10.3,
        "limit_s": 10.0,
        "setting": "hang.step_timeout",
        "phase": "",
        "step": 40,
    }
    assert orders(effects) == {"a1": fleet.coordinator.order_for("a", "a1")}
    assert notes(fleet.hears(21.0, "a1", Part.RUNNING, 0, warned(step=40), rank(1))) == []
    assert notes(fleet.hears(22.0, "a1", Part.RUNNING, 0, rank(0, step=41), rank(1))) == ["rank.resumed"]
    assert notes(fleet.hears(23.0, "a1", Part.RUNNING, 0, rank(0, step=41), rank(1))) == []
    assert notes(fleet.hears(40.0, "a1", Part.RUNNING, 0, warned(step=41), rank(1))) == ["rank.stalled"]


def test_a_stall_is_not_told_again_by_a_coordinator_that_was_killed() -> None:
    fleet = running()
    fleet.hears(20.0, "a1", Part.RUNNING, 0, warned(), rank(1))
    fleet = fleet.restarted(21.0)
    assert notes(fleet.hears(22.0, "a1", Part.RUNNING, 0, warned(), rank(1))) == []
    assert notes(fleet.hears(23.0, "a1", Part.RUNNING, 0, rank(0), rank(1))) == ["rank.resumed"]


def test_reports_of_progress_are_no_reason_to_write_to_the_journal() -> None:
    fleet = running()
    for step in range(5):
        effects = fleet.hears(20.0 + step, "a1", Part.RUNNING, 0, rank(0, step=step, silent_s=0.1), rank(1, loss=0.5))
        assert persisted(effects) == []


def test_the_end_of_a_rank_that_stalled_is_told_as_such() -> None:
    fleet = running()
    fleet.hears(20.0, "a1", Part.RUNNING, 0, warned(), rank(1))
    assert notes(fleet.hears(21.0, "a1", Part.RUNNING, 0, warned(exit=exited(0)), rank(1))) == []
    assert fleet.record.stalled == ()


def test_a_stall_is_forgotten_with_its_generation() -> None:
    fleet = running()
    fleet.hears(20.0, "a1", Part.RUNNING, 0, warned(), rank(1))
    fleet.hears(21.0, "a1", Part.STOPPED, 0, warned(exit=exited(signal=11)), rank(1, exited(signal=TERM, by_us=True)))
    fleet.offers(22.0, "a1", 0, port=4001)
    fleet.hears(23.0, "a1", Part.RUNNING, 1, rank(0), rank(1))
    assert fleet.record.stalled == ()
    assert notes(fleet.hears(40.0, "a1", Part.RUNNING, 1, warned(), rank(1))) == ["rank.stalled"]


def hung(spec_action: str = "restart", *, restart: RestartTable | None = None, exit: object = None) -> Fleet:
    """Rank 0 hangs and the runner has begun to stop its part."""
    spec = job_spec(hang=HangTable(action=spec_action), restart=restart or RestartTable(max_restarts=3))
    fleet = running(spec=spec)
    effects = fleet.hears(20.0, "a1", Part.STOPPING, 0, stalled(0, action=spec_action, step=40), rank(1, step=40))
    assert notes(effects) == ["incident.opened"]
    assert orders(effects) == {"a1": Stop(generation=0)}
    return fleet


def test_a_hang_ends_its_generation_and_the_incident_gets_the_stacks_when_they_are_there() -> None:
    """R4: what the first report could not know is corrected."""
    fleet = hung()
    text = "rank 0 on a (pid 100) hangs: alive, no beat for 10.3 s, limit 10 s (hang.step_timeout), last step 40"
    incident = fleet.record.incident
    assert incident is not None
    assert (incident.cause, incident.summary, incident.rank, incident.signal) == ("hang", text, 0, None)
    aborted = exited(signal=ABRT, by_us=True, stderr_tail=STACKS)
    effects = fleet.hears(21.0, "a1", Part.STOPPING, 0, stalled(0, aborted, step=40), rank(1))
    assert notes(effects) == ["incident.corrected"]
    [told] = [effect.text for effect in effects if isinstance(effect, Note)]
    assert told == "rank 0 on a (pid 100): ended by SIGABRT, its last lines are known"
    incident = fleet.record.incident
    assert incident is not None
    assert (incident.summary, incident.signal, incident.stderr_tail) == (text, "SIGABRT", STACKS)
    over = exited(signal=TERM, by_us=True, order=1)
    effects = fleet.hears(22.0, "a1", Part.STOPPED, 0, stalled(0, aborted, step=40), rank(1, over))
    assert notes(effects) == ["generation.ended", "restart.decided"]
    assert fleet.record.ledger.used == 1


def test_the_other_ranks_that_hang_are_named_behind_the_culprit() -> None:
    fleet = running()
    fleet.hears(20.0, "a1", Part.STOPPING, 0, stalled(0, step=41), stalled(1, state="stopped", step=40))
    incident = fleet.record.incident
    assert incident is not None
    assert incident.rank == 1
    assert incident.summary.endswith("; rank 0 hangs too")


def test_a_rank_that_never_beat_is_named_behind_one_that_did_and_stopped() -> None:
    """It may be by design, as where rank 0 alone beats; or all others wait for it."""
    fleet = running()
    beat = msgspec.structs.replace(stalled(0, step=2), silent_s=10.3)
    fleet.hears(20.0, "a1", Part.STOPPING, 0, beat, rank(1))
    incident = fleet.record.incident
    assert incident is not None
    assert incident.rank == 0
    assert incident.summary.endswith("last step 2; rank 1 has given no beat yet")


@pytest.mark.parametrize(("step", "where"), [(40, " at the same step"), (None, "")])
def test_where_nobody_can_be_told_from_the_others_the_incident_says_so(step: int | None, where: str) -> None:
    fleet = running()
    fleet.hears(20.0, "a1", Part.STOPPING, 0, stalled(0, step=step, silent_s=10.0), stalled(1, step=step))
    incident = fleet.record.incident
    assert incident is not None
    assert incident.rank == 0
    assert incident.summary.endswith(f"; ranks 0-1 hang{where}, which was first is not known")


@pytest.mark.parametrize("generation", [0, 1])
def test_a_hang_at_the_start_is_seen(generation: int) -> None:
    fleet = launching()
    if generation:
        fleet.hears(5.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
        fleet.offers(7.0, "a1", 0, port=4001)
    late = stalled(1, setting="hang.init_timeout", action="warn", started=False)
    fleet.hears(20.0, "a1", Part.LAUNCHED, generation, rank(0), late)
    status = seen(fleet)
    assert (status.phase, status.state) == ("launching", "stalled")
    assert status.reason.startswith("rank 1 on a (pid 101) hangs: alive, no first beat")
    assert status.waiting_for.startswith("rank 1 to start (first ")


def test_why_no_more_is_known_of_a_ranks_progress_is_the_reason_of_a_run_that_goes_on() -> None:
    fleet = running()
    fleet.hears(20.0, "a1", Part.RUNNING, 0, rank(0, remark="nobody has beaten"), rank(1, remark="nobody has beaten"))
    status = seen(fleet)
    assert (status.state, status.reason) == ("running", "ranks 0-1: nobody has beaten")


def test_a_rank_that_failed_by_itself_comes_before_those_that_hang() -> None:
    """They waited for it."""
    fleet = running()
    fleet.hears(20.0, "a1", Part.STOPPING, 0, stalled(0), rank(1, exited(signal=11)))
    incident = fleet.record.incident
    assert incident is not None
    assert (incident.cause, incident.rank) == ("signal", 1)


def test_a_run_fails_by_a_hang_where_the_job_wants_that() -> None:
    fleet = hung("fail")
    gone = (stalled(0, exited(signal=ABRT, by_us=True), action="fail"), rank(1, exited(signal=TERM, by_us=True)))
    fleet.hears(22.0, "a1", Part.STOPPED, 0, *gone)
    assert fleet.phase == "failed"
    assert fleet.record.reason.endswith('; hang.action is "fail"')


def test_the_exit_code_of_a_rank_that_hung_was_our_doing_and_decides_nothing() -> None:
    fleet = hung(restart=RestartTable(never_on_exit=(3,)))
    gone = (stalled(0, exited(3, by_us=True)), rank(1, exited(signal=TERM, by_us=True)))
    effects = fleet.hears(22.0, "a1", Part.STOPPED, 0, *gone)
    assert "restart.decided" in notes(effects)


@pytest.mark.parametrize(("others", "more"), [(rank(1), ""), (warned(number=1), "; 1 more rank stalls")])
def test_a_run_with_a_stalled_rank_is_stalled_and_says_why(others: RankReport, more: str) -> None:
    fleet = running()
    fleet.hears(20.0, "a1", Part.RUNNING, 0, warned(step=40, phase="eval", silent_s=12.0), others)
    status = seen(fleet)
    assert status.state == "stalled"
    how = "alive, no beat for 12 s, limit 10 s (hang.step_timeout), in phase eval, last step 40"
    assert status.reason == f"rank 0 on a (pid 100) hangs: {how}{more}"
    first = status.rank_list[0]
    assert (first.state, first.note, first.step, first.phase) == ("stalled", how, 40, "eval")
    assert status.ranks_running == 2


def test_a_rank_that_was_ended_because_it_hung_says_so() -> None:
    fleet = hung()
    fleet.hears(21.0, "a1", Part.STOPPING, 0, stalled(0, exited(signal=ABRT, by_us=True)), rank(1))
    status = seen(fleet)
    assert status.state == "restarting"
    assert status.rank_list[0].note == "stopped by supervisor, it hung"
