"""Nodes that will be taken away: by a signal to their supd, or as their runner says."""

import pytest
from msgspec.structs import replace

from protocol.coordinator_events import (
    Effect,
    NodeLost,
    Opened,
    RestartRequested,
    Roster,
    RosterNode,
    StopRequested,
    Tick,
)
from protocol.job import PreemptionTable
from protocol.messages.member import Part, Stop
from protocol.rendezvous import Wait
from tests.protocol.build import exited, offer, rank
from tests.protocol.changing import ASKS, Changing, spec_of
from tests.protocol.fleet import Fleet, noted, notes, orders, started, wanted_runners
from tests.protocol.loss_stage import ended
from tests.protocol.takeover_stage import given_out, says

TERM = {"signals": frozenset({"SIGTERM"})}
EXITS = PreemptionTable(signals=("SIGTERM",))
WAITS = PreemptionTable(signals=("SIGTERM",), then="wait-for-nodes")


def running(
    least: int = 2, most: int = 3, nodes: str = "abc", seated: str = "ab", table: PreemptionTable = EXITS
) -> Changing:
    fleet = Changing(spec_of(least, most, stop=ASKS, preemption=table), nodes, seated=seated)
    fleet.roster(10.0, **{node: {"start": f"{node}/1"} for node in nodes})
    return fleet


def test_a_signal_to_supd_ends_the_generation_at_once_and_the_next_is_without_the_node() -> None:
    fleet = running()
    effects = fleet.roster(20.0, b=TERM)
    assert notes(effects) == ["preemption.noticed"]
    assert orders(effects)["a1"] == Stop(generation=0, reason="b will be taken away")
    assert (fleet.record.preempted, fleet.record.planned) == ({"b": "b/1"}, "b will be taken away")
    fleet.stands_by(21.0, "c")
    fleet.ends(21.0, "b")
    effects = fleet.ends(21.0, "a")
    assert (set(fleet.coordinator.seats), fleet.record.ledger.used) == ({"a", "c"}, 0)
    assert fleet.given("c").restart_reason == "b will be taken away"


def test_a_signal_that_the_job_does_not_list_is_none() -> None:
    fleet = running()
    assert notes(fleet.roster(20.0, b={"signals": frozenset({"SIGUSR1"})})) == []
    assert fleet.phase == "running"


def test_the_notice_of_a_runner_does_the_same_and_can_be_withdrawn() -> None:
    fleet = running()
    effects = fleet.says(20.0, "b", notice="the notice command ended with 0")
    assert notes(effects) == ["preemption.noticed"]
    assert fleet.phase == "stopping"
    assert notes(fleet.says(20.5, "b", notice="the notice command ended with 0")) == []
    effects = fleet.says(21.0, "b")
    assert (notes(effects), fleet.record.preempted) == (["preemption.withdrawn"], {})


def test_a_signal_is_not_withdrawn_by_the_runner() -> None:
    fleet = running()
    fleet.roster(20.0, b=TERM)
    fleet.says(20.5, "b", notice="SIGTERM to its runner")
    assert notes(fleet.says(21.0, "b")) == []
    assert fleet.record.preempted == {"b": "b/1"}


def test_several_nodes_at_once_are_one_change() -> None:
    fleet = Changing(spec_of(2, 4, grow=True, preemption=EXITS), "abcd", seated="abcd")
    effects = fleet.roster(20.0, b=TERM, c=TERM)
    assert notes(effects) == ["preemption.noticed", "preemption.noticed"]
    for node in "bcda":
        fleet.ends(21.0, node)
    assert (set(fleet.coordinator.seats), fleet.record.generation) == ({"a", "d"}, 1)


def test_a_node_that_is_given_notice_while_another_one_leaves_goes_with_it() -> None:
    fleet = Changing(spec_of(1, 3, grow=True, preemption=EXITS), "abc", seated="abc")
    fleet.roster(20.0, b=TERM)
    effects = fleet.roster(20.5, c=TERM)
    assert (fleet.record.planned, notes(effects)) == ("b, c will be taken away", ["preemption.noticed"])
    for node in "cba":
        fleet.ends(21.0, node)
    assert set(fleet.coordinator.seats) == {"a"}


