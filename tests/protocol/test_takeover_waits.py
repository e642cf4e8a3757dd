"""A takeover that is not complete: it waits, whatever time passes; a stop and an operator's word end that (R6)."""

import pytest

from protocol.coordinator_events import NodeLost, RestartRequested, Roster, RosterNode, StopRequested, Tick
from protocol.job import JobSpec, StopTable
from protocol.messages.member import Part, Release, Stop, Tell, Wait
from protocol.takeover import told_run
from tests.protocol.build import job_spec
from tests.protocol.fleet import (
    CRASHED_AND_GONE,
    FINISHED,
    PATIENT,
    Fleet,
    forming,
    notes,
    orders,
    running,
)
from tests.protocol.takeover_stage import RESTART, STOP, TTL_S, ended, given_out, grown, says, waiting_for

STOPPED = "stopped by me"

# --- operators -------------------------------------------------------------------------------------------------------


def refuses(fleet: Fleet) -> bool:
    """Whether a restart is refused now."""
    return fleet.coordinator.refuses_restart


def test_a_stop_while_a_generation_is_taken_over_stops_what_is_known_of_it_once_all_had_time_to_tell() -> None:
    fleet, given = forming("a", "b", "c"), given_out("abc")
    says(fleet, 1.0, "a1", given)
    assert orders(fleet.at(1.5, STOP)) == {}
    assert fleet.phase == "forming"
    effects = fleet.at(1.0 + TTL_S, Tick())
    assert orders(effects) == {"a1": Stop(generation=4, reason=STOPPED)}
    assert (fleet.phase, set(fleet.coordinator.seats)) == ("stopping", {"a", "b", "c"})
    for runner in given:
        ended(fleet, 7.0, runner, given)
    assert fleet.phase == "stopped"


def test_a_stop_of_a_generation_with_seats_that_nobody_names_does_not_wait_for_them() -> None:
    """Whoever it is will be told when it is heard."""
    fleet, given = forming("a", "b"), given_out("ab", keeps_isolated=True)
    says(fleet, 1.0, "a1", given)
    fleet.at(1.0 + TTL_S, Tick())
    assert fleet.phase == "forming"
    assert orders(fleet.at(60.0, STOP)) == {"a1": Stop(generation=4, reason=STOPPED)}
    assert (fleet.phase, set(fleet.coordinator.seats)) == ("stopping", {"a"})
    ended(fleet, 61.0, "a1", given)
    assert fleet.phase == "stopped"
    assert orders(says(fleet, 62.0, "b1", given)) == {"b1": Release()}


def test_a_stop_before_anybody_has_told_waits_until_nothing_is_heard_of_and_ends_the_run() -> None:
    """Whoever is heard later is released."""
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", given, tells=False)
    assert orders(fleet.at(1.5, STOP)) == {}
    ended(fleet, 2.0, "a1", given)
    assert fleet.phase == "forming"
    assert orders(fleet.at(1.0 + TTL_S, Tick())) == {"a1": Release()}
    assert orders(says(fleet, 7.0, "b1", given, tells=False)) == {"b1": Release()}
    assert (fleet.phase, fleet.coordinator.deadline_s, fleet.record.is_taken_over) == ("stopped", None, False)


def test_a_stop_does_not_end_a_run_of_which_something_runs_and_has_not_told_what() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", given, tells=False)
    fleet.at(1.5, STOP)
    for now_s in (1.0 + TTL_S, 60.0):
        assert orders(fleet.at(now_s, Tick())) == {}
        assert (fleet.phase, fleet.coordinator.deadline_s) == ("forming", None)
    assert orders(says(fleet, 61.0, "a1", given)) == {"a1": Stop(generation=4, reason=STOPPED)}
    assert fleet.phase == "stopping"


def test_a_stop_now_does_not_wait_for_what_runs_to_tell_longer_than_it_has_time_to() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", given, tells=False)
    fleet.at(1.5, StopRequested(None, now=True, by="me"))
    fleet.at(0.9 + TTL_S, Tick())
    assert fleet.phase == "forming"
    assert orders(fleet.at(1.0 + TTL_S, Tick())) == {"a1": Release()}
    assert fleet.phase == "stopped"


def test_the_tightest_of_several_stops_is_the_one_that_what_is_taken_over_gets() -> None:
    fleet, given = forming("a"), given_out("a")
    says(fleet, 1.0, "a1", given, tells=False)
    for wish in (StopRequested(60.0, now=False, by="me"), StopRequested(2.0, now=False, by="me"), STOP):
        fleet.at(1.5, wish)
    assert orders(says(fleet, 2.0, "a1", given)) == {"a1": Stop(generation=4, grace_s=2.0, reason=STOPPED)}


