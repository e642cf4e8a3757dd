"""A runner in a planned change: it tells of checkpoints and answers, says to its ranks that a stop is coming, and does
not wait any longer than it has to."""

import pytest

from protocol.job import CheckpointTable, StopTable
from protocol.member import Member
from protocol.member_events import (
    Announce,
    Clear,
    Cleared,
    Effect,
    Exited,
    Launched,
    Linked,
    Looked,
    LookForDone,
    LookForSave,
    Noticed,
    Offered,
    Persist,
    Renew,
    Sample,
    Saved,
    SeenDone,
    Signal,
    Tick,
)
from protocol.messages.member import Part, Renewal, Run, Stop
from protocol.readiness import LOOK_S
from tests.protocol.build import answered, assignment, exited, job_spec, offer
from tests.protocol.runner_stage import KILL, TERM, USR1, Stage, launched, running, stopped, without_reports

MARKED = CheckpointTable(marker="latest")
PRE_WAIT = StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=30.0)
TERMS = [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]
PLANNED = Stop(generation=0, reason="drain of a")


def told(effects: list[Effect]) -> Renewal | None:
    """What the coordinator is told, if anything is."""
    reports = [effect.renewal for effect in effects if isinstance(effect, Renew)]
    return reports[-1] if reports else None


def awaiting(stage: Stage, now_s: float, *, awaits: bool = True) -> Stage:
    """The order of a running generation, which waits for its next checkpoint or does not."""
    stage.told(now_s, Run(assignment=assignment(), awaits_save=awaits))
    return stage


def looks(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, LookForSave | LookForDone)]


def signals(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, Signal)]


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoints_are_looked_for_with_each_renewal_while_ranks_live_and_told_at_once() -> None:
    """Else one from before a stop would be told in it, as if it were an answer."""
    stage = running(checkpoint=MARKED)
    assert looks(stage.at(3.0, Tick())) == [LookForSave(0)]
    report = told(stage.at(3.1, Saved(0, 100, is_new=True)))
    assert report is not None
    assert (report.saved_step, report.saves) == (100, 1)


def test_a_job_without_a_checkpoint_is_never_looked_at_for_one() -> None:
    stage = awaiting(running(), 2.5)
    assert looks(stage.at(3.0, Tick())) == []


def test_what_the_marker_held_before_the_ranks_began_is_no_save() -> None:
    stage = running(checkpoint=MARKED)
    stage.at(2.5, Saved(0, 100, is_new=False))
    report = stage.member.report()
    assert (report.saved_step, report.saves) == (100, 0)


def test_a_save_that_a_planned_change_waits_for_is_looked_for_ten_times_a_second_and_told_at_once() -> None:
    stage = running(checkpoint=MARKED)
    stage.at(3.0, Tick())
    awaiting(stage, 3.05)
    assert stage.member.deadline_s == pytest.approx(3.0 + LOOK_S)
    assert looks(stage.at(3.1, Tick())) == [LookForSave(0)]
    assert looks(stage.at(3.15, Tick())) == []
    report = told(stage.at(3.17, Saved(0, 200, is_new=True)))
    assert report is not None
    assert (report.saved_step, report.saves) == (200, 1)
    awaiting(stage, 3.18, awaits=False)
    assert looks(stage.at(3.3, Tick())) == [], "nobody waits any more"


def test_saves_are_counted_anew_in_each_generation_and_the_step_that_was_saved_stays() -> None:
    stage = running(checkpoint=MARKED)
    stage.at(2.5, Saved(0, 100, is_new=True))
    stage.exits(3.0, 0, exited(1))
    stage.exits(3.0, 1, exited(signal=TERM))
    stage.at(3.1, Cleared(0))
    stage.told(4.0, Run(assignment=assignment(1)))
    assert (stage.member.report().saved_step, stage.member.report().saves) == (100, 0)
    stage.at(4.0, Saved(0, 150, is_new=True))
    assert stage.member.report().saved_step == 100, "what is told of the last generation comes too late"


