"""What a witness tells late. It may have held it for long, and numbers of reports are not on disk: a coordinator that
has begun meanwhile takes in only what was said since its runner had heard of it."""

from msgspec.structs import replace

from protocol.coordinator_events import Draining, Heard, NodeLost, RestartRequested, Roster, RosterNode, Send
from protocol.job import CheckpointTable, StopTable, TopologyTable
from protocol.messages.member import Part, Stop
from tests.protocol.build import exited, job_spec, offer, rank
from tests.protocol.fleet import (
    CRASHED,
    CRASHED_AND_GONE,
    FINISHED,
    PATIENT,
    Fleet,
    notes,
    orders,
    running,
    started,
)
from tests.protocol.loss_stage import GROWS, TTL_S, ended, spec, stops
from tests.protocol.test_coordinator_away import reopened

TWO = spec(2, 2)
SAVES = job_spec(
    topology=TopologyTable(nproc_per_node=2, nnodes=(1, 3), extra_nodes="grow"),
    restart=PATIENT,
    stop=StopTable(pre_signal="SIGUSR1", pre_wait_s=60.0),
    checkpoint=CheckpointTable(marker="/ckpt/latest"),
)


def late(fleet: Fleet, runner: str) -> Heard:
    """What this runner has said last, as it comes by way of a1."""
    return Heard(runner[0], runner, fleet.last[runner], via="a1")


def crashed(fleet: Fleet) -> Heard:
    """Both nodes have stopped, and b1 is proven gone then; returns what it had said before."""
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    fleet.hears(6.0, "b1", Part.STOPPED, 0, *ended(1), offer=offer())
    said = late(fleet, "b1")
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    fleet.gone(6.2, "b1")
    assert fleet.phase == "forming"
    return said


def test_it_is_answered_and_not_taken_in_until_its_runner_has_heard_of_this_coordinator() -> None:
    fleet = running("a", "b")
    again = reopened(fleet, 4.0)
    (send,) = (effect for effect in again.at(5.0, late(fleet, "b1")) if isinstance(effect, Send))
    assert (send.incarnation, send.via, send.answer.epoch) == ("b1", "a1", again.epoch)
    assert "b" not in again.coordinator.parts
    again.renews(6.0, "b1", via="a1")
    assert again.coordinator.parts["b"].part is Part.RUNNING


def test_a_runner_that_is_gone_does_not_come_back_for_the_next_coordinator() -> None:
    fleet = running("a", "b", spec=TWO)
    said = late(fleet, "b1")
    crashed(fleet)
    again = reopened(fleet, 7.0)
    again.at(7.5, said)
    again.offers(8.0, "a1", 0, 4001)
    again.offers(8.5, "b2")
    assert (again.phase, again.coordinator.seats["b"].incarnation) == ("launching", "b2")


def test_what_a_runner_offered_that_is_gone_gets_no_seat_from_the_next_coordinator() -> None:
    fleet = running("a", "b", spec=TWO)
    said = crashed(fleet)
    again = reopened(fleet, 7.0)
    again.at(7.5, said)
    again.offers(8.0, "a1", 0, 4001)
    assert again.phase == "forming"


def test_a_lost_runner_that_is_gone_does_not_come_back_for_the_next_coordinator() -> None:
    fleet = running("a", "b", spec=GROWS)
    said = late(fleet, "b1")
    fleet.gone(3.0, "b1")
    again = reopened(fleet, 4.0)
    again.at(5.0, said)
    stops(again, 6.0, "a1")
    again.offers(7.0, "b2")
    assert (again.phase, again.coordinator.seats["b"].incarnation) == ("launching", "b2")


def test_nobody_waits_for_what_ran_on_a_node_whose_lease_is_over_as_a_witness_tells_late() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    said = late(fleet, "c1")
    fleet.passes(2.0, 2.2 + TTL_S, silent="c")
    fleet.at(2.3 + TTL_S, said)
    fleet.sees(8.0, "c")
    stops(fleet, 9.0, "a1", "b1")
    assert fleet.phase == "launching"


def test_nor_as_its_runner_has_told_for_a_moment_before_it_fell_silent_for_good() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    fleet.passes(2.0, 2.2 + TTL_S, silent="c")
    fleet.hears(2.3 + TTL_S, "c1", Part.STOPPING, 0, *ended(2))
    fleet.sees(8.0, "c")
    stops(fleet, 9.0, "a1", "b1")
    assert fleet.phase == "launching"


