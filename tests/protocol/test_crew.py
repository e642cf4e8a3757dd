"""Several nodes and their coordinator, back to back: one generation at a time, whatever is cut, and it runs again."""

from collections.abc import Callable

import pytest

from protocol.coordinator_events import Phase
from protocol.job import JobSpec, RestartTable, RunTable, StopTable, TopologyTable
from protocol.lease import Lease
from protocol.leases import Leases
from protocol.member import Member
from protocol.messages.member import Part
from protocol.messages.witness import Word
from protocol.standing import Standing
from tests.protocol.crew import HOST, Crew

SPEC = JobSpec(
    name="j",
    run=RunTable(script="t.py"),
    topology=TopologyTable(nproc_per_node=1, nnodes=(1, 6), extra_nodes="grow"),
    restart=RestartTable(max_restarts=-1, backoff_s=0.5, backoff_max_s=2.0, on_startup_failure="restart"),
    stop=StopTable(grace_s=1.0),
)
SEEDS = 20
RECOVERY_S = 90.0


def crew_of(nodes: str, seed: int = 1) -> Crew:
    """It runs."""
    crew = Crew(SPEC, nodes, seed)
    crew.run_for(20.0)
    return crew


def calm(nodes: str) -> Crew:
    """It runs, on a network that loses nothing."""
    crew = Crew(SPEC, nodes, 1)
    crew.loss = crew.held = 0.0
    crew.run_for(20.0)
    assert is_running(crew)
    return crew


def is_running(crew: Crew) -> bool:
    """Whether coordinator and runners agree that all is well."""
    run = crew.coordinator
    if run is None or run.phase is not Phase.RUNNING:
        return False
    members = [crew.runners[node].member for node in run.seats]
    return {(member.part, member.generation) for member in members} == {(Part.RUNNING, run.generation)}


def trouble(seed: int, faults: int = 8) -> Crew:
    """Random faults; that never two generations run is checked on the way."""
    crew = crew_of("abcdef"[: 3 + seed % 4], seed)
    rng = crew.rng
    for _ in range(faults):
        crew.run_for(rng.choice((0.2, 1.0, 4.0, 12.0)))
        some = "".join(rng.sample(crew.nodes, rng.randint(1, len(crew.nodes) - 1)))
        match rng.randrange(8):
            case 0 | 1:
                crew.cut_off(some)
            case 2:
                crew.cut_off(some)
                crew.run_for(rng.uniform(0, 4.0))
                crew.crash(some[1:])
            case 3:
                crew.cut_link(rng.choice(crew.nodes), rng.choice([HOST, *crew.nodes]), both_ways=rng.random() < 0.5)
            case 4:
                crew.freeze(some[0], rng.choice((1.0, 4.0, 12.0)))
            case 5:
                crew.kill_runner(some[0])
            case 6:
                crew.restart_coordinator(rng.choice((0.1, 3.0, 9.0)))
            case _:
                crew.crash(some[0])
        if rng.random() < 0.5:
            crew.run_for(rng.choice((1.0, 4.0, 8.0, 16.0)))
            crew.heal()
    crew.heal()
    crew.run_for(15.0)  # what is frozen or away comes back
    return crew


def recovers(seed: int) -> None:
    """After faults a run is running again, and stays so."""
    crew = trouble(seed)
    crew.loss = crew.held = 0.0
    crew.run_for(RECOVERY_S)
    assert is_running(crew), f"reproduce with seed={seed}"
    launched = crew.launched
    crew.run_for(30.0)
    assert crew.launched == launched, f"a healthy generation ended: reproduce with seed={seed}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_fleet_left_alone_after_cuts_and_deaths_runs_again_and_never_twice_at_once(seed: int) -> None:
    recovers(seed)


def test_where_nothing_is_wrong_no_generation_ends() -> None:
    crew = calm("abcd")
    crew.run_for(120.0)
    assert (is_running(crew), crew.launched) == (True, 0)


