"""The node table: how a fleet begins, who is taken in, and who has a name (rules N1 to N5)."""

import pytest
from msgspec.structs import replace

from protocol import joining
from protocol.coordinator_events import Draining, Phase, Roster, RosterNode, StopRequested
from protocol.coordinator_events import Opened as Taken
from protocol.fleet import (
    ANSWERS_S,
    RECOVERY_S,
    Fleet,
    in_use,
    may_live_on,
    nodes_in_use,
)
from protocol.fleet_events import (
    Admit,
    DeclaredLost,
    Drop,
    Heard,
    Opened,
    Persist,
    Probe,
    Probed,
    Refuse,
    RosterChanged,
    Tick,
    Unlinked,
)
from protocol.messages.fleet import Join, JoinRefused
from tests.protocol import fleet as stage
from tests.protocol.node_table import (
    HOST,
    WALL_S,
    asked,
    comes,
    join,
    joined,
    note,
    opened,
    record,
    refusal,
    shown,
    wake,
    with_b,
)
from tests.protocol.takeover_stage import given_out, says

# --- a fleet begins --------------------------------------------------------------------------------------------------


def test_a_fleet_of_one_has_its_host_which_is_always_up() -> None:
    fleet = Fleet(HOST, 7, lambda node: "")
    assert fleet.handle(Opened(()), 0.0) == [Persist(record(HOST, 0)), RosterChanged()]
    assert fleet.roster() == (RosterNode("host", is_up=True, joined=0, start="of-host-dir/1"),)
    assert (fleet.deadline_s, fleet.link_of("host")) == (None, None)
    assert fleet.handle(Tick(), 1e6) == []
    assert shown(fleet, "host") == "up"


def test_a_host_that_starts_again_keeps_its_order_number_and_the_nodes_it_knew_may_come() -> None:
    """N6, N8."""
    fleet = Fleet(join("host", "of-host-dir", 2, address="10.0.0.100"), 8, lambda node: "")
    effects = fleet.handle(Opened((record(join("c"), 2), record(HOST, 1), record(join("b"), 0))), 100.0)
    assert effects == [Persist(record(HOST, 1, incarnation=2)), RosterChanged()]
    assert fleet.roster() == (
        RosterNode("b", is_up=False, may_come=True, joined=0, start="of-b-dir/1"),
        RosterNode("host", is_up=True, joined=1, start="of-host-dir/2"),
        RosterNode("c", is_up=False, may_come=True, joined=2, start="of-b-dir/1"),
    )
    assert fleet.deadline_s == 100.0 + RECOVERY_S
    comes(1, join("d"), 101.0, fleet)
    assert [node.joined for node in fleet.roster()] == [0, 1, 2, 3]


def test_a_host_that_starts_again_unchanged_has_nothing_to_write_down() -> None:
    fleet = Fleet(HOST, 8, lambda node: "")
    assert fleet.handle(Opened((record(HOST, 0),)), 0.0) == [RosterChanged()]


def test_known_nodes_that_do_not_come_back_are_told_of_once_even_when_the_host_starts_again() -> None:
    """N9."""
    fleet = opened(record(join("b"), 1), record(join("c", state="of-c-dir"), 2))
    comes(1, join("c", state="of-c-dir"), 2.0, fleet)
    why = "b (10.0.0.2:29410) does not answer: it has not come back since supd on host started"
    gone = record(join("b"), 1, is_away=True)
    assert wake(fleet, RECOVERY_S) == [
        (RECOVERY_S, Persist(gone)),
        (RECOVERY_S, note("node.left", why)),
        (RECOVERY_S, RosterChanged()),
    ]
    again = opened(gone)
    assert shown(again) == "may come"
    assert wake(again, 100.0) == [(RECOVERY_S, RosterChanged())]
    assert shown(again) == "away"


# --- joining ---------------------------------------------------------------------------------------------------------


def test_a_node_is_taken_in_once_it_was_reached_at_its_address_and_written_down() -> None:
    """N1."""
    fleet = opened()
    wish = join(labels={"rack": "r1"})
    assert asked(1, wish, 10.0, fleet) == [Probe(1, "10.0.0.2", 29410, "b", "of-b-dir")]
    assert (fleet.node_of(1), len(fleet.roster())) == (None, 1)
    assert fleet.handle(Probed(1, ok=True), 10.5) == [
        Persist(record(wish, 1)),
        Admit(1, joined()),
        note("node.joined", "b (10.0.0.2:29410) joined", clock_off_s=0.0),
        RosterChanged(),
    ]
    assert (fleet.node_of(1), fleet.link_of("b")) == ("b", 1)
    assert fleet.roster()[1] == RosterNode("b", is_up=True, joined=1, labels={"rack": "r1"}, start="of-b-dir/1")