def test_a_checkpoint_that_is_seen_after_the_last_rank_has_ended_is_known_and_no_safe_point() -> None:
    stage = running(checkpoint=MARKED)
    stage.told(3.0, Stop(generation=0))
    stage.exits(3.5, 0, exited(0))
    stage.exits(3.5, 1, exited(0))
    stage.at(3.6, Saved(0, 300, is_new=True))
    report = told([*stage.at(3.6, Cleared(0)), *stage.at(3.7, Offered(offer()))])
    assert report is not None
    assert (report.saved_step, report.saves) == (300, 0)


# --- the first step --------------------------------------------------------------------------------------------------


def test_the_step_that_a_rank_has_shown_first_is_told_as_long_as_its_generation_lasts() -> None:
    stage = running()
    stage.at(3.0, Tick())
    stage.at(3.0, Looked(0, {0: Sample(), 1: Sample(count=1, phase="load")}))
    assert [rank.first_step for rank in stage.member.report().ranks] == [None, None]
    for now_s, step in ((4.0, 101), (5.0, 102)):
        stage.at(now_s, Tick())
        stage.at(now_s, Looked(0, {0: Sample(count=step, step=step), 1: Sample(count=1, phase="load")}))
    ended = Exited(0, 1, exited(0), 5.5, Sample(count=7, step=90))
    stage.at(5.5, ended)
    assert [rank.first_step for rank in stage.member.report().ranks] == [101, 90]


# --- the pre-signal and its answers ----------------------------------------------------------------------------------


def warned(*, done_before: dict[int, int | None] | None = None) -> Stage:
    """Both ranks have the pre-signal since 5.0."""
    stage = running(PRE_WAIT)
    stage.told(5.0, PLANNED)
    stage.at(5.0, SeenDone(0, done_before or {0: None, 1: None}))
    return stage


def test_who_is_done_is_looked_at_before_the_pre_signal_is_sent_and_ten_times_a_second_after_it() -> None:
    stage = running(PRE_WAIT)
    found = without_reports(stage.told(5.0, PLANNED))
    assert found[1:] == [LookForDone(0), Signal(0, USR1, tree=False), Signal(1, USR1, tree=False)]
    stage.at(5.0, SeenDone(0, {0: None, 1: None}))
    assert looks(stage.at(5.1, Tick())) == [LookForDone(0)]
    assert looks(stage.at(5.15, Tick())) == []


def test_a_rank_that_says_done_after_the_pre_signal_has_answered_and_that_is_told_at_once() -> None:
    stage = warned()
    assert told(stage.at(5.1, SeenDone(0, {0: None, 1: None}))) is None
    report = told(stage.at(5.2, SeenDone(0, {0: 8, 1: None})))
    assert report is not None
    assert [rank.has_answered for rank in report.ranks] == [True, False]
    report = told(stage.at(5.3, SeenDone(0, {0: None, 1: 3})))
    assert report is not None
    assert [rank.has_answered for rank in report.ranks] == [True, True], "a later beat takes no answer back"
    assert looks(stage.at(5.4, Tick())) == [], "all have"


def test_who_was_done_before_the_pre_signal_has_not_answered_it_until_it_says_so_again() -> None:
    stage = warned(done_before={0: 4, 1: None})
    assert told(stage.at(5.1, SeenDone(0, {0: 4, 1: None}))) is None
    report = told(stage.at(5.2, SeenDone(0, {0: 5, 1: None})))
    assert report is not None
    assert [rank.has_answered for rank in report.ranks] == [True, False]


def test_a_checkpoint_in_the_pre_wait_is_told_at_once() -> None:
    stage = running(PRE_WAIT, checkpoint=MARKED)
    assert looks(stage.told(5.0, PLANNED)) == [LookForSave(0, settles=True), LookForDone(0)]
    assert looks(stage.at(5.1, Tick())) == [LookForSave(0), LookForDone(0)]
    report = told(stage.at(5.12, Saved(0, 200, is_new=True)))
    assert report is not None
    assert (report.part, report.saves) == (Part.STOPPING, 1)


def test_once_all_have_answered_the_pre_wait_is_over_and_the_grace_begins() -> None:
    stage = warned()
    effects = stage.told(6.0, Stop(generation=0, reason="drain of a", is_answered=True))
    assert signals([*effects, *stage.at(6.0, Tick())]) == TERMS
    assert stage.told(7.0, Stop(generation=0, reason="drain of a", is_answered=True)) == [], "it says nothing new"
    assert Signal(0, KILL, tree=False) not in stage.at(35.9, Tick())
    assert Signal(0, KILL, tree=False) in stage.at(36.0, Tick())


