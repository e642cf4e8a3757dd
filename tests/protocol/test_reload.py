"""supctl restart --reload: a new generation of another revision of the job, by other runners."""

import math
from typing import Any

from msgspec.structs import replace

from protocol.coordinator_events import Effect, Reloaded, ScaleRequested, StopRequested, Tick
from protocol.job import JobSpec
from protocol.messages.member import Part, Release, Run, Stop, Wait
from tests.protocol.build import offer
from tests.protocol.changing import Changing, spec_of
from tests.protocol.fleet import Fleet, forming, is_sent_after_persisting, notes, orders, wanted_runners


def reloaded(spec: JobSpec, revision: int = 1) -> Reloaded:
    return Reloaded(spec, revision, by="me", reason="lower learning rate")


def pair() -> Changing:
    return Changing(spec_of(2, 2), "ab", seated="ab")


def offers(fleet: Changing, now_s: float, runner: str, revision: int) -> list[Effect]:
    more: dict[str, Any] = {"offer": offer(port=4001), "revision": revision}
    return fleet.hears(now_s, runner, Part.IDLE, -1, **more)


def test_the_generation_ends_and_its_runners_are_let_go_once_they_have_ended_it() -> None:
    fleet = pair()
    effects = fleet.at(20.0, reloaded(spec_of(2, 2)))
    assert (notes(effects), is_sent_after_persisting(effects)) == (["operator.reloaded"], True)
    assert orders(effects)["a1"] == Stop(generation=0, reason="lower learning rate")
    assert (fleet.record.revision, fleet.phase) == (1, "stopping")
    assert orders(fleet.ends(21.0, "a")) == {"a1": Release()}
    assert orders(fleet.ends(21.0, "b")) == {"a1": Release(), "b1": Release()}
    assert fleet.phase == "forming"


def test_the_next_generation_is_that_of_new_runners() -> None:
    fleet = pair()
    fleet.at(20.0, reloaded(spec_of(2, 2)))
    fleet.ends(21.0, "a")
    effects = [*fleet.ends(21.0, "b"), *fleet.gone(22.0, "a1"), *fleet.gone(22.0, "b1")]
    assert wanted_runners(effects) == ["a", "b"]
    assert orders(offers(fleet, 23.0, "a2", 1)) == {"a2": Stop(generation=0)}
    effects = offers(fleet, 23.0, "b2", 1)
    told = orders(effects)["a2"]
    assert isinstance(told, Run)
    assert (told.assignment.generation, told.assignment.restart_reason) == (1, "lower learning rate")
    assert (fleet.record.ledger.used, fleet.record.ledger.streak) == (0, 0)


def with_an_early_spare() -> Changing:
    """The new runner of the spare is there first, for its old one had nothing to end."""
    fleet = Changing(spec_of(2, 3), "abc", seated="ab")
    fleet.at(20.0, reloaded(spec_of(2, 3)))
    fleet.gone(20.5, "c1")
    offers(fleet, 21.0, "c2", 1)
    fleet.ends(21.5, "a", "b")
    for runner in ("a1", "b1"):
        fleet.gone(22.0, runner)
    for runner in ("a2", "c2"):
        offers(fleet, 22.5, runner, 1)
    assert fleet.phase == "forming"
    return fleet


def test_the_next_generation_is_on_the_same_nodes_though_a_spare_is_there_first() -> None:
    fleet = with_an_early_spare()
    offers(fleet, 23.0, "b2", 1)
    assert (fleet.phase, tuple(fleet.coordinator.seats)) == ("launching", ("a", "b"))


def test_it_is_so_too_where_the_coordinator_begins_anew_meanwhile() -> None:
    fleet = Changing(spec_of(2, 3), "abc", seated="ab")
    fleet.at(20.0, reloaded(spec_of(2, 3)))
    fleet.ends(21.0, "a", "b")
    for runner in ("a1", "b1", "c1"):
        fleet.gone(22.0, runner)
    later = Fleet(*fleet.nodes, spec=fleet.spec, record=fleet.record, epoch=2)
    later.opens(22.5)
    for runner in ("a2", "c2", "b2"):
        later.hears(23.0, runner, Part.IDLE, -1, offer=offer(port=4001), revision=1)
    assert (later.phase, tuple(later.coordinator.seats)) == ("launching", ("a", "b"))
    assert later.record.awaited == ()


