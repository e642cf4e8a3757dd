"""A coordinator that knows less than the runners: it takes over what they run, and begins nothing beside it (R6)."""

from typing import Any

import pytest
from msgspec.structs import replace

from protocol.coordinator_events import NodeLost, Roster, RosterNode, Tick
from protocol.messages.member import Part, Run, Stop, Tell
from protocol.run_state import GENERATION_MAX
from protocol.seating import witness_ranks
from tests.protocol.build import exited, rank
from tests.protocol.fleet import (
    CRASHED_AND_GONE,
    FINISHED,
    Fleet,
    asks,
    forming,
    launching,
    noted,
    notes,
    orders,
    persisted,
    running,
    started,
    stopping,
)
from tests.protocol.takeover_stage import EIGHT, RESTART, TTL_S, assignments, ended, given_out, grown, says, waiting_for

# --- all of them are there -------------------------------------------------------------------------------------------


def test_a_runner_ahead_of_its_coordinator_is_not_touched_and_told_to_tell_what_it_runs() -> None:
    """R3, R6."""
    fleet, given = forming("a", "b"), given_out("ab")
    effects = says(fleet, 1.0, "a1", given, tells=False)
    assert orders(effects) == {"a1": Tell()}
    assert [record.is_taken_over for record in persisted(effects)] == [True]
    effects = says(fleet, 1.1, "a1", given)
    assert (orders(effects), persisted(effects)) == ({"a1": Tell()}, [])
    assert fleet.phase == "forming"


def test_a_generation_of_which_every_runner_has_told_is_taken_over_as_it_was_given_out() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "b1", given)
    effects = says(fleet, 1.1, "a1", given)
    assert notes(effects) == ["run.taken_over", "generation.ready"]
    assert orders(effects) == {runner: Run(assignment=mine) for runner, mine in given.items()}
    assert (fleet.phase, fleet.record.generation, assignments(fleet)) == ("running", 4, given)
    assert (fleet.record.has_started, fleet.record.slots) == (True, {"a": 0, "b": 1})
    assert fleet.coordinator.rendezvous.wanted == frozenset()


@pytest.mark.parametrize("begin", [forming, launching, running, stopping])
def test_whatever_a_coordinator_takes_for_the_present_the_runners_know_better(begin: Any) -> None:
    """Its journal was put back from a copy of an earlier time."""
    fleet, given = begin("a", "b"), given_out("ab")
    for runner in given:
        says(fleet, 6.0, runner, given, tells=False)
    for runner in given:
        says(fleet, 6.1, runner, given)
    assert (fleet.phase, fleet.record.generation, assignments(fleet)) == ("running", 4, given)
    assert not fleet.record.incident_is_open


def test_a_failure_of_what_was_taken_over_ends_it_and_nothing_is_numbered_twice() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    for runner in given:
        says(fleet, 1.0, runner, given)
    fleet.hears(2.0, "a1", Part.STOPPING, 4, rank(0, exited(1)), rank(1))
    assert fleet.phase == "stopping"
    for runner in given:
        ended(fleet, 3.0, runner, given)
    for runner in given:
        fleet.offers(4.0, runner, 4, port=4001)
    assert (fleet.phase, fleet.record.generation) == ("launching", 5)


def test_a_stopped_of_an_older_generation_proves_nothing_about_the_one_that_was_not_known_of() -> None:
    """R1."""
    fleet, given = stopping("a", "b"), given_out("ab")
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *started())
    says(fleet, 6.1, "b1", given)
    fleet.at(6.1 + TTL_S, Tick())
    fleet.hears(12.0, "b1", Part.STOPPED, 4, *started(1))
    assert (fleet.phase, fleet.record.generation) == ("stopping", 4)
    fleet.hears(13.0, "a1", Part.STOPPED, 4)
    assert fleet.phase == "forming"


def test_what_a_runner_had_said_before_it_was_proven_gone_counts_in_what_is_taken_over() -> None:
    """R6: whoever had finished is no loss."""
    fleet, given = forming("a", "b"), given_out("ab")
    done = (rank(2, exited(0), first=2), rank(3, exited(0, order=1), first=2))
    fleet.hears(1.0, "b1", Part.FINISHED, 4, *done, assignment=given["b1"])  # its record
    fleet.gone(1.0, "b1")
    effects = fleet.hears(2.0, "a1", Part.FINISHED, 4, *FINISHED, assignment=given["a1"])
    assert notes(effects) == ["run.taken_over", "job.succeeded"]


