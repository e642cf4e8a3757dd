"""A run that loses nodes: who is lost ends a generation, at nobody's charge, and nobody else does."""

from collections.abc import Callable

import pytest

from protocol.absence import node_state
from protocol.coordinator_events import NodeLost, RestartRequested, Send, StopRequested
from protocol.messages.member import Part, Run, Stop
from tests.protocol.build import exited, offer, rank
from tests.protocol.fleet import (
    CRASHED,
    FINISHED,
    Fleet,
    asks,
    backoff,
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
from tests.protocol.loss_stage import GROWS, LOST, SUSPECT_S, after_a_loss, ended, spec, stops

# --- a node falls silent ---------------------------------------------------------------------------------------------


def test_a_silent_node_is_suspect_and_its_witnesses_are_asked() -> None:
    fleet = running("a", "b", "c")
    effects = fleet.passes(2.0, 2.0 + SUSPECT_S, silent="c")
    assert (notes(effects), asks(effects)) == ([], [])
    effects = fleet.passes(5.0, 5.4, silent="c")
    assert notes(effects) == ["node.suspect"]
    assert {ask.incarnation for ask in asks(effects)} == {"a1", "b1"}
    assert {(ask.question.node, ask.question.incarnation, ask.question.epoch) for ask in asks(effects)} == {
        ("c", "c1", 1)
    }
    assert persisted(effects) == []


def test_a_silent_node_that_is_heard_again_in_time_answers_again_and_nothing_has_happened() -> None:
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 6.0, silent="c")
    effects = fleet.passes(6.0, 30.0)
    assert notes(effects) == ["node.answers"]
    assert (fleet.phase, fleet.record.incidents) == ("running", 0)


def test_a_node_that_is_lost_ends_the_generation_and_costs_nothing() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    effects = fleet.passes(2.0, 7.2, silent="c")
    assert notes(effects) == LOST
    incident = fleet.record.incident
    assert incident is not None
    assert (incident.cause, incident.node) == ("node-lost", "c")
    assert incident.summary == "c was silent for 5.1 s, and no witness has given it its word"
    assert orders(effects)["a1"] == Stop(generation=0)
    assert (fleet.phase, fleet.record.lapsed, fleet.record.lost) == ("stopping", ("c",), ())
    stops(fleet, 8.0, "a1", "b1")
    assert (fleet.phase, fleet.record.ledger.used, fleet.record.incidents) == ("launching", 0, 1)


def test_an_order_that_was_not_asked_for_gives_a_silent_node_no_more_time() -> None:
    """L5: it names a renewal of before, and prolongs no lease."""
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 6.0, silent="c")
    assert "c1" in orders(fleet.at(6.0, StopRequested(None, now=False, by="me")))
    assert notes(fleet.passes(6.0, 7.3, silent="c")) == ["node.lost"]


def test_nobody_who_answers_is_lost_and_a_lease_alone_ends_nothing() -> None:
    """Nobody may know whether c has been given a word."""
    fleet = running("a", "b", "c")
    assert notes(fleet.passes(2.0, 60.0, silent="c", mute="ab")) == ["node.suspect"]
    assert (fleet.phase, persisted(fleet.passes(60.0, 61.0, silent="c", mute="ab"))) == ("running", [])


def test_the_rest_goes_on_with_fewer() -> None:
    fleet = after_a_loss()
    effects = stops(fleet, 8.0, "a1", "b1")
    sent = {runner: order for runner, order in orders(effects).items() if isinstance(order, Run)}
    assert {runner: order.assignment.nnodes for runner, order in sent.items()} == {"a1": 2, "b1": 2}
    assert [w.incarnation for w in fleet.given("a").witnesses] == ["b1"]


def test_the_rest_goes_on_with_a_spare_in_the_place_of_the_one_that_was_lost() -> None:
    fleet = forming("a", "b", "c", "d", spec=spec(3, 4))
    for runner in ("a1", "b1", "c1", "d1"):
        fleet.offers(1.0, runner)
    for runner, place in (("a1", 0), ("b1", 1), ("c1", 2)):
        fleet.hears(2.0, runner, Part.RUNNING, 0, *started(place))
    assert notes(fleet.passes(2.0, 7.2, silent="b")) == LOST
    stops(fleet, 8.0, "a1", "c1")
    fleet.offers(8.0, "d1", 0, port=4001)
    assert (fleet.phase, list(fleet.coordinator.seats)) == ("launching", ["a", "d", "c"])


