"""A coordinator that begins anew, or was held up: it judges nobody by the time that it has missed (L9)."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from protocol.absence import node_state
from protocol.coordinator_events import Ask, Heard, NodeLost, Opened, Tick
from protocol.messages.member import Part
from protocol.timing import DEFAULTS, GAP_S
from tests.protocol.build import exited, offer, rank
from tests.protocol.fleet import (
    Fleet,
    asks,
    noted,
    notes,
    running,
)
from tests.protocol.loss_stage import GROWS, TTL_S, after_a_loss, stops


def reopened(fleet: Fleet, now_s: float) -> Fleet:
    """After a kill -9: it has the journal, and hears what it hears."""
    again = Fleet(*fleet.nodes, spec=fleet.spec, record=fleet.record, epoch=fleet.epoch + 1)
    again.numbers, again.last = fleet.numbers, fleet.last
    again.opens(now_s)
    return again


def test_a_coordinator_that_begins_anew_gives_everybody_the_whole_of_a_lease() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    fleet.passes(2.0, 6.8, silent="c")
    again = reopened(fleet, 7.0)
    assert notes(again.passes(7.0, 6.9 + TTL_S, silent="c")) == ["node.suspect"]
    effects = again.passes(6.9 + TTL_S, 12.6, silent="c")
    assert notes(effects)[:2] == ["node.lost", "incident.opened"]
    assert {ask.question.epoch for ask in asks(effects)} <= {2}


def test_who_is_lost_stays_lost_for_the_next_coordinator() -> None:
    again = reopened(after_a_loss(), 8.0)
    again.sees(8.0, "c")
    assert again.coordinator.current.gone == {"c"}
    stops(again, 9.0, "a1", "b1")
    assert (again.phase, again.record.incidents, again.record.ledger.used) == ("launching", 1, 0)


def test_a_node_that_cannot_run_the_job_is_what_it_failed_of_only_once_the_others_are_known() -> None:
    fleet = Fleet("a", "b", spec=GROWS)
    fleet.at(0.0, Opened())
    fleet.hears(0.1, "a1", Part.IDLE, -1, offer=offer(problem="there is no file train.py"))
    fleet.sees(0.2)
    fleet.offers(0.3, "b1")
    assert (fleet.phase, set(fleet.coordinator.seats)) == ("launching", {"b"})


def test_a_witness_that_was_lost_counts_as_one_for_the_next_coordinator_too() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    fleet.at(3.0, NodeLost("b", by="me"))
    again = reopened(fleet, 4.0)
    effects = again.passes(4.0, 4.3 + DEFAULTS.fence_s + TTL_S, silent="bc", mute="a")
    assert [note.detail["node"] for note in noted(effects, "node.lost")] == ["c"]


def test_nobody_is_judged_by_a_coordinator_that_was_held_up_itself() -> None:
    fleet = running("a", "b", "c")
    assert notes(fleet.passes(2.0, 6.0, silent="c")) == ["node.suspect"]
    fleet.at(60.0, Tick())
    assert notes(fleet.passes(60.0, 59.9 + TTL_S, silent="c")) == [], "that it is suspect was told"
    assert notes(fleet.passes(59.9 + TTL_S, 60.5 + TTL_S, silent="c"))[0] == "node.lost"


def test_a_node_answers_again_only_once_it_is_heard_and_not_because_its_lease_is_counted_anew() -> None:
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 6.0, silent="c")
    fleet.at(60.0, Tick())
    assert notes(fleet.passes(60.0, 62.0, silent="c")) == []
    assert notes(fleet.passes(62.0, 64.0)) == ["node.answers"]


def test_what_is_heard_first_after_a_gap_is_heard_after_the_clock_was_read() -> None:
    """Everybody else is not silent for that."""
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 3.0)
    assert (notes(fleet.renews(60.0, "a1")), asks(fleet.renews(60.0, "b1"))) == ([], [])
    assert node_state(fleet.coordinator, "c", 60.0) == ("", "")


def test_a_short_hold_up_is_none() -> None:
    fleet = running("a", "b", "c", spec=GROWS)
    fleet.passes(2.0, 6.0, silent="c")
    effects = fleet.at(6.0 + GAP_S - 0.2, Tick())
    for ask in asks(effects):
        fleet.testifies(6.9, ask)
    assert notes(fleet.at(7.2, Tick()))[0] == "node.lost"


def test_a_testimony_of_a_stranger_or_to_another_question_frees_nobody() -> None:
    fleet = running("a", "b", "c")
    effects = fleet.passes(2.0, 6.9, silent="c", mute="ab")
    for ask in asks(effects):
        fleet.testifies(6.9, Ask("z1", ask.question))
    assert notes(fleet.passes(6.9, 20.0, silent="c", mute="ab")) == []


# --- what a generation ended of ----------------------------------------------------------------------------------


def victim_seen() -> Fleet:
    """A rank of a has failed, and its coordinator ends 0.2 s later; one of b had failed 2 s before."""
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    return reopened(fleet, 5.2)


def victim_again(fleet: Fleet) -> None:
    fleet.hears(5.3, "a1", Part.STOPPING, 0, rank(0, exited(1, ago_s=0.3)), rank(1))


def root(fleet: Fleet, ago_s: float = 2.5) -> None:
    fleet.hears(5.5, "b1", Part.STOPPING, 0, rank(2, exited(signal=11, ago_s=ago_s), first=2), rank(3, first=2))


def blamed(fleet: Fleet) -> str:
    return fleet.record.incident.node if fleet.record.incident is not None else ""


@pytest.mark.parametrize("first", [victim_again, root])
def test_a_rank_that_failed_earlier_elsewhere_is_found_by_the_next_coordinator_too(
    first: Callable[[Fleet], None],
) -> None:
    fleet = victim_seen()
    for tells in (first, *{victim_again, root} - {first}):
        tells(fleet)
    assert (blamed(fleet), fleet.record.incidents) == ("b", 1)


def test_one_that_failed_later_is_no_root_for_the_next_coordinator_either() -> None:
    fleet = victim_seen()
    root(fleet, ago_s=0.3)
    victim_again(fleet)
    assert blamed(fleet) == "a"


def test_a_record_does_not_tell_when_a_rank_has_failed() -> None:
    """Its spans are as old as it is: the node was away for a minute."""
    fleet = victim_seen()
    root(fleet, ago_s=0.3)
    fleet.at(65.0, Heard("a", "a1", replace(fleet.last["a1"], offer=None), is_record=True))
    fleet.gone(65.0, "a1")
    assert blamed(fleet) == "a"


# --- its questions -----------------------------------------------------------------------------------------------


def test_an_answer_to_the_last_coordinators_question_frees_nobody_for_the_next_one() -> None:
    """Their numbers begin anew; the witness may have given its word since."""
    fleet = running("a", "b", "c", spec=GROWS)
    old = asks(fleet.passes(2.0, 6.8, silent="c", mute="ab"))
    again = reopened(fleet, 7.0)
    new = asks(again.passes(7.0, 11.9, silent="c", mute="ab"))
    numbers = {(ask.question.number, ask.incarnation) for ask in new}
    late = [ask for ask in old if (ask.question.number, ask.incarnation) in numbers]
    assert late
    for ask in late:
        again.testifies(11.95, ask)
    assert notes(again.passes(11.9, 12.8, silent="c", mute="ab")) == []
    assert "node.lost" in notes(again.passes(12.8, 13.8, silent="c"))
