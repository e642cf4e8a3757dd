"""Who makes progress: judged by change and by watched time, whatever the looks' gaps and the clocks are."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.health import LEFT_S, declared_ranks
from protocol.job import HangTable, ProgressTable
from protocol.job_file import read_job
from protocol.member_events import Cleared, Exited, Inspect, Inspected, Looked, Sample, Wrote
from protocol.messages.member import Part, Stall, StallAction, StallState, Stop
from tests.protocol.build import answered, exited
from tests.protocol.watch import Watch

LIMIT_S = 3.0
LIMITED = HangTable(step_timeout_s=LIMIT_S, action="warn")

IN_TIME = st.floats(0.05, LIMIT_S - 0.001)


# --- what must never be, and what always must ------------------------------------------------------------------------


@settings(deadline=None)
@given(
    every_s=st.fixed_dictionaries({0: IN_TIME, 1: IN_TIME}),
    turns=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 20)), max_size=8),
)
def test_ranks_that_beat_within_the_limit_never_stall_however_late_the_runner_looks(
    every_s: dict[int, float], turns: list[tuple[float, float]]
) -> None:
    """The runner is stopped again and again, its ranks are not."""
    watch = Watch(LIMITED)
    beats = {rank: watch.now_s + first_s for rank, first_s in every_s.items()}
    for run_s, pause_s in turns:
        watch.run_for(run_s, beats, every_s)
        watch.pause_for(pause_s, beats, every_s)
    watch.run_for(2 * LIMIT_S, beats, every_s)
    assert not [effect for effect in watch.done if isinstance(effect, Inspect)]


@settings(deadline=None)
@given(
    every_s=st.fixed_dictionaries({0: IN_TIME, 1: IN_TIME}),
    turns=st.lists(st.tuples(st.floats(0, 5), st.floats(1.6, 1000)), max_size=8),
)
def test_ranks_that_are_frozen_with_their_runner_never_stall_when_they_are_thawed(
    every_s: dict[int, float], turns: list[tuple[float, float]]
) -> None:
    """A frozen cgroup of runner and workers, a suspended machine: the clock has run on, nobody has."""
    watch = Watch(LIMITED)
    beats = {rank: watch.now_s + first_s for rank, first_s in every_s.items()}
    for run_s, pause_s in turns:
        watch.run_for(run_s, beats, every_s)
        watch.pause_for(pause_s)
        beats = {rank: due_s + pause_s for rank, due_s in beats.items()}
    watch.run_for(2 * LIMIT_S, beats, every_s)
    assert not [effect for effect in watch.done if isinstance(effect, Inspect)]


@settings(deadline=None)
@given(
    limit_s=st.floats(0.01, 100),
    every_s=st.floats(0.05, 3),
    beats_for_s=st.floats(0.05, 10),
    turns=st.lists(st.tuples(st.floats(0, 5), st.floats(1.6, 20)), max_size=4),
)
def test_a_rank_that_falls_silent_always_stalls_within_its_limit_and_a_second(
    limit_s: float, every_s: float, beats_for_s: float, turns: list[tuple[float, float]]
) -> None:
    """A second of time in which the runner watched: what passes while it is stopped may be added."""
    watch = Watch(HangTable(step_timeout_s=limit_s, action="warn"))
    beats = {0: watch.now_s + every_s / 2}
    watch.run_for(every_s + beats_for_s, beats, {0: every_s})
    last_s = beats[0] - every_s
    slack_s = 0.0
    for run_s, pause_s in turns:
        watch.run_for(run_s)
        watch.pause_for(pause_s)
        slack_s += pause_s + 0.5  # and the pause between two looks, in which it began
        slack_s += min(limit_s, LEFT_S)
    watch.run_for(max(0.0, last_s + limit_s + 1.0 + slack_s - watch.now_s) + 1e-3)
    stall = watch.stall()
    assert stall is not None
    assert stall.setting == "hang.step_timeout"
    assert stall.silent_s >= limit_s - 0.006


@settings(deadline=None)
@given(limit_s=st.floats(0.01, 100), silent_s=st.floats(0, 100), pause_s=st.floats(1.6, 1000), left=st.floats(0, 0.99))
def test_after_a_gap_that_was_none_of_ours_every_rank_has_five_seconds_or_all_of_its_limit_left(
    limit_s: float, silent_s: float, pause_s: float, left: float
) -> None:
    """H60: whoever was stopped with the runner may need a moment longer than it."""
    watch = Watch(HangTable(step_timeout_s=limit_s, action="warn"))
    watch.beat(0)
    watch.run_for(min(silent_s, limit_s * 0.9))
    watch.pause_for(pause_s)
    watch.run_for(left * min(limit_s, LEFT_S))
    assert watch.stall() is None


# --- looking ---------------------------------------------------------------------------------------------------------


def test_a_runner_looks_once_a_second_with_its_renewals_while_no_limit_can_pass() -> None:
    watch = Watch(HangTable(), written=())
    watch.beat(0, 1)
    watch.run_for(5.0)
    assert watch.looks == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_runner_looks_twice_a_second_while_a_limit_can_pass_and_when_it_passes() -> None:
    watch = Watch(HangTable(step_timeout_s=1.25, action="warn"))
    watch.beat(0)
    watch.run_for(1.9)
    assert watch.looks == [1.0, 1.5, 2.0, 2.25, 2.25, 2.75]  # twice at 2.25: whether it has moved meanwhile
    assert watch.stall() == Stall(
        state=StallState.ALIVE, silent_s=1.25, limit_s=1.25, setting="hang.step_timeout", action=StallAction.WARN
    )


def test_nobody_is_looked_at_where_the_job_shows_no_progress_and_gives_no_limit() -> None:
    watch = Watch(HangTable(), written=(), progress=ProgressTable(source="none"))
    watch.run_for(30.0)
    assert watch.looks == []


def test_ranks_that_have_ended_or_are_being_stopped_are_looked_at_no_more() -> None:
    watch = Watch(LIMITED)
    watch.beat(0, 1)
    watch.run_for(1.0)
    del watch.shown[1]  # reaped; its end is told a moment later
    watch.run_for(5.0)
    assert (watch.stall(0) is not None, watch.stall(1)) == (True, None)
    watch.give(answered(Stop(generation=0)))
    looks = len(watch.looks)
    watch.run_for(5.0)
    assert len(watch.looks) == looks


def test_an_answer_that_comes_late_or_unasked_changes_nothing() -> None:
    watch = Watch(LIMITED)
    watch.run_for(1.0)
    report = watch.member.report()
    watch.give(Looked(0, {0: Sample(count=1)}))  # nobody has asked
    watch.give(Looked(7, {0: Sample(count=1)}))
    watch.give(Inspected(7, {0: StallState.ALIVE}))
    assert watch.member.report() == report


# --- which limit -----------------------------------------------------------------------------------------------------


def test_before_its_first_beat_a_rank_has_the_init_timeout_and_the_step_timeout_only_after_it() -> None:
    """H59, in the time of the machine."""
    watch = Watch(HangTable(init_timeout_s=200.0, step_timeout_s=15.0), progress=ProgressTable(source="client"))
    watch.run_for(120.0)
    watch.beat(0, 1)
    watch.run_for(15.0)
    assert watch.stall() is None
    watch.run_for(1.0)
    assert watch.stall() == Stall(
        state=StallState.ALIVE, silent_s=15.0, limit_s=15.0, setting="hang.step_timeout", action=StallAction.RESTART
    )


def test_a_declared_phase_has_its_own_limit_and_one_without_has_the_step_timeout() -> None:
    """H57, in the time of the machine."""
    watch = Watch(HangTable(step_timeout_s=10.0, phases={"checkpoint": 100.0}), written=())
    watch.beat(0, phase="checkpoint")
    watch.beat(1, phase="eval")
    watch.run_for(60.0)
    assert watch.stall(0) is None
    assert watch.stall(1) == Stall(
        state=StallState.ALIVE, silent_s=10.0, limit_s=10.0, setting="hang.step_timeout", action=StallAction.WARN
    )
    watch.run_for(42.0)
    stall = watch.stall(0)
    assert stall is not None
    assert (stall.setting, stall.limit_s) == ("hang.phases.checkpoint", 100.0)


def test_a_phase_whose_name_needs_quotes_has_its_limit_by_the_key_of_the_file() -> None:
    job = 'name = "j"\n[run]\nscript = "t.py"\n[topology]\nnproc_per_node = 2\n'
    spec = read_job(f'{job}[hang]\nphases = {{ "eval.full" = "20s" }}'.encode(), "j.toml").spec
    watch = Watch(spec.hang, written=tuple(spec.origins))
    watch.beat(0, phase="eval.full")
    watch.run_for(22.0)
    stall = watch.stall()
    assert stall is not None
    assert (stall.setting, stall.action) == ('hang.phases."eval.full"', "restart")


def test_a_phase_may_have_no_limit_and_whoever_waits_for_it_is_left_alone() -> None:
    watch = Watch(HangTable(step_timeout_s=5.0, phases={"upload": None}))
    watch.beat(0, phase="upload")
    watch.beat(1)
    watch.run_for(500.0)
    assert (watch.stall(0), watch.stall(1)) == (None, None)


def test_a_rank_that_waits_for_one_in_a_phase_is_not_blamed_and_the_one_in_the_phase_is() -> None:
    """Rank 0 saves, and the others have been at the barrier behind it for longer than it has been saving."""
    watch = Watch(HangTable(step_timeout_s=10.0, phases={"checkpoint": 100.0}))
    watch.beat(0, 1)
    watch.run_for(8.0)
    watch.beat(0, phase="checkpoint")
    watch.run_for(98.0)
    assert (watch.stall(0), watch.stall(1)) == (None, None)
    watch.run_for(3.0)
    stall = watch.stall(0)
    assert stall is not None
    assert (stall.setting, watch.stall(1)) == ("hang.phases.checkpoint", None)


def test_a_rank_that_waits_for_one_whose_first_beat_is_awaited_is_not_blamed_and_that_one_is() -> None:
    watch = Watch(HangTable(init_timeout_s=60.0, step_timeout_s=3.0), progress=ProgressTable(source="client"))
    watch.run_for(1.0)
    watch.beat(0)
    watch.run_for(57.0)
    assert (watch.stall(0), watch.stall(1)) == (None, None)
    watch.run_for(4.0)
    stall = watch.stall(1)
    assert stall is not None
    assert (stall.setting, watch.stall(0)) == ("hang.init_timeout", None)


def test_what_a_rank_waited_for_a_phase_of_another_does_not_count_for_its_own_limit_after_that() -> None:
    watch = Watch(HangTable(step_timeout_s=10.0, phases={"checkpoint": 100.0}))
    watch.beat(0, 1)
    watch.run_for(2.0)
    watch.beat(0, phase="checkpoint")
    watch.run_for(80.0)
    watch.beat(0)
    watch.run_for(5.0)
    assert watch.stall(1) is None
    watch.beat(0)
    watch.run_for(5.0)
    stall = watch.stall(1)
    assert stall is not None
    assert (stall.setting, stall.silent_s) == ("hang.step_timeout", 90.5)


def test_whoever_waits_for_a_rank_that_hangs_in_its_phase_is_not_blamed_beside_it() -> None:
    watch = Watch(HangTable(step_timeout_s=10.0, phases={"save": 5.0}, action="warn"))
    watch.beat(1)
    watch.beat(0, phase="save")
    watch.run_for(30.0)
    stall = watch.stall(0)
    assert stall is not None
    assert (stall.setting, watch.stall(1)) == ("hang.phases.save", None)


def test_a_phase_before_the_first_step_never_makes_that_due_sooner() -> None:
    watch = Watch(HangTable(init_timeout_s=60.0, step_timeout_s=5.0), progress=ProgressTable(source="client"))
    watch.shown = {rank: Sample(count=1, phase="compile") for rank in (0, 1)}
    watch.run_for(30.0)
    watch.shown[0] = Sample(count=2)  # the phase is over, the first step is not
    watch.run_for(35.0)
    first, second = watch.stall(0), watch.stall(1)
    assert first is None
    assert second is not None
    assert (second.setting, second.limit_s) == ("hang.init_timeout", 60.0)
    watch = Watch(HangTable(init_timeout_s=60.0, step_timeout_s=5.0), progress=ProgressTable(source="client"))
    watch.shown = {rank: Sample(count=1) for rank in (0, 1)}  # they beat without a number
    watch.run_for(7.0)
    stall = watch.stall(0)
    assert stall is not None
    assert stall.setting == "hang.step_timeout"


def test_a_rank_that_has_said_that_it_is_done_has_no_limit_until_it_beats_again() -> None:
    watch = Watch(LIMITED)
    watch.beat(0, 1, is_done=True)
    watch.run_for(60.0)
    assert watch.stall() is None
    watch.beat(0)
    watch.run_for(LIMIT_S + 1)
    assert (watch.stall(0) is not None, watch.stall(1)) == (True, None)


def test_limits_that_are_off_never_pass() -> None:
    watch = Watch(HangTable(init_timeout_s=None, step_timeout_s=None, phases={}))
    watch.beat(0)
    watch.run_for(100.0)
    assert watch.stall(0) is None
    assert watch.stall(1) is None


INIT = HangTable(init_timeout_s=5.0, action="warn")


@pytest.mark.parametrize(
    ("progress", "written", "output", "expected"),
    [
        (ProgressTable(source="client"), (), (), {0, 1}),  # the job says that its ranks beat
        (ProgressTable(source="client"), (), (0, 1), {0, 1}),
        (ProgressTable(log_pattern="(?P<step>x)"), (), (0, 1), {0}),  # … or that rank 0 shows it otherwise
        (ProgressTable(file="progress.json"), (), (), {0}),
        (ProgressTable(), (), (), set()),  # it says nothing
        (ProgressTable(), ("hang.init_timeout",), (), {0, 1}),  # it says: no silence longer than this
        (ProgressTable(), ("hang.init_timeout",), (0,), set()),  # … of all: rank 0 may speak for the others
        (ProgressTable(source="none"), ("hang.init_timeout",), (), set()),
    ],
)
def test_a_first_sign_is_only_awaited_from_ranks_that_are_known_to_give_one(
    progress: ProgressTable, written: tuple[str, ...], output: tuple[int, ...], expected: set[int]
) -> None:
    watch = Watch(INIT, written=written, progress=progress)
    for rank in output:
        watch.give(Wrote(0, rank))
    watch.run_for(7.0)
    stalls = {rank for rank in (0, 1) if watch.stall(rank) is not None}
    assert stalls == expected
    assert {s.setting for rank in stalls if (s := watch.stall(rank)) is not None} <= {"hang.init_timeout"}


def test_output_to_standard_error_is_as_good() -> None:
    """Many programs log there."""
    watch = Watch(INIT, written=("hang.init_timeout",))
    watch.give(Wrote(0, 0, "err"))
    watch.run_for(60.0)
    assert (watch.stall(0), watch.stall(1)) == (None, None)


def test_a_remark_is_no_sign_and_disarms_no_limit() -> None:
    """As where a pattern has matched nothing yet."""
    watch = Watch(HangTable(init_timeout_s=None, step_timeout_s=10.0), written=("hang.step_timeout",))
    watch.beat(1)
    watch.run_for(6.0)
    watch.shown = {rank: replace(sample, remark="no match") for rank, sample in watch.shown.items()}
    watch.run_for(3.0)
    assert [watch.reported(rank).remark for rank in (0, 1)] == ["no match", "no match"]
    assert watch.stall(1) is None
    watch.run_for(2.0)
    assert watch.stall(1) is not None
    for rank in (0, 1):
        watch.give(Exited(0, rank, exited(signal=9), watch.now_s))
    watch.give(Cleared(0))
    watch.launch(1)
    assert watch.member.health.beaters == {1}


UNARMED = "hang.step_timeout waits for a first beat; nobody has beaten"


@pytest.mark.parametrize(
    ("written", "output", "remark"),
    [
        (("hang.step_timeout",), (), UNARMED),
        (("hang.step_timeout", "hang.init_timeout"), (0,), UNARMED),
        (("hang.init_timeout",), (1,), "hang.init_timeout holds no more: there was output, and nobody has beaten"),
        ((), (), ""),
    ],
)
def test_a_written_limit_that_waits_for_a_first_beat_says_so_once_that_should_have_come(
    written: tuple[str, ...], output: tuple[int, ...], remark: str
) -> None:
    watch = Watch(HangTable(init_timeout_s=20.0, step_timeout_s=5.0), written=written)
    for rank in output:
        watch.give(Wrote(0, rank))
    watch.run_for(18.0)
    assert watch.reported(1).remark == ""
    watch.run_for(6.0)
    assert (watch.reported(1).remark, watch.stall(1)) == (remark, None)
    watch.beat(1)
    watch.run_for(1.0)
    assert watch.reported(1).remark == ""


def test_a_rank_that_never_beats_beside_one_that_does_is_no_hang() -> None:
    """Many programs beat and write on rank 0 alone."""
    watch = Watch(INIT, written=("hang.init_timeout",))
    watch.beat(0)
    watch.run_for(60.0)
    assert watch.stall(1) is None


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (ProgressTable(), set()),
        (ProgressTable(source="client"), {2, 3}),
        (ProgressTable(source="none", log_pattern="x", file="y"), set()),
        (ProgressTable(source="log", log_pattern="x", log_ranks="0,3"), {3}),
        (ProgressTable(source="log", log_pattern="x", file="y"), set()),
        (ProgressTable(file="step-{rank}"), {2, 3}),
        (ProgressTable(file="step"), set()),
    ],
)
def test_which_ranks_give_signs_follows_from_the_jobs_progress_table(table: ProgressTable, expected: set[int]) -> None:
    assert declared_ranks(table, (2, 3), 4) == expected


# --- what becomes of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "written", "expected"),
    [
        ("auto", (), "warn"),
        ("auto", ("hang.step_timeout",), "restart"),
        ("auto", ("hang.init_timeout", "hang.phases.eval"), "warn"),
        ("warn", ("hang.step_timeout",), "warn"),
        ("restart", (), "restart"),
        ("fail", (), "fail"),
    ],
)
def test_auto_restarts_where_the_job_gives_the_limit_and_warns_where_it_is_a_default(
    action: str, written: tuple[str, ...], expected: str
) -> None:
    watch = Watch(HangTable(step_timeout_s=2.0, action=action), written=written)
    watch.beat(0, 1)
    watch.run_for(4.0)
    stall = watch.stall()
    assert stall is not None
    assert stall.action == expected


def test_a_rank_that_moves_between_the_look_and_the_inspection_does_not_hang() -> None:
    watch = Watch(LIMITED)
    watch.beat(0)
    watch.moves_when_inspected = (0,)
    watch.run_for(LIMIT_S + 1)
    assert Inspect(0, (0,)) in watch.done
    assert watch.stall() is None


def test_a_rank_that_was_inspected_before_a_gap_is_inspected_again_after_it() -> None:
    """What its process did then tells nothing of what it does now."""
    watch = Watch(HangTable(step_timeout_s=10.0, action="warn"))
    watch.beat(1)
    watch.run_for(0.5)
    watch.beat(0)
    watch.run_for(10.4)  # rank 1 hangs, and rank 0 was near enough to be looked at, too
    assert (watch.stall(1) is not None, watch.stall(0)) == (True, None)
    watch.pause_for(20.0)
    watch.states[0] = "stopped"
    watch.run_for(6.0)
    stall = watch.stall(0)
    assert stall is not None
    assert stall.state == StallState.STOPPED


def test_ranks_that_are_almost_over_their_limit_are_in_the_same_hang() -> None:
    watch = Watch(HangTable(step_timeout_s=5.0))
    watch.beat(1)
    watch.run_for(0.5)
    watch.beat(0)
    watch.states[0] = "stopped"
    watch.run_for(6.0)
    assert watch.stall(1) == Stall(
        state=StallState.ALIVE, silent_s=5.0, limit_s=5.0, setting="hang.step_timeout", action=StallAction.RESTART
    )
    assert watch.stall(0) == Stall(
        state=StallState.STOPPED, silent_s=4.0, limit_s=5.0, setting="hang.step_timeout", action=StallAction.RESTART
    )


def test_nothing_of_a_generation_outlives_it_but_that_its_ranks_have_beaten() -> None:
    """H46 and R5: the next one begins without a phase, without silence, with a limit for its first beat."""
    watch = Watch(HangTable(init_timeout_s=20.0, step_timeout_s=3.0, phases={"save": 8.0}), written=())
    watch.beat(0, phase="save")
    watch.run_for(7.9)
    for rank in (0, 1):
        watch.give(Exited(0, rank, exited(signal=9), watch.now_s))
    watch.give(Cleared(0))
    watch.launch(1)
    for _ in range(9):
        watch.run_for(1.0)
        watch.beat(0, 1)
    assert (watch.reported().phase, watch.stall()) == ("", None)
    watch.run_for(5.0)
    stall = watch.stall()
    assert stall is not None
    assert stall.setting == "hang.step_timeout"


def test_a_rank_that_beat_in_an_earlier_generation_has_started_with_its_first_beat_and_must_give_one() -> None:
    """Not with its output, nor by living for long enough (docs/decisions/005)."""
    watch = Watch(HangTable(init_timeout_s=30.0), written=())
    watch.beat(0)
    watch.run_for(1.0)
    for rank in (0, 1):
        watch.give(Exited(0, rank, exited(signal=9), watch.now_s))
    watch.give(Cleared(0))
    watch.launch(1)
    watch.give(Wrote(1, 0))
    watch.give(Wrote(1, 1))
    watch.run_for(29.0)
    assert [r.started for r in watch.member.report().ranks] == [False, True]
    watch.run_for(2.0)
    assert (watch.stall(0) is not None, watch.stall(1)) == (True, None)
    watch.beat(0)
    watch.run_for(1.0)
    assert watch.member.part is Part.RUNNING
