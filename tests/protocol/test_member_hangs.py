"""What a runner's machine does about ranks that hang, and what it tells of progress."""

from protocol.job import HangTable, ProgressTable, StopTable
from protocol.member_events import (
    Abort,
    Cleared,
    Exited,
    KeepStacks,
    Renew,
    Sample,
    Saved,
    Signal,
    TermLeftovers,
    Wrote,
)
from protocol.messages.member import Part, Run
from tests.protocol.build import answered, assignment, exited
from tests.protocol.watch import Watch

ABRT, KILL, USR1, TERM = 6, 9, 10, 15

RESTARTS = HangTable(step_timeout_s=2.0)


def hung(stop: StopTable | None = None, **states: str) -> Watch:
    """Rank 0 hangs since step 7; rank 1 beats on, and is just within its limit."""
    watch = Watch(RESTARTS, stop=stop)
    watch.shown = {0: Sample(count=7, step=7), 1: Sample(count=7, step=7)}
    watch.states = {0: states.get("state", "alive")}
    for _ in range(3):
        watch.run_for(0.5)
        watch.beat(1)
    watch.run_for(0.49)
    watch.done.clear()
    watch.beat(1)
    watch.run_for(0.6)
    return watch


def test_a_rank_that_hangs_leaves_its_stacks_and_the_others_get_the_usual_stop() -> None:
    watch = hung(StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=30.0))
    assert watch.signals == [
        KeepStacks(0),
        Abort((0,)),
        Signal(1, USR1, tree=False),
    ]
    assert watch.member.part is Part.STOPPING
    assert watch.reported(0).stall is not None
    assert watch.reported(1).stall is None


def test_without_abort_on_hang_everybody_gets_the_usual_stop() -> None:
    watch = hung(StopTable(abort_on_hang=False, grace_s=30.0))
    assert watch.signals == [Signal(0, TERM, tree=False), Signal(1, TERM, tree=False)]


def test_a_rank_that_does_not_end_by_its_abort_is_killed_after_the_grace_whatever_the_others_wait_for() -> None:
    watch = hung(StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0, grace_s=5.0))
    watch.done.clear()
    watch.run_for(6.0)
    assert watch.signals == [Signal(0, KILL, tree=False)]
    watch.run_for(60.0)
    assert watch.signals[1:] == [Signal(1, TERM, tree=False), Signal(1, KILL, tree=False)]


def test_a_hang_is_on_disk_before_it_is_told_and_its_end_was_our_doing() -> None:
    """Whoever reads the record of a runner that is gone knows the cause."""
    watch = hung()
    kinds = [type(effect).__name__ for effect in watch.done]
    assert kinds[-2:] == ["Persist", "Renew"]
    watch.done.clear()
    watch.give(Exited(0, 0, exited(signal=ABRT), watch.now_s + 0.1))
    assert watch.done == [TermLeftovers()]
    exit = watch.reported(0).exit
    assert exit is not None
    assert exit.stopped_by_us


def test_the_order_to_go_on_does_not_stop_the_stop_of_a_hang() -> None:
    """The coordinator has not heard of it yet (R4)."""
    watch = hung()
    watch.give(answered(Run(assignment=assignment(0))))
    assert watch.member.part is Part.STOPPING


def test_a_stalled_rank_of_which_is_only_warned_goes_on_and_is_no_stall_once_it_moves() -> None:
    watch = Watch(HangTable(step_timeout_s=2.0, action="warn"))
    watch.beat(0, 1)
    watch.run_for(3.5)
    assert watch.member.part is Part.RUNNING
    assert watch.signals == []
    first = watch.reported(0).stall
    assert first is not None
    watch.run_for(3.0)
    assert watch.reported(0).stall == first
    assert watch.reported(0).silent_s == 6.5
    watch.beat(0)
    watch.run_for(2.0)
    assert watch.reported(0).stall is None
    assert watch.report.ranks[0].stall is None


