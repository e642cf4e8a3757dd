"""The machines of a run that fails again and again, for weeks: what they have in mind does not grow."""

import types
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
import pytest
from msgspec.structs import replace

from protocol.coordinator_events import Phase
from tests.protocol.crew import Crew
from tests.protocol.test_crew import SPEC

NODES = "abcd"
KEPT = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""What is shared, and does not belong to the machine that holds it."""


def parts_of(thing: object) -> Iterable[object]:
    """What a thing holds."""
    match thing:
        case dict():
            yield from thing.keys()
            yield from thing.values()
        case list() | tuple() | set() | frozenset() | deque():
            yield from thing
        case msgspec.Struct():
            yield from (getattr(thing, name) for name in thing.__struct_fields__)
        case _:
            yield from getattr(thing, "__dict__", {}).values()
            yield from (getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ()))


def size_of(*things: object) -> int:
    """How many objects these hold, all the way down, in whatever they are kept."""
    seen, left = set[int](), list(things)
    while left:
        thing = left.pop()
        if id(thing) not in seen and not isinstance(thing, KEPT):
            seen.add(id(thing))
            left += parts_of(thing)
    return len(seen)


def lives(crew: Crew, generations: int) -> int:
    """That many more generations, each ended by a rank, a runner, or its coordinator's end; returns the most that the
    machines held where all was well."""
    most = 0
    until = crew.launched + generations
    while crew.launched < until:
        number = crew.launched
        match number % 7:
            case 3:
                crew.kill_runner(NODES[number % len(NODES)])
            case 5:
                crew.restart_coordinator(0.5)
                crew.crash(NODES[number % len(NODES)])
            case _:
                crew.crash(NODES[number % len(NODES)])
        crew.run_for(15.0)
        run = crew.coordinator
        assert run is not None
        assert run.phase is Phase.RUNNING, f"after generation {number}"
        assert crew.launched > number
        members = [runner.member for runner in crew.runners.values()]
        most = max(most, size_of(run, *members) // (1 + len(members)))
    return most


@pytest.fixture
def crew() -> Crew:
    """It runs, on a network that loses nothing. What has run for a second has made progress."""
    patient = replace(SPEC, restart=replace(SPEC.restart, stable_after_s=0.5, backoff_s=0.0))
    crew = Crew(patient, NODES, 1)
    crew.loss = crew.held = 0.0
    crew.run_for(20.0)
    return crew


def test_what_coordinator_and_runners_have_in_mind_does_not_grow_with_generations(crew: Crew) -> None:
    early = lives(crew, 40)
    late = lives(crew, 120)
    assert late <= 1.1 * early


def test_what_is_kept_of_a_run_does_not_grow_with_generations(crew: Crew) -> None:
    def kept() -> int:
        return len(msgspec.msgpack.encode(crew.journal))

    lives(crew, 30)
    early = kept()
    lives(crew, 90)
    assert kept() <= 1.2 * early


@pytest.mark.parametrize("make", [lambda: {"a": 1}, lambda: ["a", 1], lambda: types.SimpleNamespace(a=1)])
def test_the_measure_sees_whatever_holds_something(make: Callable[[], object]) -> None:
    assert size_of(make()) >= 2
    assert size_of([make() for _ in range(10)]) > size_of(make())