def test_a_stop_that_was_accepted_in_a_takeover_outlives_the_coordinator() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", given, tells=False)
    fleet.at(1.5, STOP)
    fleet.gone(2.0, "a1")
    again = fleet.restarted(10.0)
    again.at(9.9 + TTL_S, Tick())
    assert again.phase == "forming"
    again.at(10.0 + TTL_S, Tick())
    assert again.phase == "stopped"


def test_a_stop_that_comes_as_the_wait_ends_is_a_stop() -> None:
    fleet = forming("a")
    fleet.hears(1.0, "a1", Part.STOPPED, 4)
    fleet.at(1.1 + TTL_S, STOP)
    assert (fleet.phase, fleet.coordinator.deadline_s) == ("stopped", None)


def test_a_stop_that_was_accepted_holds_for_what_the_coordinator_hears_of_only_then() -> None:
    fleet, given = running("a", "b"), given_out("ab")
    fleet.at(5.0, STOP)
    for runner in given:
        effects = says(fleet, 6.0, runner, given)
    assert set(orders(effects).values()) == {Stop(generation=4, reason=STOPPED)}
    for runner in given:
        ended(fleet, 7.0, runner, given)
    assert fleet.phase == "stopped"


def test_a_restart_is_refused_until_all_had_time_to_tell() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    ended(fleet, 1.0, "a1", given)
    assert refuses(fleet)
    assert fleet.at(0.9 + TTL_S, RESTART) == []
    assert (fleet.phase, fleet.record.is_taken_over) == ("forming", True)
    says(fleet, 5.95, "a1", given)
    says(fleet, 5.95, "b1", given)
    assert not refuses(fleet), "it is like any other generation"
    fleet.at(6.0, RESTART)
    assert (fleet.phase, fleet.record.generation) == ("stopping", 4)


def test_a_restart_is_refused_while_anybody_is_heard_who_runs_something() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", given, tells=False)
    fleet.at(1.0 + TTL_S, Tick())
    assert refuses(fleet)
    assert fleet.at(60.0, RESTART) == []
    ended(fleet, 61.0, "a1", given)
    assert not refuses(fleet)
    fleet.at(62.0, RESTART)
    assert (fleet.phase, fleet.record.generation) == ("forming", 5)


def test_a_restart_is_not_refused_for_those_that_run_what_was_before() -> None:
    """Whoever was ahead is silent for ever: that the others answer must not leave the run without a way out."""
    fleet, given = running("a", "b"), given_out("ab")
    fleet.at(3.0, Roster(tuple(RosterNode(node, is_up=True) for node in "abc")))
    says(fleet, 3.0, "c1", {"c1": given["a1"]}, tells=False)
    fleet.passes(3.0, 3.0 + TTL_S, silent="c")
    assert refuses(fleet)
    fleet.at(8.5, NodeLost("c", by="me"))
    assert not refuses(fleet)
    assert orders(fleet.at(9.0, RESTART)) == dict.fromkeys(("a1", "b1"), Stop(generation=5))


@pytest.mark.parametrize("proof", ["supd", "operator"])
def test_proof_that_nothing_of_a_runner_is_left_allows_a_restart_and_begins_none(proof: str) -> None:
    fleet, given = forming("a"), given_out("ab")
    says(fleet, 1.0, "a1", given, tells=False)
    fleet.at(1.0 + TTL_S, Tick())
    assert refuses(fleet)
    if proof == "supd":
        fleet.gone(8.0, "a1")
    else:
        fleet.at(8.0, NodeLost("a", by="me"))
    fleet.offers(8.5, "a2")
    fleet.at(60.0, Tick())
    assert (fleet.phase, fleet.record.is_taken_over) == ("forming", True)
    assert not refuses(fleet)
    fleet.at(61.0, RESTART)
    fleet.offers(61.5, "a2", port=4001)
    assert (fleet.phase, fleet.record.generation) == ("launching", 6)


def test_a_restart_without_a_node_begins_without_it() -> None:
    fleet = forming("a", "b", spec=grown("ab"))
    fleet.hears(1.0, "a1", Part.STOPPED, 4)
    fleet.at(1.0 + TTL_S, Tick())
    fleet.at(7.0, RestartRequested("", by="me", without="b"))
    for runner in ("b1", "a1"):
        fleet.offers(7.5, runner, 5 if runner == "a1" else -1, port=4001)
    assert (fleet.phase, set(fleet.coordinator.seats)) == ("launching", {"a"})


def test_why_an_operator_has_restarted_what_nobody_knows_is_told_to_what_begins() -> None:
    fleet = forming("a")
    fleet.hears(1.0, "a1", Part.STOPPED, 4)
    fleet.at(1.0 + TTL_S, Tick())
    fleet.at(7.0, RESTART)
    fleet.offers(7.5, "a1", 5, port=4001)
    assert (fleet.phase, fleet.given("a").restart_reason) == ("launching", "because")


