"""Drains and growth: a change that is planned waits for the next checkpoint, and costs nothing."""

from typing import Any

import pytest

from protocol import foresight
from protocol.coordinator_events import RestartRequested, StopRequested, Tick
from protocol.job import CheckpointTable, RestartTable, StopTable
from protocol.messages.member import Part, Release, Run, Stop
from protocol.messages.upkeep import PLAN_DEADLINE_S
from tests.protocol.build import exited, rank
from tests.protocol.changing import ASKS, Changing, drain, spec_of
from tests.protocol.fleet import noted, notes, orders, wanted_runners

NEVER_SAVES = CheckpointTable()
WITHOUT_TROUBLED = RestartTable(exclude_node_after=2)
WHY = "b is to be free (swap NIC)"


def pair_with_spare(**tables: Any) -> Changing:
    return Changing(spec_of(2, 3, **tables), "abc", seated="ab")


# --- drain -----------------------------------------------------------------------------------------------------------


def test_a_drain_waits_for_the_next_checkpoint_and_a_spare_takes_the_place() -> None:
    fleet = pair_with_spare()
    fleet.stands_by(20.0, "c")
    effects = fleet.roster(20.0, b={"drain": drain()})
    assert [n.text for n in noted(effects, "change.planned")] == [
        f"{WHY}; it waits for the next checkpoint, for at most 1780 s"
    ]
    told = [order for order in orders(effects).values() if isinstance(order, Run)]
    assert [order.awaits_save for order in told] == [True, True]
    assert fleet.phase == "running"
    effects = fleet.save(21.0, "a", 500)
    assert [n.text for n in noted(effects, "change.begun")] == [f"{WHY}: after the checkpoint of step 500"]
    assert orders(effects)["b1"] == Stop(generation=0, reason=WHY)
    assert fleet.record.planned == WHY
    fleet.ends(22.0, "b")
    effects = [*fleet.stands_by(22.0, "c"), *fleet.ends(22.1, "a")]
    assert set(fleet.coordinator.seats) == {"a", "c"}
    given = fleet.given("c")
    assert (given.restart_reason, given.resume_step, given.first_rank) == (WHY, 500, 2)
    assert orders(effects)["b1"] == Release()
    assert (fleet.record.ledger.used, fleet.record.ledger.streak, fleet.record.planned) == (0, 0, "")


def test_a_checkpoint_that_was_seen_before_the_drain_does_not_count() -> None:
    fleet = pair_with_spare()
    fleet.save(19.0, "a", 400)
    fleet.stands_by(20.0, "c")
    fleet.roster(20.0, b={"drain": drain()})
    fleet.says(20.5, "a")
    assert fleet.phase == "running"


def test_the_same_checkpoint_seen_later_by_another_runner_is_no_other_one() -> None:
    fleet = pair_with_spare()
    fleet.save(19.0, "a", 400)
    fleet.stands_by(20.0, "c")
    fleet.roster(20.0, b={"drain": drain()})
    fleet.save(20.1, "b", 400)
    assert fleet.phase == "running"
    fleet.save(20.5, "b", 450)
    assert fleet.phase == "stopping"


def test_a_checkpoint_that_was_seen_while_the_drain_was_for_a_time_does_not_count_once_it_waits_for_one() -> None:
    """Found by random seeds."""
    fleet = pair_with_spare()
    fleet.stands_by(20.0, "c")
    fleet.roster(20.0, b={"drain": drain(at_checkpoint=False)})
    fleet.save(21.0, "a", 400)
    fleet.roster(22.0, b={"drain": drain()})
    assert (fleet.phase, fleet.coordinator.plans.awaits_save) == ("running", True)
    fleet.save(22.5, "a", 450)
    assert fleet.phase == "stopping"


def test_a_drain_goes_at_its_deadline_without_a_checkpoint() -> None:
    fleet = pair_with_spare()
    fleet.stands_by(28.0, "c")
    fleet.roster(28.0, b={"drain": drain(go_s=30.0)})
    assert fleet.coordinator.plans.deadline_s == 30.0
    fleet.stands_by(29.5, "c")
    effects = fleet.at(30.0, Tick())
    assert [n.text for n in noted(effects, "change.begun")] == [f"{WHY}: at its deadline, without a checkpoint"]