def test_a_node_that_is_not_reached_is_refused_with_its_address_and_why() -> None:
    """N1."""
    fleet = opened()
    asked(1, join(address="fd00::2"), 10.0, fleet)
    effects = fleet.handle(Probed(1, ok=False, why="connection refused"), 13.0)
    message = "host does not reach b at [fd00::2]:29410: connection refused"
    hint = "open port 29410 in its firewall, or name an address that peers reach: `[listen] advertise`"
    assert effects == [
        Refuse(1, JoinRefused(code="F306", message=message, hint=hint)),
        note("node.refused", message, address="fd00::2", code="F306"),
    ]


@pytest.mark.parametrize(
    ("wish", "code", "message", "hint"),
    [
        (
            join(fleet="blue"),
            "F301",
            "b (10.0.0.2:29410) is of fleet blue, and host (10.0.0.100:29410) of fleet default",
            "write the same `[fleet] name` on both, or `[fleet] join` of the fleet that is meant",
        ),
        (
            join(versions=(3, 2)),
            "F302",
            "b (10.0.0.2:29410) speaks versions 2, 3 of the protocol, and host (10.0.0.100:29410) version 1",
            "install the same supd on both",
        ),
        (
            join(join=("other:29410", "host:29410")),
            "F303",
            (
                '`[fleet] join` of b (10.0.0.2:29410) begins with "other:29410", '
                'that of host (10.0.0.100:29410) with "host:29410"'
            ),
            "write the same list on every node: its first entry is the node that hosts the coordinator",
        ),
        (
            join("host", state="of-b-dir", address="10.0.0.2"),
            "F304",
            (
                "the name host is taken by the node at 10.0.0.100:29410, which answers; "
                "the one at 10.0.0.2:29410 cannot have it as well"
            ),
            "give one of them another name: `[node] name`",
        ),
    ],
)
def test_a_node_that_does_not_fit_is_refused_at_once_with_both_sides_and_the_cure(
    wish: Join, code: str, message: str, hint: str
) -> None:
    """N2, N3."""
    refused = JoinRefused(code=code, message=message, hint=hint)
    told = note("node.refused", message, wish.node, code=code)
    assert asked(1, wish, 10.0, opened()) == [Refuse(1, refused), told]


def test_a_fleet_of_one_takes_nobody_in_and_says_what_it_lacks() -> None:
    """N2."""
    refused = refusal(asked(1, join(), 10.0, opened(host=join("host", "of-host-dir", join=()))))
    assert (refused.code, refused.hint) == ("F303", "write the same `[fleet] join` on both, host first")
    assert "is a fleet of one, without `[fleet] join`; that of b (10.0.0.2:29410) begins with" in refused.message


@pytest.mark.parametrize(
    ("address", "endpoint", "launch", "message"),
    [
        (
            "10.0.0.100",
            "host:29410",
            {"script": "b.py"},
            "b was started with script b.py, and host, where the nodes meet, with a.py",
        ),
        ("10.0.0.100", "10.0.0.100:29410", {"script": "a.py"}, ""),
        (
            "localhost",
            "10.0.0.100:29410",
            {"script": "a.py"},
            (
                "b was started with the endpoint 10.0.0.100:29410, and host, which has it, with localhost:29410: "
                "there other nodes would find nobody"
            ),
        ),
    ],
)
def test_nodes_of_suprun_are_told_the_same_but_for_how_their_endpoint_is_spelled(
    address: str, endpoint: str, launch: dict[str, str], message: str
) -> None:
    """N2."""
    host = join("host", "of-host-dir", address=address, join=(f"{address}:29410",), launch={"script": "a.py"})
    came = joining.mismatch(host, join(join=(endpoint,), launch=launch))
    assert (came and (came.code, came.message)) == (("F320", message) if message else None)


@pytest.mark.parametrize("first", ["HOST", "Host:29410"])
def test_the_case_of_a_name_and_the_port_that_everybody_has_make_no_other_list(first: str) -> None:
    """N2."""
    assert comes(1, join(join=(first, "b")), 10.0, opened())[1] == Admit(1, joined())


@pytest.mark.parametrize("first", ["[FD00:0::1]", "[fd00:0:0:0:0:0:0:1]:29410"])
def test_the_form_of_an_address_makes_no_other_list(first: str) -> None:
    """N2."""
    fleet = opened(host=join("host", "of-host-dir", address="fd00::1", join=("[fd00::1]",)))
    assert comes(1, join(join=(first,)), 10.0, fleet)[1] == Admit(1, joined())