def test_what_was_due_in_a_generation_is_not_due_in_the_one_that_an_operator_begins_instead() -> None:
    """Found by this: its time to finish was kept, and ended the next one."""
    spec = job_spec(restart=PATIENT, nnodes=(2, 2), stop=StopTable(finish_timeout_s=20.0))
    fleet = running("a", "b", spec=spec)
    fleet.hears(3.0, "b1", Part.STOPPED, 4)
    fleet.hears(4.0, "a1", Part.FINISHED, 0, *FINISHED)
    fleet.at(3.0 + TTL_S, Tick())
    fleet.at(9.0, RESTART)
    for runner in ("a1", "b1"):
        fleet.offers(10.0, runner, 5, port=4001)
    assert (fleet.phase, fleet.record.generation) == ("launching", 6)
    fleet.passes(10.0, 30.0)
    assert (fleet.phase, fleet.record.incidents) == ("launching", 0)


def test_a_stop_that_was_accepted_is_not_forgotten_where_nothing_is_left_to_be_taken_over() -> None:
    fleet = running("a")
    fleet.hears(5.0, "a1", Part.STOPPED, 4)
    fleet.at(6.0, STOP)
    for now_s in (5.0 + TTL_S, 5.0 + 2 * TTL_S):
        fleet.at(now_s, Tick())
    fleet.offers(16.0, "a1", 5, port=4001)
    assert (fleet.phase, fleet.coordinator.deadline_s) == ("stopped", None)


