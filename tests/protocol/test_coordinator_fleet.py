"""A run on several nodes: one failure is one restart for all, whoever dies of it; nodes that come, go and stand by."""

from typing import Any

import pytest

from protocol.coordinator_events import RestartRequested, StopRequested, Tick, Want
from protocol.job import JobSpec, TopologyTable
from protocol.messages.member import Part, Release, Run, Stop
from protocol.pool import FRESH_S
from tests.protocol.build import exited, job_spec, offer, rank
from tests.protocol.fleet import (
    CRASHED,
    CRASHED_AND_GONE,
    FINISHED,
    PATIENT,
    Fleet,
    forming,
    launching,
    notes,
    orders,
    running,
    started,
    stopping,
    wanted_runners,
)


def spec(least: int, most: int, **topology: Any) -> JobSpec:
    table = TopologyTable(nproc_per_node=2, nnodes=(least, most), **topology)
    return job_spec(topology=table, restart=PATIENT)


def stopped(fleet: Fleet, now_s: float, runner: str, generation: int = 0, port: int = 4001) -> None:
    """The part of a runner is gone, and it offers itself."""
    place = fleet.coordinator.seats[runner[0]].assignment.node_rank
    ranks = (rank(2 * place + i, exited(signal=15, order=i, by_us=True), first=2 * place) for i in range(2))
    fleet.hears(now_s, runner, Part.STOPPED, generation, *ranks)
    fleet.offers(now_s, runner, generation, port)


def nodes(fleet: Fleet) -> list[str]:
    """Who has ranks, by node_rank."""
    return list(fleet.coordinator.seats)


# --- one failure, one restart ----------------------------------------------------------------------------------------


def test_a_failure_on_one_node_stops_all_of_them_in_the_same_breath() -> None:
    fleet = running("a", "b", "c")
    effects = fleet.hears(5.0, "b1", Part.STOPPING, 0, rank(2, exited(1), first=2), rank(3, first=2))
    assert orders(effects) == {"a1": Stop(generation=0), "b1": Stop(generation=0), "c1": Stop(generation=0)}
    assert fleet.record.incident is not None
    assert fleet.record.incident.summary == "rank 2 on b (pid 102) exited with code 1"


def test_victims_on_other_nodes_belong_to_the_incident_and_cost_nothing() -> None:
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    victim = (rank(2, exited(1, ago_s=0.0), first=2), rank(3, exited(1, order=1), first=2))
    assert notes(fleet.hears(6.0, "b1", Part.STOPPING, 0, *victim)) == []
    fleet.hears(7.0, "b1", Part.STOPPED, 0, *victim)
    fleet.hears(8.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    assert (fleet.record.incidents, fleet.record.ledger.used) == (1, 1)


def test_the_incident_names_the_rank_that_ended_first_though_a_victim_was_heard_before_it() -> None:
    """R4; by spans that each runner has measured itself: no two clocks are compared."""
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.STOPPING, 0, rank(0, exited(1, ago_s=0.01)), rank(1))
    culprit = (rank(2, exited(signal=9, ago_s=0.2), first=2), rank(3, first=2))
    assert notes(fleet.hears(5.1, "b1", Part.STOPPING, 0, *culprit)) == ["incident.corrected"]
    assert fleet.record.incident is not None
    assert (fleet.record.incident.node, fleet.record.incident.rank, fleet.record.incidents) == ("b", 2, 1)


def test_a_runner_that_was_gone_before_the_stop_reached_it_is_what_the_others_died_of() -> None:
    fleet = running("a", "b")
    victim = (rank(0, exited(1)), rank(1, exited(signal=15, order=1, by_us=True)))
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *victim)
    assert notes(fleet.gone(9.0, "b1")) == ["runner.lost", "incident.corrected"]
    fleet.hears(9.5, "a1", Part.STOPPED, 0, *victim)
    incident = fleet.record.incident
    assert incident is not None
    assert (incident.cause, incident.node, fleet.record.ledger.used) == ("runner-lost", "b", 0)
    assert incident.summary.endswith("; first seen: rank 0 on a (pid 100) exited with code 1")


