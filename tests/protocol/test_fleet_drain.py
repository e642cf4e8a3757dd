"""The node table: what operators want of nodes, what nodes have been through, and what their supd was sent (N10)."""

from typing import Any

import pytest
from msgspec.structs import replace

from protocol.coordinator_events import Draining, Note, RosterNode
from protocol.fleet import Fleet
from protocol.fleet_events import (
    Drain,
    DrainRequested,
    Effect,
    NodeRecord,
    Opened,
    Persist,
    RosterChanged,
    Seated,
    Signalled,
    Troubled,
    UndrainRequested,
    Unlinked,
)
from protocol.upkeep import TROUBLES_MAX, TROUBLES_S
from tests.protocol.node_table import HOST, WALL_S, comes, join, opened, record, wake, with_b

DRAIN = Drain(by="ada", reason="swap NIC", go_wall_s=WALL_S + 1800.0)


def seen(fleet: Fleet, name: str = "b") -> RosterNode:
    """How the runs see a node."""
    (node,) = (node for node in fleet.roster() if node.name == name)
    return node


def kept(effects: list[Effect]) -> NodeRecord:
    """What is written down of a node."""
    (one,) = (effect.node for effect in effects if isinstance(effect, Persist))
    return one


def told(effects: list[Effect]) -> list[str]:
    """The kinds of what is told."""
    return [effect.kind for effect in effects if isinstance(effect, Note)]


def drained(fleet: Fleet, now_s: float = 20.0, **changed: Any) -> list[Effect]:
    """Somebody wants b free."""
    return fleet.handle(DrainRequested("b", replace(DRAIN, **changed), WALL_S + now_s), now_s)


def test_a_drain_is_written_down_told_and_shown_to_runs_in_boot_time() -> None:
    fleet = with_b()
    assert drained(fleet) == [
        Persist(record(join(), 1, drain=DRAIN)),
        Note(
            "node.draining",
            "b is to be free (swap NIC), as ada says: it takes no new work, and runs leave it at their next "
            "checkpoint, else in 1780 s",
            None,
            {"node": "b", "by": "ada", "reason": "swap NIC", "at_checkpoint": True, "left_s": 1780.0},
        ),
        RosterChanged(),
    ]
    assert seen(fleet).drain == Draining(at_checkpoint=True, go_s=1800.0, by="ada", reason="swap NIC")
    [_, b] = fleet.status(21.0)
    assert (b.state, b.drain_by, b.drain_reason) == ("draining", "ada", "swap NIC")
    assert b.note == "to be free (swap NIC), as ada says"


def test_a_drain_without_a_checkpoint_says_when_runs_leave() -> None:
    [_, note, _] = drained(with_b(), at_checkpoint=False, go_wall_s=WALL_S, reason="")
    assert isinstance(note, Note)
    assert note.text == "b is to be free, as ada says: it takes no new work, and runs leave it now"


def test_that_a_node_is_free_is_told_once_as_soon_as_no_run_has_ranks_there() -> None:
    fleet = with_b()
    fleet.handle(Seated(frozenset({"b", "host"})), 15.0)
    assert told(drained(fleet)) == ["node.draining"]
    effects = fleet.handle(Seated(frozenset({"host"})), 30.0)
    assert told(effects) == ["node.drained"]
    assert kept(effects).drain == replace(DRAIN, is_free=True)
    assert fleet.status(31.0)[1].state == "drained"
    assert fleet.handle(Seated(frozenset()), 40.0) == []
    again = with_b(kept(effects))
    assert again.handle(Seated(frozenset()), 50.0) == [], "it was told before the host started again"


def test_a_node_that_no_run_uses_is_free_at_once_and_one_of_which_that_is_not_known_is_not() -> None:
    fleet = with_b()
    assert told(drained(fleet)) == ["node.draining"]
    assert told(fleet.handle(Seated(frozenset()), 21.0)) == ["node.drained"]
    idle = with_b()
    idle.handle(Seated(frozenset()), 15.0)
    assert told(drained(idle)) == ["node.draining", "node.drained"]


def test_a_node_that_gets_ranks_once_more_is_told_of_again_when_it_is_free() -> None:
    fleet = with_b()
    drained(fleet)
    for nodes, kinds in ((frozenset[str](), ["node.drained"]), (frozenset({"b"}), []), (frozenset(), ["node.drained"])):
        assert told(fleet.handle(Seated(nodes), 30.0)) == kinds