def test_a_stop_ends_a_run_whose_failure_was_handled_as_a_later_generation_was_heard_of() -> None:
    fleet, given = running("a", "b"), given_out("ab")
    fleet.hears(3.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    says(fleet, 3.1, "b1", given, tells=False)
    ended(fleet, 3.2, "b1", given)
    fleet.at(4.0, STOP)
    fleet.at(3.2 + TTL_S, Tick())
    assert fleet.phase == "stopped"


# --- what nobody tells of --------------------------------------------------------------------------------------------


def test_a_generation_that_nobody_tells_of_is_waited_for_until_an_operator_gives_his_word() -> None:
    """Time alone proves nothing: who is heard of by nobody may run it."""
    fleet, given = forming("a", spec=grown("ab")), given_out("ab")
    ended(fleet, 1.0, "a1", given)
    for now_s in (1.0 + TTL_S, 1.0 + 2 * TTL_S, 3600.0):
        assert [*orders(fleet.at(now_s, Tick()))] == []
        assert (fleet.phase, fleet.record.generation) == ("forming", -1)
    assert waiting_for(fleet, 3600.0) == (
        "whoever runs it to tell what (generation 4 is taken over from its runners); "
        "or for your word that nobody runs it: supctl restart"
    )
    assert orders(fleet.at(3601.0, RESTART)) == {"a1": Stop(generation=5)}


def test_what_an_operator_begins_in_place_of_what_nobody_tells_of_is_two_above_it() -> None:
    """What runs where nobody hears it gets no word of those that have heard of the one between."""
    fleet, given = forming("a"), given_out("ab")
    ended(fleet, 1.0, "a1", given)
    fleet.at(1.0 + TTL_S, Tick())
    effects = fleet.at(7.0, RESTART)
    assert orders(effects) == {"a1": Stop(generation=5)}
    assert notes(effects) == ["operator.restarted"]
    assert (fleet.phase, fleet.record.generation, fleet.record.seats) == ("forming", 5, ())
    assert not fleet.record.is_taken_over
    fleet.offers(7.5, "a1", 5, port=4001)
    assert (fleet.phase, fleet.record.generation) == ("launching", 6)


def test_a_generation_of_which_only_a_part_is_known_is_not_given_up() -> None:
    """Without witnesses nobody names anybody, and no lease ends: b may run on, where nobody hears it."""
    fleet, given = forming("a", "b", spec=grown("ab")), given_out("ab", keeps_isolated=True)
    ended(fleet, 1.0, "a1", given, tells=True)
    for now_s in (1.0 + TTL_S, 1.0 + 2 * TTL_S, 60.0):
        fleet.at(now_s, Tick())
        assert fleet.phase == "forming"
    assert waiting_for(fleet, 60.0) == (
        "1 more whose name nobody knows (generation 4 is taken over from its runners); "
        "or for your word that nobody runs it: supctl restart"
    )
    says(fleet, 61.0, "b1", given)
    assert (fleet.phase, fleet.record.generation) == ("stopping", 4)


def test_an_operators_word_also_ends_the_wait_for_seats_that_nobody_names() -> None:
    fleet, given = forming("a", "b", spec=grown("ab")), given_out("ab", keeps_isolated=True)
    ended(fleet, 1.0, "a1", given, tells=True)
    fleet.at(1.0 + TTL_S, Tick())
    fleet.at(60.0, RESTART)
    assert (fleet.phase, fleet.record.generation, fleet.record.is_taken_over) == ("forming", 5, False)


def test_a_coordinator_that_begins_again_still_waits_for_what_it_was_taking_over() -> None:
    """That somebody runs something newer is on disk: nothing begins beside it, whoever is heard then."""
    fleet, given = forming("a", "b", spec=grown("ab")), given_out("ab")
    says(fleet, 1.0, "b1", given, tells=False)
    del fleet.last["b1"]  # it is cut off
    again = fleet.restarted(10.0)
    again.offers(10.5, "a1")
    assert refuses(again)
    assert again.coordinator.deadline_s == 10.0 + TTL_S
    for now_s in (10.0 + TTL_S, 3600.0):
        again.at(now_s, Tick())
        again.offers(now_s, "a1")
        assert again.phase == "forming"
        assert again.coordinator.deadline_s is None
    assert waiting_for(again, 3600.0).startswith("whoever runs it to tell what (generation 4 is taken over")
    for runner in ("b1", "a1"):
        says(again, 3601.0, runner, given)
    assert (again.phase, again.record.generation) == ("running", 4)


def test_the_number_of_what_was_being_taken_over_is_not_given_out_again_after_the_coordinator_begins_anew() -> None:
    """Who runs it may be silent by then, and live on by the word of others."""
    fleet, given = forming("a", "b", spec=grown("ab")), given_out("ab")
    says(fleet, 1.0, "b1", given, tells=False)
    del fleet.last["b1"]
    again = fleet.restarted(10.0).restarted(20.0)
    again.at(20.0 + TTL_S, Tick())
    again.at(30.0, RESTART)
    again.sees(30.0, "b")
    again.offers(30.5, "a1", 5, port=4001)
    assert (again.phase, again.record.generation, again.record.newer) == ("launching", 6, -1)


def test_what_was_taken_over_needs_no_second_takeover() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    for runner in given:
        says(fleet, 1.0, runner, given)
    assert not fleet.record.is_taken_over
    again = fleet.restarted(10.0)
    assert (again.phase, again.coordinator.takeover) == ("running", None)


# --- a run that only its runners know of -----------------------------------------------------------------------------


def told(*nodes: str, spec: JobSpec | None = None) -> Fleet:
    """A run of which a runner has told, before anything is heard of what it runs."""
    fleet = Fleet(*nodes, spec=spec, record=told_run())
    fleet.opens(0.0)
    return fleet


def test_a_told_run_launches_nothing_by_itself() -> None:
    """Whoever runs it may be cut off."""
    fleet = told("a", "b", spec=grown("ab"))
    for now_s in (1.0, TTL_S, 600.0):
        for runner in ("a1", "b1"):
            assert orders(fleet.offers(now_s, runner))[runner] == Wait()
        fleet.at(now_s, Tick())
        assert (fleet.phase, fleet.record.generation) == ("forming", -1)
    assert waiting_for(fleet, 600.0) == (
        "whoever runs it to tell what (it is taken over from its runners); "
        "or for your word that nobody runs it: supctl restart"
    )


def test_a_told_run_is_taken_over_from_its_runners() -> None:
    fleet, given = told("a", "b"), given_out("ab")
    for runner in given:
        assert orders(says(fleet, 1.0, runner, given, tells=False))[runner] == Tell()
    for runner in given:
        says(fleet, 2.0, runner, given)
    assert (fleet.phase, fleet.record.generation, fleet.record.is_taken_over) == ("running", 4, False)


def test_a_told_run_has_its_time_to_be_told_again_after_a_restart_of_the_coordinator() -> None:
    fleet = told("a")
    fleet.at(TTL_S, Tick())
    assert not refuses(fleet)
    again = fleet.restarted(60.0)
    assert refuses(again)
    again.at(60.0 + TTL_S, Tick())
    assert not refuses(again)


def test_a_told_run_that_nobody_runs_begins_by_an_operators_word() -> None:
    fleet = told("a")
    fleet.offers(1.0, "a1")
    fleet.at(TTL_S, Tick())
    fleet.at(6.0, RESTART)
    fleet.offers(6.5, "a1", 0, port=4001)
    assert (fleet.phase, fleet.record.generation, fleet.record.is_taken_over) == ("launching", 1, False)


def test_a_told_run_that_is_told_to_stop_and_that_nobody_runs_is_stopped() -> None:
    fleet = told("a")
    fleet.offers(1.0, "a1")
    fleet.at(2.0, STOP)
    assert fleet.phase == "forming"
    assert orders(fleet.at(TTL_S, Tick())) == {"a1": Release()}
    assert (fleet.phase, fleet.coordinator.deadline_s) == ("stopped", None)