def test_a_rank_that_was_killed_is_no_victim_of_a_runner_that_goes_later() -> None:
    """When that went nobody knows: it may have been cut off, so that no stop reached it."""
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    assert notes(fleet.gone(9.0, "b1")) == ["runner.lost"]
    assert fleet.record.incident is not None
    assert fleet.record.incident.cause == "signal"


def test_a_node_that_a_run_does_without_is_told_once() -> None:
    fleet = forming("a", "b", "c", spec=spec(1, 3, extra_nodes="grow"))
    for runner in ("a1", "b1"):
        fleet.offers(1.0, runner)
    effects = fleet.hears(1.5, "c1", Part.IDLE, -1, offer=offer(0, problem="no such file: t.py"))
    assert notes(effects) == ["generation.launched", "node.unfit"]
    assert notes(fleet.hears(2.5, "c1", Part.IDLE, -1, offer=offer(0, problem="no such file: t.py"))) == []


def test_a_runner_that_goes_after_it_had_begun_to_stop_is_not_the_cause() -> None:
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    fleet.hears(6.0, "b1", Part.STOPPING, 0, *started(1))
    assert notes(fleet.gone(9.0, "b1")) == ["runner.lost"]
    assert fleet.record.incident is not None
    assert fleet.record.incident.node == "a"


def test_the_next_generation_waits_for_the_last_node_to_be_clear() -> None:
    """R1."""
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    fleet.offers(6.1, "a1", 0, 4001)
    assert (fleet.phase, fleet.coordinator.rendezvous.wanted) == ("stopping", frozenset())
    stopped(fleet, 8.0, "b1")
    assert fleet.phase == "launching"
    assert nodes(fleet) == ["a", "b"]


def test_a_node_gets_its_own_part_and_no_table() -> None:
    fleet = launching("a", "b")
    sent = fleet.coordinator.order_for("b", "b1")
    assert isinstance(sent, Run)
    assert (sent.assignment.node_rank, sent.assignment.first_rank, sent.assignment.nproc) == (1, 2, 2)
    assert (sent.assignment.master_addr, sent.assignment.world_size) == ("10.0.0.1", 4)


# --- nodes that come and go ------------------------------------------------------------------------------------------


def test_a_late_node_is_waited_for_by_name_and_then_all_begin_at_once() -> None:
    fleet = Fleet("a", "b")
    assert fleet.opens(0.0, "b")[-1] == Want(frozenset({"a", "b"}))
    fleet.offers(1.0, "a1")
    assert fleet.phase == "forming"
    fleet.sees(3.0)
    fleet.offers(3.5, "a1")
    assert set(orders(fleet.offers(3.6, "b1"))) == {"a1", "b1"}


def test_a_run_that_finds_too_few_nodes_fails_and_says_so() -> None:
    fleet = Fleet("a", "b")
    fleet.opens(0.0, "b")
    assert fleet.coordinator.deadline_s == 600.0
    fleet.offers(599.0, "a1")
    assert notes(fleet.at(600.0, Tick())) == ["job.failed"]
    assert fleet.record.lacked_nodes
    assert "b (unreachable)" in fleet.record.reason


def test_a_spare_has_a_runner_and_takes_over_the_slot_of_a_node_that_is_gone() -> None:
    fleet = forming("a", "b", "c", spec=spec(2, 3))
    for runner in ("a1", "b1", "c1"):
        fleet.offers(1.0, runner)
    assert nodes(fleet) == ["a", "b"]
    assert isinstance(fleet.coordinator.order_for("c", "c1"), Stop)
    for runner, place in (("a1", 0), ("b1", 1)):
        fleet.hears(2.0, runner, Part.RUNNING, 0, *started(place))
    fleet.sees(4.0, "a")
    fleet.gone(5.0, "a1")
    fleet.offers(5.1, "c1", 0, 4001)
    stopped(fleet, 5.2, "b1")
    assert nodes(fleet) == ["c", "b"]
    assert fleet.record.slots == {"c": 0, "b": 1}