def test_a_node_that_has_finished_and_is_lost_has_finished() -> None:
    fleet = running("a", "b")
    said = late(fleet, "b1")
    fleet.hears(3.0, "b1", Part.FINISHED, 0, rank(2, exited(0)), rank(3, exited(0, order=1)))
    fleet.at(4.0, NodeLost("b", by="me"))
    fleet.at(5.0, said)
    fleet.hears(6.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert fleet.phase == "succeeded"


def test_a_notice_is_not_withdrawn_by_what_was_said_before_it() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    said = late(fleet, "b1")
    fleet.hears(3.0, "b1", Part.RUNNING, 0, *started(1), notice="spot: taken away in 30 s")
    again = reopened(fleet, 4.0)
    again.at(4.5, said)
    assert "b" in again.record.preempted


def test_a_notice_that_was_taken_back_ends_nothing() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    fleet.hears(3.0, "b1", Part.RUNNING, 0, *started(1), notice="maintenance")
    said = late(fleet, "b1")
    fleet.hears(3.2, "b1", Part.STOPPING, 0, *started(1))
    stops(fleet, 4.0, "a1", "b1", "c1")
    for place, runner in enumerate(("a1", "b1", "c1")):
        fleet.hears(5.0, runner, Part.RUNNING, 1, *started(place))
    again = reopened(fleet, 6.0)
    again.hears(6.1, "a1", Part.RUNNING, 1, *started(0))
    again.at(6.5, said)
    assert (again.phase, again.record.preempted) == ("running", {})


def answers(fleet: Fleet, now_s: float, *runners: str) -> Stop:
    """Their ranks, which are being stopped, have answered the pre-signal; returns what a1 is told."""
    for runner in runners:
        ranks = started(fleet.given(runner[0]).node_rank)
        fleet.hears(now_s, runner, Part.STOPPING, 0, *(replace(one, has_answered=True) for one in ranks))
    order = orders(fleet.renews(now_s + 0.1, "a1"))["a1"]
    assert isinstance(order, Stop)
    return order


def test_who_is_gone_or_lost_has_nothing_to_answer() -> None:
    fleet = running("a", "b", "c", spec=SAVES)
    said = late(fleet, "c1")
    fleet.at(3.0, RestartRequested("because", by="me"))
    fleet.passes(3.0, 3.3 + TTL_S, silent="c")
    fleet.at(3.4 + TTL_S, said)
    again = reopened(fleet, 9.0)
    assert answers(fleet, 9.0, "a1", "b1").is_answered
    assert answers(again, 9.5, "a1", "b1").is_answered


def test_a_checkpoint_from_before_a_stop_does_not_answer_it() -> None:
    fleet = running("a", "b", spec=SAVES)
    fleet.hears(2.5, "b1", Part.RUNNING, 0, *started(1), saves=1, saved_step=100)
    said = late(fleet, "b1")
    fleet.hears(3.0, "b1", Part.RUNNING, 0, *started(1), saves=2, saved_step=200)
    fleet.at(5.0, RestartRequested("because", by="me"))
    again = reopened(fleet, 6.0)
    again.at(6.2, said)
    again.hears(6.5, "b1", Part.STOPPING, 0, *started(1), saves=2, saved_step=200)
    again.hears(6.5, "a1", Part.STOPPING, 0, *started(0))
    order = orders(again.renews(6.6, "a1"))["a1"]
    assert isinstance(order, Stop)
    assert not order.is_answered


def test_nor_is_it_the_safe_point_of_a_drain_that_was_wanted_after_it() -> None:
    fleet = running("a", "b", "c", spec=SAVES)
    fleet.hears(2.5, "b1", Part.RUNNING, 0, *started(1), saves=1, saved_step=100)
    said = late(fleet, "b1")
    fleet.hears(3.0, "b1", Part.RUNNING, 0, *started(1), saves=2, saved_step=200)
    drain = Draining(at_checkpoint=True, go_s=1000.0, by="me", reason="")
    nodes = Roster(tuple(RosterNode(n, True, joined=i, drain=drain if n == "c" else None) for i, n in enumerate("abc")))
    fleet.at(5.0, nodes)
    again = reopened(fleet, 6.0)
    again.at(6.1, nodes)
    for place, runner in enumerate(("a1", "c1")):
        again.hears(6.15, runner, Part.RUNNING, 0, *started(2 * place))
    again.at(6.2, said)
    assert notes(again.hears(6.5, "b1", Part.RUNNING, 0, *started(1), saves=2, saved_step=200)) == []
    assert again.phase == "running"
