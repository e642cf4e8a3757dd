"""The runner's machine: every arrow of its table, and orders that come twice, late or early."""

import msgspec
import pytest

from protocol.member_events import (
    Clear,
    Cleared,
    Dismissed,
    End,
    Event,
    Launched,
    Linked,
    Look,
    LookUpOffer,
    Offered,
    Persist,
    Renew,
    Saved,
    Signal,
    Spawn,
    TermLeftovers,
    Tick,
    Wrote,
)
from protocol.messages.member import Order, Part, Release, Run, Stop, Wait
from tests.protocol.build import PORT, answered, assignment, exited, offer, rank, renewal
from tests.protocol.runner_stage import (
    KILL,
    NO_FILE,
    TERM,
    Stage,
    finished,
    idle,
    kept,
    launched,
    renewed,
    running,
    stopped,
    without_reports,
)

# --- arrows ----------------------------------------------------------------------------------------------------------


def test_a_new_runner_reports_itself_and_looks_up_what_its_node_can_give() -> None:
    stage = Stage()
    first = renewal(1, Part.IDLE, -1)
    assert stage.at(0.0, Linked(up=True)) == [Renew(first), LookUpOffer(None)]
    assert stage.at(0.1, Offered(offer())) == [Renew(renewal(2, Part.IDLE, -1, offer=offer()))]


def test_an_order_to_run_is_carried_out_at_once_and_on_disk_before_anything_of_it_is_told() -> None:
    given = assignment()
    assert idle().told(1.0, Run(assignment=given)) == [Spawn(given), kept(renewal(2, Part.LAUNCHING))]


def test_ranks_are_reported_as_launched_and_run_once_the_last_has_started() -> None:
    stage, given = idle(), assignment()
    stage.told(1.0, Run(assignment=given))
    report = renewal(3, Part.LAUNCHED, 0, rank(0, started=False), rank(1, started=False))
    assert stage.at(1.0, Launched(0, (100, 101))) == [kept(report), Renew(report)]
    assert stage.at(2.0, Wrote(0, 1)) == []
    report = renewal(4, Part.RUNNING, 0, rank(0), rank(1))
    assert stage.at(2.5, Wrote(0, 0)) == [kept(report), Renew(report)]


def test_a_silent_rank_counts_as_started_when_it_has_lived_for_start_after() -> None:
    stage = launched()
    stage.at(2.0, Wrote(0, 0))
    assert renewed(stage.at(10.999, Tick())).part is Part.LAUNCHED
    assert stage.member.deadline_s == 11.0
    assert [e.renewal.part for e in stage.at(11.0, Tick()) if isinstance(e, Renew)] == [Part.RUNNING]


def test_a_rank_that_ends_with_0_has_started_and_one_that_fails_has_not() -> None:
    stage = launched()
    stage.exits(2.0, 0, exited(0))
    assert stage.member.ranks[0].started
    stage.exits(2.0, 1, exited(1))
    assert not stage.member.ranks[1].started


def test_when_every_rank_has_ended_with_0_what_they_left_is_cleared_away_and_all_is_finished() -> None:
    stage = running()
    assert without_reports(stage.exits(5.0, 0, exited(0))) == []
    assert without_reports(stage.exits(6.0, 1, exited(0))) == [Clear(0, kill_at_s=36.0)]
    assert stage.part is Part.RUNNING
    report = renewed(stage.at(7.0, Cleared(0)))
    assert report == renewal(7, Part.FINISHED, 0, rank(0, exited(0, ago_s=2.0)), rank(1, exited(0, order=1, ago_s=1.0)))


def test_a_failure_ends_the_other_ranks_at_once_and_without_being_told_to() -> None:
    stage = running()
    stage.at(3.0, Linked(up=False))
    report = renewal(5, Part.STOPPING, 0, rank(0), rank(1, exited(1)))
    assert stage.exits(5.0, 1, exited(1)) == [
        Signal(0, TERM, tree=False),
        TermLeftovers(),
        kept(report),
        Renew(report),
    ]
    assert stage.exits(6.0, 0, exited(signal=TERM)) == [TermLeftovers(), Clear(0, kill_at_s=35.0)]
    report = renewal(
        5,
        Part.STOPPED,
        0,
        rank(0, exited(signal=TERM, order=1, by_us=True, ago_s=1.0)),
        rank(1, exited(1, ago_s=2.0)),
        stuck_pids=(77,),
    )
    assert stage.at(7.0, Cleared(0, (77,))) == [kept(report), LookUpOffer(PORT)]
    told = msgspec.structs.replace(report, number=6, offer=offer(port=4001))
    assert stage.at(7.0, Offered(offer(port=4001))) == [Renew(told)]