def test_nobody_waits_for_the_runner_of_a_lost_node() -> None:
    """Neither R1 nor the rendezvous."""
    fleet = running("a", "b", "c", spec=spec(3, 3))
    fleet.passes(2.0, 7.2, silent="c")
    stops(fleet, 8.0, "a1", "b1")
    assert fleet.phase == "forming"  # there are too few


# --- who was lost, and comes back ------------------------------------------------------------------------------------


def test_a_lost_node_that_is_heard_again_while_the_others_still_stop_is_told_to_stop() -> None:
    fleet = after_a_loss()
    effects = fleet.hears(7.5, "c1", Part.RUNNING, 0, *started(2))
    assert orders(effects) == {"c1": Stop(generation=0)}
    assert (fleet.phase, fleet.record.incidents) == ("stopping", 1)
    assert fleet.coordinator.current.gone == {"c"}


def test_a_lost_node_that_is_heard_again_is_told_to_stop_and_then_serves_as_a_spare() -> None:
    fleet = after_a_loss(spec=spec(2, 3, extra_nodes="grow"))
    stops(fleet, 8.0, "a1", "b1")
    assert fleet.phase == "launching"
    effects = fleet.hears(9.0, "c1", Part.RUNNING, 0, *started(2))
    assert orders(effects) == {"c1": Stop(generation=1)}
    assert fleet.record.incidents == 1
    fleet.hears(9.5, "c1", Part.STOPPED, 1, *ended(2))
    fleet.offers(9.6, "c1", 1, port=4002)
    assert fleet.coordinator.rendezvous.spares(fleet.coordinator.seats) == ("c",)
    for runner, place in (("a1", 0), ("b1", 1)):
        fleet.hears(10.0, runner, Part.RUNNING, 1, *started(place))
    fleet.at(11.0, RestartRequested("", by="me"))
    fleet.offers(12.0, "c1", 1, port=4002)
    stops(fleet, 12.0, "a1", "b1", generation=1, port=4002)
    assert list(fleet.coordinator.seats) == ["a", "b", "c"]


def test_another_runner_of_a_lost_node_is_welcome_at_once() -> None:
    """It has rebooted."""
    fleet = after_a_loss()
    fleet.offers(7.5, "c2", 0, port=4001)
    stops(fleet, 8.0, "a1", "b1")
    assert {node: seat.incarnation for node, seat in fleet.coordinator.seats.items()} == {
        "a": "a1",
        "b": "b1",
        "c": "c2",
    }


def test_who_was_lost_comes_after_who_was_not_until_it_is_heard_again() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    fleet.passes(2.0, 7.2, silent="a")
    assert fleet.coordinator.rendezvous.eligible == ("b", "c", "a")
    assert node_state(fleet.coordinator, "a", 7.2) == (
        "lost",
        "nothing was heard of it until its lease was over, nor since",
    )
    fleet.offers(7.5, "a1", 0, port=4001)
    assert fleet.coordinator.rendezvous.eligible == ("a", "b", "c")
    assert node_state(fleet.coordinator, "a", 7.5) == ("", "")


def test_a_lost_node_whose_supd_buries_its_runner_is_asked_for_another_one_before_a_node_that_is_away() -> None:
    """Found by random seeds: the run waited for d, which was off, and c was never asked."""
    fleet = forming("a", "b", "c", "d", spec=spec(3, 3))
    for runner in ("a1", "b1", "c1"):
        fleet.offers(1.0, runner)
    for runner, place in (("a1", 0), ("b1", 1), ("c1", 2)):
        fleet.hears(2.0, runner, Part.RUNNING, 0, *started(place))
    fleet.passes(2.0, 7.2, silent="c")
    fleet.sees(7.3, "d")
    stops(fleet, 8.0, "a1", "b1")
    assert fleet.coordinator.rendezvous.wanted == {"a", "b", "d"}
    effects = fleet.gone(9.0, "c1")
    assert fleet.coordinator.rendezvous.wanted == {"a", "b", "c"}
    assert "runner.failed" not in notes(effects)


