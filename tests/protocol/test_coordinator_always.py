"""What holds of the coordinator whatever happens: killed at any point, told anything."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol import coordinator_events as events
from protocol.coordinator_events import (
    FINAL,
    Ask,
    Effect,
    Event,
    Heard,
    NodeLost,
    Persist,
    Phase,
    RestartRequested,
    RunnerFailed,
    RunnerGone,
    RunRecord,
    Send,
    StopRequested,
    Tick,
)
from protocol.job import RestartTable, StopTable
from protocol.messages import encode, member
from protocol.messages.member import Offer, Part, RankExit, RankReport, Renewal, SpawnFailure, Stall
from tests.protocol.build import job_spec, rank, stalled
from tests.protocol.fleet import (
    CRASHED,
    CRASHED_AND_GONE,
    FINISHED,
    Fleet,
    forming,
    is_sent_after_persisting,
    launching,
    running,
    started,
    stopping,
)

# --- killed at any point ---------------------------------------------------------------------------------------------

Act = Callable[[Fleet, float], object]
EVERY_S = 200.0  # between two acts: longer than any backoff here, shorter than stable_after


def offers(runner: str, generation: int, port: int) -> Act:
    return lambda fleet, now_s: fleet.offers(now_s, runner, generation, port)


def runs(runner: str, generation: int) -> Act:
    return lambda fleet, now_s: fleet.hears(now_s, runner, Part.RUNNING, generation, *started())


def fails(runner: str, generation: int) -> list[Act]:
    return [
        lambda fleet, now_s: fleet.hears(now_s, runner, Part.STOPPING, generation, *CRASHED),
        lambda fleet, now_s: fleet.hears(now_s, runner, Part.STOPPED, generation, *CRASHED_AND_GONE),
    ]


def generation(runner: str, number: int, after: int | None = None) -> list[Act]:
    """A runner offers itself after generation `after` and runs generation `number`."""
    return [offers(runner, number - 1 if after is None else after, 5000 + number), runs(runner, number)]


def gone(runner: str) -> Act:
    return lambda fleet, now_s: fleet.gone(now_s, runner)


def asks(event: Event) -> Act:
    return lambda fleet, now_s: fleet.at(now_s, event)


STORIES: dict[str, tuple[list[Act], tuple[Phase, int, int, int]]] = {
    "crashes until the budget is spent, a lost runner among them": (
        [
            *generation("a1", 0),
            *fails("a1", 0),
            *generation("a1", 1),
            *fails("a1", 1),
            *generation("a1", 2),
            gone("a1"),
            *generation("a2", 3, after=-1),
            *fails("a2", 3),
            *generation("a2", 4),
            *fails("a2", 4),
        ],
        (Phase.FAILED, 4, 3, 5),
    ),
    "a crash and then success": (
        [
            *generation("a1", 0),
            *fails("a1", 0),
            *generation("a1", 1),
            lambda fleet, now_s: fleet.hears(now_s, "a1", Part.FINISHED, 1, *FINISHED),
        ],
        (Phase.SUCCEEDED, 1, 1, 1),
    ),
    "a restart and a stop": (
        [
            *generation("a1", 0),
            asks(RestartRequested("", "me")),
            fails("a1", 0)[1],
            *generation("a1", 1),
            asks(StopRequested(None, now=False, by="me")),
            fails("a1", 1)[1],
        ],
        (Phase.STOPPED, 1, 0, 0),
    ),
    "a stop that is accepted while a failure is handled": (
        [
            *generation("a1", 0),
            fails("a1", 0)[0],
            asks(StopRequested(5.0, now=False, by="me")),
            fails("a1", 0)[1],
        ],
        (Phase.STOPPED, 0, 0, 1),
    ),
}


def play(acts: list[Act], kill_after: set[int]) -> tuple[RunRecord, list[RunRecord]]:
    """The last record of a story, and all of them, where the coordinator is killed after some of the acts."""
    fleet = Fleet(spec=job_spec(restart=RestartTable(max_restarts=3, backoff_s=5.0)))
    fleet.opens(0.0)
    records: list[RunRecord] = []
    for number, act in enumerate(acts):
        now_s = number * EVERY_S
        act(fleet, now_s)
        records.append(fleet.record)
        if number in kill_after:
            fleet = fleet.restarted(now_s + 1)
            records.append(fleet.record)
        while (due_s := fleet.coordinator.deadline_s) is not None and due_s < now_s + EVERY_S:
            fleet.at(due_s, Tick())
            records.append(fleet.record)
    return fleet.record, records


def check_story(name: str, kill_after: set[int]) -> None:
    acts, expected = STORIES[name]
    last, records = play(acts, kill_after)
    assert (last.phase, last.generation, last.ledger.used, last.incidents) == expected
    given_out = {(r.generation, r.seats) for r in records if r.phase is Phase.LAUNCHING}
    assert len({number for number, _ in given_out}) == len(given_out), "a generation was given out twice"


@pytest.mark.parametrize("name", STORIES)
def test_a_coordinator_killed_after_any_event_comes_to_the_same_end(name: str) -> None:
    check_story(name, set())
    for number in range(len(STORIES[name][0])):
        check_story(name, {number})


@settings(deadline=None)
@given(kill_after=st.sets(st.integers(0, 20)), name=st.sampled_from(sorted(STORIES)))
def test_a_coordinator_killed_again_and_again_comes_to_the_same_end(kill_after: set[int], name: str) -> None:
    """No generation number is used twice, and no failure is charged twice."""
    check_story(name, kill_after)


# --- told anything ---------------------------------------------------------------------------------------------------

INTS = st.one_of(st.integers(-2, 5), st.integers(-(2**63), 2**64 - 1))  # what MessagePack can carry
GENERATIONS = st.one_of(st.integers(-1, 3), st.sampled_from([-(2**63), 2**31 - 1, 2**31, 2**64 - 1]))
FLOATS = st.floats()
EXITS = st.builds(
    RankExit,
    code=st.none() | INTS,
    signal=st.none() | st.integers(-3, 200),
    core_dumped=st.booleans(),
    order=INTS,
    wall_s=FLOATS,
    ran_s=st.floats(0, 1e9),
    stopped_by_us=st.booleans(),
    oom=st.sampled_from(["", "limit"]),
    stderr_tail=st.just((b"\xff",)),
)
HUNG = (stalled(0, step=3), rank(1))
WARNED = (stalled(0, action="warn"), rank(1))
WORDS = st.sampled_from(["", "warn", "restart", "fail", "alive", "stopped", "\udcff\n" * 300])
STALLS = st.builds(Stall, silent_s=FLOATS, limit_s=FLOATS, setting=WORDS)  # hypothesis knows the rest by its type
REPORTS = st.builds(
    RankReport,
    rank=INTS,
    local_rank=INTS,
    pid=INTS,
    started=st.booleans(),
    exit=st.none() | EXITS,
    step=st.none() | INTS,
    total_steps=st.none() | INTS,
    loss=st.none() | FLOATS,
    phase=WORDS,
    silent_s=st.none() | FLOATS,
    stall=st.none() | STALLS,
)
ASSIGNMENTS = st.builds(
    lambda seat, generation, nnodes, node_rank: replace(
        seat.assignment, generation=generation, nnodes=nnodes, node_rank=node_rank
    ),
    st.sampled_from([*launching("a", "b").record.seats, *launching("a").record.seats]),
    GENERATIONS,
    st.integers(1, 3) | INTS,
    st.integers(0, 2) | INTS,
)
RENEWALS = st.one_of(
    st.builds(
        Renewal,
        number=INTS,
        generation=GENERATIONS,
        part=st.sampled_from(Part),
        ranks=st.lists(REPORTS, max_size=3).map(tuple)
        | st.sampled_from([CRASHED, CRASHED_AND_GONE, FINISHED, started(), HUNG, WARNED]),
        spawn_failure=st.none() | st.builds(SpawnFailure, rank=INTS, path=st.just("/x"), reason=st.just("no")),
        stuck_pids=st.lists(INTS, max_size=2).map(tuple),
        saved_step=st.none() | INTS,
        offer=st.none()
        | st.builds(Offer, slots=INTS, address=st.just("h"), port=INTS, problem=st.sampled_from(["", "x"])),
        fenced_s=st.none() | FLOATS,
        unreached=st.lists(st.sampled_from("abz"), max_size=3).map(tuple),
        assignment=st.none() | ASSIGNMENTS,
    ),
    st.builds(  # of runners that are ahead
        lambda number, assignment: Renewal(
            number=number, generation=assignment.generation, part=Part.RUNNING, ranks=started(), assignment=assignment
        ),
        st.integers(1, 1000),
        ASSIGNMENTS,
    ),
    st.builds(
        Renewal,
        number=st.integers(1, 1000),
        generation=st.integers(-1, 3),
        part=st.sampled_from([Part.IDLE, Part.STOPPED]),
        offer=st.builds(
            Offer, slots=st.just(2), address=st.just("h"), port=st.integers(1, 9), witness_port=st.sampled_from([0, 5])
        ),
    ),
)
NODES = st.sampled_from(["a", "a", "b", "z"])
INCARNATIONS = st.sampled_from(["a1", "a1", "b1", "a2"])
VIA = st.sampled_from(["", "", "", "a1", "b1", "z1"])
HEARD = st.builds(Heard, NODES, INCARNATIONS, RENEWALS, VIA)
NUMBERS = st.integers(1, 10) | INTS
TESTIMONIES = st.builds(
    member.Testimony, number=NUMBERS, node=NODES, incarnation=INCARNATIONS, word_s=st.none() | FLOATS
)
OTHERS = st.one_of(
    st.builds(NodeLost, NODES, st.just("me")),
    st.builds(events.Testified, NODES, INCARNATIONS, TESTIMONIES),
    st.builds(events.Testified, NODES, INCARNATIONS, TESTIMONIES),
    st.builds(RunnerGone, NODES, INCARNATIONS),
    st.builds(RunnerFailed, NODES, st.just("no room")),
    st.builds(RestartRequested, st.just(""), st.just("me")),
    st.just(Tick()),
    st.just(Tick()),
)
STOPS = st.builds(StopRequested, st.none() | st.floats(0, 100), st.booleans(), st.just("me"))
EVENTS = st.integers(0, 19).flatmap(lambda n: STOPS if n == 0 else OTHERS if n < 6 else HEARD)
BEGINNINGS = st.sampled_from([forming, launching, running, stopping])
SPEC = job_spec(
    restart=RestartTable(max_restarts=-1, on_startup_failure="restart"), stop=StopTable(finish_timeout_s=3.0)
)


def check_effects(fleet: Fleet, before: RunRecord, effects: list[Effect]) -> None:
    """What must be true of every answer of the machine."""
    assert is_sent_after_persisting(effects)
    assert [e.record for e in effects if isinstance(e, Persist)] == ([fleet.record] if fleet.record != before else [])
    assert fleet.record == fleet.coordinator.record(), "what is durable was not persisted"
    encode(fleet.record)
    for effect in effects:
        if isinstance(effect, Ask):
            encode(effect.question)
            assert effect.question.incarnation != effect.incarnation, "asked about itself"
        if isinstance(effect, Send):
            encode(effect.answer)
            assert effect.answer.order == fleet.coordinator.order_for(effect.node, effect.incarnation)
    assert fleet.record.generation >= before.generation
    if before.phase in FINAL:
        assert fleet.record == before


@settings(deadline=None, max_examples=300)
@given(
    begin=BEGINNINGS,
    nodes=st.sampled_from(["a", "ab"]),
    events=st.lists(st.tuples(EVENTS, st.floats(0, 5), st.integers(0, 15)), max_size=30),
)
def test_nothing_that_anybody_says_makes_the_coordinator_raise_or_break_its_rules(
    begin: Callable[..., Fleet], nodes: str, events: list[tuple[Event, float, int]]
) -> None:
    fleet = begin(*nodes, spec=SPEC)
    now_s = 10.0
    for event, wait_s, luck in events:
        now_s += wait_s
        before = fleet.record
        check_effects(fleet, before, fleet.at(now_s, event))
        if luck == 0:
            fleet = fleet.restarted(now_s)