def test_a_second_drain_stands_for_the_first_and_one_of_a_free_node_leaves_it_free() -> None:
    fleet = with_b()
    fleet.handle(Seated(frozenset()), 15.0)
    drained(fleet)
    effects = drained(fleet, reason="ECC", go_wall_s=WALL_S + 60.0)
    assert told(effects) == ["node.draining"]
    assert seen(fleet).drain == Draining(at_checkpoint=True, go_s=60.0, by="ada", reason="ECC")
    assert fleet.status(21.0)[1].state == "drained"


def test_an_undrained_node_is_as_if_nothing_had_been_and_counts_as_another_start() -> None:
    fleet = with_b()
    drained(fleet)
    fleet.handle(Troubled("b", WALL_S), 21.0)
    fleet.handle(Signalled(1, {"SIGUSR1": 1}), 22.0)
    effects = fleet.handle(UndrainRequested("b", "eve"), 30.0)
    assert told(effects) == ["node.undrained"]
    node = seen(fleet)
    assert (node.drain, node.troubles, node.signals, node.start) == (None, (), frozenset(), "of-b-dir/1/undrained-1")
    assert fleet.status(31.0)[1].state == "ready"
    fleet.handle(Signalled(1, {"SIGUSR1": 1}), 32.0)
    assert not seen(fleet).signals, "its supd says so until it ends"
    fleet.handle(Signalled(1, {"SIGUSR1": 2}), 33.0)
    assert seen(fleet).signals == {"SIGUSR1"}, "this one came later"


def test_what_was_forgiven_stays_forgiven_when_the_host_starts_again_but_not_when_its_supd_does() -> None:
    fleet = with_b()
    fleet.handle(Signalled(1, {"SIGUSR1": 1}), 22.0)
    record_of_b = kept(fleet.handle(UndrainRequested("b", "eve"), 30.0))
    again = with_b(record_of_b)
    again.handle(Signalled(1, {"SIGUSR1": 1}), 12.0)
    assert (seen(again).signals, seen(again).start) == (frozenset(), "of-b-dir/1/undrained-1")
    comes(2, join(start=2), 13.0, again)
    again.handle(Signalled(2, {"SIGUSR1": 1}), 14.0)
    assert (set(seen(again).signals), seen(again).start) == ({"SIGUSR1"}, "of-b-dir/2")


@pytest.mark.parametrize("forgiven", [{}, {"SIGUSR1": 1}], ids=["at first", "once more"])
def test_what_a_supd_had_been_sent_is_forgiven_before_it_has_said_so_to_a_host_that_starts_again(
    forgiven: dict[str, int],
) -> None:
    again = opened(record(join(), 1, signals={"SIGUSR1": 2}, forgiven=forgiven))
    again.handle(UndrainRequested("b", "eve"), 1.0)
    comes(1, join(), 2.0, again)
    again.handle(Signalled(1, {"SIGUSR1": 2}), 2.1)
    assert not seen(again).signals
    again.handle(Signalled(1, {"SIGUSR1": 3}), 2.2)
    assert seen(again).signals == {"SIGUSR1"}, "this one came later"


def test_what_was_forgiven_by_a_host_that_did_not_keep_signals_is_so_when_it_is_once_more() -> None:
    again = opened(record(join(), 1, undrained=1, forgiven={"SIGUSR1": 1}))
    again.handle(UndrainRequested("b", "eve"), 1.0)
    comes(1, join(), 2.0, again)
    again.handle(Signalled(1, {"SIGUSR1": 1}), 2.1)
    assert not seen(again).signals


def test_what_is_kept_of_signals_is_no_notice_before_its_supd_says_so() -> None:
    """That supd may be gone, and what runs there meanwhile may be of the next one."""
    again = opened(record(join(), 1, signals={"SIGUSR1": 1}))
    assert not seen(again).signals
    comes(1, join(start=2), 2.0, again)
    again.handle(Signalled(1, {"SIGUSR1": 1}), 2.1)
    assert seen(again).signals == {"SIGUSR1"}


