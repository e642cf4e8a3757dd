"""The node table: who answers, who may come, and what is told of it, whatever nodes do (rules N6 to N9)."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fleet as machine
from protocol.coordinator_events import Note
from protocol.fleet import (
    ANSWERS_S,
    ASKED_MAX,
    HELD_UP_S,
    LOOK_S,
    RECOVERY_S,
    TELL_AGAIN_S,
    TOLD_MAX,
    Fleet,
)
from protocol.fleet_events import (
    Admit,
    Asked,
    Drain,
    DrainRequested,
    Drop,
    Effect,
    Event,
    Forget,
    Heard,
    NodeRecord,
    Opened,
    Persist,
    Probe,
    Probed,
    Refuse,
    RosterChanged,
    Seated,
    Signalled,
    Tick,
    Troubled,
    UndrainRequested,
    Unlinked,
)
from protocol.messages import encode
from protocol.messages.control import NodeStatus
from protocol.messages.fleet import NodeFacts
from tests.protocol.node_table import (
    HOST,
    LIST,
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

# --- coming and going ------------------------------------------------------------------------------------------------


def test_a_node_whose_connection_ends_may_come_for_a_while_and_is_away_then() -> None:
    """N6."""
    fleet = with_b()
    assert fleet.handle(Unlinked(1), 11.0) == [RosterChanged()]
    assert (shown(fleet), fleet.link_of("b")) == ("may come", None)
    why = "b (10.0.0.2:29410) does not answer: its connection has ended"
    assert wake(fleet, 100.0) == [
        (11.0 + RECOVERY_S, Persist(record(join(), 1, is_away=True))),
        (11.0 + RECOVERY_S, note("node.left", why)),
        (11.0 + RECOVERY_S, RosterChanged()),
    ]
    assert (shown(fleet), fleet.deadline_s) == ("away", None)


def test_a_node_that_is_back_in_time_is_told_of_by_no_event() -> None:
    """N9."""
    fleet = with_b()
    fleet.handle(Unlinked(1), 11.0)
    assert comes(2, join(), 12.0, fleet) == [Admit(2, joined()), RosterChanged()]


def test_a_node_that_was_away_and_is_back_is_told_of() -> None:
    fleet = with_b()
    fleet.handle(Unlinked(1), 11.0)
    wake(fleet, 30.0)
    assert comes(2, join(), 31.0, fleet) == [
        Persist(record(join(), 1)),
        Admit(2, joined()),
        note("node.joined", "b (10.0.0.2:29410) answers again", clock_off_s=0.0),
        RosterChanged(),
    ]


def test_a_node_that_falls_silent_may_come_then_is_away_and_is_up_again_when_it_is_heard() -> None:
    """N6."""
    fleet = with_b()
    fleet.handle(Heard(1), 12.0)
    silent_s = 12.0 + ANSWERS_S
    assert wake(fleet, silent_s) == [(silent_s, RosterChanged())]
    assert (shown(fleet), fleet.node_of(1), fleet.link_of("b")) == ("may come", "b", 1)
    assert wake(fleet, 60.0) == [
        (silent_s + RECOVERY_S, Persist(record(join(), 1, is_away=True))),
        (silent_s + RECOVERY_S, note("node.left", "b (10.0.0.2:29410) does not answer: it is silent")),
        (silent_s + RECOVERY_S, RosterChanged()),
    ]
    assert fleet.handle(Heard(1), 61.0) == [
        Persist(record(join(), 1)),
        note("node.joined", "b (10.0.0.2:29410) answers again", clock_off_s=0.0),
        RosterChanged(),
    ]
    assert shown(fleet) == "up"
    assert fleet.deadline_s == 61.0 + ANSWERS_S


def test_a_node_that_is_silent_for_a_moment_is_told_of_by_no_event_and_nothing_is_written() -> None:
    """N9."""
    fleet = with_b()
    wake(fleet, 14.0)
    assert shown(fleet) == "may come"
    assert fleet.handle(Heard(1), 14.0) == [RosterChanged()]


def test_a_node_that_was_silent_for_long_may_come_when_its_connection_ends() -> None:
    """N6."""
    fleet = with_b()
    wake(fleet, 60.0)
    assert fleet.handle(Unlinked(1), 60.0) == [RosterChanged()]
    assert shown(fleet) == "may come"
    assert wake(fleet, 100.0) == [(60.0 + RECOVERY_S, RosterChanged())]


def test_a_host_that_was_held_up_itself_hears_what_was_said_meanwhile_before_it_judges() -> None:
    """N6."""
    fleet = with_b()
    late_s = 10.0 + ANSWERS_S + HELD_UP_S + 0.1
    assert fleet.handle(Tick(), late_s) == []
    assert (shown(fleet), fleet.deadline_s) == ("up", late_s + LOOK_S)
    fleet.handle(Heard(1), late_s)
    assert wake(fleet, late_s + 1.0) == []
    assert wake(fleet, late_s + ANSWERS_S) == [(late_s + ANSWERS_S, RosterChanged())]


def test_a_node_that_reports_every_second_stays_up_and_costs_few_looks() -> None:
    fleet, looks = with_b(), 0
    for second in range(11, 111):
        looks += len(list(ticks(fleet, float(second))))
        assert fleet.handle(Heard(1), float(second)) == []
    assert (shown(fleet), looks <= 50) == ("up", True)


def ticks(fleet: Fleet, until_s: float) -> Iterator[float]:
    """Every tick that is due up to then; nothing follows from it."""
    while fleet.deadline_s is not None and fleet.deadline_s <= until_s:
        now_s = fleet.deadline_s
        assert fleet.handle(Tick(), now_s) == []
        yield now_s


def test_however_nodes_report_all_are_looked_at_a_few_times_a_second_at_most() -> None:
    fleet, nodes, step_s = opened(), 50, (ANSWERS_S - 0.1) / 50
    for number in range(nodes):
        comes(number, join(f"n{number}", state=f"folder-{number}"), number * step_s, fleet)
    looks = 0
    for turn in range(1, 6):
        for number in range(nodes):  # each just in time
            now_s = (turn * nodes + number) * step_s
            looks += len(list(ticks(fleet, now_s)))
            fleet.handle(Heard(number), now_s)
    assert looks <= 5 * ANSWERS_S / LOOK_S + 2


def test_the_status_says_how_each_node_is_and_what_it_told_of_itself() -> None:
    facts = NodeFacts(host="b.example", boot_id="x", kernel="6.1", python="3.12", supd="0.1", cpus=8, devices="none")
    fleet = opened(record(join("c", state="of-c-dir"), 1))
    comes(1, join(labels={"rack": "r1"}, facts=facts, wall_s=WALL_S + 0.5), 1.0, fleet)
    wake(fleet, 6.0)
    assert fleet.status(2.5) == (
        NodeStatus(
            node="host",
            state="ready",
            address="10.0.0.100",
            port=29410,
            is_host=True,
            clock_off_s=0.0,
            joined_wall_s=WALL_S,
        ),
        NodeStatus(
            node="c",
            state="unreachable",
            address="10.0.0.3",
            port=29410,
            clock_off_s=0.0,
            joined_wall_s=WALL_S,
            note="it has not come back since supd on host started",
        ),
        NodeStatus(
            node="b",
            state="unreachable",
            address="10.0.0.2",
            port=29410,
            clock_off_s=0.5,
            seen_s=1.5,
            joined_wall_s=WALL_S,
            labels={"rack": "r1"},
            note="it is silent",
            host="b.example",
            boot_id="x",
            kernel="6.1",
            python="3.12",
            supd="0.1",
            cpus=8,
            devices="none",
        ),
    )


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_node_that_is_refused_every_second_is_told_of_once_a_minute() -> None:
    """N9."""
    fleet = opened()
    told = [asked(second, join(fleet="blue"), float(second), fleet)[1:] for second in range(1, 122)]
    assert [second for second, effects in enumerate(told, 1) if effects] == [1, 1 + TELL_AGAIN_S, 1 + 2 * TELL_AGAIN_S]
    assert len(asked(200, join(fleet="blue", address="10.0.0.9"), 121.0, fleet)) == 2  # that is another one
    assert len(asked(201, join(versions=(2,)), 121.0, fleet)) == 2  # or for another reason


def test_a_supd_that_starts_again_and_again_is_told_of_once_a_minute() -> None:
    """N9."""
    fleet = with_b()
    told = [
        any(isinstance(effect, Note) for effect in comes(start, join(start=start), 10.0 + start, fleet))
        for start in range(2, 72)
    ]
    assert [start for start, is_told in enumerate(told, 2) if is_told] == [2, 2 + TELL_AGAIN_S]


def test_nodes_that_are_refused_in_a_flood_are_not_all_remembered_and_told() -> None:
    fleet = opened()
    told = [len(asked(n, join(f"n{n}", fleet="blue"), 10.0, fleet)) for n in range(TOLD_MAX + 5)]
    assert told == [2] * TOLD_MAX + [1] * 5
    assert len(asked(0, join(fleet="blue"), 10.0 + TELL_AGAIN_S, fleet)) == 2


def test_only_so_many_nodes_are_probed_at_once_and_the_others_try_again() -> None:
    fleet = opened()
    for n in range(ASKED_MAX):
        asked(n, join(f"n{n}"), 10.0, fleet)
    refused = refusal(asked(ASKED_MAX, join(), 10.0, fleet))
    message = f"host (10.0.0.100:29410) has no room for b (10.0.0.2:29410): {ASKED_MAX} others join at this moment"
    assert (refused.code, refused.message) == ("F307", message)
    fleet.handle(Unlinked(0), 10.1)
    assert len(comes(ASKED_MAX + 1, join(), 10.2, fleet)) == 4


def test_a_table_that_is_full_forgets_who_is_away_for_longest_and_has_no_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    """N8."""
    monkeypatch.setattr(machine, "NODES_MAX", 4)
    wishes = {name: join(name, state=f"folder-{name}") for name in "bcde"}
    fleet = opened(seats={"b": "j@1"})
    for link, name in enumerate("bcd"):
        comes(link, wishes[name], 10.0 + link, fleet)
    refused = refusal(asked(3, wishes["e"], 13.0, fleet))
    assert (refused.code, refused.message[-28:]) == ("F307", "9410): the fleet has 4 nodes")
    for link in range(3):
        fleet.handle(Unlinked(link), 14.0 + link)
    assert refusal(asked(4, wishes["e"], 14.0 + RECOVERY_S, fleet)).code == "F307"
    wake(fleet, 30.0)
    assert comes(5, wishes["e"], 31.0, fleet)[:2] == [Forget("c"), Persist(record(wishes["e"], 4))]
    assert [node.name for node in fleet.roster()] == ["host", "b", "d", "e"]


# --- told anything ---------------------------------------------------------------------------------------------------

LINKS = st.integers(0, 7)
JOINS = st.builds(
    join,
    node=st.sampled_from(["b", "b", "c", "host"]),
    state=st.sampled_from(["of-b-dir", "of-b-dir", "of-c-dir", "of-host-dir"]),
    start=st.integers(1, 3),
    versions=st.sampled_from([(1,), (1,), (1,), (), (2, 2**63)]),
    fleet=st.sampled_from(["default", "default", "default", "\n" * 600]),
    address=st.sampled_from(["10.0.0.2", "10.0.0.9", "::1", "x\0" * 100]),
    join=st.sampled_from([LIST, LIST, ("host",), ("HOST", "::1"), (), ("\udcff",)]),
    wall_s=st.floats(),
    labels=st.sampled_from([{}, {"rack": "r1"}]),
)
NAMES = st.sampled_from(["b", "c", "host", "nobody"])
EVENTS = st.one_of(
    st.builds(Asked, LINKS, JOINS, st.just(WALL_S)),
    st.builds(Asked, LINKS, st.builds(join), st.just(WALL_S)),
    st.builds(Probed, LINKS, ok=st.sampled_from([True, True, False]), why=st.just("no answer within 3 s")),
    st.builds(Probed, LINKS, ok=st.just(True)),
    st.builds(Heard, LINKS),
    st.builds(Heard, LINKS),
    st.builds(Unlinked, LINKS),
    st.builds(DrainRequested, NAMES, st.just(Drain(by="ada", go_wall_s=WALL_S)), st.just(WALL_S)),
    st.builds(UndrainRequested, NAMES, st.just("ada")),
    st.builds(Troubled, NAMES, st.just(WALL_S)),
    st.builds(Signalled, st.none() | LINKS, st.dictionaries(st.sampled_from(["SIGUSR1", "SIGTERM"]), st.just(1))),
    st.builds(Seated, st.frozensets(NAMES)),
    st.just(Tick()),
)
KNOWN = st.sampled_from([(), (record(join(), 1),), (record(join(), 1, is_away=True), record(join("c"), 5))])


class Ledger:
    """What the shell would have after all effects: the journal, and the connections that are open."""

    def __init__(self, known: tuple[NodeRecord, ...]) -> None:
        self.journal = {node.name: node for node in known}
        self.admitted: dict[int, str] = {}

    def hands_in(self, fleet: Fleet, event: Event, now_s: float) -> None:
        before = fleet.roster()
        effects = fleet.handle(event, now_s)
        if isinstance(event, Unlinked):
            self.admitted.pop(event.link, None)
        self.performs(fleet, effects)
        assert effects.count(RosterChanged()) == (fleet.roster() != before)
        assert {link: fleet.node_of(link) for link in self.admitted} == self.admitted

    def performs(self, fleet: Fleet, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(kept):
                    self.journal[kept.name] = kept
                case Forget(name):
                    del self.journal[name]
                case Admit(link, answer):
                    node_of = fleet.node_of(link)
                    assert node_of is not None
                    assert node_of not in self.admitted.values(), "two connections have one name"
                    self.admitted[link] = node_of
                    encode(answer)
                case Refuse(link, answer):
                    assert link not in self.admitted
                    assert answer.message.isprintable()
                    encode(answer)
                case Drop(link, _):
                    self.admitted.pop(link, None)
                case Note(_, text, None, detail):
                    encode((text, detail))
                case Note() | Probe() | RosterChanged():
                    pass


@settings(deadline=None, max_examples=300)
@given(
    known=KNOWN,
    seats=st.dictionaries(st.sampled_from("bc"), st.just("j@1")),
    nodes_max=st.sampled_from([2, 10]),
    events=st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.1, 1.0, 2.9, 3.0, 8.0])), max_size=40),
)
def test_nothing_that_nodes_do_makes_it_raise_or_gives_a_name_twice_or_changes_the_roster_unsaid(
    known: tuple[NodeRecord, ...], seats: dict[str, str], nodes_max: int, events: list[tuple[Event, float]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "NODES_MAX", nodes_max)
        fleet, ledger, now_s = Fleet(HOST, 7, lambda node: seats.get(node, "")), Ledger(known), 0.0
        ledger.performs(fleet, fleet.handle(Opened(known), now_s))
        for event, wait_s in events:
            until_s = now_s + wait_s
            while fleet.deadline_s is not None and fleet.deadline_s <= until_s:  # what is due comes first
                now_s = max(now_s, fleet.deadline_s)
                ledger.hands_in(fleet, Tick(), now_s)
            now_s = until_s
            ledger.hands_in(fleet, event, now_s)
            check(fleet, ledger, now_s)


def check(fleet: Fleet, ledger: Ledger, now_s: float) -> None:
    """What is always true."""
    roster, status = fleet.roster(), fleet.status(now_s)
    assert [node.name for node in roster] == [node.name for node in sorted(roster, key=lambda node: node.joined)]
    assert {node.name for node in roster} == {node.node for node in status} == set(ledger.journal)
    assert {node.node: node.address for node in status} == {n.name: n.address for n in ledger.journal.values()}
    links = {node.name: link for node in roster if (link := fleet.link_of(node.name)) is not None}
    assert {node.name for node in roster if node.is_up} <= {"host", *links}
    assert links.items() <= {name: link for link, name in ledger.admitted.items()}.items()
    assert shown(fleet, "host") == "up"
    encode(status)
    up = [node for node in status if node.state == "ready" and not node.is_host]
    assert all(node.seen_s is not None and node.seen_s < ANSWERS_S + LOOK_S for node in up)
    if up or any(node.may_come for node in roster):
        assert fleet.deadline_s is not None
