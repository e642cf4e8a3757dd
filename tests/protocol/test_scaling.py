"""supctl scale: other numbers of nodes, at the next checkpoint."""

import pytest

from protocol.coordinator_events import RestartRequested, ScaleRequested, Tick
from protocol.job import CheckpointTable, RestartTable
from tests.protocol.changing import Changing, drain, spec_of
from tests.protocol.fleet import forming, is_sent_after_persisting, noted, notes, wanted_runners


def scale(least: int, most: int, deadline_s: float = 1800.0) -> ScaleRequested:
    return ScaleRequested((least, most), deadline_s, by="me")


def test_a_run_with_too_many_nodes_goes_on_with_fewer_from_the_next_checkpoint_on() -> None:
    fleet = Changing(spec_of(3, 3), "abc", seated="abc")
    effects = fleet.at(20.0, scale(2, 2))
    assert (notes(effects), is_sent_after_persisting(effects)) == (["operator.scaled", "change.planned"], True)
    assert (fleet.record.nnodes, fleet.record.scale_left_s, fleet.phase) == ((2, 2), 1800.0, "running")
    assert fleet.plan == "3 nodes to become 2; it waits for the next checkpoint"
    fleet.save(21.0, "a", 500)
    for node in "abc":
        fleet.ends(22.0, node)
    assert set(fleet.coordinator.seats) == {"a", "b"}
    assert (fleet.record.scale_left_s, fleet.record.nnodes, fleet.record.ledger.used) == (None, (2, 2), 0)


def test_a_run_that_is_to_have_more_nodes_takes_those_that_stand_by() -> None:
    fleet = Changing(spec_of(2, 3), "abc", seated="ab")
    fleet.stands_by(20.0, "c")
    fleet.at(20.0, scale(3, 3))
    fleet.stands_by(21.0, "c")
    fleet.save(21.0, "a", 500)
    for node in "cab":
        fleet.ends(22.0, node)
    assert set(fleet.coordinator.seats) == {"a", "b", "c"}


def test_a_least_that_is_not_there_is_waited_for_and_the_generation_goes_on() -> None:
    fleet = Changing(spec_of(2, 2), "abc", seated="ab")
    effects = fleet.at(20.0, scale(3, 3, deadline_s=10.0))
    assert wanted_runners(effects) == ["c"]
    assert fleet.plan == "2 nodes to become 3; it looks for nodes"
    effects = fleet.at(22.0, Tick())
    lack = "2 nodes to become 3; it waits for the runner on c (2 of 3 nodes, a, b are there)"
    assert (fleet.plan, [n.text for n in noted(effects, "change.planned")]) == (lack, [lack])
    fleet.save(25.0, "a", 500)
    fleet.at(31.0, Tick())
    assert fleet.phase == "running"
    fleet.offers(32.0, "c1")
    assert fleet.phase == "stopping"  # its deadline is over


def test_a_scale_goes_at_its_deadline_without_a_checkpoint() -> None:
    fleet = Changing(spec_of(3, 3, checkpoint=CheckpointTable()), "abc", seated="abc")
    fleet.at(20.0, scale(2, 2, deadline_s=10.0))
    assert fleet.plan == "3 nodes to become 2; it waits for its deadline: the job has no [checkpoint]"
    effects = fleet.at(30.0, Tick())
    assert [n.text for n in noted(effects, "change.begun")] == [
        "3 nodes to become 2: at its deadline, without a checkpoint"
    ]


def test_a_growing_run_takes_what_comes_before_the_deadline_without_waiting_for_its_interval() -> None:
    fleet = Changing(spec_of(2, 2, grow=True, grow_s=1e6), "abc", seated="ab")
    fleet.at(20.0, scale(2, 3, deadline_s=100.0))
    assert fleet.plan == ""
    fleet.offers(21.0, "c1")
    assert fleet.plan == "2 nodes to become 2:3; it waits for the next checkpoint"


def test_a_growing_run_to_which_nobody_comes_is_as_it_was_after_the_deadline() -> None:
    fleet = Changing(spec_of(2, 2, grow=True, grow_s=1e6), "ab", seated="ab")
    fleet.at(20.0, scale(2, 3, deadline_s=100.0))
    fleet.joins(119.0, "c")
    fleet.gone(119.5, "c1")
    fleet.offers(121.0, "c2")
    assert fleet.record.scale_left_s is None
    assert "topology.grow_min_interval" in fleet.plan


def test_a_scale_of_a_run_that_forms_holds_at_once() -> None:
    fleet = forming("a", "b", spec=spec_of(2, 2))
    fleet.offers(1.0, "a1")
    fleet.at(2.0, scale(1, 1))
    assert (fleet.phase, set(fleet.coordinator.seats), fleet.record.scale_left_s) == ("launching", {"a"}, None)


def test_a_scale_outlives_the_coordinator_and_its_deadline_is_counted_anew() -> None:
    fleet = Changing(spec_of(3, 3), "abc", seated="abc")
    fleet.at(20.0, scale(2, 2, deadline_s=100.0))
    later = fleet.restarted(500.0)
    assert later.coordinator.rendezvous.topology.nnodes == (2, 2)
    assert later.coordinator.plans.deadline_s == 600.0
    later.at(600.0, Tick())
    assert later.phase == "stopping"


@pytest.mark.parametrize(("counts", "used"), [(True, 1), (False, 0)])
def test_a_scale_is_charged_where_the_job_counts_membership(counts: bool, used: int) -> None:
    restart = RestartTable(max_restarts=3, count_membership=counts)
    fleet = Changing(spec_of(3, 3, restart=restart), "abc", seated="abc")
    fleet.at(20.0, scale(2, 2))
    fleet.save(21.0, "a", 500)
    assert (fleet.phase, fleet.record.ledger.used) == ("stopping", used)