EXCLUDED: dict[str, Any] = {"troubles": (2.0, 3.0)}


def test_a_drain_ends_where_the_only_spare_is_one_that_is_excluded() -> None:
    fleet = Changing(spec_of(1, 1, restart=WITHOUT_TROUBLED), "ab", seated="a")
    fleet.roster(5.0, b=EXCLUDED)
    assert fleet.coordinator.rendezvous.eligible == ("a",)
    fleet.roster(20.0, a={"drain": drain()})
    assert fleet.plan == "a is to be free (swap NIC); it looks for a spare"
    fleet.stands_by(21.0, "b")  # it is asked for a runner, for want of another node
    assert fleet.plan == "a is to be free (swap NIC); it waits for the next checkpoint"
    fleet.save(22.0, "a", 500)
    fleet.ends(24.5, "a")
    assert fleet.phase == "forming", "b is waited for, though a would do"
    effects = fleet.stands_by(25.0, "b")
    assert set(fleet.coordinator.seats) == {"b"}
    assert orders(fleet.ends(25.5, "a")) == {"a1": Release()}
    assert notes(effects) == ["generation.launched"]


def test_a_drain_ends_where_all_nodes_are_excluded() -> None:
    fleet = Changing(spec_of(1, 1, restart=WITHOUT_TROUBLED), "abc", seated="a")
    fleet.roster(5.0, a=EXCLUDED, b=EXCLUDED, c=EXCLUDED)
    fleet.roster(20.0, a={"drain": drain()})
    assert fleet.coordinator.rendezvous.wanted == {"b"}
    fleet.stands_by(21.0, "b")
    fleet.save(22.0, "a", 500)
    assert fleet.phase == "stopping"
    fleet.stands_by(23.0, "b")
    fleet.ends(23.0, "a")
    assert set(fleet.coordinator.seats) == {"b"}


@pytest.mark.parametrize(("drained", "excluded"), [("a", "b"), ("b", "a")])
def test_a_drain_ends_where_a_node_that_is_excluded_has_ranks(drained: str, excluded: str) -> None:
    """It stays, for want of another one: the node that is drained has to go before it."""
    fleet = Changing(spec_of(2, 3, restart=WITHOUT_TROUBLED), "abc", seated="ab")
    fleet.stands_by(20.0, "c")
    fleet.roster(20.0, **{drained: {"drain": drain()}, excluded: EXCLUDED})
    fleet.save(21.0, "a", 500)
    assert fleet.phase == "stopping"
    for node in (drained, "c", excluded):
        fleet.ends(22.0, node)
    assert set(fleet.coordinator.seats) == {excluded, "c"}


def test_it_is_known_at_once_that_a_run_cannot_go_on_without_a_node_and_what_that_leads_to() -> None:
    fleet = Changing(spec_of(2, 2), "ab", seated="ab")
    later = drain(at_checkpoint=False, go_s=100.0)
    fleet.roster(20.0, b={"drain": later})
    assert fleet.plan == (
        f"{WHY}; it waits for its time, then for another node (rendezvous.join_timeout): "
        "1 node would be left, the job wants 2"
    )
    told = "j cannot go on without b: 1 node (a) would be left, and the job wants 2; it waits for another node, "
    assert foresight.without("j", fleet.coordinator, ("b",)) == (
        f"{told}and ends with exit code 75 after 10m (rendezvous.join_timeout)"
    )
    assert not foresight.without("j", fleet.coordinator, ("z",))
    fleet.joins(21.0, "c")
    assert (fleet.plan, foresight.without("j", fleet.coordinator, ("b",))) == (f"{WHY}; it waits for its time", "")


@pytest.mark.parametrize("has_spare", [True, False])
def test_a_drain_of_now_goes_whatever_comes_of_it(has_spare: bool) -> None:
    fleet = Changing(spec_of(2, 3), "abc" if has_spare else "ab", seated="ab")
    effects = fleet.roster(20.0, b={"drain": drain(at_checkpoint=False, go_s=20.0)})
    assert notes(effects) == ["change.begun"]
    assert fleet.phase == "stopping"
    effects = fleet.ends(21.0, "b")
    assert orders(effects) == {"b1": Release()}
    fleet.ends(21.0, "a")
    assert fleet.phase == "forming"