def test_a_rank_that_cannot_be_spawned_ends_the_others_at_once() -> None:
    stage = idle()
    stage.told(1.0, Run(assignment=assignment()))
    effects = stage.at(1.5, Launched(0, (100,), NO_FILE))
    report = renewal(3, Part.STOPPING, 0, rank(0, started=False), spawn_failure=NO_FILE)
    assert effects == [Signal(0, TERM, tree=False), kept(report), Renew(report)]


def test_when_no_rank_at_all_can_be_spawned_there_is_only_the_clearing() -> None:
    stage = idle()
    stage.told(1.0, Run(assignment=assignment()))
    assert without_reports(stage.at(1.5, Launched(0, (), NO_FILE))) == [Clear(0, kill_at_s=31.5)]
    stage.at(1.6, Cleared(0))
    assert renewed(stage.at(1.6, Offered(offer()))).part is Part.STOPPED


def test_a_stopped_runner_takes_the_next_generation_and_remembers_nothing_of_the_last() -> None:
    stage, given = stopped(), assignment(1, master_port=4001)
    stage.at(6.0, Offered(offer(port=4001)))
    assert stage.told(7.0, Run(assignment=given))[0] == Spawn(given)
    assert stage.member.report() == renewal(stage.member.report().number, Part.LAUNCHING, 1)


def test_a_finished_runner_offers_itself_again_since_others_may_have_failed() -> None:
    stage = finished()
    assert renewed(stage.at(6.1, Offered(offer(port=4001)))).offer == offer(port=4001)
    assert stage.told(7.0, Run(assignment=assignment(1)))[0] == Spawn(assignment(1))


# --- orders that repeat, of the past, of the future ------------------------------------------------------------------


@pytest.mark.parametrize("order", [Run(assignment=assignment(3)), Run(assignment=assignment(2)), Wait()], ids=str)
def test_an_order_to_run_what_runs_or_what_is_past_changes_nothing(order: Order) -> None:
    for stage in (launched(generation=3), running(generation=3), stopped(3)):
        assert without_reports(stage.told(7.0, order)) == []


def test_a_stop_of_a_past_generation_changes_nothing() -> None:
    stage = running(generation=3)
    assert stage.told(5.0, Stop(generation=2, now=True)) == []
    assert stage.part is Part.RUNNING


def test_a_stop_that_is_repeated_says_nothing_new() -> None:
    stage = running()
    assert stage.told(5.0, Stop(generation=0)) == [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]
    assert stage.told(6.0, Stop(generation=0)) == []
    assert stopped().told(7.0, Stop(generation=0)) == []


def test_an_order_to_run_the_next_generation_first_ends_the_present_one() -> None:
    """R1."""
    stage = running()
    later = Run(assignment=assignment(1))
    assert stage.told(5.0, later) == [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]
    assert stage.told(5.5, later) == []
    stage.exits(6.0, 0, exited(signal=TERM))
    stage.exits(6.0, 1, exited(signal=TERM))
    assert stage.told(6.5, later) == []
    stage.at(7.0, Cleared(0))
    assert without_reports(stage.told(7.5, later)) == [Spawn(assignment(1))]


def test_a_stop_of_a_generation_that_was_never_launched_here_is_answered_and_it_never_will_be() -> None:
    stage = idle()
    report = renewal(3, Part.STOPPED, 4, offer=offer())
    assert stage.told(1.0, Stop(generation=4)) == [Persist(report), Renew(report)]
    assert stage.told(2.0, Run(assignment=assignment(4))) == []
    assert without_reports(stage.told(2.0, Run(assignment=assignment(5)))) == [Spawn(assignment(5))]


def test_a_stop_of_a_later_generation_ends_the_present_one_first() -> None:
    stage = running()
    assert stage.told(5.0, Stop(generation=1)) == [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]
    stage.exits(6.0, 0, exited(signal=TERM))
    stage.exits(6.0, 1, exited(signal=TERM))
    stage.at(6.0, Cleared(0))
    assert (stage.part, stage.member.generation) == (Part.STOPPED, 0)
    report = renewed(stage.told(7.0, Stop(generation=1)))
    assert (report.part, report.generation, report.ranks) == (Part.STOPPED, 1, ())


def test_what_a_rank_of_a_past_generation_started_is_forgotten() -> None:
    """R5."""
    stage = launched(generation=1)
    stage.at(2.0, Wrote(0, 0))
    stage.at(2.0, Wrote(1, 7))
    assert stage.member.report().ranks == (rank(0, started=False), rank(1, started=False))


# --- the end of a runner ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [answered(Release()), Dismissed()], ids=str)
def test_a_runner_that_is_released_or_dismissed_ends_once_nothing_is_left(event: Event) -> None:
    assert idle().at(1.0, event) == [End()]
    assert stopped().at(7.0, event) == [End()]
    stage = running()
    assert stage.at(5.0, event) == [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]
    stage.exits(6.0, 0, exited(signal=TERM))
    stage.exits(6.0, 1, exited(signal=TERM))
    assert stage.told(6.5, Run(assignment=assignment(1))) == []
    assert stage.at(7.0, Cleared(0))[-1] == End()
    assert stage.member.deadline_s is None
    assert stage.at(8.0, Tick()) == []