def test_a_surplus_node_gets_no_runner_and_harms_nobody() -> None:
    fleet = Fleet("a", "b", "c", spec=spec(1, 2))
    assert wanted_runners(fleet.opens(0.0)) == ["a", "b"]
    assert isinstance(fleet.coordinator.order_for("c", "c1"), type(fleet.coordinator.order_for("a", "a1")))
    fleet.offers(1.0, "a1")
    fleet.offers(1.0, "b1")
    before = fleet.record
    fleet.offers(1.5, "c1")
    assert fleet.record == before


def test_growing_takes_in_at_the_next_restart_who_has_come_in_the_meantime() -> None:
    fleet = Fleet("a", "b", "c", spec=spec(1, 3, extra_nodes="grow"))
    fleet.opens(0.0, "c")
    for runner in ("a1", "b1"):
        fleet.offers(1.0, runner)
    assert nodes(fleet) == ["a", "b"]
    assert fleet.coordinator.rendezvous.wanted == {"c"}
    fleet.sees(2.0)
    fleet.offers(2.5, "c1")
    fleet.at(3.0, RestartRequested("", "me"))
    fleet.offers(3.5, "c1", 0, 4001)
    stopped(fleet, 4.0, "a1")
    stopped(fleet, 4.1, "b1")
    assert nodes(fleet) == ["a", "b", "c"]


def test_a_restart_without_a_node_leaves_it_out_once_and_the_next_one_takes_it_in_again() -> None:
    fleet = forming("a", "b", "c", spec=spec(2, 3, extra_nodes="grow"))
    for runner in ("a1", "b1", "c1"):
        fleet.offers(1.0, runner)
    for generation, left_out, expected in ((0, "b", ["a", "c"]), (1, "", ["a", "b", "c"])):
        now_s = 10.0 * (generation + 1)
        fleet.at(now_s, RestartRequested("", "me", without=left_out))
        assert fleet.record.without == left_out
        if generation:
            fleet.offers(now_s, "b1", generation, 4001 + generation)
        for runner in (f"{node}1" for node in nodes(fleet)):
            stopped(fleet, now_s + 1, runner, generation, port=4001 + generation)
        assert (nodes(fleet), fleet.record.without) == (expected, "")
    assert fleet.record.slots == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("b", "1 node (a) would be left, and the job wants 2"),
        ("z", "there is no node z in the fleet"),
    ],
)
def test_what_a_run_cannot_do_without_is_known_before_it_is_stopped(node: str, why: str) -> None:
    assert running("a", "b").coordinator.rendezvous.missed(node) == why
    assert launching("a", "b", "c", spec=spec(2, 3)).coordinator.rendezvous.missed("a") == ""


def test_a_node_whose_runner_is_gone_is_asked_for_another_while_the_others_still_stop() -> None:
    fleet = running("a", "b")
    effects = fleet.gone(5.0, "b1")
    assert (fleet.phase, wanted_runners(effects)) == ("stopping", ["b"])


def test_after_a_restart_of_the_coordinator_a_seated_runner_is_heard_before_another_is_asked_for() -> None:
    """R6."""
    fleet = running("a", "b")
    again = Fleet("a", "b", spec=fleet.spec, record=fleet.record, epoch=2)
    assert wanted_runners(again.opens(0.0)) == []
    assert again.phase == "running"


def test_what_is_proven_gone_stays_so_across_a_restart_of_the_coordinator() -> None:
    """A node says only once that a runner is gone: until that is on disk here."""
    fleet = running("a", "b")
    fleet.gone(5.0, "b1")
    again = Fleet("a", "b", spec=fleet.spec, record=fleet.record, epoch=2)
    again.numbers = fleet.numbers
    again.opens(6.0)
    assert again.coordinator.rendezvous.wanted == {"b"}
    stopped(again, 7.0, "a1")
    assert again.phase == "forming"


def test_an_offer_that_has_become_old_is_not_counted_on() -> None:
    fleet = forming("a", "b")
    fleet.offers(1.0, "a1")
    fleet.offers(1.1 + FRESH_S, "b1")
    assert fleet.phase == "forming"
    fleet.offers(1.2 + FRESH_S, "a1")
    assert fleet.phase == "launching"


