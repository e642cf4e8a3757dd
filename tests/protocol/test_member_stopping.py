"""The runner's machine: how it ends what it runs."""

import pytest

from protocol.errors import InvalidTransition
from protocol.job import StopTable
from protocol.member_events import (
    Clear,
    Cleared,
    Launched,
    LookForDone,
    Signal,
    TermLeftovers,
    Tick,
)
from protocol.messages import encode
from protocol.messages.member import STUCK_PIDS_MAX, Part, Run, Stop, decode_to_coordinator
from tests.protocol.build import assignment, exited, rank
from tests.protocol.runner_stage import KILL, NO_FILE, TERM, USR1, idle, renewed, running, without_reports

# --- stopping --------------------------------------------------------------------------------------------------------


def test_the_pre_signal_the_signal_and_sigkill_come_each_at_its_time() -> None:
    stage = running(StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=30.0))
    asked = [LookForDone(0), Signal(0, USR1, tree=False), Signal(1, USR1, tree=False)]
    assert stage.told(5.0, Stop(generation=0)) == asked
    assert without_reports(stage.at(64.9, Tick())) == [LookForDone(0)]
    assert without_reports(stage.at(65.0, Tick())) == [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]
    assert without_reports(stage.exits(70.0, 0, exited(0))) == [TermLeftovers()]
    assert without_reports(stage.at(95.0, Tick())) == [Signal(1, KILL, tree=False)]
    assert without_reports(stage.exits(95.1, 1, exited(signal=KILL))) == [TermLeftovers(), Clear(0, kill_at_s=95.0)]


def test_what_the_ranks_leave_behind_has_the_grace_that_began_with_the_first_stop() -> None:
    stage = running()
    stage.told(5.0, Stop(generation=0))
    stage.exits(20.0, 0, exited(0))
    assert Clear(0, kill_at_s=35.0) in stage.exits(30.0, 1, exited(0))


def test_of_very_many_processes_that_do_not_end_only_so_many_are_named() -> None:
    stage = running()
    stage.told(5.0, Stop(generation=0))
    for number in (0, 1):
        stage.exits(6.0, number, exited(signal=TERM))
    stage.at(11.0, Cleared(0, stuck_pids=tuple(range(STUCK_PIDS_MAX + 1))))
    report = stage.member.report()
    assert decode_to_coordinator(encode(report)) == report
    assert report.stuck_pids == tuple(range(STUCK_PIDS_MAX))


def test_the_grace_of_an_order_replaces_the_jobs() -> None:
    stage = running()
    stage.told(5.0, Stop(generation=0, grace_s=300.0))
    assert without_reports(stage.at(304.0, Tick())) == []
    assert without_reports(stage.at(305.0, Tick())) == [Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]


def test_a_second_stop_only_brings_the_end_nearer() -> None:
    stage = running()
    stage.told(5.0, Stop(generation=0))
    assert stage.told(6.0, Stop(generation=0, grace_s=100.0)) == []
    assert stage.told(7.0, Stop(generation=0, grace_s=1.0)) == []
    assert without_reports(stage.at(7.9, Tick())) == []
    assert without_reports(stage.at(8.0, Tick())) == [Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]
    assert stage.told(9.0, Stop(generation=0, now=True)) == []


def test_a_shorter_second_stop_leaves_the_time_to_save_alone_and_only_now_cuts_it() -> None:
    stage = running(StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=30.0))
    stage.told(5.0, Stop(generation=0))
    assert stage.told(6.0, Stop(generation=0, grace_s=1.0)) == []
    assert without_reports(stage.at(65.0, Tick())) == [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]
    assert stage.told(65.5, Stop(generation=0, now=True)) == [Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]


def test_a_stop_now_kills_at_once_and_clears_without_grace() -> None:
    stage = running(StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0))
    kills = [Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]
    assert stage.told(5.0, Stop(generation=0, now=True)) == kills
    stage.exits(5.1, 0, exited(signal=KILL))
    assert Clear(0, kill_at_s=5.0) in stage.exits(5.1, 1, exited(signal=KILL))


