"""From where a generation goes on, and whether all its ranks do from there; and what counts as a checkpoint."""

import pytest

from protocol.coordinator_events import RestartRequested
from protocol.messages.member import Part, Renewal
from protocol.pace import Pace
from protocol.resumption import Resumption
from protocol.saves import Saves
from tests.protocol.build import rank, renewal
from tests.protocol.changing import Changing, spec_of
from tests.protocol.fleet import noted


def restarted(step: int | None) -> Changing:
    """Generation 1 has begun; so far was seen saved."""
    fleet = Changing(spec_of(2, 2), "ab", seated="ab")
    if step is not None:
        fleet.save(20.0, "a", step)
    fleet.at(21.0, RestartRequested("", by="me"))
    fleet.ends(22.0, "a")
    fleet.ends(22.0, "b")
    return fleet


def shows(fleet: Changing, now_s: float, node: str, first: int, step: int | None = None) -> list[str]:
    """What is told as both ranks of a node show their first step, and where they are now."""
    own = fleet.given(node).first_rank
    step = first if step is None else step
    ranks = [rank(own + i, first=own, first_step=first, step=step, silent_s=0.0) for i in range(2)]
    effects = fleet.hears(now_s, f"{node}1", Part.RUNNING, 1, *ranks)
    return [n.text for kind in ("resume.behind", "resume.apart") for n in noted(effects, kind)]


def test_the_next_generation_is_told_what_was_saved_last() -> None:
    assert restarted(500).given("b").resume_step == 500
    assert restarted(None).given("b").resume_step is None


def test_a_checkpoint_of_a_lower_step_is_the_last_one_all_the_same() -> None:
    fleet = Changing(spec_of(2, 2), "ab", seated="ab")
    fleet.says(15.0, "b", saved_step=900)  # what the marker of an earlier run holds
    fleet.save(20.0, "a", 100)
    assert fleet.coordinator.saved_step == 100


def test_what_was_saved_before_is_known_after_a_generation_that_saved_nothing() -> None:
    fleet = restarted(500)
    fleet.begins(23.0, "ab")
    fleet.at(24.0, RestartRequested("", by="me"))
    fleet.ends(25.0, "a")
    fleet.ends(25.0, "b")
    assert fleet.given("a").resume_step == 500


def test_a_rank_that_goes_on_from_before_the_checkpoint_is_told_once() -> None:
    fleet = restarted(500)
    assert shows(fleet, 23.0, "b", 400) == ["rank 2 on b goes on from step 400; step 500 was seen saved"]
    assert shows(fleet, 24.0, "a", 300) == []


@pytest.mark.parametrize("first", [500, 501])
def test_a_rank_that_goes_on_from_the_checkpoint_is_nothing_to_tell(first: int) -> None:
    assert shows(restarted(500), 23.0, "b", first) == []


def test_ranks_that_go_on_from_different_steps_are_told_once_the_pace_is_known() -> None:
    fleet = restarted(None)
    assert shows(fleet, 23.0, "a", 100) == []
    assert shows(fleet, 24.0, "b", 200) == []
    told = shows(fleet, 26.0, "a", 100, step=102)
    assert told == ["rank 0 on a goes on from step 100, rank 3 on b from step 200"]
    assert shows(fleet, 27.0, "b", 200, step=203) == []


def test_ranks_that_are_seen_a_moment_later_have_not_gone_on_from_elsewhere() -> None:
    pace, seen = Pace(), Resumption(None)
    pace.saw(0, 0.0, 10.0)
    pace.saw(100, 0.0, 11.0)  # a step in 10 ms
    ranks = rank(0, first_step=3), rank(1, first_step=180)
    assert seen.see("a", renewal(1, Part.RUNNING, 1, *ranks), pace, 11.0) == []
    apart = renewal(2, Part.RUNNING, 1, ranks[0], rank(1, first_step=300))
    assert [n.kind for n in seen.see("a", apart, pace, 11.0)] == ["resume.apart"]


# --- what counts as a checkpoint -------------------------------------------------------------------------------------


def told(saves: int, step: int | None) -> Renewal:
    return renewal(1, Part.RUNNING, 0, saves=saves, saved_step=step)


def test_each_rise_is_a_checkpoint() -> None:
    saves = Saves(is_begun_here=True)
    for count, step in [(0, None), (1, 10), (1, 10), (2, 20)]:
        saves.see("a", told(count, step))
    assert (saves.count, saves.step) == (2, 20)


def test_the_same_checkpoint_seen_by_several_runners_is_one() -> None:
    saves = Saves(is_begun_here=True)
    for node, count, step in [("a", 1, 10), ("b", 1, 10), ("b", 2, 20), ("a", 2, 20)]:
        saves.see(node, told(count, step))
    assert saves.count == 2


def test_a_step_that_is_saved_once_more_is_another_checkpoint() -> None:
    saves = Saves(is_begun_here=True)
    saves.see("a", told(1, 10))
    saves.see("a", told(2, 10))
    assert saves.count == 2


def test_what_was_seen_before_the_coordinator_began_does_not_count() -> None:
    saves = Saves(is_begun_here=False)
    saves.see("a", told(7, 70))
    assert saves.count == 0
    saves.see("a", told(8, 80))
    assert saves.count == 1