def test_nothing_new_begins_while_a_generation_is_taken_over() -> None:
    """R1."""
    fleet, given = forming("a", "b", spec=grown("ab")), given_out("ab")
    says(fleet, 1.0, "b1", given, tells=False)
    fleet.offers(1.1, "a1")
    fleet.at(40.0, Tick())
    fleet.offers(40.1, "a1")
    assert orders(says(fleet, 40.2, "b1", given, tells=False)) == {"b1": Tell()}
    assert fleet.phase == "forming"


def test_a_runner_of_another_state_folder_is_no_member_of_what_is_taken_over() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "b1", given)
    fleet.offers(1.0, "a9")
    fleet.at(1.0 + TTL_S, Tick())
    assert fleet.record.seats[0].incarnation == "a1"
    assert isinstance(fleet.coordinator.order_for("a", "a9"), Stop)


def test_what_is_told_of_another_generation_than_one_is_at_is_nonsense() -> None:
    fleet, given = forming("a"), given_out("a")
    fleet.hears(1.0, "a1", Part.RUNNING, 4, *started(), assignment=replace(given["a1"], generation=3))
    assert fleet.phase == "forming"


@pytest.mark.parametrize(
    "changed",
    [{"nnodes": 10**6}, {"nnodes": 0}, {"nnodes": -1}, {"node_rank": 2}, {"node_rank": -1}],
    ids=lambda changed: "-".join(f"{name}={value}" for name, value in changed.items()),
)
def test_an_assignment_that_cannot_be_is_no_part_of_a_generation(changed: dict[str, int]) -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", {"a1": replace(given["a1"], **changed)})
    fleet.at(1.0 + TTL_S, Tick())
    assert fleet.phase == "forming"
    assert waiting_for(fleet, 7.0).startswith("whoever runs it to tell what")


# --- some are only named ---------------------------------------------------------------------------------------------


def test_a_runner_that_only_others_name_is_waited_for_and_then_judged_by_its_lease() -> None:
    fleet, given = forming("a", "b", "c", spec=grown("abc")), given_out("abc")
    for runner in ("a1", "b1"):
        says(fleet, 1.0, runner, given)
    assert fleet.coordinator.deadline_s == 1.0 + TTL_S
    assert fleet.at(0.9 + TTL_S, Tick()) == []
    assert waiting_for(fleet, 2.0) == "c (generation 4 is taken over from its runners)"
    effects = fleet.at(1.0 + TTL_S, Tick())
    assert notes(effects) == ["run.taken_over"]
    assert set(fleet.coordinator.seats) == {"a", "b", "c"}
    assert assignments(fleet)["a1"] == given["a1"]
    named = assignments(fleet)["c1"]
    assert (named.node_rank, named.first_rank, named.nproc, named.nnodes, named.world_size) == (2, 4, 2, 3, 6)
    assert (named.master_addr, named.master_port, named.generation) == ("10.0.0.1", 4000, 4)
    assert [w.incarnation for w in named.witnesses] == ["a1", "b1"]
    for runner in ("a1", "b1"):
        says(fleet, 1.1 + TTL_S, runner, given)
    assert fleet.phase == "launching"
    effects = fleet.passes(6.1, 12.5, silent="c")
    assert notes(effects)[:3] == ["node.suspect", "node.lost", "incident.opened"]
    assert (noted(effects, "node.lost")[0].detail["node"], fleet.phase) == ("c", "stopping")


def test_a_runner_that_was_only_named_and_is_heard_in_time_has_its_place() -> None:
    fleet, given = forming("a", "b", "c"), given_out("abc")
    for runner in ("a1", "b1"):
        says(fleet, 1.0, runner, given)
    fleet.at(1.0 + TTL_S, Tick())
    for runner in given:
        effects = says(fleet, 6.5, runner, given)
    assert (notes(effects), fleet.phase) == (["generation.ready"], "running")


@pytest.mark.parametrize("is_heard_before", [True, False], ids=["before", "after"])
def test_a_runner_that_has_a_place_is_heard_though_another_one_has_its_name_first(is_heard_before: bool) -> None:
    """Found by random seeds: it was answered and not heard, and so counted as lost while its ranks ran (R1)."""
    fleet, given = forming("a", "b", "c", spec=grown("abc")), given_out("abc")
    fleet.offers(0.5, "c9")
    for runner in given if is_heard_before else ("a1", "b1"):
        says(fleet, 1.0, runner, given)
    fleet.at(1.0 + TTL_S, Tick())
    assert assignments(fleet).keys() == set(given)
    for now_s in (6.1, 9.0, 12.0, 15.0):
        assert "c9" in orders(fleet.offers(now_s, "c9"))
        for runner in given:
            says(fleet, now_s, runner, given)
        fleet.at(now_s + 1.0, Tick())
    assert (fleet.phase, fleet.record.lapsed) == ("running", ())