def test_a_node_whose_new_runner_does_not_come_is_waited_for_for_the_last_call_only() -> None:
    fleet = with_an_early_spare()
    late_s = 22.5 + fleet.spec.rendezvous.last_call_s
    for second in range(23, math.ceil(late_s)):
        for runner in ("a2", "c2"):
            offers(fleet, float(second), runner, 1)
    assert (fleet.phase, fleet.coordinator.deadline_s) == ("forming", late_s)
    fleet.at(late_s, Tick())
    assert tuple(fleet.coordinator.seats) == ("a", "c")


def test_what_a_runner_of_the_old_revision_offers_is_not_taken() -> None:
    fleet = pair()
    fleet.at(20.0, reloaded(spec_of(2, 2)))
    fleet.ends(21.0, "a")
    fleet.ends(21.0, "b")
    offers(fleet, 22.0, "a1", 0)
    offers(fleet, 22.0, "b1", 0)
    assert fleet.phase == "forming"


def test_a_reload_of_a_run_that_forms_begins_anew() -> None:
    fleet = forming("a", spec=spec_of(1, 1))
    fleet.hears(1.0, "a1", Part.IDLE, -1)
    effects = fleet.at(2.0, reloaded(spec_of(1, 1)))
    assert (fleet.phase, orders(effects)) == ("forming", {})
    assert orders(fleet.hears(3.0, "a1", Part.IDLE, -1, offer=offer())) == {"a1": Release()}
    fleet.gone(4.0, "a1")
    assert orders(fleet.hears(5.0, "a2", Part.IDLE, -1, revision=1)) == {"a2": Wait()}


def test_a_reload_that_was_told_before_is_nothing() -> None:
    fleet = pair()
    fleet.at(20.0, reloaded(spec_of(2, 2)))
    assert notes(fleet.at(21.0, reloaded(spec_of(2, 2)))) == []


def test_a_run_that_is_to_end_is_not_begun_anew() -> None:
    fleet = pair()
    fleet.at(20.0, StopRequested(None, now=False, by="me"))
    assert notes(fleet.at(21.0, reloaded(spec_of(2, 2)))) == []
    assert fleet.record.revision == 0


def test_other_numbers_of_nodes_in_the_file_are_a_newer_word_than_those_of_a_scale() -> None:
    fleet = pair()
    fleet.at(20.0, ScaleRequested((1, 1), 1800.0, by="me"))
    fleet.at(21.0, reloaded(spec_of(2, 2)))
    assert (fleet.record.nnodes, fleet.coordinator.rendezvous.topology.nnodes) == ((1, 1), (1, 1))
    fleet.at(22.0, reloaded(spec_of(2, 3), revision=2))
    assert (fleet.record.nnodes, fleet.coordinator.rendezvous.topology.nnodes) == (None, (2, 3))


def test_they_are_so_too_where_the_coordinator_is_killed_before_it_has_taken_the_job_in() -> None:
    """The journal has the new job then, and the record of the run nothing of it."""
    fleet = pair()
    fleet.at(20.0, ScaleRequested((1, 1), 1800.0, by="me"))
    fleet.spec = spec_of(2, 3)
    later = fleet.restarted(21.0)
    later.at(21.0, reloaded(later.spec))
    assert (later.record.nnodes, later.coordinator.rendezvous.topology.nnodes) == (None, (2, 3))
    fleet.spec = spec_of(2, 2)
    again = fleet.restarted(21.0)
    again.at(21.0, reloaded(again.spec))
    assert again.record.nnodes == (1, 1), "the file says what it said"


def test_a_reload_outlives_the_coordinator() -> None:
    fleet = pair()
    spec = replace(spec_of(2, 2), name="k")
    fleet.at(20.0, reloaded(spec))
    fleet.spec = spec
    later = fleet.restarted(21.0)
    later.numbers |= {"a1": 50}
    assert (later.coordinator.revision, later.phase) == (1, "stopping")
