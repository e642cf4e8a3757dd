"""The runner's machine and its lease: what it does where it hears nothing of the coordinator."""

import pytest
from msgspec.structs import replace

from protocol.member_events import (
    AskWords,
    Clear,
    Cleared,
    Event,
    Hold,
    KillAll,
    Launched,
    Meet,
    Persist,
    Renew,
    Signal,
    Spawn,
    Tick,
    WordHeard,
    Wrote,
)
from protocol.messages.member import Order, Part, Release, Run, Stop, Tell, Wait
from protocol.messages.witness import Word
from protocol.timing import DEFAULTS, Timing
from tests.protocol.build import answered, assignment, exited, witnessed
from tests.protocol.lease_stage import (
    FENCE_S,
    OVER_S,
    fenced,
    gets,
    given_to,
    killed,
    leased,
    number_of,
    of,
    stopped,
    ticks,
)
from tests.protocol.runner_stage import KILL, TERM, idle, renewed

FAST = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)


# --- the guard -------------------------------------------------------------------------------------------------------


def test_the_guard_knows_the_end_of_a_lease_before_anything_of_it_is_spawned() -> None:
    stage, given = idle(), witnessed()
    stage.at(1.0, Tick())
    effects = gets(stage, 1.2, Run(assignment=given))
    assert effects[:2] == [Hold(1.0 + FENCE_S), Spawn(given)]


def test_the_guard_is_told_when_a_lease_goes_on_and_not_when_nothing_changes() -> None:
    stage = leased()
    ticks(stage, 2.0)
    assert gets(stage, 2.3, Run(assignment=witnessed())) == [Hold(2.0 + FENCE_S)]
    assert gets(stage, 2.4, Run(assignment=witnessed())) == []
    assert of(Hold, [effect for _, effect in ticks(stage, 4.9)]) == []


def test_the_guard_is_told_when_nothing_has_a_lease_any_more() -> None:
    stage = leased()
    gets(stage, 2.0, Stop(generation=0, now=True))
    effects = killed(stage, 3.0)
    assert of(Hold, effects) == [Hold(None)]


def test_after_a_fence_the_guard_goes_on_until_all_is_gone() -> None:
    stage = leased()
    assert of(Hold, [effect for _, effect in ticks(stage, OVER_S + 3.0)]) == []
    assert of(Hold, killed(stage, OVER_S + 3.0)) == [Hold(None)]


def test_without_witnesses_there_is_nothing_to_tell_the_guard_nor_anybody_to_meet_or_ask() -> None:
    stage = leased(assignment())
    effects = [effect for _, effect in ticks(stage, 60.0)]
    assert of((Hold, Meet, AskWords, KillAll), effects) == []
    assert {renewal.by_witnesses for renewal in of(Renew, effects)} == {False}
    assert stage.part is Part.RUNNING


# --- the fence -------------------------------------------------------------------------------------------------------


def test_where_a_lease_is_over_everything_is_killed_at_once_and_then_cleared_away() -> None:
    stage = leased()
    ticks(stage, OVER_S - 0.001)
    assert stage.member.deadline_s == OVER_S
    effects = stage.at(OVER_S, Tick())
    assert effects[:3] == [KillAll(0), Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]
    assert stage.part is Part.STOPPING
    assert of(KillAll, [effect for _, effect in ticks(stage, OVER_S + 2.0)]) == []
    assert of(Clear, killed(stage, OVER_S + 2.0)) == [Clear(0, kill_at_s=OVER_S)]


def test_that_it_was_fenced_is_reported_with_how_long_it_had_no_answer() -> None:
    stage = fenced()
    report = stage.member.report()
    assert (report.part, report.fenced_s) == (Part.STOPPED, FENCE_S)
    assert [rank.exit.stopped_by_us for rank in report.ranks if rank.exit] == [True, True]