def test_a_generation_succeeds_when_every_node_has_finished() -> None:
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert fleet.phase == "running"
    fleet.hears(6.0, "b1", Part.FINISHED, 0, rank(2, exited(0), first=2), rank(3, exited(0), first=2))
    assert fleet.phase == "succeeded"


def test_a_runner_that_had_stopped_and_then_went_is_not_waited_for_by_the_next_coordinator() -> None:
    """Found by the simulator: its end is told once, and here that was of no use yet."""
    fleet = stopping("a", "b")
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    fleet.gone(6.5, "a1")
    again = Fleet("a", "b", spec=fleet.spec, record=fleet.record, epoch=2)
    again.numbers = fleet.numbers
    again.opens(7.0)
    stopped(again, 8.0, "b1")
    assert again.phase == "forming"


def test_a_node_that_had_finished_and_whose_runner_went_has_finished_for_the_next_coordinator_too() -> None:
    """Found by the simulator."""
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    fleet.gone(5.5, "a1")
    again = Fleet("a", "b", spec=fleet.spec, record=fleet.record, epoch=2)
    again.numbers = fleet.numbers
    again.opens(6.0)
    again.hears(7.0, "b1", Part.FINISHED, 0, rank(2, exited(0), first=2), rank(3, exited(0), first=2))
    assert again.phase == "succeeded"


def test_a_run_that_is_over_changes_no_more_and_answers_whoever_still_speaks() -> None:
    fleet = running("a", "b")
    fleet.at(5.0, StopRequested(None, now=True, by="me"))
    stopped(fleet, 6.0, "a1")
    stopped(fleet, 6.0, "b1")
    assert fleet.phase == "stopped"
    assert fleet.gone(7.0, "a1") == []
    assert orders(fleet.hears(7.0, "b1", Part.STOPPED, 0)) == {"b1": Release()}


def test_a_restart_without_a_node_that_was_accepted_is_not_undone_by_another_restart() -> None:
    fleet = launching("a", "b", "c", spec=spec(2, 3, extra_nodes="grow"))
    fleet.at(2.0, RestartRequested("", "me", without="c"))
    fleet.at(2.1, RestartRequested("", "me"))
    assert fleet.record.without == "c"


def test_a_node_that_does_not_answer_is_no_spare_and_not_counted_for_a_restart_without_another() -> None:
    fleet = forming("a", "b", "c", spec=spec(2, 3))
    for runner in ("a1", "b1", "c1"):
        fleet.offers(1.0, runner)
    fleet.sees(2.0, "c")
    assert fleet.coordinator.rendezvous.spares(fleet.coordinator.seats) == ()
    assert fleet.coordinator.rendezvous.missed("b") == "1 node (a) would be left, and the job wants 2"


def test_an_end_that_is_told_twice_is_not_a_failed_start() -> None:
    fleet = running("a", "b")
    fleet.gone(5.0, "b1")
    assert notes(fleet.gone(5.5, "b1")) == []


def test_a_node_that_stops_and_says_at_once_that_it_cannot_go_on_is_told_and_done_without() -> None:
    """Its last "stopped" brings its offer along, and ends the generation: the rendezvous begins with what that says."""
    fleet = forming("a", "b", spec=spec(1, 2, extra_nodes="grow"))
    for runner in ("a1", "b1"):
        fleet.offers(1.0, runner)
    fleet.hears(2.0, "a1", Part.STOPPING, 0, *CRASHED)
    fleet.hears(3.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    gone = offer(0, problem="no such file: t.py")
    ranks = (rank(2, exited(signal=15, by_us=True), first=2), rank(3, exited(signal=15, by_us=True), first=2))
    effects = fleet.hears(4.0, "b1", Part.STOPPED, 0, *ranks, offer=gone)
    assert notes(effects)[-2:] == ["generation.launched", "node.unfit"]
    assert nodes(fleet) == ["a"]