def test_a_notice_does_not_replace_the_reason_of_an_operator_who_restarts_the_run_meanwhile() -> None:
    fleet = Changing(spec_of(1, 3, grow=True, preemption=EXITS), "abc", seated="abc")
    fleet.roster(20.0, b=TERM)
    fleet.at(20.2, RestartRequested("the new data", by="me"))
    fleet.roster(20.5, c=TERM)
    for node in "cba":
        fleet.ends(21.0, node)
    assert (set(fleet.coordinator.seats), fleet.given("a").restart_reason) == ({"a"}, "the new data")


def test_a_spare_that_is_given_notice_is_not_used_and_nothing_ends() -> None:
    fleet = running()
    assert notes(fleet.roster(20.0, c=TERM)) == ["preemption.noticed"]
    assert fleet.phase == "running"
    fleet.hears(21.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    fleet.stands_by(22.0, "c")
    fleet.ends(22.0, "b")
    fleet.ends(22.0, "a")
    assert set(fleet.coordinator.seats) == {"a", "b"}


def test_the_wait_for_answers_leaves_time_for_the_grace_before_the_node_is_gone() -> None:
    fleet = running(table=PreemptionTable(signals=("SIGTERM",), lead_time_s=50.0))
    told = orders(fleet.roster(20.0, b=TERM))["a1"]
    assert told == Stop(generation=0, reason="b will be taken away", pre_wait_s=20.0)
    fleet.says(39.0, "a", answers=True)
    fleet.says(39.0, "b")
    assert notes(fleet.at(40.0, Tick())) == ["stop.unanswered"]


def test_a_lead_time_below_the_grace_leaves_no_time_to_answer() -> None:
    fleet = running(table=PreemptionTable(signals=("SIGTERM",), lead_time_s=10.0))
    told = orders(fleet.roster(20.0, b=TERM))["a1"]
    assert told == Stop(generation=0, reason="b will be taken away", pre_wait_s=0.0)


def test_too_few_nodes_left_end_the_run_as_preempted() -> None:
    fleet = running(nodes="ab")
    fleet.save(19.0, "a", 500)
    fleet.roster(20.0, b=TERM)
    fleet.ends(21.0, "b")
    effects = fleet.ends(21.0, "a")
    assert (fleet.phase, notes(effects)[-1]) == ("preempted", "job.preempted")
    assert fleet.record.reason == (
        "b is taken away, and the job wants 2 nodes; the last checkpoint that was seen is of step 500"
    )


def test_a_coordinator_that_begins_anew_does_not_say_so_before_it_knows_the_nodes() -> None:
    fleet = running()
    fleet.roster(20.0, b=TERM)
    fleet.ends(21.0, "b", "a")
    assert fleet.phase == "forming"
    later = Fleet("a", "b", "c", spec=fleet.spec, record=fleet.record, epoch=2)
    later.at(30.0, Opened())
    later.offers(30.0, "a1", 0, port=4001)
    later.at(30.0, Tick())
    assert later.phase == "forming"
    later.at(30.1, Roster(tuple(RosterNode(n, is_up=True, start=f"{n}/1") for n in "abc")))
    later.offers(30.2, "c1", 0, port=4001)
    assert (later.phase, set(later.coordinator.seats)) == ("launching", {"a", "c"})


@pytest.mark.parametrize("named", [(), ("a", "b", "c")], ids=["any nodes", "nodes that the job names"])
def test_nodes_that_have_a_place_and_have_not_joined_yet_may_be_enough(named: tuple[str, ...]) -> None:
    """A coordinator without a journal hears runners before it hears their supds."""
    spec = spec_of(2, 3, grow=True, preemption=EXITS)
    spec = replace(spec, topology=replace(spec.topology, nodes=named))
    fleet, given = Fleet("a", "b", "c", spec=spec), given_out("abc")
    fleet.at(0.0, Opened())
    fleet.at(0.0, Roster((RosterNode("a", is_up=True),)))
    for runner in ("a1", "b1", "c1"):
        says(fleet, 1.0, runner, given)
    fleet.hears(2.0, "b1", Part.RUNNING, 4, *started(1), notice="spot")
    for place, node in enumerate("abc"):
        fleet.hears(3.0, f"{node}1", Part.STOPPED, 4, *ended(place), notice="spot" if node == "b" else "")
    assert fleet.phase == "forming"
    fleet.at(4.0, Roster(tuple(RosterNode(n, is_up=True) for n in "abc")))
    for runner in ("a1", "c1"):
        fleet.offers(4.0, runner, 4, port=4001)
    assert (fleet.phase, set(fleet.coordinator.seats)) == ("launching", {"a", "c"})


def test_or_the_run_waits_for_nodes_for_as_long_as_it_takes() -> None:
    fleet = running(nodes="ab", table=WAITS)
    fleet.roster(20.0, b=TERM)
    fleet.ends(21.0, "b")
    fleet.ends(21.0, "a")
    assert (fleet.phase, fleet.coordinator.deadline_s) == ("forming", None)
    fleet.at(1e6, Tick())
    assert fleet.phase == "forming"
    wait = fleet.coordinator.rendezvous.foresee(fleet.coordinator.must_not, 1e6)
    told = wait.text if isinstance(wait, Wait) else ""
    assert "1 more node to join the fleet (or supctl undrain b) (" in told
    assert told.endswith("; b: it was given notice), without limit (preemption.then)")
    fleet.joins(1e6, "c")
    fleet.ends(1e6, "a")
    assert set(fleet.coordinator.seats) == {"a", "c"}


def test_a_node_is_used_again_once_its_supd_has_another_start() -> None:
    fleet = running(nodes="ab", table=WAITS)
    fleet.roster(20.0, b=TERM)
    fleet.ends(21.0, "b")
    fleet.ends(21.0, "a")
    effects = fleet.roster(30.0, b={"start": "b/2", "signals": frozenset()})
    (note,) = noted(effects, "preemption.withdrawn")
    assert (note.text, fleet.record.preempted) == ("b may be used again: its supd was started anew", {})
    fleet.stands_by(31.0, "b")
    fleet.ends(31.0, "a")
    assert set(fleet.coordinator.seats) == {"a", "b"}


def test_what_is_told_at_once_of_several_nodes_is_taken_in_before_a_generation_begins_of_it() -> None:
    """Found by random seeds: a generation began on the node that was back and on the one that was to go."""
    fleet = running(nodes="abc", table=WAITS)
    fleet.roster(20.0, b=TERM, c=TERM)
    fleet.ends(21.0, "b")
    fleet.ends(21.0, "a")
    fleet.stands_by(29.0, "a", "b")
    fleet.roster(30.0, a=TERM, b={"start": "b/2", "signals": frozenset()})
    assert (fleet.phase, fleet.record.generation) == ("forming", 0)


def test_what_an_operator_has_lifted_is_not_noticed_again_from_the_same_runner() -> None:
    fleet = running(nodes="ab", table=WAITS)
    fleet.says(20.0, "b", notice="SIGTERM to its runner")
    (note,) = noted(fleet.roster(30.0, b={"start": "b/1/undrained-1"}), "preemption.withdrawn")
    assert (note.text, fleet.record.preempted) == ("b may be used again: an operator wants that", {})
    assert notes(fleet.says(31.0, "b", notice="SIGTERM to its runner")) == []


def test_a_notice_that_is_withdrawn_while_the_coordinator_is_away_is_over() -> None:
    fleet = running(nodes="ab", table=WAITS)
    fleet.says(20.0, "b", notice="the notice command ended with 0")
    fleet.last["b1"] = replace(fleet.last["b1"], notice="")
    assert fleet.restarted(30.0).record.preempted == {}


def test_what_an_operator_has_lifted_stays_so_over_a_restart_of_the_coordinator() -> None:
    fleet = running(nodes="ab", table=WAITS)
    fleet.says(20.0, "b", notice="SIGTERM to its runner")
    fleet.roster(25.0, b={"start": "b/1/undrained-1"})
    later = fleet.restarted(30.0)
    later.at(30.0, Roster(tuple(RosterNode(node, is_up=True, start=f"{node}/1") for node in "ab")))
    later.hears(31.0, "b1", Part.STOPPING, 0, *started(1), notice="SIGTERM to its runner")
    assert later.record.preempted == {}


def test_the_loss_of_a_node_under_notice_is_no_failure() -> None:
    fleet = running()
    fleet.gone(19.5, "b1")
    assert fleet.record.incident_is_open
    fleet.roster(20.0, b=TERM)
    fleet.stands_by(21.0, "c")
    effects = fleet.ends(21.0, "a")
    assert [n.text for n in noted(effects, "restart.decided")] == ["the node was under notice: not charged, at once"]
    assert fleet.record.ledger.infra_used == 0


def test_a_rank_that_the_same_signal_has_ended_first_is_no_failure() -> None:
    fleet = running()
    fleet.hears(20.0, "b1", Part.STOPPING, 0, rank(2, exited(signal=15), first=2), rank(3, first=2))
    assert fleet.record.incident_is_open
    fleet.roster(20.2, b=TERM)
    fleet.stands_by(21.0, "c")
    fleet.ends(21.0, "b")
    effects = fleet.ends(21.0, "a")
    assert [n.text for n in noted(effects, "restart.decided")] == ["the node was under notice: not charged, at once"]
    assert (fleet.record.ledger.used, set(fleet.coordinator.seats)) == (0, {"a", "c"})


def test_a_node_that_goes_while_it_is_under_notice_is_not_charged() -> None:
    fleet = running(table=EXITS)
    fleet.at(19.0, RestartRequested("", by="me"))
    fleet.roster(20.0, b=TERM)
    fleet.gone(20.5, "b1")
    fleet.stands_by(21.0, "c")
    fleet.ends(21.0, "a")
    assert (fleet.record.ledger.used, fleet.record.ledger.infra_used) == (0, 0)


def test_a_notice_outlives_the_coordinator() -> None:
    fleet = running(nodes="ab", table=WAITS)
    fleet.roster(20.0, b=TERM)
    later = fleet.restarted(21.0)
    assert later.record.preempted == {"b": "b/1"}
    assert (later.phase, later.coordinator.taken) == ("stopping", ["b"])


def test_no_runner_is_wanted_on_a_node_under_notice() -> None:
    fleet = running()
    assert wanted_runners(fleet.roster(20.0, c=TERM)) == []


def test_a_notice_while_a_failure_is_handled_only_leaves_the_node_out() -> None:
    fleet = running(nodes="abc")
    fleet.hears(20.0, "a1", Part.STOPPING, 0, rank(0, exited(1)), rank(1))
    fleet.roster(20.5, b=TERM)
    assert (fleet.record.planned, fleet.record.incident_is_open) == ("", True)
    fleet.stands_by(22.0, "c")
    fleet.ends(22.0, "b")
    fleet.ends(22.0, "a")
    assert (set(fleet.coordinator.seats), fleet.record.ledger.used) == ({"a", "c"}, 1)


def test_a_generation_that_is_taken_over_ends_where_a_node_of_it_is_under_notice() -> None:
    fleet = running(nodes="ab", table=WAITS)
    given = {node: fleet.given(node) for node in "ab"}
    late = Fleet("a", "b", spec=fleet.spec, epoch=2)
    late.opens(0.0)
    late.at(1.0, Roster((RosterNode("a", is_up=True), RosterNode("b", is_up=True, signals=frozenset({"SIGTERM"})))))
    for node in "ab":
        late.hears(2.0, f"{node}1", Part.RUNNING, 0, *started(given[node].node_rank), assignment=given[node])
    assert (late.phase, late.record.planned) == ("stopping", "b will be taken away")


def test_an_operators_stop_of_a_run_that_leaves_a_node_ends_it() -> None:
    fleet = running()
    fleet.roster(20.0, b=TERM)
    fleet.at(20.5, StopRequested(None, now=False, by="me"))
    fleet.ends(21.0, "b")
    fleet.ends(21.0, "a")
    assert fleet.phase == "stopped"


def told_before_it_joins() -> Fleet:
    """A coordinator without a journal: the runner of b is heard, and gives notice, before its supd has joined."""
    fleet, given = Fleet("a", "b", "c", spec=spec_of(1, 3, grow=True, preemption=EXITS)), given_out("abc")
    fleet.at(0.0, Opened())
    with_nodes(fleet, 0.0, "ac")
    for runner in ("a1", "b1", "c1"):
        says(fleet, 1.0, runner, given)
    assert notes(fleet.hears(2.0, "b1", Part.RUNNING, 4, *started(1), notice="spot")) == ["preemption.noticed"]
    assert (fleet.phase, fleet.record.preempted) == ("stopping", {"b": ""})
    return fleet


def with_nodes(fleet: Fleet, now_s: float, nodes: str, start: int = 1) -> list[Effect]:
    return fleet.at(now_s, Roster(tuple(RosterNode(n, is_up=True, start=f"{n}/{start}") for n in nodes)))


def go_on_without_b(fleet: Fleet, now_s: float) -> None:
    for place, node in enumerate("ac"):
        fleet.hears(now_s, f"{node}1", Part.STOPPED, 4, *ended(2 * place), offer=offer(port=4001))
    assert (fleet.phase, set(fleet.coordinator.seats)) == ("launching", {"a", "c"})


def test_a_notice_from_before_a_node_has_joined_holds_in_the_start_in_which_it_joins() -> None:
    fleet = told_before_it_joins()
    assert notes(with_nodes(fleet, 2.5, "abc")) == []
    assert fleet.record.preempted == {"b": "b/1"}
    fleet.hears(3.0, "b1", Part.STOPPED, 4, *ended(1), notice="spot", offer=offer(port=4001))
    go_on_without_b(fleet, 3.0)
    assert notes(with_nodes(fleet, 4.0, "abc", start=2)) == ["preemption.withdrawn"]
    assert fleet.record.preempted == {}


def test_a_notice_that_is_heard_before_the_nodes_are_known_does_so_too() -> None:
    fleet = running()
    later = Fleet("a", "b", "c", spec=fleet.spec, record=fleet.record, epoch=2)
    later.at(30.0, Opened())
    later.hears(30.0, "b1", Part.RUNNING, 0, *started(1), notice="spot")
    assert later.phase == "stopping"
    assert notes(with_nodes(later, 30.1, "abc")) == []
    assert later.record.preempted == {"b": "b/1"}


def test_a_node_that_has_not_joined_yet_is_given_notice_once_and_its_loss_is_no_failure() -> None:
    fleet = told_before_it_joins()
    for second in (3.0, 4.0):
        effects = with_nodes(fleet, second, "ac")
        effects += fleet.hears(second, "b1", Part.STOPPING, 4, *started(1), notice="spot")
        assert notes(effects) == []
    fleet.at(5.0, NodeLost("b", "ada"))
    with_nodes(fleet, 5.5, "ac")
    go_on_without_b(fleet, 6.0)
    assert (fleet.record.ledger.used, fleet.record.ledger.infra_used) == (0, 0)
    (note,) = noted(with_nodes(fleet, 7.0, "ac"), "preemption.withdrawn")
    assert (note.text, fleet.record.preempted) == ("b may be used again: the fleet does not know it", {})