def test_a_first_beat_is_a_start() -> None:
    watch = Watch(HangTable(), written=())
    watch.beat(0, 1)
    watch.run_for(1.0)
    assert watch.member.part is Part.RUNNING


def test_a_start_by_output_counts_where_the_run_has_shown_no_beat_yet() -> None:
    watch = Watch(HangTable(), written=(), progress=ProgressTable(source="client"))
    watch.give(Wrote(0, 0))
    watch.give(Wrote(0, 1))
    assert watch.member.part is Part.RUNNING


def test_progress_is_told_every_second_and_never_a_reason_to_write_to_the_disk() -> None:
    watch = Watch(HangTable(step_timeout_s=100.0))
    watch.beat(0, 1)
    watch.run_for(2.0)
    before = watch.persists
    for step in range(5):
        watch.shown = {rank: Sample(count=9 + step, step=step, total_steps=50, loss=0.5) for rank in (0, 1)}
        watch.run_for(1.0)
    assert watch.persists == before
    assert sum(isinstance(effect, Renew) for effect in watch.done) >= 5
    told = watch.report.ranks[0]
    assert (told.step, told.total_steps, told.loss, told.phase) == (4, 50, 0.5, "")
    watch.give(Saved(0, 4, is_new=True))
    watch.run_for(1.0)
    assert watch.persists == before + 1


def test_a_rank_that_has_ended_is_told_with_its_last_step() -> None:
    watch = Watch(HangTable(step_timeout_s=100.0))
    watch.beat(0, 1)
    watch.run_for(1.0)
    for rank in (0, 1):
        del watch.shown[rank]
        watch.give(Exited(0, rank, exited(0), watch.now_s))
    watch.give(Cleared(0))
    assert watch.member.part is Part.FINISHED
    assert watch.reported(0).step == 1


def test_what_a_rank_has_shown_by_its_end_is_told_even_if_nobody_looked_since() -> None:
    watch = Watch(RESTARTS)
    watch.shown = {0: Sample(count=7, step=7)}
    watch.run_for(1.0)
    watch.give(Exited(0, 0, exited(0), watch.now_s, Sample(count=9, step=9, loss=0.5)))
    report = watch.reported(0)
    assert (report.step, report.loss) == (9, 0.5)


def test_a_rank_that_ends_before_anybody_looked_has_started_if_it_had_beaten() -> None:
    watch = Watch(HangTable(), written=())
    watch.give(Exited(0, 0, exited(1), watch.now_s, Sample(count=3, step=3)))
    watch.give(Exited(0, 1, exited(1), watch.now_s, Sample()))
    assert [(r.started, r.step) for r in watch.member.report().ranks] == [(True, 3), (False, None)]


def test_the_step_of_a_rank_that_was_stopped_for_its_hang_stays_as_it_was_judged() -> None:
    """Whose stacks are kept is the culprit for the coordinator, too."""
    watch = hung()
    watch.give(Exited(0, 0, exited(signal=ABRT), watch.now_s + 0.1, Sample(count=30, step=30)))
    watch.give(Exited(0, 1, exited(signal=TERM), watch.now_s + 0.1, Sample(count=31, step=31)))
    assert [report.step for report in watch.member.report().ranks] == [7, 31]


def test_where_no_sign_can_be_seen_only_a_rank_that_needs_one_starts_without() -> None:
    watch = Watch(HangTable(), written=())
    watch.beat(0)
    unseen = Sample(count=1, is_done=True, remark="no heartbeat page could be made")
    watch.shown[1] = unseen
    watch.run_for(2.0)
    assert [report.started for report in watch.member.report().ranks] == [True, False]
    for rank in (0, 1):
        watch.give(Exited(0, rank, exited(signal=9), watch.now_s))
    watch.give(Cleared(0))
    watch.launch(1)
    watch.shown = {0: unseen, 1: unseen}
    watch.run_for(2.0)
    assert [report.started for report in watch.member.report().ranks] == [True, False]
    watch.run_for(10.0)
    assert watch.member.part is Part.RUNNING