def test_a_list_that_differs_after_its_first_entry_is_told_on_both_sides() -> None:
    """N2."""
    warning = "`[fleet] join` is not the same everywhere: b has host, c, and host host:29410, b:29410"
    fleet = opened()
    effects = comes(1, join(join=("host", "c")), 10.0, fleet)
    assert effects[1:3] == [
        Admit(1, joined(warning)),
        note("node.joined", f"b (10.0.0.2:29410) joined; {warning}", clock_off_s=0.0),
    ]
    assert fleet.status(11.0)[1].note == warning


@pytest.mark.parametrize(
    ("off_s", "warnings"),
    [
        (1.0, ()),
        (-1.0, ()),
        (2.34, ("the clock of b is 2.3 s ahead of that of host",)),
        (-3600.0, ("the clock of b is 3600.0 s behind that of host",)),
        (float("nan"), ("the clock of b is 10000000000.0 s ahead of that of host",)),
    ],
)
def test_a_clock_that_is_off_by_more_than_a_second_is_told_and_never_refused(
    off_s: float, warnings: tuple[str, ...]
) -> None:
    """N7."""
    fleet = opened()
    assert comes(1, join(wall_s=WALL_S + off_s), 10.0, fleet)[1] == Admit(1, joined(*warnings))
    assert fleet.status(11.0)[1].note == "".join(warnings)


def test_a_connection_that_ends_while_its_node_is_probed_leaves_nothing_behind() -> None:
    fleet = opened()
    asked(1, join(), 10.0, fleet)
    assert fleet.handle(Unlinked(1), 11.0) == []
    assert fleet.handle(Probed(1, ok=True), 12.0) == []
    assert len(fleet.roster()) == 1


def test_a_node_that_asks_twice_by_one_connection_stays_who_it_was() -> None:
    """N1."""
    fleet = with_b()
    assert asked(1, join("c"), 11.0, fleet) == []
    asked(2, join("c"), 11.0, fleet)
    assert asked(2, join("d"), 11.0, fleet) == []
    assert fleet.node_of(1) == "b"


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_name_is_taken_while_its_holder_answers_or_may_come_and_free_when_it_is_away() -> None:
    """N3, N5."""
    fleet = with_b()
    other = join(state="of-other-dir", address="10.0.0.9")
    refused = refusal(asked(2, other, 10.0 + ANSWERS_S - 0.01, fleet))
    assert refused.code == "F304"
    assert refused.message.startswith("the name b is taken by the node at 10.0.0.2:29410, which answers; the one at")
    silent_s = 10.0 + ANSWERS_S
    message = "b at 10.0.0.2:29410 may come back; the node at 10.0.0.9:29410 has another state folder"
    hint = "it tries again, and gets the name of a node that stays away"
    assert refusal(asked(2, other, silent_s, fleet)) == JoinRefused(code="F304", message=message, hint=hint)
    wake(fleet, silent_s + RECOVERY_S - 0.01)
    assert refusal(asked(2, other, silent_s + RECOVERY_S - 0.01, fleet)).message == message
    wake(fleet, silent_s + RECOVERY_S)
    asked(3, other, silent_s + RECOVERY_S, fleet)
    text = "b (10.0.0.9:29410) is in place of the node at 10.0.0.2:29410, with another state folder"
    assert fleet.handle(Probed(3, ok=True), silent_s + RECOVERY_S) == [
        Persist(record(other, 1)),  # the name keeps its number
        Drop(1, "b has connected anew"),
        Admit(3, joined()),
        note("node.replaced", text, address="10.0.0.9", clock_off_s=0.0),
        RosterChanged(),
    ]
    assert fleet.link_of("b") == 3


def test_what_has_changed_while_a_node_was_probed_counts() -> None:
    """N1: two nodes want one name at once; the first that is reached has it."""
    fleet = opened()
    asked(1, join(state="of-other-dir", address="10.0.0.9"), 10.0, fleet)
    asked(2, join(), 10.1, fleet)
    assert Admit(2, joined()) in fleet.handle(Probed(2, ok=True), 10.2)
    assert refusal(fleet.handle(Probed(1, ok=True), 10.3)).code == "F304"
    assert (fleet.link_of("b"), fleet.node_of(1)) == (2, None)


def test_a_later_start_of_the_same_state_folder_replaces_the_earlier_one_at_once() -> None:
    """N4."""
    fleet = with_b()
    assert comes(2, join(start=2), 10.5, fleet) == [
        Persist(record(join(start=2), 1)),
        Drop(1, "b has connected anew"),
        Admit(2, joined()),
        note("node.replaced", "b (10.0.0.2:29410) has a supd that was started again", clock_off_s=0.0),
        RosterChanged(),
    ]
    assert fleet.handle(Heard(1), 11.0) == []
    assert fleet.handle(Unlinked(1), 11.0) == []
    assert fleet.link_of("b") == 2