def test_a_node_that_is_cut_off_ends_its_ranks_before_the_others_go_on_without_it() -> None:
    crew = calm("abcd")
    crew.cut_off("c")
    crew.run_for(7.0)
    assert crew.runners["c"].runs is None
    assert (is_running(crew), crew.launched) == (True, 1)
    crew.heal()
    crew.run_for(5.0)
    assert crew.coordinator is not None
    assert "c" in crew.coordinator.rendezvous.spares(crew.coordinator.seats)


@pytest.mark.parametrize("both_ways", [True, False])
def test_where_only_the_link_to_the_coordinator_is_cut_training_goes_on(both_ways: bool) -> None:
    for one, other in (("c", HOST), (HOST, "c")):
        crew = calm("abcd")
        crew.cut_link(one, other, both_ways=both_ways)
        crew.run_for(60.0)
        assert (is_running(crew), crew.launched) == (True, 0)


def test_training_needs_no_coordinator() -> None:
    crew = calm("abcd")
    crew.restart_coordinator(60.0)
    crew.run_for(75.0)
    assert (is_running(crew), crew.launched) == (True, 0)


def test_a_coordinator_that_hears_nobody_loses_nobody() -> None:
    crew = calm("abcd")
    crew.cut_off("abcd")
    crew.run_for(30.0)
    crew.heal()
    crew.run_for(5.0)
    assert (is_running(crew), crew.launched) == (True, 0)


def test_a_half_that_is_cut_off_has_ended_before_the_other_goes_on() -> None:
    crew = calm("abcd")
    crew.cut_off("cd")
    crew.run_for(12.0)
    assert crew.coordinator is not None
    assert (is_running(crew), crew.launched, list(crew.coordinator.seats)) == (True, 1, ["a", "b"])


def test_a_frozen_runner_is_lost_and_its_guard_has_ended_its_ranks() -> None:
    crew = calm("abc")
    crew.freeze("b", 30.0)
    crew.run_for(7.0)
    assert (is_running(crew), crew.launched, crew.runners["b"].runs) == (True, 1, None)


def test_those_whose_witnesses_have_all_stopped_in_a_cut_end_before_anything_else_begins() -> None:
    """Found by thinking, and by this: who has stopped by itself is lost as well, and must not give its word always."""
    crew = calm("abcde")
    crew.cut_off("abce")
    crew.run_for(0.3)
    crew.crash("bce")
    crew.run_for(12.0)
    assert crew.coordinator is not None
    assert (is_running(crew), crew.launched, list(crew.coordinator.seats)) == (True, 1, ["d"])


# --- planted bugs: each must be noticed ------------------------------------------------------------------------------


def judges_by_the_lease_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "_frees", lambda *_: True)


def takes_the_word_of_any_witness_for_that_of_all(patch: pytest.MonkeyPatch) -> None:
    def hears_word(self: Lease, witness: str, word: Word) -> None:
        if word.is_given:
            self.until_s = max(self.until_s, self._asked[word.number] + self.timing.fence_s)

    patch.setattr(Lease, "hears_word", hears_word)


def gives_its_word_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "gives_word", lambda *_: True)


def never_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "_fence", lambda self, now_s: self.lease.fence() or [])
    patch.setattr(Standing, "hold", lambda self, is_settled: [])


def has_no_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Standing, "hold", lambda self, is_settled: [])


def does_not_turn_to_its_witnesses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Standing, "ask", lambda self, now_s: (self.lease.asks(now_s), [])[1])


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], None]] = {
    judges_by_the_lease_alone: test_a_coordinator_that_hears_nobody_loses_nobody,
    takes_the_word_of_any_witness_for_that_of_all: test_a_half_that_is_cut_off_has_ended_before_the_other_goes_on,
    gives_its_word_for_ever: test_those_whose_witnesses_have_all_stopped_in_a_cut_end_before_anything_else_begins,
    never_fences: test_a_node_that_is_cut_off_ends_its_ranks_before_the_others_go_on_without_it,
    has_no_guard: test_a_frozen_runner_is_lost_and_its_guard_has_ended_its_ranks,
    does_not_turn_to_its_witnesses: test_training_needs_no_coordinator,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        MUTANTS[mutant]()