def test_that_it_was_fenced_is_on_disk_before_it_is_told() -> None:
    stage = leased()
    ticks(stage, OVER_S)
    kept = of(Persist, killed(stage, OVER_S))[-1].renewal
    assert (kept.part, kept.fenced_s, kept.assignment) == (Part.STOPPED, FENCE_S, witnessed())


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Tick(), id="tick"),
        pytest.param(answered(Run(assignment=witnessed()), number=6), id="an answer to its newest renewal"),
        pytest.param(WordHeard("b1", Word(number=1, generation=0, is_given=True)), id="a word"),
        pytest.param(Wrote(0, 1, "err"), id="output"),
        pytest.param(Cleared(0), id="cleared"),
    ],
)
def test_after_a_pause_the_clock_is_read_before_anything_else(event: Event) -> None:
    stage = leased(witnessed(by="b"))
    ticks(stage, 3.0)
    if isinstance(event, Cleared):
        for rank in (0, 1):
            stage.exits(3.0, rank, exited(0))
    effects = stage.at(60.0, event)
    assert effects[0] == KillAll(0) or effects[:2] == [Hold(None), KillAll(0)]
    if not isinstance(event, Cleared):
        assert stage.part is Part.STOPPING
        assert of(Hold, effects) == []


def test_ranks_that_ended_while_the_runner_was_paused_beyond_its_lease_have_not_finished() -> None:
    stage = leased()
    for rank in (0, 1):
        stage.exits(60.0, rank, exited(0), ended_s=50.0)
    stage.at(60.0, Cleared(0))
    assert (stage.part, stage.member.report().fenced_s) == (Part.STOPPED, 59.0)


def test_a_fence_cuts_a_grace_short() -> None:
    stage = leased()
    gets(stage, 2.0, Stop(generation=0, grace_s=30.0))
    effects = [effect for _, effect in ticks(stage, 1.0 + FENCE_S)]
    assert of((KillAll, Signal), effects) == [KillAll(0), Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]
    killed(stage, 6.0)
    assert stage.member.report().fenced_s == FENCE_S


def test_what_is_spawned_as_the_lease_ends_is_killed_as_soon_as_it_is_there() -> None:
    stage = given_to(witnessed())
    assert stage.at(OVER_S, Tick())[0] == KillAll(0)
    effects = stage.at(OVER_S + 1.0, Launched(0, (100, 101)))
    assert of(Signal, effects) == [Signal(0, KILL, tree=False), Signal(1, KILL, tree=False)]
    killed(stage, OVER_S + 1.0)
    assert (stage.part, stage.member.report().fenced_s) == (Part.STOPPED, FENCE_S)


def test_leftovers_of_ranks_that_had_all_ended_are_killed_too_and_that_is_no_failure() -> None:
    stage = leased()
    for rank in (0, 1):
        stage.exits(2.0, rank, exited(0))
    effects = [effect for _, effect in ticks(stage, OVER_S)]
    assert of((KillAll, Clear), effects) == [KillAll(0), Clear(0, kill_at_s=OVER_S)]
    stage.at(OVER_S, Cleared(0))
    assert (stage.part, stage.member.report().fenced_s) == (Part.FINISHED, None)


def test_nothing_revives_a_generation_that_was_fenced() -> None:
    stage = leased()
    ticks(stage, OVER_S)
    for now_s in (OVER_S + 0.1, OVER_S + 5.0):
        effects = gets(stage, now_s, Run(assignment=witnessed()))
        assert of((Spawn, Hold), effects) == []
    stage = fenced()
    stage.at(6.0, Tick())
    assert of(Spawn, gets(stage, 6.0, Run(assignment=witnessed()))) == []


def test_who_was_fenced_serves_the_next_generation_and_remembers_nothing_of_it() -> None:
    stage, given = fenced(), witnessed(1)
    stage.at(6.5, Tick())
    effects = gets(stage, 6.5, Run(assignment=given))
    assert effects[:2] == [Hold(6.5 + FENCE_S), Spawn(given)]
    assert stage.member.report().fenced_s is None


def test_what_has_ended_has_no_lease_that_could_be_over() -> None:
    stage = stopped()
    assert of((KillAll, Hold), [effect for _, effect in ticks(stage, 60.0)]) == []
    assert stage.member.report().fenced_s is None


# --- orders that come late -------------------------------------------------------------------------------------------