def test_the_same_process_may_connect_anew_and_nothing_is_told_or_written_of_it() -> None:
    """N4, N9."""
    fleet = with_b()
    effects = comes(2, join(wall_s=WALL_S + 0.2), 10.5, fleet)
    assert effects == [Drop(1, "b has connected anew"), Admit(2, joined())]


def test_the_newer_of_two_connections_of_one_process_counts_whichever_is_reached_first() -> None:
    """N4."""
    fleet = opened()
    asked(1, join(), 10.0, fleet)
    asked(2, join(), 10.1, fleet)
    fleet.handle(Probed(2, ok=True), 10.2)
    assert fleet.handle(Probed(1, ok=True), 10.3) == [Drop(1, "b has connected anew")]
    assert fleet.link_of("b") == 2


@pytest.mark.parametrize(
    ("wish", "starts"),
    [
        (join(start=2, address="10.0.0.9"), "that one is start 3 of it, this one start 2"),
        (join(start=3, address="10.0.0.9"), "that one is start 3 of it, this one start 3"),
    ],
)
def test_a_copied_state_folder_is_refused_while_the_other_one_answers(wish: Join, starts: str) -> None:
    """N4."""
    fleet = opened()
    comes(1, join(start=3), 10.0, fleet)
    refused = refusal(asked(2, wish, 11.0, fleet))
    there = "the state folder of b (10.0.0.9:29410) is also in use by the node at 10.0.0.2:29410, which answers"
    message = f"{there}: {starts}"
    hint = "a state folder is never copied or shared: move this one away, or name another `[state] dir`"
    assert refused == JoinRefused(code="F304", message=message, hint=hint)
    message = "b at 10.0.0.2:29410 may come back; the node at 10.0.0.9:29410 has a copy of its state folder"
    assert refusal(asked(3, wish, 14.0, fleet)).message == message
    wake(fleet, 20.0)
    assert Admit(3, joined()) in comes(3, wish, 20.0, fleet)


def test_another_state_folder_gets_no_name_under_which_ranks_may_still_run() -> None:
    """N5."""
    seats = {"b": "j@1"}
    fleet = with_b(seats=seats)
    fleet.handle(Unlinked(1), 11.0)
    other = join(state="of-other-dir", address="10.0.0.9")
    there = "j@1 may still run as b at 10.0.0.2:29410, which does not answer"
    message = f"{there}; the node at 10.0.0.9:29410 has another state folder"
    hint = "start supd with the state folder it had, or give this node another name until j@1 is over"
    assert refusal(asked(2, other, 60.0, fleet)) == JoinRefused(code="F305", message=message, hint=hint)
    asked(3, other, 61.0, fleet)
    assert Admit(4, joined()) in comes(4, join(start=2), 61.0, fleet)  # its own is welcome
    fleet.handle(Unlinked(4), 62.0)
    seats.clear()
    wake(fleet, 62.0 + RECOVERY_S)
    assert Admit(5, joined()) in comes(5, other, 68.0, fleet)


def test_after_a_start_of_the_host_a_name_is_kept_until_the_runners_of_its_node_had_time_to_come() -> None:
    """N5, N6: who holds it is not there yet, and of a runner that has no ranks nothing is on disk."""
    other = join(state="of-other-dir", address="10.0.0.9")
    fleet = opened(record(join(), 1))
    assert refusal(asked(1, other, 0.1, fleet)).code == "F304"
    assert Admit(2, joined()) in comes(2, join(), 0.2, fleet), "its own is welcome"
    fleet = opened(record(join(), 1))
    wake(fleet, RECOVERY_S)
    assert Admit(1, joined()) in comes(1, other, RECOVERY_S + 0.1, fleet)


def test_a_run_may_live_on_a_node_where_its_runner_has_ranks_or_was_heard_until_that_is_proven_gone() -> None:
    """N5."""
    run = stage.running("a", "b")
    after = run.restarted(10.0).coordinator  # which has heard nobody: the seats are on disk
    assert [may_live_on(node, after) for node in "abc"] == [True, True, False]
    run.gone(11.0, "b1")
    assert [may_live_on(node, run.coordinator) for node in "ab"] == [True, False]
    idle = stage.forming("a", "b")
    idle.offers(1.0, "a1")
    assert [may_live_on(node, idle.coordinator) for node in "ab"] == [True, False]
    idle.gone(2.0, "a1")
    assert not may_live_on("a", idle.coordinator)
    idle.offers(3.0, "a2")
    idle.at(4.0, StopRequested(None, False, "me"))
    assert not may_live_on("a", idle.coordinator), "it is over"