def test_a_runner_released_while_it_spawns_ends_what_it_has_spawned() -> None:
    stage = idle()
    stage.told(1.0, Run(assignment=assignment()))
    assert stage.told(2.0, Release()) == []
    assert without_reports(stage.at(3.0, Launched(0, (100, 101))))[0] == Signal(0, TERM, tree=False)


def ends_at(stage: Stage, from_s: float) -> float:
    """When ticks alone bring its end."""
    now_s = from_s
    while (due_s := stage.member.deadline_s) is not None:
        now_s = max(now_s, due_s)
        stage.at(now_s, Tick())
        stage.at(now_s, Offered(offer()))
        assert now_s < 10_000
    return now_s


def test_a_runner_alone_ends_an_hour_after_its_ranks_were_stopped_and_a_minute_after_they_finished() -> None:
    stage = stopped()
    stage.at(10.0, Linked(up=False))
    assert ends_at(stage, 10.0) == 3610.0
    stage = finished()
    stage.at(10.0, Linked(up=False))
    assert ends_at(stage, 10.0) == 70.0


def test_the_time_alone_counts_from_when_the_ranks_had_ended() -> None:
    stage = running()
    stage.at(3.0, Linked(up=False))
    stage.exits(5000.0, 0, exited(0))
    stage.exits(5000.0, 1, exited(0))
    stage.at(5001.0, Cleared(0))
    assert ends_at(stage, 5001.0) == 5061.0


def test_a_runner_alone_never_ends_while_its_ranks_run_nor_once_it_is_linked_again() -> None:
    stage = running()
    stage.at(3.0, Linked(up=False))
    for now_s in range(4, 9000, 100):
        assert End() not in stage.at(float(now_s), Tick())
    stage = stopped()
    stage.at(10.0, Linked(up=False))
    stage.at(3609.0, Linked(up=True))
    assert End() not in stage.at(3620.0, Tick())


# --- reports ---------------------------------------------------------------------------------------------------------


def test_the_whole_state_is_reported_every_second_and_at_every_new_link() -> None:
    stage = running()
    number = stage.member.report().number
    assert stage.at(3.0, Tick()) == [Look(0), Renew(renewal(number + 1, Part.RUNNING, 0, rank(0), rank(1)))]
    assert stage.member.deadline_s == 4.0
    assert stage.at(3.5, Linked(up=True)) == [Renew(renewal(number + 2, Part.RUNNING, 0, rank(0), rank(1)))]


def test_a_checkpoint_is_told_at_once_and_on_disk_before_it() -> None:
    stage = running()
    report = renewal(stage.member.report().number + 1, Part.RUNNING, 0, rank(0), rank(1), saved_step=400, saves=1)
    assert stage.at(2.5, Saved(0, 400, is_new=True)) == [kept(report), Renew(report)]


def test_an_exit_during_a_stop_is_on_disk_before_it_is_told() -> None:
    stage = running()
    stage.told(5.0, Stop(generation=0))
    assert stage.exits(5.5, 0, exited(signal=TERM)) == [TermLeftovers()]
    report = renewal(
        stage.member.report().number + 1,
        Part.STOPPING,
        0,
        rank(0, exited(signal=TERM, by_us=True, ago_s=0.5)),
        rank(1),
    )
    assert stage.at(6.0, Tick()) == [kept(report), Renew(report)]


def test_offers_are_renewed_while_nothing_runs_and_never_with_the_last_generations_port() -> None:
    stage = stopped()
    assert stage.at(6.1, Offered(offer(port=4001))) == [
        Renew(
            renewal(
                stage.member.report().number,
                Part.STOPPED,
                0,
                rank(0, exited(signal=TERM, by_us=True, ago_s=0.1)),
                rank(1, exited(signal=TERM, order=1, by_us=True, ago_s=0.1)),
                offer=offer(port=4001),
            )
        )
    ]
    assert stage.at(7.0, Tick())[-1] == LookUpOffer(PORT)
    assert stage.at(7.1, Offered(offer(port=4002))) == []
    assert renewed(stage.at(8.1, Tick())).offer == offer(port=4002)


def test_an_offer_that_comes_when_something_runs_is_dropped() -> None:
    stage = launched()
    assert stage.at(2.0, Offered(offer())) == []
    assert stage.member.report().offer is None


def test_what_could_not_be_killed_is_reported_with_the_stop() -> None:
    stage = running()
    stage.told(5.0, Stop(generation=0, now=True))
    stage.exits(5.1, 0, exited(signal=KILL))
    stage.exits(5.1, 1, exited(signal=KILL))
    stage.at(10.1, Cleared(0, (4711,)))
    assert renewed(stage.at(10.1, Offered(offer()))).stuck_pids == (4711,)