def test_signals_last_over_a_lost_connection_and_end_with_the_supd_that_was_sent_them() -> None:
    fleet = with_b()
    sent = {"SIGTERM": 1, "SIGUSR2": 3}
    assert fleet.handle(Signalled(1, sent), 20.0) == [Persist(record(join(), 1, signals=sent)), RosterChanged()]
    assert seen(fleet).signals == {"SIGTERM", "SIGUSR2"}
    assert fleet.status(20.0)[1].note == "its supd was sent SIGTERM, SIGUSR2"
    fleet.handle(Unlinked(1), 21.0)
    comes(2, join(), 22.0, fleet)
    assert seen(fleet).signals == {"SIGTERM", "SIGUSR2"}
    comes(3, join(start=2), 23.0, fleet)
    assert seen(fleet).signals == frozenset()


def test_a_node_that_is_not_in_the_table_yet_was_sent_no_signals() -> None:
    """The host's own supd may report before the table is opened."""
    assert Fleet(HOST, 8, lambda node: "").signals_of(HOST.node) == {}


def test_the_hosts_own_supd_has_signals_too_and_those_of_nobody_change_nothing() -> None:
    fleet = with_b()
    fleet.handle(Signalled(None, {"SIGUSR1": 1}), 20.0)
    assert seen(fleet, "host").signals == {"SIGUSR1"}
    assert fleet.handle(Signalled(9, {"SIGUSR1": 1}), 21.0) == []


def test_a_drain_and_a_history_outlive_the_host_and_a_clock_of_another_boot() -> None:
    known = record(join(), 1, drain=DRAIN, troubles=(WALL_S - 100.0, WALL_S + 50.0))
    fleet = Fleet(HOST, 8, lambda node: "")
    fleet.handle(Opened((record(HOST, 0), known), WALL_S + 60.0), 7.0)
    assert seen(fleet).drain == Draining(at_checkpoint=True, go_s=7.0 + 1740.0, by="ada", reason="swap NIC")
    assert seen(fleet).troubles == (7.0 - 160.0, 7.0 - 10.0)
    comes(1, join(start=2), 8.0, fleet)
    assert (seen(fleet).troubles, seen(fleet).drain is None) == ((7.0 - 160.0, 7.0 - 10.0), False)


def test_an_incident_that_a_clock_put_back_has_in_the_future_is_one_of_now() -> None:
    fleet = Fleet(HOST, 8, lambda node: "")
    fleet.handle(Opened((record(HOST, 0), record(join(), 1, troubles=(WALL_S + 9000.0,))), WALL_S), 7.0)
    assert seen(fleet).troubles == (7.0,)


def test_another_machine_of_the_name_is_drained_as_well_and_has_no_history() -> None:
    fleet = with_b(record(join(), 1, drain=DRAIN, troubles=(WALL_S,)))
    fleet.handle(Unlinked(1), 11.0)
    wake(fleet, 30.0)
    comes(2, join(state="of-new-dir"), 30.0, fleet)
    assert (seen(fleet).start, seen(fleet).troubles, seen(fleet).drain is None) == ("of-new-dir/1", (), False)


def test_the_newest_incidents_are_remembered_and_none_for_longer_than_a_month() -> None:
    fleet = with_b()
    for number in range(TROUBLES_MAX + 5):
        effects = fleet.handle(Troubled("b", WALL_S + number), 100.0 + number)
    assert kept(effects).troubles == tuple(WALL_S + number for number in range(5, TROUBLES_MAX + 5))
    assert seen(fleet).troubles == tuple(100.0 + number for number in range(5, TROUBLES_MAX + 5))
    later_s = 100.0 + TROUBLES_MAX + TROUBLES_S
    effects = fleet.handle(Troubled("b", WALL_S + later_s), later_s)
    assert kept(effects).troubles == (*(WALL_S + n for n in range(TROUBLES_MAX, TROUBLES_MAX + 5)), WALL_S + later_s)


@pytest.mark.parametrize(
    "event", [DrainRequested("x", DRAIN, WALL_S), UndrainRequested("x", "ada"), Troubled("x", 1.0)]
)
def test_what_is_wanted_of_no_node_changes_nothing(event: DrainRequested | UndrainRequested | Troubled) -> None:
    assert with_b().handle(event, 20.0) == []