def test_a_runner_that_is_named_may_be_heard_by_way_of_a_witness_and_a_stranger_may_not() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", given)
    effects = says(fleet, 1.1, "z1", {"z1": given["b1"]}, via="a1")
    assert orders(effects) == {"z1": fleet.coordinator.order_for("z", "z1")}
    assert fleet.phase == "forming"
    effects = says(fleet, 1.2, "b1", given, via="a1")
    assert (fleet.phase, assignments(fleet)) == ("running", given)


def test_a_member_that_is_proven_gone_ends_what_was_taken_over_uncharged() -> None:
    fleet, given = forming("a", "b", "c"), given_out("abc")
    for runner in ("a1", "b1"):
        says(fleet, 1.0, runner, given)
    fleet.gone(2.0, "c1")
    effects = fleet.at(1.0 + TTL_S, Tick())
    assert notes(effects) == ["run.taken_over", "runner.lost", "incident.opened"]
    assert set(orders(effects).values()) == {Stop(generation=4)}
    for runner in ("a1", "b1"):
        ended(fleet, 7.0, runner, given)
    assert (fleet.phase, fleet.record.ledger.used) == ("forming", 0)


def test_a_member_whose_end_is_told_before_anything_else_is_gone_too() -> None:
    """supd sweeps what is left, and says so, before the runners are linked again."""
    fleet, given = forming("a", "b"), given_out("ab")
    fleet.gone(0.5, "b1")
    says(fleet, 1.0, "a1", given)
    effects = fleet.at(1.0 + TTL_S, Tick())
    assert notes(effects)[:2] == ["run.taken_over", "runner.lost"]


def test_the_operators_word_about_a_member_that_is_not_heard_ends_the_wait() -> None:
    fleet, given = forming("a", "b", "c"), given_out("abc")
    for runner in ("a1", "b1"):
        says(fleet, 1.0, runner, given)
    effects = fleet.at(2.0, NodeLost("c", by="me"))
    assert notes(effects) == ["operator.node_lost", "run.taken_over", "node.lost", "incident.opened"]


def test_a_seat_that_nobody_names_is_waited_for_and_the_run_says_so() -> None:
    """It may hold a lease by the words of others that are not heard either."""
    fleet, given = forming(*EIGHT, spec=grown(EIGHT)), given_out(EIGHT)
    says(fleet, 1.0, "a1", given)
    fleet.at(1.0 + TTL_S, Tick())
    assert fleet.phase == "forming"
    assert waiting_for(fleet, 2.0) == (
        "d, e, g and 4 more whose name nobody knows (generation 4 is taken over from its runners)"
    )
    says(fleet, 7.0, "b1", given)
    assert fleet.phase == "forming"
    says(fleet, 7.0, "c1", given)  # now all are named
    assert (fleet.phase, list(fleet.coordinator.seats)) == ("launching", list(EIGHT))


# --- several generations ---------------------------------------------------------------------------------------------


def test_of_several_generations_ahead_the_newest_is_taken_over_and_the_others_are_stopped() -> None:
    fleet, old, new = forming("a", "b"), given_out("ab", 3), given_out("b", 6)
    says(fleet, 1.0, "a1", old)
    says(fleet, 1.1, "b1", new)
    assert (fleet.phase, fleet.record.generation, set(assignments(fleet))) == ("running", 6, {"b1"})
    assert orders(says(fleet, 1.2, "a1", old)) == {"a1": Stop(generation=6)}


def test_one_that_is_heard_of_while_another_is_taken_over_takes_its_place() -> None:
    fleet, old, new = forming("a", "b", "c"), given_out("abc", 3), given_out("ab", 6)
    says(fleet, 1.0, "c1", old)
    says(fleet, 3.0, "a1", new)
    fleet.at(1.0 + TTL_S, Tick())
    assert fleet.phase == "forming"  # its time counts from when it was heard of
    says(fleet, 6.5, "b1", new)
    assert (fleet.record.generation, set(assignments(fleet))) == (6, {"a1", "b1"})


# --- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [False, True])
def test_a_runner_of_a_node_that_the_fleet_does_not_know_is_not_believed_beside_a_healthy_generation(
    tells: bool,
) -> None:
    """Who has the key may say anything: the others are judged as before, and what they run is not touched."""
    fleet = running("a", "b", "c")
    alone = {"z1": given_out("a")["a1"]}
    effects = says(fleet, 3.0, "z1", alone, tells=tells)
    assert (persisted(effects), fleet.coordinator.takeover, fleet.coordinator.roll.busy) == ([], None, {*"abc"})
    del fleet.last["z1"]
    assert "node.lost" in notes(fleet.passes(3.0, 10.0, silent="c"))