def test_a_drain_without_a_spare_waits_and_says_for_what_until_one_comes() -> None:
    fleet = Changing(spec_of(2, 3), "ab", seated="ab")
    effects = fleet.roster(20.0, b={"drain": drain(go_s=30.0)})
    assert fleet.plan == f"{WHY}; it looks for a spare"
    assert not noted(effects, "change.planned"), "one may offer itself at once"
    effects = fleet.at(22.0, Tick())
    assert fleet.plan == f"{WHY}; no spare: 1 node would be left, the job wants 2"
    assert [n.text for n in noted(effects, "change.planned")] == [fleet.plan]
    told = fleet.coordinator.order_for("a", "a1")
    assert isinstance(told, Run)
    assert not told.awaits_save
    fleet.save(21.0, "a", 500)
    fleet.at(31.0, Tick())
    assert (fleet.phase, fleet.coordinator.plans.deadline_s) == ("running", None)
    fleet.joins(41.0, "c")
    assert fleet.phase == "stopping"  # its deadline is over


def test_a_crash_while_a_drain_waits_for_a_spare_does_not_end_the_run() -> None:
    fleet = Changing(spec_of(2, 3), "ab", seated="ab")
    fleet.roster(20.0, b={"drain": drain()})
    fleet.hears(21.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    fleet.ends(22.0, "b")
    effects = fleet.ends(22.0, "a")
    assert "generation.launched" in notes(effects)
    assert set(fleet.coordinator.seats) == {"a", "b"}


def test_a_crash_while_a_drain_waits_for_a_checkpoint_moves_the_run_at_once() -> None:
    fleet = pair_with_spare()
    fleet.stands_by(20.0, "c")
    fleet.roster(20.0, b={"drain": drain()})
    fleet.hears(21.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    fleet.stands_by(22.0, "c")
    fleet.ends(22.0, "b")
    fleet.ends(22.0, "a")
    assert set(fleet.coordinator.seats) == {"a", "c"}
    assert notes(fleet.begins(23.0, "ac")) == ["generation.ready"]


def test_of_two_drains_as_many_go_as_the_run_can_do_without() -> None:
    fleet = Changing(spec_of(2, 3, grow=True), "abc", seated="abc")
    fleet.roster(20.0, b={"drain": drain()}, c={"drain": drain()})
    fleet.save(21.0, "a", 500)
    assert fleet.record.planned == "c is to be free (swap NIC)"
    for node in "cba":
        fleet.ends(22.0, node)
    assert set(fleet.coordinator.seats) == {"a", "b"}


def test_a_drain_that_is_taken_back_is_dropped() -> None:
    fleet = pair_with_spare()
    fleet.stands_by(20.0, "c")
    fleet.roster(20.0, b={"drain": drain()})
    effects = fleet.roster(21.0, b={"drain": None})
    assert notes(effects) == ["change.dropped"]
    told = orders(effects)["a1"]
    assert isinstance(told, Run)
    assert not told.awaits_save


def test_a_job_without_a_checkpoint_is_drained_at_the_deadline_and_says_so() -> None:
    fleet = pair_with_spare(checkpoint=NEVER_SAVES)
    fleet.stands_by(20.0, "c")
    fleet.roster(20.0, b={"drain": drain(go_s=22.0)})
    assert fleet.plan == f"{WHY}; it waits for its deadline: the job has no [checkpoint]"
    fleet.at(22.0, Tick())
    assert fleet.phase == "stopping"


def test_an_idle_runner_on_a_node_that_is_drained_is_let_go_and_none_is_wanted_there() -> None:
    fleet = pair_with_spare()
    effects = fleet.roster(20.0, c={"drain": drain()})
    assert wanted_runners(effects) == []
    assert orders(fleet.stands_by(21.0, "c")) == {"c1": Release()}
    fleet.gone(22.0, "c1")
    effects = fleet.roster(23.0, c={"drain": None})
    assert wanted_runners(effects) == ["c"]


def test_a_runner_that_was_told_to_end_counts_no_more_though_its_node_is_used_again() -> None:
    fleet = pair_with_spare()
    fleet.roster(20.0, c={"drain": drain()})
    assert orders(fleet.stands_by(21.0, "c")) == {"c1": Release()}
    fleet.roster(21.5, c={"drain": None})
    assert orders(fleet.stands_by(22.0, "c")) == {"c1": Release()}, "it may have heard the first one"
    assert fleet.coordinator.rendezvous.spares(fleet.coordinator.seats) == ()


def test_a_drain_waits_where_it_is_not_known_yet_what_the_run_may_use() -> None:
    """After a restart of the coordinator grants come a moment later than the nodes."""
    fleet = Changing(spec_of(2, 2), "ab", seated="ab")
    fleet.roster(20.0, a={"drain": drain(), "grant": None}, b={"grant": None})
    fleet.save(21.0, "a", 500)
    assert fleet.phase == "running"


def test_a_drain_at_a_time_is_no_last_resort_after_it() -> None:
    fleet = Changing(spec_of(2, 3), "ab", seated="ab")
    fleet.roster(20.0, b={"drain": drain(at_checkpoint=False, go_s=30.0)})
    fleet.hears(21.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    fleet.ends(22.0, "b")
    assert fleet.phase == "stopping"
    fleet.ends(31.0, "a")
    assert fleet.phase == "forming"


# --- growth ----------------------------------------------------------------------------------------------------------


def growing(grow_s: float = 0.0, **tables: Any) -> Changing:
    """a and b run; at 20 s c comes, which could run, too."""
    fleet = Changing(spec_of(2, 3, grow=True, grow_s=grow_s, **tables), "ab", seated="ab")
    fleet.joins(20.0, "c")
    return fleet


def test_a_node_that_comes_joins_at_the_next_checkpoint() -> None:
    fleet = growing()
    assert fleet.plan == "c could join; it waits for the next checkpoint"
    fleet.stands_by(22.0, "c")
    effects = fleet.save(22.5, "a", 500)
    assert orders(effects)["a1"] == Stop(generation=0, reason="c joins")
    fleet.ends(23.0, "a")
    effects = fleet.ends(23.0, "b")
    assert set(fleet.coordinator.seats) == {"a", "b", "c"}
    assert (fleet.given("c").resume_step, fleet.record.ledger.used) == (500, 0)
    assert {order.assignment.world_size for order in orders(effects).values() if isinstance(order, Run)} == {6}


def test_a_generation_lives_for_a_while_before_it_ends_to_grow() -> None:
    fleet = growing(grow_s=100.0)
    assert "the generation lives for 100 s first (topology.grow_min_interval)" in fleet.plan
    fleet.stands_by(50.0, "c")
    fleet.save(50.0, "a", 500)
    assert (fleet.phase, fleet.coordinator.plans.deadline_s) == ("running", 101.0)
    fleet.stands_by(100.5, "c")
    fleet.at(101.0, Tick())
    assert (fleet.phase, fleet.plan) == ("running", "c could join; it waits for the next checkpoint")
    fleet.save(102.0, "a", 600)
    assert fleet.phase == "stopping"


def test_a_run_that_could_grow_waits_for_a_checkpoint_only_for_so_long() -> None:
    fleet = growing()
    late_s = 20.0 + PLAN_DEADLINE_S
    assert fleet.coordinator.plans.deadline_s == late_s
    fleet.stands_by(late_s - 1, "c")
    effects = fleet.at(late_s, Tick())
    assert [n.text for n in noted(effects, "change.begun")] == ["c joins: at its deadline, without a checkpoint"]


def test_a_node_that_is_silent_as_the_checkpoint_is_seen_does_not_join() -> None:
    fleet = growing()
    effects = fleet.save(30.0, "a", 500)
    assert (notes(effects), fleet.phase) == (["change.dropped"], "running")
    effects = fleet.stands_by(31.0, "c")
    assert notes(effects) == ["change.planned"]


def test_a_job_without_a_checkpoint_does_not_grow_and_says_why() -> None:
    fleet = growing(checkpoint=NEVER_SAVES)
    why = "it has no [checkpoint] (topology.grow_without_checkpoint = true lets it join at once)"
    assert fleet.plan == f"c could join; {why}"
    assert fleet.coordinator.plans.deadline_s is None


def test_a_job_without_a_checkpoint_grows_at_once_where_it_says_so() -> None:
    fleet = growing(checkpoint=NEVER_SAVES, grow_without_checkpoint=True)
    assert (fleet.phase, fleet.record.planned) == ("stopping", "c joins")


def test_growth_is_charged_where_the_job_counts_membership() -> None:
    fleet = growing(restart=RestartTable(max_restarts=1, count_membership=True))
    fleet.save(21.0, "a", 500)
    assert (fleet.phase, fleet.record.ledger.used) == ("stopping", 1)
    for node in "cab":
        fleet.ends(22.0, node)
    assert (len(fleet.coordinator.seats), fleet.record.ledger.used) == (3, 1)


def test_growth_does_not_come_where_the_budget_that_is_to_pay_is_spent() -> None:
    fleet = growing(restart=RestartTable(max_restarts=0, count_membership=True))
    assert fleet.plan.endswith("restart.max_restarts is spent, and restart.count_membership counts it")
    fleet.save(21.0, "a", 500)
    assert fleet.phase == "running"


def test_a_standby_job_does_not_grow() -> None:
    fleet = pair_with_spare()
    fleet.stands_by(20.0, "c")
    fleet.save(21.0, "a", 500)
    assert (fleet.phase, fleet.plan) == ("running", "")


# --- the pre-signal --------------------------------------------------------------------------------------------------


def test_a_planned_stop_goes_on_as_soon_as_every_rank_has_answered() -> None:
    fleet = pair_with_spare(stop=ASKS)
    fleet.at(20.0, RestartRequested("new data", by="me"))
    assert orders(fleet.says(21.0, "a", answers=True))["a1"] == Stop(generation=0, reason="new data")
    effects = fleet.says(22.0, "b", answers=True)
    done = Stop(generation=0, reason="new data", is_answered=True)
    assert (orders(effects)["a1"], orders(effects)["b1"]) == (done, done)
    assert notes(fleet.at(90.0, Tick())) == []


def test_a_checkpoint_that_is_seen_after_the_stop_began_is_the_answer_of_all() -> None:
    fleet = pair_with_spare(stop=ASKS)
    fleet.at(20.0, StopRequested(None, now=False, by="me"))
    effects = fleet.save(21.0, "b", 500)
    assert orders(effects)["a1"] == Stop(generation=0, reason="stopped by me", is_answered=True)


def test_who_has_not_answered_when_the_wait_is_over_is_told() -> None:
    fleet = pair_with_spare(stop=ASKS)
    fleet.at(20.0, RestartRequested("new data", by="me"))
    fleet.says(21.0, "a", answers=True)
    assert fleet.coordinator.deadline_s is not None
    fleet.says(79.9, "b")
    fleet.says(79.9, "a", answers=True)
    effects = fleet.at(80.0, Tick())
    assert [n.text for n in noted(effects, "stop.unanswered")] == [
        "ranks 2-3 did not answer SIGUSR1 within 60 s (stop.pre_wait)"
    ]
    assert noted(fleet.at(81.0, Tick()), "stop.unanswered") == []


def test_a_stop_that_follows_a_failure_has_its_whole_wait() -> None:
    fleet = pair_with_spare(stop=ASKS)
    fleet.hears(21.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    effects = fleet.says(22.0, "b", answers=True)
    assert orders(effects)["b1"] == Stop(generation=0)


def test_a_stop_without_a_pre_signal_waits_for_no_answer() -> None:
    fleet = pair_with_spare(stop=StopTable())
    fleet.at(20.0, RestartRequested("new data", by="me"))
    assert orders(fleet.says(22.0, "b", answers=True))["b1"] == Stop(generation=0, reason="new data")