def test_the_burial_of_a_lost_runner_of_a_past_generation_is_no_failed_start() -> None:
    fleet = after_a_loss()
    stops(fleet, 8.0, "a1", "b1")
    assert fleet.phase == "launching"
    assert notes(fleet.gone(9.0, "c1")) == []


# --- who ends its ranks by itself ------------------------------------------------------------------------------------


def test_a_node_that_was_fenced_ends_the_generation_and_costs_nothing() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    effects = fleet.hears(4.0, "c1", Part.STOPPED, 0, *ended(2), fenced_s=4.5)
    assert notes(effects) == ["node.fenced", "incident.opened"]
    incident = fleet.record.incident
    assert incident is not None
    assert (incident.cause, incident.node) == ("fenced", "c")
    assert "had no answer for 4.5 s" in incident.summary
    assert notes(fleet.hears(5.0, "c1", Part.STOPPED, 0, *ended(2), fenced_s=4.5)) == []
    stops(fleet, 6.0, "a1", "b1")
    assert fleet.record.ledger.used == 0


def test_a_node_that_was_fenced_is_told_of_also_when_its_generation_is_over() -> None:
    """It was cut off, and lost before it could say so."""
    fleet = after_a_loss()
    stops(fleet, 8.0, "a1", "b1")
    assert fleet.phase == "launching"
    effects = fleet.hears(20.0, "c1", Part.STOPPED, 0, *ended(2), fenced_s=4.5)
    assert [(note.generation, note.detail["node"]) for note in noted(effects, "node.fenced")] == [(0, "c")]
    assert notes(fleet.hears(21.0, "c1", Part.STOPPED, 0, *ended(2), fenced_s=4.5)) == []


def test_who_was_fenced_since_the_host_died_is_not_what_the_generation_ended_of() -> None:
    """Its runner was a witness of all others: they are heard before it is proven gone, when a coordinator is back."""
    fleet = running("a", "b", "c")
    again = Fleet("a", "b", "c", spec=fleet.spec, record=fleet.record, epoch=2)
    again.numbers = fleet.numbers
    again.opens(60.0)
    again.hears(60.1, "b1", Part.STOPPED, 0, *ended(1), fenced_s=4.5)
    again.hears(60.2, "c1", Part.STOPPED, 0, *ended(2), fenced_s=4.5)
    assert again.record.incident is not None
    assert again.record.incident.node == "b"
    assert notes(again.gone(61.0, "a1"))[:2] == ["runner.lost", "incident.corrected"]
    incident = again.record.incident
    assert (incident.cause, incident.node) == ("runner-lost", "a")
    assert incident.summary.startswith("the runner on a is gone, and its ranks with it; first seen: b was cut off")


def test_a_rank_that_had_failed_before_is_the_cause_and_not_the_fence() -> None:
    fleet = running("a", "b")
    ranks = (rank(2, exited(3), first=2), rank(3, exited(signal=9, order=1, by_us=True), first=2))
    fleet.hears(4.0, "b1", Part.STOPPED, 0, *ranks, fenced_s=4.5)
    assert fleet.record.incident is not None
    assert (fleet.record.incident.cause, fleet.record.incident.rank) == ("exit", 2)


def test_a_runner_that_reaches_none_of_its_witnesses_is_told_of_once() -> None:
    fleet = running("a", "b", "c")
    assert notes(fleet.hears(3.0, "c1", Part.RUNNING, 0, *started(2), unreached=("a",))) == []
    for told in (["node.unwitnessed"], []):
        assert notes(fleet.hears(4.0, "c1", Part.RUNNING, 0, *started(2), unreached=("a", "b"))) == told
    assert fleet.phase == "running"


# --- by way of a witness ---------------------------------------------------------------------------------------------


def test_who_is_reached_only_by_a_witness_goes_on_and_is_answered_by_the_same_way() -> None:
    fleet = running("a", "b", "c")
    effects = fleet.passes(2.0, 20.0, via={"c1": "a1"})
    assert notes(effects) == ["node.unreachable"]
    ways = {effect.incarnation: effect.via for effect in effects if isinstance(effect, Send)}
    assert ways == {"a1": "", "b1": "", "c1": "a1"}
    assert node_state(fleet.coordinator, "c", 20.0)[0] == "unreachable"
    assert notes(fleet.passes(20.0, 22.0)) == ["node.answers"]
    assert fleet.phase == "running"