def test_the_name_of_a_node_that_an_operator_has_given_up_is_free_at_once_and_it_may_still_come_back() -> None:
    """N5."""
    other = join(state="of-other-dir", address="10.0.0.9")
    fleet = with_b()
    assert fleet.handle(DeclaredLost("b"), 10.5) == [], "it answers"
    assert fleet.handle(DeclaredLost("host"), 10.5) == []
    assert fleet.handle(DeclaredLost("nobody"), 10.5) == []
    fleet.handle(Unlinked(1), 11.0)
    assert refusal(asked(2, other, 11.5, fleet)).code == "F304"
    told = note("node.left", "b (10.0.0.2:29410) does not answer: its connection has ended")
    away = Persist(record(join(), 1, is_away=True))
    assert fleet.handle(DeclaredLost("b"), 12.0) == [away, told, RosterChanged()]
    assert shown(fleet) == "away"
    assert fleet.handle(DeclaredLost("b"), 12.1) == [], "as often as anybody likes"
    assert Admit(3, joined()) in comes(3, join(), 12.5, fleet)
    fleet.handle(Unlinked(3), 13.0)
    fleet.handle(DeclaredLost("b"), 13.5)
    assert Admit(4, joined()) in comes(4, other, 14.0, fleet)


@pytest.mark.parametrize("start", [3, 7], ids=["an earlier start", "the same one"])
def test_a_copied_state_folder_gets_no_name_under_which_a_runner_may_be_alive(start: int) -> None:
    """N5: it has the rows of the runners and not their locks, and would say that they are gone."""
    seats = {"b": "j@1"}
    fleet = opened(seats=seats)
    comes(1, join(start=7), 10.0, fleet)  # and is silent from then on
    copy = join(start=start, address="10.0.0.9")
    message = (
        "j@1 may still run as b at 10.0.0.2:29410, which does not answer; "
        f"that was start 7 of its state folder, the one at 10.0.0.9:29410 is start {start}"
    )
    hint = "a state folder is never copied: take this one away; where it is the same one, start supd there again"
    assert refusal(asked(2, copy, 16.0, fleet)) == JoinRefused(code="F305", message=message, hint=hint)
    assert Admit(3, joined()) in comes(3, join(start=7), 17.0, fleet), "itself, by a new connection"
    fleet.handle(Unlinked(3), 18.0)
    assert Admit(4, joined()) in comes(4, join(start=8, address="10.0.0.9"), 19.0, fleet), "a later start has the locks"


def waiting(drain: Draining | None = None) -> stage.Fleet:
    """A run on a and b whose ranks have failed, as the next coordinator takes it up; b is to be free, or not."""
    ran = stage.running("a", "b")
    again = stage.Fleet("a", "b", record=replace(ran.record, phase=Phase.BACKOFF, backoff_s=600.0), epoch=2)
    again.at(10.0, Taken())
    assert nodes_in_use(again.coordinator) is None
    again.at(10.1, Roster((RosterNode("a", is_up=True), RosterNode("b", is_up=True, joined=1, drain=drain))))
    return again


@pytest.mark.parametrize("may_wait", [True, False])
def test_where_a_run_may_go_on_is_not_known_before_it_has_heard_of_the_nodes(may_wait: bool) -> None:
    """N10: a node that it has left is told to be free once, and one that is its last resort is not."""
    drain = Draining(at_checkpoint=may_wait, go_s=5.0, by="me", reason="")
    assert nodes_in_use(waiting(drain).coordinator) == ({"a", "b"} if may_wait else {"a"})
    early = stage.Fleet("a", record=replace(stage.running("a").record, phase=Phase.HELD), epoch=2)
    assert in_use([waiting().coordinator, early.coordinator]) is None
    assert in_use([waiting().coordinator, stage.running("c").coordinator]) == frozenset("abc")
    assert in_use([]) == frozenset()


def test_while_a_run_is_taken_over_nodes_that_are_named_are_in_use_and_those_that_are_on_disk() -> None:
    """N10: their ranks may run, though their runners were not heard yet."""
    fleet, given = stage.running("a", "d"), given_out("abc")
    says(fleet, 5.0, "a1", given, tells=False)
    assert nodes_in_use(fleet.coordinator) == {"a", "d"}
    says(fleet, 5.1, "a1", given)
    assert nodes_in_use(fleet.coordinator) == {"a", "b", "c", "d"}
