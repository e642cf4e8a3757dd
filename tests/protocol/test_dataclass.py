"""Our dataclasses are what the standard library's are, but for how they are made."""

from collections.abc import Callable

import pytest

from protocol.dataclass import InMemory, dataclass, field, replace


@dataclass(frozen=True)
class Moved:
    """One that has been moved."""

    to: str
    by: int = 1

    @property
    def is_far(self) -> bool:
        """Whether by more than 5."""
        return self.by > 5


@dataclass(frozen=True)
class Turned:
    """Another one, of the same form."""

    to: str
    by: int = 1


@dataclass(frozen=False)
class Trail:
    """One that changes."""

    moves: list[Moved] = field(default_factory=list)
    is_over: bool = False

    def add(self, move: Moved) -> None:
        """One more."""
        self.moves.append(move)
        self.is_over = move.is_far


@dataclass(frozen=False, eq=False, kw_only=True)
class Walker:
    """One that is like no other."""

    name: str
    trail: Trail = field(default_factory=Trail)


def test_it_is_made_compared_hashed_and_shown_as_a_dataclass() -> None:
    assert Moved("left") == Moved("left", 1) == Moved(to="left", by=1)
    assert Moved("left") != Moved("left", 2)
    other: object = Turned("left")
    assert Moved("left") != other
    assert len({Moved("left"), Moved("left")}) == 1
    assert repr(Moved("left")) == "Moved(to='left', by=1)"
    assert (Moved.__name__, Moved.__module__, Moved.__doc__) == ("Moved", __name__, "One that has been moved.")
    assert Moved("left", 6).is_far


def test_it_is_matched_by_place_and_cannot_be_changed_where_it_is_frozen() -> None:
    match Moved("left", 3):
        case Moved(to, by):
            assert (to, by) == ("left", 3)
    with pytest.raises(AttributeError):
        Moved("left").by = 2  # type: ignore[misc]
    assert isinstance(Moved("left"), InMemory)


def test_one_that_is_not_frozen_is_changed_and_shares_no_default() -> None:
    trail = Trail()
    trail.add(Moved("left", 6))
    assert (trail, trail.is_over) == (Trail([Moved("left", 6)], True), True)
    assert Trail().moves == []
    with pytest.raises(TypeError, match="unhashable"):
        hash(trail)


def test_two_that_compare_by_identity_are_keys_of_their_own() -> None:
    one, other = Walker(name="a"), Walker(name="a")
    assert one != other
    assert len({one, other}) == 2
    made: Callable[..., Walker] = Walker
    with pytest.raises(TypeError):
        made("a")


def test_another_one_is_made_with_some_of_it_changed() -> None:
    before = Moved("left", 3)
    assert replace(before, by=4) == Moved("left", 4)
    assert before == Moved("left", 3)
    with pytest.raises(TypeError):
        replace(before, far=True)