def test_with_scope_tree_the_stop_signal_goes_to_the_tree_and_the_pre_signal_to_the_program_alone() -> None:
    stage = running(StopTable(pre_signal="SIGUSR1", pre_wait_s=1.0, scope="tree"))
    assert Signal(0, USR1, tree=False) in stage.told(5.0, Stop(generation=0))
    assert without_reports(stage.at(6.0, Tick()))[0] == Signal(0, TERM, tree=True)


def test_a_stop_while_spawning_reaches_the_ranks_once_they_are_there_with_all_of_their_grace() -> None:
    stage = idle()
    stage.told(1.0, Run(assignment=assignment()))
    assert stage.told(2.0, Stop(generation=0)) == []
    assert stage.part is Part.STOPPING
    assert without_reports(stage.at(20.0, Launched(0, (100, 101)))) == [
        Signal(0, TERM, tree=False),
        Signal(1, TERM, tree=False),
    ]
    assert without_reports(stage.at(49.9, Tick())) == []
    assert without_reports(stage.at(50.0, Tick())) == [Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]


def test_the_tightest_of_several_stops_while_spawning_counts() -> None:
    stage = idle()
    stage.told(1.0, Run(assignment=assignment()))
    stage.told(2.0, Stop(generation=0))
    stage.told(2.0, Stop(generation=0, now=True))
    stage.told(2.0, Stop(generation=0, grace_s=100.0))
    assert without_reports(stage.at(3.0, Launched(0, (100, 101)))) == [
        Signal(0, KILL, tree=False),
        Signal(1, KILL, tree=False),
    ]


def test_a_stop_while_spawning_of_which_nothing_came_is_cleared_and_stopped() -> None:
    stage = idle()
    stage.told(1.0, Run(assignment=assignment()))
    stage.told(2.0, Stop(generation=0))
    assert without_reports(stage.at(3.0, Launched(0, (), NO_FILE))) == [Clear(0, kill_at_s=33.0)]
    stage.at(4.0, Cleared(0))
    assert stage.part is Part.STOPPED


def test_a_stop_while_the_last_leftovers_of_a_success_are_cleared_keeps_the_success_and_hurries_the_end() -> None:
    stage = running()
    stage.exits(5.0, 0, exited(0))
    stage.exits(5.0, 1, exited(0))
    assert stage.told(6.0, Stop(generation=0)) == []
    assert stage.told(6.0, Stop(generation=0, grace_s=2.0)) == [Clear(0, kill_at_s=8.0)]
    assert stage.told(7.0, Stop(generation=0, now=True)) == [Clear(0, kill_at_s=7.0)]
    assert renewed(stage.at(7.1, Cleared(0))).part is Part.FINISHED


def test_an_end_that_follows_from_our_stop_is_stopped_by_us_whatever_its_code() -> None:
    stage = running()
    stage.told(5.0, Stop(generation=0))
    stage.exits(6.0, 0, exited(1))
    stage.exits(6.0, 1, exited(signal=TERM))
    assert [r.exit.stopped_by_us for r in stage.member.report().ranks if r.exit] == [True, True]
    assert not any(r.exit.failed for r in stage.member.report().ranks if r.exit)


def test_the_rank_that_ended_first_is_the_first_also_where_its_end_is_told_after_its_victims() -> None:
    """R4: reading a culprit's last output may take longer than reading a victim's."""
    stage = running()
    stage.exits(5.2, 0, exited(1), ended_s=5.1)
    stage.exits(5.3, 1, exited(signal=11), ended_s=5.0)
    first, last = exited(signal=11, order=0, ago_s=0.3), exited(1, order=1, ago_s=0.2)
    assert stage.member.report().ranks == (rank(0, last), rank(1, first))


def test_a_second_end_of_a_rank_is_our_own_bug() -> None:
    stage = running()
    stage.exits(5.0, 0, exited(0))
    with pytest.raises(InvalidTransition):
        stage.exits(6.0, 0, exited(0))