def test_an_order_that_answers_too_old_a_renewal_is_void_and_the_next_one_is_not() -> None:
    stage = idle()
    stage.at(1.0, Tick())
    order = answered(Run(assignment=witnessed()), number=number_of(stage))
    ticks(stage, 6.0)
    assert stage.at(1.0 + FENCE_S, order) == []
    assert gets(stage, 6.0, Run(assignment=witnessed()))[:2] == [Hold(6.0 + FENCE_S), Spawn(witnessed())]


@pytest.mark.parametrize("order", [Stop(generation=0), Release(), Run(assignment=witnessed(1))], ids=str)
def test_a_coordinator_that_was_replaced_is_not_obeyed(order: Order) -> None:
    stage = leased()
    gets(stage, 1.5, Wait(), epoch=3)
    assert gets(stage, 1.6, order, epoch=2) == []
    assert stage.part is Part.RUNNING
    assert gets(stage, 1.7, order, epoch=3) != []


def test_an_order_that_was_overtaken_is_not_obeyed() -> None:
    stage = leased()
    number = number_of(stage)
    assert stage.at(1.5, answered(Stop(generation=0), number=number - 1)) != []
    stage = leased()
    stage.at(1.4, answered(Run(assignment=witnessed()), number=number))
    assert stage.at(1.5, answered(Stop(generation=0), number=number - 1)) == []


# --- a coordinator that knows nothing of it --------------------------------------------------------------------------


def test_a_runner_that_is_told_to_tell_goes_on_and_reports_its_assignment_until_it_gets_another_order() -> None:
    stage = leased()
    assert of((Signal, KillAll, Spawn), gets(stage, 1.5, Tell())) == []
    assert renewed(stage.at(2.0, Tick())).assignment == witnessed()
    assert gets(stage, 2.5, Tell()) == [Hold(2.0 + FENCE_S)]
    assert renewed(stage.at(3.0, Tick())).assignment == witnessed()
    gets(stage, 3.1, Run(assignment=witnessed()))
    assert renewed(stage.at(4.0, Tick())).assignment is None
    assert stage.part is Part.RUNNING


def test_who_never_launched_what_it_was_told_to_stop_has_no_assignment_to_tell() -> None:
    stage = idle()
    gets(stage, 1.0, Stop(generation=4))
    gets(stage, 1.5, Tell())
    report = renewed(stage.at(2.0, Tick()))
    assert (report.generation, report.assignment) == (4, None)


# --- times -----------------------------------------------------------------------------------------------------------


def test_the_times_are_those_of_the_assignment_and_not_its_runners_own() -> None:
    given = witnessed(timing=FAST)
    stage = leased(given)
    done = ticks(stage, 1.7)
    assert [now_s for now_s, effect in done if isinstance(effect, Renew)] == pytest.approx([1.4]), "also the first one"
    gets(stage, 1.7, Run(assignment=given))
    done = ticks(stage, 2.1)
    assert [now_s for now_s, effect in done if isinstance(effect, Renew)] == pytest.approx([1.8])
    done = ticks(stage, 4.0)
    assert next(now_s for now_s, effect in done if isinstance(effect, AskWords)) == pytest.approx(2.2)
    assert next(now_s for now_s, effect in done if isinstance(effect, KillAll)) == pytest.approx(2.9)


def test_the_times_of_a_generation_hold_until_the_next_one() -> None:
    slow = replace(DEFAULTS, fence_s=20.0, ttl_s=30.0)
    stage = leased(witnessed(timing=slow))
    found = [now_s for now_s, effect in ticks(stage, 30.0) if isinstance(effect, KillAll)]
    assert found == [1.0 + slow.fence_s]


def test_a_stop_of_a_run_without_a_lease_takes_as_long_as_its_grace() -> None:
    stage = leased(assignment())
    assert of(Signal, gets(stage, 2.0, Stop(generation=0))) == [
        Signal(0, TERM, tree=False),
        Signal(1, TERM, tree=False),
    ]
    assert of(Signal, [effect for _, effect in ticks(stage, 31.9)]) == []