# --- a scale for which nodes are missing costs the run nothing -------------------------------------------------------


def pair_that_is_to_be_four() -> Changing:
    """Of a fleet of three."""
    fleet = Changing(spec_of(2, 2), "abc", seated="ab")
    fleet.at(20.0, scale(4, 4))
    assert fleet.record.nnodes_before == (2, 2)
    return fleet


def goes_on(fleet: Changing, now_s: float) -> None:
    """The generation on a and b ends, and the next one begins."""
    fleet.ends(now_s, "a")
    fleet.ends(now_s, "b")
    fleet.begins(now_s + 1, "ab")


TOO_FEW = "2 nodes to become 4; it waits for 1 more node to join the fleet (3 of 4 nodes, "


def test_after_a_failure_it_goes_on_with_as_many_nodes_as_before_and_the_scale_still_waits() -> None:
    fleet = pair_that_is_to_be_four()
    fleet.stands_by(20.5, "c")
    fleet.gone(21.0, "a1")
    fleet.ends(21.5, "b")
    fleet.begins(22.0, "bc")
    fleet.offers(24.0, "a2", port=4001)
    assert fleet.plan.startswith(TOO_FEW)
    assert (fleet.record.nnodes, fleet.record.nnodes_before, fleet.record.scale_left_s) == ((4, 4), (2, 2), 1800.0)
    fleet.joins(25.0, "d")
    assert fleet.plan == "2 nodes to become 4; it waits for the next checkpoint"
    fleet.stands_by(26.0, "a", "d")
    fleet.save(26.0, "b", 500)
    for node in "adbc":
        fleet.ends(27.0, node)
    assert set(fleet.coordinator.seats) == {"a", "b", "c", "d"}
    assert (fleet.record.nnodes_before, fleet.record.scale_left_s, fleet.coordinator.rendezvous.least) == (
        None,
        None,
        4,
    )


def test_an_operators_restart_meanwhile_is_one_of_as_many_nodes_as_before() -> None:
    fleet = pair_that_is_to_be_four()
    fleet.at(21.0, RestartRequested("", by="me"))
    goes_on(fleet, 22.0)
    fleet.stands_by(24.0, "c")
    assert fleet.plan.startswith(TOO_FEW)
    assert fleet.coordinator.rendezvous.missed("a") == ""  # c would do


def test_a_coordinator_that_comes_anew_still_knows_how_many_do() -> None:
    fleet = pair_that_is_to_be_four().restarted(21.0)
    fleet.numbers |= {"a1": 50, "b1": 50}
    assert (fleet.coordinator.rendezvous.nnodes, fleet.coordinator.rendezvous.least) == ((4, 4), 2)


def test_a_drain_does_not_wait_for_nodes_that_only_the_scale_needs() -> None:
    fleet = pair_that_is_to_be_four()
    fleet.stands_by(21.0, "c")
    fleet.roster(21.0, b={"drain": drain()})
    assert "b is to be free (swap NIC); it waits for the next checkpoint" in fleet.plan


def test_nodes_that_may_come_are_waited_for_at_last_call_where_they_would_be_enough() -> None:
    fleet = Changing(spec_of(2, 2), "abc", seated="ab")
    fleet.at(20.0, scale(3, 3))
    fleet.at(21.0, RestartRequested("", by="me"))
    fleet.ends(22.0, "a")
    fleet.ends(22.0, "b")
    assert fleet.phase == "forming"
    fleet.stands_by(23.0, "c")
    assert set(fleet.coordinator.seats) == {"a", "b", "c"}


def test_it_is_never_on_a_number_of_nodes_that_nobody_has_asked_for() -> None:
    fleet = pair_that_is_to_be_four()
    fleet.at(21.0, RestartRequested("", by="me"))
    fleet.stands_by(22.0, "c")
    goes_on(fleet, 22.0)


@pytest.mark.parametrize(
    ("second", "before"), [((5, 5), (2, 2)), ((3, 3), (2, 2)), ((2, 2), None), ((1, 3), None), ((2, 5), None)]
)
def test_of_several_scales_that_nobody_has_seen_done_the_last_one_counts(
    second: tuple[int, int], before: tuple[int, int] | None
) -> None:
    fleet = pair_that_is_to_be_four()
    fleet.at(21.0, scale(*second))
    assert (fleet.record.nnodes, fleet.record.nnodes_before) == (second, before)


def test_a_scale_that_the_generation_meets_already_holds_at_once() -> None:
    fleet = Changing(spec_of(2, 4, grow=True), "abcd", seated="abcd")
    fleet.at(20.0, scale(4, 4))
    assert (fleet.record.nnodes_before, fleet.coordinator.rendezvous.least) == (None, 4)


def test_a_scale_of_a_run_that_waits_for_its_backoff_comes_with_or_after_the_next_generation() -> None:
    fleet = Changing(spec_of(2, 2), "ab", seated="ab")
    fleet.at(20.0, RestartRequested("", by="me"))
    fleet.ends(21.0, "a")
    fleet.at(21.5, scale(3, 3, deadline_s=0.0))
    fleet.ends(22.0, "b")
    fleet.begins(23.0, "ab")
    assert fleet.plan == "2 nodes to become 3; it looks for nodes"
    fleet.joins(24.0, "c")
    assert fleet.phase == "stopping"


def test_a_scale_whose_deadline_is_now_goes_now() -> None:
    fleet = Changing(spec_of(3, 3), "abc", seated="abc")
    fleet.at(20.0, scale(2, 2, deadline_s=0.0))
    assert fleet.phase == "stopping"
