"""How people see a node by what its leases say."""

import asyncio

import pytest

from protocol.absence import is_heard, node_state
from protocol.coordinator_events import NodeLost, Roster, RosterNode, StopRequested, Tick
from protocol.messages.control import NodeStatus
from protocol.messages.member import Part
from protocol.timing import DEFAULTS
from supervisor.daemon.node_list import with_runs
from supervisor.daemon.run import Run
from supervisor.shell.driver import Driver
from tests.protocol.build import job_spec, submitted
from tests.protocol.fleet import Fleet, running, started

BEGUN_S = 2.0  # when `running` was heard last


def passes(fleet: Fleet, until_s: float, *renewing: str) -> float:
    """Time passes, while these runners renew; returns when that is."""
    now_s = BEGUN_S
    while now_s < until_s:
        now_s = round(now_s + 0.25, 3)
        fleet.at(now_s, Tick())
        for runner in renewing:
            place = fleet.nodes.index(runner[0])
            fleet.hears(now_s, runner, Part.RUNNING, 0, *started(place))
    return now_s


def listed(*fleets: Fleet, states: dict[str, str], now_s: float) -> dict[str, tuple[str, str]]:
    """State and note of each node, as an operator sees them; `states` are the node table's."""

    async def perform(_: object) -> None: ...

    async def look() -> dict[str, tuple[str, str]]:
        table = [NodeStatus(node=node, state=state, address="x", port=1) for node, state in states.items()]
        runs = [
            Run(submitted(fleet.spec), fleet.coordinator, Driver(fleet.coordinator, perform, Tick()), 0.0, None)
            for fleet in fleets
        ]
        return {node.node: (node.state, node.note) for node in with_runs(table, runs, now_s)}

    return asyncio.run(look())


def test_of_a_node_whose_runner_is_heard_there_is_nothing_to_say() -> None:
    fleet = running("a", "b")
    now_s = passes(fleet, 20.0, "a1", "b1")
    assert [node_state(fleet.coordinator, node, now_s) for node in "abc"] == [("", "")] * 3
    assert [is_heard(fleet.coordinator, node, now_s) for node in "abc"] == [True, True, False]


def test_a_node_whose_runner_is_silent_is_suspect_even_if_its_supd_answers() -> None:
    fleet = running("a", "b")
    now_s = passes(fleet, BEGUN_S + DEFAULTS.suspect_s + 1.0, "a1")
    assert node_state(fleet.coordinator, "b", now_s) == ("suspect", "its runner was heard 4.0 s ago")
    assert not is_heard(fleet.coordinator, "b", now_s)
    assert listed(fleet, states={"a": "ready", "b": "ready"}, now_s=now_s) == {
        "a": ("ready", ""),
        "b": ("suspect", "j@1: its runner was heard 4.0 s ago"),
    }


def test_a_node_that_an_operator_has_given_up_is_lost_until_it_is_heard_again() -> None:
    fleet = running("a", "b")
    now_s = passes(fleet, BEGUN_S + 4.0, "a1")
    fleet.at(now_s, NodeLost("b", "me"))
    seen = listed(fleet, states={"a": "ready", "b": "unreachable"}, now_s=now_s)
    assert seen["b"] == ("lost", "j@1: nothing was heard of it until its lease was over, nor since")
    fleet.hears(now_s, "b1", Part.STOPPED, 0, *started(1))
    assert node_state(fleet.coordinator, "b", now_s) == ("", "")
    assert is_heard(fleet.coordinator, "b", now_s)


def test_a_node_that_has_fenced_itself_is_fenced_until_it_says_something_else() -> None:
    fleet = running("a", "b")
    now_s = passes(fleet, BEGUN_S + 1.0, "a1")
    fleet.hears(now_s, "b1", Part.STOPPED, 0, *started(1), fenced_s=4.5)
    why = "its runner had no answer for 4.5 s and has ended its ranks"
    assert node_state(fleet.coordinator, "b", now_s) == ("fenced", why)
    fleet.offers(now_s, "b1", 0)
    assert node_state(fleet.coordinator, "b", now_s) == ("", "")


def test_a_run_that_is_over_says_nothing_of_its_nodes() -> None:
    fleet = running("a", "b")
    fleet.at(3.0, StopRequested(None, True, "me"))
    for place, runner in enumerate(("a1", "b1")):
        fleet.hears(4.0, runner, Part.STOPPED, 0, *started(place), fenced_s=4.5)
    assert fleet.coordinator.is_final
    assert node_state(fleet.coordinator, "b", 4.0) == ("", "")


@pytest.mark.parametrize(("of_table", "shown"), [("ready", "suspect"), ("unreachable", "unreachable")])
def test_a_node_is_in_the_worst_state_of_all_that_is_known_of_it(of_table: str, shown: str) -> None:
    silent, lost = running("a", "b"), running("a", "b")
    now_s = passes(silent, BEGUN_S + 4.0, "a1")
    passes(lost, BEGUN_S + 4.0, "a1")
    states = {"a": "ready", "b": of_table}
    assert listed(silent, states=states, now_s=now_s)["b"][0] == shown
    lost.at(now_s, NodeLost("b", "me"))
    state, note = listed(silent, lost, states=states, now_s=now_s)["b"]
    assert state == "lost"
    assert note.startswith("j@1: nothing was heard of it until its lease was over, nor since; j@1: its runner was")


def test_a_node_that_a_run_does_without_for_a_while_is_excluded_and_says_why() -> None:
    fleet = running("a", "b", spec=job_spec(nnodes=(2, 3)))
    nodes = [RosterNode(node, is_up=True, troubles=(1.0, 2.0) if node == "c" else ()) for node in "abc"]
    fleet.at(BEGUN_S, Roster(tuple(nodes)))
    seen = listed(fleet, states={"a": "ready", "c": "ready"}, now_s=BEGUN_S + 0.5)
    assert seen["a"] == ("ready", "")
    state, why = seen["c"]
    assert (state, why.startswith("j@1: does without it for "), why.count("2 incidents")) == ("excluded", True, 1), why


def test_a_node_that_is_drained_is_so_whatever_stands_by_there() -> None:
    fleet = running("a", "b")
    assert listed(fleet, states={"b": "draining", "c": "drained"}, now_s=BEGUN_S) == {
        "b": ("draining", ""),
        "c": ("drained", ""),
    }