def test_a_new_order_goes_the_way_that_the_newest_renewal_came() -> None:
    fleet = running("a", "b", "c")
    fleet.renews(3.0, "c1", via="b1")
    effects = fleet.hears(3.5, "a1", Part.STOPPING, 0, *CRASHED)
    ways = {effect.incarnation: effect.via for effect in effects if isinstance(effect, Send)}
    assert ways == {"a1": "", "b1": "", "c1": "b1"}


def test_each_copy_of_a_renewal_is_answered_by_the_way_that_it_came() -> None:
    fleet = running("a", "b", "c")
    for via in ("a1", "b1", ""):
        fleet.numbers["c1"] = 5
        [sent] = [e for e in fleet.renews(3.0, "c1", via=via) if isinstance(e, Send)]
        assert (sent.incarnation, sent.via, sent.answer.number) == ("c1", via, 6)


def test_a_runner_without_a_place_in_the_generation_passes_nothing_on() -> None:
    """Nobody has it for a witness: a stranger must not be able to keep a silent node's lease going, nor end it."""
    fleet = running("a", "b", "c")
    before = fleet.last["c1"]
    for stranger in ("z1", "a9"):
        effects = fleet.hears(3.0, "c1", Part.STOPPED, 0, *ended(2), via=stranger)
        assert orders(effects) == {}, "an answer would keep its lease going, and nobody has heard it"
    assert fleet.phase == "running"
    fleet.last["c1"] = before
    assert "node.lost" in notes(fleet.passes(3.0, 12.0, via={"c1": "z1"}))


def test_a_witness_speaks_for_nobody_without_a_place_in_the_generation() -> None:
    fleet = running("a", "b", "c")
    before = fleet.coordinator.roll.runners.copy()
    effects = fleet.hears(3.0, "c9", Part.STOPPED, 0, *ended(2), via="a1")
    assert orders(effects) == {"c9": Stop(generation=0)}
    fleet.hears(3.0, "z1", Part.RUNNING, 9, via="a1")
    assert (fleet.coordinator.roll.runners, fleet.coordinator.takeover) == (before, None)


# --- several at once, and in every phase -----------------------------------------------------------------------------


def test_two_that_are_lost_at_once_are_one_incident() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    effects = fleet.passes(2.0, 7.2, silent="bc")
    told = notes(effects)
    assert [told.count(kind) for kind in ("node.suspect", "node.lost", "incident.opened")] == [2, 2, 1]
    assert fleet.record.lapsed == ("b", "c")
    stops(fleet, 8.0, "a1")
    assert (fleet.phase, list(fleet.coordinator.seats), fleet.record.incidents) == ("launching", ["a"], 1)
    assert fleet.record.ledger.used == 0


def test_where_all_are_silent_nobody_is_lost_and_the_run_waits_for_proof() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    assert notes(fleet.passes(2.0, 60.0, silent="abc")) == ["node.suspect"] * 3
    assert fleet.phase == "running"
    fleet.gone(61.0, "a1")
    assert fleet.phase == "stopping"
    effects = fleet.passes(61.0, 70.0, silent="abc")
    assert [note.detail["node"] for note in noted(effects, "node.lost")] == ["b", "c"], "a lease after a was gone"


def test_a_node_that_is_lost_while_its_ranks_start_ends_the_generation_too() -> None:
    fleet = launching("a", "b", "c", spec=GROWS)
    for runner, place in (("a1", 0), ("b1", 1)):
        fleet.hears(1.5, runner, Part.LAUNCHED, 0, *started(place))
    assert notes(fleet.passes(1.5, 7.2, silent="c"))[-2:] == ["node.lost", "incident.opened"]