def test_ranks_that_hear_of_the_stop_only_when_all_others_have_answered_get_both_signals() -> None:
    stage = running(PRE_WAIT)
    effects = stage.told(6.0, Stop(generation=0, is_answered=True))
    assert without_reports(effects)[:2] == [Signal(0, USR1, tree=False), Signal(0, TERM, tree=False)]


def test_a_stop_may_give_a_shorter_pre_wait_than_the_job_also_when_one_is_under_way() -> None:
    stage = warned()
    stage.told(6.0, Stop(generation=0, pre_wait_s=10.0))
    stage.told(7.0, Stop(generation=0, pre_wait_s=10.0))
    assert signals(stage.at(15.9, Tick())) == []
    assert signals(stage.at(16.0, Tick())) == TERMS


# --- what the ranks are told of a stop -------------------------------------------------------------------------------


def test_a_planned_stop_is_announced_to_the_ranks_before_its_first_signal() -> None:
    stage = running(PRE_WAIT)
    assert without_reports(stage.told(5.0, PLANNED))[0] == Announce(0, "drain of a", 65.0, 95.0)
    answered = stage.told(6.0, Stop(generation=0, reason="drain of a", is_answered=True))
    assert without_reports(answered)[0] == Announce(0, "drain of a", 6.0, 36.0), "it comes earlier now"


def test_a_stop_that_is_not_planned_or_comes_now_is_not_announced() -> None:
    for stop in (Stop(generation=0), Stop(generation=0, reason="drain of a", now=True)):
        assert not [effect for effect in running(PRE_WAIT).told(5.0, stop) if isinstance(effect, Announce)]
    stage = running(PRE_WAIT)
    assert not [effect for effect in stage.exits(5.0, 0, exited(1)) if isinstance(effect, Announce)]


def test_ranks_that_are_still_being_spawned_get_the_announcement_with_their_first_signal() -> None:
    stage = Stage(PRE_WAIT)
    stage.at(0.0, Linked(up=True))
    stage.told(1.0, Run(assignment=assignment()))
    assert stage.told(2.0, PLANNED) == []
    assert Announce(0, "drain of a", 63.0, 93.0) in stage.at(3.0, Launched(0, (100, 101)))


def test_what_ranks_leave_behind_is_announced_to_nobody() -> None:
    stage = running()
    stage.exits(3.0, 0, exited(0))
    stage.exits(3.0, 1, exited(0))
    assert stage.told(4.0, Stop(generation=0, reason="drain of a", grace_s=1.0)) == [Clear(0, 5.0)]


# --- notices, the job's revision -------------------------------------------------------------------------------------


def test_a_notice_and_its_end_are_told_at_once_in_every_part() -> None:
    for stage in (launched(), running(), stopped()):
        report = told(stage.at(7.0, Noticed("its runner was sent SIGUSR2")))
        assert report is not None
        assert report.notice == "its runner was sent SIGUSR2"
        assert told(stage.at(7.1, Noticed("its runner was sent SIGUSR2"))) is None
        report = told(stage.at(7.2, Noticed("")))
        assert report is not None
        assert report.notice == ""


def test_a_notice_and_its_end_are_on_disk_before_they_are_told() -> None:
    """Found by random seeds: a record from before the notice was heard once its runner was gone, and took it back."""
    for stage in (launched(), running(), stopped()):
        for now_s, why in ((7.0, "its runner was sent SIGUSR2"), (7.2, "")):
            kept, said = stage.at(now_s, Noticed(why))
            assert isinstance(kept, Persist)
            assert isinstance(said, Renew)
            assert (kept.renewal.notice, said.renewal.notice) == (why, why)


def test_a_runner_says_which_revision_of_its_job_it_serves() -> None:
    member = Member(job_spec(), 0.0, orphan_wait_s=60.0, linger_s=60.0, revision=3)
    assert member.report().revision == 3
    assert told(member.handle(answered(Stop(generation=0)), 1.0)) is not None
