"""Coordinator and runner back to back: what must never happen, what must happen, and that these tests would notice."""

from collections.abc import Callable, Iterable

import pytest

from protocol.coordinator import Coordinator
from protocol.coordinator_events import Effect, Event, Persist, Phase, StopRequested
from protocol.health import Health
from protocol.job import HangTable, JobSpec, RestartTable, RunTable, StopTable, TopologyTable
from protocol.member import Member
from protocol.member_events import SETTLED
from protocol.messages.member import Assignment, Part, StallAction
from tests.protocol.pair import NPROC, Net, World

SPEC = JobSpec(
    name="j",
    run=RunTable(script="t.py"),
    topology=TopologyTable(nproc_per_node=NPROC),
    restart=RestartTable(max_restarts=-1, backoff_s=0.5, backoff_max_s=2.0, on_startup_failure="restart"),
    stop=StopTable(grace_s=2.0),
    hang=HangTable(step_timeout_s=1.0),
    origins={"hang.step_timeout": "file"},
)
RECOVERY_S = 60.0
"""R7: 60 s + grace + backoff is the bound; here a kind network and short times need less."""

SEEDS = 60


def trouble(seed: int, faults: int = 12) -> World:
    """A run through `faults` random faults, with everything that must never happen checked on the way."""
    world = World(SPEC, seed)
    for _ in range(faults):
        world.run_for(world.rng.choice((0.05, 0.5, 3.0)))
        fault = world.rng.choice(
            (
                world.crash_worker,
                world.hang_worker,
                world.end_runner,
                world.restart_coordinator,
                world.restart_run,
            )
        )
        fault()
    world.run_for(5.0)  # a coordinator that is away comes back
    world.net = Net()
    return world


def is_running(world: World) -> bool:
    """Whether coordinator and runner agree that all is well."""
    assert world.coordinator is not None
    member = world.runner.member if world.runner is not None else None
    return (
        world.coordinator.phase is Phase.RUNNING
        and world.runner is not None
        and not world.runner.hung & world.runner.workers
        and member is not None
        and (member.part, member.generation) == (Part.RUNNING, world.coordinator.generation)
    )


def recovers(seed: int) -> None:
    """After faults a run is running again, having charged at most one restart a fault."""
    faults = 12
    world = trouble(seed, faults)
    world.run_for(RECOVERY_S)
    assert is_running(world), f"reproduce with seed={seed}"
    assert world.journal.ledger.used <= faults, f"reproduce with seed={seed}"
    launched = len(world.launched)
    world.run_for(RECOVERY_S)
    assert len(world.launched) == launched, f"a healthy generation ended: reproduce with seed={seed}"


def stops(seed: int) -> None:
    """After faults and a stop a run is stopped, its runner has ended, and no worker is left."""
    world = trouble(seed)
    world.tell(StopRequested(None, now=False, by="me"))
    world.run_for(RECOVERY_S)
    assert world.journal.phase is Phase.STOPPED, f"reproduce with seed={seed}"
    assert world.runner is None, f"reproduce with seed={seed}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_left_alone_after_faults_runs_again_and_stays_running(seed: int) -> None:
    recovers(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_stop_among_faults_ends_the_run_and_everything_of_it(seed: int) -> None:
    stops(seed)


# --- planted bugs: each must be noticed ------------------------------------------------------------------------------


def takes_a_generation_that_is_stopping_for_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("protocol.member.SETTLED", SETTLED | {Part.STOPPING})
    patch.setattr(Member, "_check", lambda self: None)


def does_not_answer_a_stop_of_what_it_never_launched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "_on_stop", lambda self, stop, now_s: self._begin_stop(stop, now_s))


def takes_reports_of_past_generations_for_the_present(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("protocol.generation.Generation.concerns", lambda *_: True)


def takes_reports_of_dead_runners_for_the_present(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("protocol.roll.PAST_MAX", 0)


def gives_up_on_runners_that_have_not_reported_since_its_restart(patch: pytest.MonkeyPatch) -> None:
    opened = Coordinator._on_opened
    patch.setattr(
        Coordinator,
        "_on_opened",
        lambda self, now_s: (opened(self, now_s), [self._lose(node, now_s) for node in self.seats]),
    )


def sends_before_it_persists(patch: pytest.MonkeyPatch) -> None:
    handle = Coordinator.handle

    def forgetful(self: Coordinator, event: Event, now_s: float) -> list[Effect]:
        effects = handle(self, event, now_s)
        return [e for e in effects if not (isinstance(e, Persist) and self.phase is Phase.LAUNCHING)]

    patch.setattr(Coordinator, "handle", forgetful)


def waits_for_a_runner_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_on_runner_gone", lambda *_: None)


def does_not_look_at_the_clock_in_a_backoff_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_on_opened", lambda self, now_s: None)


def only_ever_warns_of_a_hang(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Health, "_action", lambda self, limit: StallAction.WARN)


def carries_silence_into_the_next_generation(patch: pytest.MonkeyPatch) -> None:
    begin = Health.begin

    def begin_with_what_was(self: Health, assignment: Assignment, ranks: Iterable[int], now_s: float) -> None:
        before = dict(self.ranks)
        begin(self, assignment, ranks, now_s)
        self.ranks |= before

    patch.setattr(Health, "begin", begin_with_what_was)


MUTANTS = [
    only_ever_warns_of_a_hang,
    carries_silence_into_the_next_generation,
    takes_a_generation_that_is_stopping_for_gone,
    does_not_answer_a_stop_of_what_it_never_launched,
    takes_reports_of_past_generations_for_the_present,
    takes_reports_of_dead_runners_for_the_present,
    gives_up_on_runners_that_have_not_reported_since_its_restart,
    sends_before_it_persists,
    waits_for_a_runner_that_is_gone,
    does_not_look_at_the_clock_in_a_backoff_after_a_restart,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def is_noticed(seed: int) -> bool:
        try:
            recovers(seed)
            stops(seed)
        except (AssertionError, KeyError):
            return True
        return False

    assert any(is_noticed(seed) for seed in range(SEEDS))