def test_a_node_that_is_lost_while_the_others_stop_is_not_waited_for() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    fleet.hears(3.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    stops(fleet, 3.5, "a1", "b1")
    assert fleet.phase == "stopping"
    effects = fleet.passes(3.5, 10.0, silent="c")
    assert notes(effects)[:4] == ["node.suspect", "node.lost", "incident.corrected", "generation.ended"]
    assert fleet.record.incident is not None
    assert (fleet.record.incident.node, fleet.record.ledger.used) == ("c", 0)


def test_a_stop_is_over_when_the_lost_node_is_lost() -> None:
    fleet = running("a", "b", "c")
    fleet.at(3.0, StopRequested(None, now=False, by="me"))
    stops(fleet, 4.0, "a1", "b1")
    fleet.passes(4.0, 10.0, silent="c")
    assert fleet.phase == "stopped"


# --- the operator's word ---------------------------------------------------------------------------------------------


BY_ME = NodeLost("b", by="me")


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        pytest.param(lambda: forming("a", "b"), [], id="forming"),
        pytest.param(lambda: launching("a", "b"), ["node.lost", "incident.opened"], id="launching"),
        pytest.param(lambda: running("a", "b"), ["node.lost", "incident.opened"], id="running"),
        pytest.param(lambda: stopping("a", "b"), ["node.lost"], id="stopping"),
    ],
)
def test_the_operators_word_that_nothing_runs_on_a_node_is_proof(begin: Callable[[], Fleet], told: list[str]) -> None:
    fleet = begin()
    effects = fleet.at(6.0, BY_ME)
    assert notes(effects) == ["operator.node_lost", *told]
    assert "b" not in fleet.coordinator.roll.runners
    assert "b" in fleet.coordinator.rendezvous.lapsed
    if told:
        assert fleet.record.lapsed == ("b",)
        stops(fleet, 7.0, "a1")
        assert (fleet.phase, fleet.coordinator.current.is_gone) == ("forming", True)


def test_the_operators_word_about_a_node_without_ranks_ends_nothing() -> None:
    fleet = running("a", "b")
    assert notes(fleet.at(6.0, NodeLost("z", by="me"))) == ["operator.node_lost"]
    fleet.at(6.5, NodeLost("z", by="me"))
    assert fleet.phase == "running"


def test_the_operators_word_in_a_backoff_and_after_the_end_changes_no_decision() -> None:
    fleet = backoff()
    due_s = fleet.coordinator.backoff_until_s
    fleet.at(22.0, NodeLost("a", by="me"))
    assert (fleet.phase, fleet.coordinator.backoff_until_s) == ("backoff", due_s)
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert fleet.at(6.0, NodeLost("a", by="me")) == []


def test_the_operators_word_about_the_only_node_frees_a_run_that_waits_for_it() -> None:
    fleet = running()
    assert fleet.coordinator.deadline_s is None
    fleet.at(60.0, NodeLost("a", by="me"))
    assert (fleet.phase, fleet.record.ledger.used) == ("forming", 0)
    fleet.offers(61.0, "a2", port=4001)
    assert fleet.phase == "launching"


def test_a_node_whose_ranks_had_all_ended_with_0_is_no_loss() -> None:
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert notes(fleet.at(6.0, NodeLost("a", by="me"))) == ["operator.node_lost"]
    fleet.hears(7.0, "b1", Part.FINISHED, 0, rank(2, exited(0), first=2), rank(3, exited(0), first=2))
    assert fleet.phase == "succeeded"


# --- where isolated nodes go on --------------------------------------------------------------------------------------


def test_where_isolated_nodes_are_kept_nobody_is_ever_lost() -> None:
    fleet = running("a", "b", "c", keeps_isolated=True)
    assert fleet.given("a").witnesses == ()
    effects = fleet.passes(2.0, 120.0, silent="c")
    assert (notes(effects), asks(effects)) == (["node.suspect"], [])
    fleet.gone(121.0, "c1")
    assert fleet.phase == "stopping"


def test_a_runner_that_listens_nowhere_is_nobodys_witness() -> None:
    fleet = forming("a", "b", "c")
    for runner in ("a1", "b1", "c1"):
        given = {"a1": 5000, "b1": 0, "c1": 5000}[runner]
        fleet.hears(1.0, runner, Part.IDLE, -1, offer=offer(witness_port=given))
    assert {node: [w.node for w in fleet.given(node).witnesses] for node in "abc"} == {
        "a": ["c"],
        "b": ["c", "a"],
        "c": ["a"],
    }
