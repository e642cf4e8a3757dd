"""A run and the slots of its nodes: without a grant a node does not count; for slots a run waits without a limit."""

import pytest

from protocol.coordinator_events import Grant, RosterNode
from protocol.job import RendezvousTable, TopologyTable
from protocol.messages.member import Offer
from protocol.rendezvous import Before, Go, Hopeless, Rendezvous, Wait
from tests.protocol.build import job_spec

JOIN_S = 600.0
TWO = Grant(("2", "3"))
FIRST = Before(is_none=True, port=None)


def waits_for_nodes(nnodes: tuple[int, int], nproc: int | str = 2) -> Rendezvous:
    """A rendezvous that began at 0."""
    spec = job_spec(topology=TopologyTable(nproc_per_node=nproc, nnodes=nnodes), rendezvous=RendezvousTable())
    rendezvous = Rendezvous(spec, {}, allow_mixed=False)
    rendezvous.begin("", 0.0)
    return rendezvous


def node(name: str, grant: Grant | None = None, lack: str = "", *, is_up: bool = True) -> RosterNode:
    return RosterNode(name, is_up=is_up, slots=("0", "1", "2", "3"), grant=grant, lack=lack)


def hear(rendezvous: Rendezvous, *nodes: str, at_s: float, slots: int = 2, is_old: bool = False) -> None:
    for name in nodes:
        rendezvous.hear(name, Offer(slots=slots, address=name, port=4000, knows_devices=not is_old), at_s)


def test_a_run_waits_for_slots_by_name_and_its_join_timeout_begins_when_it_has_them() -> None:
    rendezvous = waits_for_nodes((2, 2))
    rendezvous.see([node("a", lack="its 4 slots are x@1's"), node("b")])
    assert rendezvous.decide(FIRST, 0.0) == Wait("2 nodes with 2 slots free; a: its 4 slots are x@1's")
    assert (rendezvous.deadline_s, rendezvous.lacks_slots) == (None, True)
    assert isinstance(rendezvous.decide(FIRST, 5000.0), Wait)
    rendezvous.see([node("a", TWO), node("b", TWO)])
    decision = rendezvous.decide(FIRST, 9000.0)
    assert isinstance(decision, Wait)
    assert decision.until_s == 9000.0 + JOIN_S
    assert not rendezvous.lacks_slots
    hear(rendezvous, "a", "b", at_s=9001.0)
    assert isinstance(rendezvous.decide(FIRST, 9001.0), Go)
    assert (rendezvous.devices("a"), rendezvous.devices("b")) == (TWO.devices, TWO.devices)


def test_a_node_without_a_grant_is_not_asked_for_a_runner_and_has_no_ranks_though_one_offers() -> None:
    rendezvous = waits_for_nodes((1, 2))
    rendezvous.see([node("a"), node("b", TWO)])
    hear(rendezvous, "a", "b", at_s=0.0)
    assert rendezvous.pool == ("b",)
    assert rendezvous.decide(FIRST, 0.0) == Go(("b",), {"b": 0})  # and it is no last call that waits for a


def test_where_nodes_are_missing_too_the_join_timeout_counts() -> None:
    rendezvous = waits_for_nodes((2, 2))
    rendezvous.see([node("a", lack="its 4 slots are x@1's")])
    assert isinstance(rendezvous.decide(FIRST, 0.0), Wait)
    assert not rendezvous.lacks_slots
    assert isinstance(rendezvous.decide(FIRST, JOIN_S), Hopeless)


def test_a_grant_that_is_not_what_the_job_takes_now_does_not_count() -> None:
    """The job was replaced by one with more ranks a node."""
    rendezvous = waits_for_nodes((1, 1), nproc=4)
    rendezvous.see([node("a", TWO)])
    hear(rendezvous, "a", at_s=0.0, slots=4)
    assert isinstance(rendezvous.decide(FIRST, 0.0), Wait)
    assert rendezvous.pool == ()


def test_a_node_can_be_done_without_where_another_is_free_but_not_where_others_have_its_slots() -> None:
    rendezvous = waits_for_nodes((1, 1))
    rendezvous.see([node("a", TWO), node("b")])
    assert rendezvous.missed("a") == ""
    rendezvous.see([node("a", TWO), node("b", lack="its 4 slots are x@1's")])
    assert rendezvous.missed("a") == "0 nodes would be left, and the job wants 1"


@pytest.mark.parametrize(("nproc", "ranks"), [("auto", 2), ("gpu", 2), ("cpu", 8)])
def test_ranks_that_are_counted_by_accelerators_are_no_more_than_those_that_were_granted(
    nproc: str, ranks: int
) -> None:
    rendezvous = waits_for_nodes((1, 1), nproc)
    rendezvous.see([node("a", TWO)])
    hear(rendezvous, "a", at_s=0.0, slots=8)
    assert rendezvous.offer("a").slots == ranks


# --- runners of a release that knew of no slots ----------------------------------------------------------------------

ALL = Grant(("0", "1", "2", "3"))


def test_a_runner_that_knows_of_no_slots_runs_only_where_the_run_has_all_of_its_node() -> None:
    """A1: its ranks would use any device there."""
    rendezvous = waits_for_nodes((1, 1))
    rendezvous.see([node("a", TWO)])
    assert rendezvous.need == 2
    hear(rendezvous, "a", at_s=0.0, is_old=True)
    assert rendezvous.lacks_slots
    assert rendezvous.decide(FIRST, 0.0) == Wait("1 node with all slots free")
    rendezvous.see([node("a", ALL)])
    assert isinstance(rendezvous.decide(FIRST, 1.0), Go)


def test_once_that_runner_is_gone_the_run_takes_what_it_needs() -> None:
    rendezvous = waits_for_nodes((1, 1))
    rendezvous.see([node("a", ALL)])
    hear(rendezvous, "a", at_s=0.0, is_old=True)
    rendezvous.bury("a")
    assert rendezvous.need == 2
    hear(rendezvous, "a", at_s=1.0, is_old=True)
    hear(rendezvous, "a", at_s=2.0)
    assert rendezvous.need == 2


def test_where_nothing_is_limited_such_a_runner_is_as_good_as_any() -> None:
    rendezvous = waits_for_nodes((1, 1))
    rendezvous.see([RosterNode("a", is_up=True)])
    hear(rendezvous, "a", at_s=0.0, is_old=True)
    assert rendezvous.need == 2
    assert isinstance(rendezvous.decide(FIRST, 0.0), Go)