def test_of_a_node_that_the_fleet_knows_a_runner_is_believed_whatever_runs() -> None:
    fleet = running("a", "b")
    fleet.at(3.0, Roster(tuple(RosterNode(node, is_up=True) for node in "abz")))
    assert [r.is_taken_over for r in persisted(says(fleet, 3.0, "z1", {"z1": given_out("a")["a1"]}, tells=False))]


def test_a_stranger_that_was_believed_is_not_once_all_are_heard_at_the_generation_that_is_known() -> None:
    """A coordinator that has begun anew cannot know it at once."""
    fleet, given = running("a", "b", "c"), given_out("abc")
    again = Fleet("a", "b", "c", spec=fleet.spec, record=fleet.record, epoch=2)
    again.numbers, again.last = fleet.numbers, fleet.last
    again.opens(10.0)
    effects = says(again, 10.1, "z1", {"z1": given["a1"]}, tells=False)
    assert [record.is_taken_over for record in persisted(effects)] == [True]
    del again.last["z1"]
    for runner in ("a1", "b1", "c1"):
        again.renews(10.2, runner)
    assert not again.record.is_taken_over
    assert "z" not in again.coordinator.roll.runners
    assert "node.lost" in notes(again.passes(10.2, 17.0, silent="c"))


# --- limits ----------------------------------------------------------------------------------------------------------


def test_the_generation_behind_the_last_that_is_believed_can_still_end() -> None:
    fleet = forming("a")
    fleet.hears(1.0, "a1", Part.STOPPED, GENERATION_MAX)
    fleet.at(1.0 + TTL_S, Tick())
    fleet.at(11.0, RESTART)
    fleet.offers(11.5, "a1", GENERATION_MAX + 1)
    assert (fleet.phase, fleet.record.generation) == ("launching", GENERATION_MAX + 2)
    fleet.hears(12.0, "a1", Part.STOPPED, GENERATION_MAX + 2, *CRASHED_AND_GONE)
    assert (fleet.phase, fleet.record.incidents) == ("forming", 1)


@pytest.mark.parametrize("begin", [forming, running])
def test_a_coordinator_that_waits_for_what_it_takes_over_does_not_ask_to_be_woken_at_once(begin: Any) -> None:
    """Or else it would do nothing but look at the clock."""
    fleet, given = begin("a", "b"), given_out("ab")
    says(fleet, 3.0, "a1", given, tells=False)
    for now_s in (3.4, 3.0 + TTL_S, 4.0 + TTL_S, 60.0):
        fleet.at(now_s, Tick())
        assert fleet.coordinator.deadline_s is None or fleet.coordinator.deadline_s > now_s


def test_a_rendezvous_that_waits_for_a_takeover_does_not_ask_to_be_woken_at_once() -> None:
    """It had waited for more nodes to come, and that time is over."""
    fleet, given = forming("a", "b", spec=grown("ab")), given_out("ab")
    fleet.offers(1.0, "a1")
    assert fleet.coordinator.deadline_s is not None
    says(fleet, 1.1, "b1", given, tells=False)
    for now_s in (1.1 + TTL_S, 600.0):
        fleet.at(now_s, Tick())
        assert fleet.phase == "forming"
        assert fleet.coordinator.deadline_s is None


def test_leases_are_counted_from_the_takeover() -> None:
    fleet, given = forming("a", "b"), given_out("ab")
    says(fleet, 1.0, "a1", given)
    fleet.at(1.0 + TTL_S, Tick())
    assert asks(fleet.passes(6.0, 8.9, silent="ab")) == []
    assert asks(fleet.passes(8.9, 10.0, silent="ab")) != []


def test_a_seat_that_is_only_named_has_for_witnesses_those_of_its_own_that_others_name() -> None:
    """Whether one that nobody names listens, and so is a witness of anybody, nobody else knows."""
    fleet, given = forming(*EIGHT), given_out(EIGHT)
    for runner in ("a1", "b1", "c1"):
        says(fleet, 1.0, runner, given)
    named = {witness.node: witness for runner in ("a1", "b1", "c1") for witness in given[runner].witnesses}
    assert named.keys() == set("adefgh")  # nobody but b and c themselves says that these are there
    fleet.at(1.0 + TTL_S, Tick())
    for node in "abc":
        assert fleet.given(node) == given[f"{node}1"]
    for node in "defgh":
        its_own = (EIGHT[node_rank] for node_rank in witness_ranks(EIGHT.index(node), 8))
        assert fleet.given(node).witnesses == tuple(named[other] for other in its_own if other in named)
