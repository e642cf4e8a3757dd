"""Stories of one fleet, told with what random seeds use: what these have found, and what a reader should see first."""

import pytest

from protocol.coordinator_events import Phase
from tests.sim.setup import HOST
from tests.sim.story import RUN, Story
from tests.sim.strangers import COPY, PATIENT, Stranger


def test_a_fleet_that_is_left_alone_runs_one_generation() -> None:
    story = Story()
    story.let_pass(60.0)
    assert (story.record.generation, story.record.incidents, story.nodes) == (0, 0, ["a", "b", "c"])
    story.ends_well()
    assert story.record.phase is Phase.STOPPED


def test_a_crash_on_one_node_is_a_new_generation_on_all() -> None:
    story = Story()
    victim = story.rank_on("b")
    victim.crew.crash(victim, 1, None)
    story.let_pass(5.0)
    incident = story.record.incident
    assert incident is not None
    assert (incident.cause, incident.node, incident.rank) == ("exit", "b", 1)
    assert (story.record.phase, story.record.generation, story.record.ledger.used) == (Phase.RUNNING, 1, 1)
    story.ends_well()


@pytest.mark.parametrize("away_s", [0.1, 2.0, 30.0])
def test_training_does_not_notice_that_the_coordinator_was_away(away_s: float) -> None:
    story = Story()
    story.world.kill_supd(HOST, away_s)
    story.let_pass(away_s + 5.0)
    assert (story.record.phase, story.record.generation, story.record.incidents) == (Phase.RUNNING, 0, 0)
    story.ends_well()


def test_a_spare_takes_the_slot_of_a_node_where_everything_was_killed_and_that_cannot_go_on() -> None:
    story = Story(nnodes=(2, 3))
    assert story.nodes == ["a", "b"]
    story.world.kill_everything("b", away_s=1.0)
    story.world.machines["b"].busy_until_s = story.world.clock.now_s + 60.0
    story.let_pass(12.0)
    assert (story.record.generation, story.nodes, story.record.slots) == (1, ["a", "c"], {"a": 0, "c": 1})
    story.ends_well()


def test_a_node_is_taken_out_by_an_operator_and_in_again_by_the_next_restart() -> None:
    story = Story(nnodes=(2, 3), extra_nodes="grow")
    story.world.restart(RUN, without="b")
    story.let_pass(8.0)
    assert (story.record.generation, story.nodes) == (1, ["a", "c"])
    story.world.restart(RUN)
    story.let_pass(8.0)
    assert (story.record.generation, story.nodes) == (2, ["a", "b", "c"])
    story.ends_well()


def test_who_stopped_and_is_gone_is_not_waited_for_by_the_next_coordinator() -> None:
    """Found by random seeds: that its runner is gone was not on disk when its node had already forgotten it."""
    story = Story()
    story.rank_on("c").is_deaf = True  # so that the generation takes its whole grace to end
    victim = story.rank_on("a")
    victim.crew.crash(victim, 1, None)
    story.let_pass(1.0)
    assert story.record.phase is Phase.STOPPING
    story.kill_runner("b")
    story.let_pass(2.0)
    story.world.kill_supd(HOST, away_s=0.5)
    story.let_pass(10.0)
    assert (story.record.phase, story.record.generation) == (Phase.RUNNING, 1)
    story.ends_well()


def test_that_a_runner_had_finished_before_it_went_is_known_to_the_next_coordinator() -> None:
    """Found by random seeds: the run never ended, since nobody could tell of those ranks any more."""
    story = Story()
    early = story.rank_on("b")
    early.crew.finish(early)
    story.let_pass(1.0)
    story.kill_runner("b")
    story.let_pass(2.0)
    story.world.kill_supd(HOST, away_s=0.5)
    story.let_pass(3.0)
    for node in ("a", "c"):
        late = story.rank_on(node)
        late.crew.finish(late)
    story.let_pass(3.0)
    assert (story.record.phase, story.record.generation) == (Phase.SUCCEEDED, 0)
    story.ends_well()


def test_a_name_is_not_given_away_before_the_runner_that_lives_under_it_had_time_to_be_heard() -> None:
    """Found by random seeds: its own supd was refused for ever, and nobody else can tell of the end of that runner."""
    story = Story(nnodes=(2, 3))
    world = story.world
    story.cut_off("c", 2.5)
    world.kill_supd("c", away_s=3.0)
    world.kill_supd(HOST, away_s=0.5)
    Stranger(world.clock, world.network, world.find_host, PATIENT, world.join_of("c"), stays_s=20.0)
    story.let_pass(10.0)
    assert world.clock.seen["refused: F304"] > 0
    assert world.journal.nodes["c"].identity == "state of c"
    world.machines["b"].busy_until_s = world.clock.now_s + 30.0
    story.kill_runner("b")
    story.let_pass(12.0)
    assert story.nodes == ["a", "c"]
    story.kill_runner("c")
    story.ends_well()


def test_a_node_whose_name_a_copy_of_its_state_folder_has_got_is_back_once_its_supd_is_started_again() -> None:
    """Found by random seeds: the copy knew of the newest start, and only ends_well() has an operator for that."""
    story = Story(nnodes=(1, 1), exclude=("a",))
    world, [node] = story.world, story.nodes
    story.cut_off(node, 10.0)
    story.kill_runner(node)
    world.kill_supd(node, away_s=0.1)
    story.let_pass(1.0)
    Stranger(world.clock, world.network, world.find_host, COPY, world.join_of(node), stays_s=6.0)
    story.let_pass(12.0)
    assert world.clock.seen["refused: F305"] > 0
    assert (story.record.phase, story.record.generation) == (Phase.RUNNING, 0)
    story.ends_well()
    assert story.record.generation == 1


def test_a_coordinator_whose_journal_was_put_back_believes_the_runners_that_are_ahead() -> None:
    """R3, R6: what they run is taken over, and goes on."""
    story = Story()
    older = story.record
    victim = story.rank_on("b")
    victim.crew.crash(victim, 1, None)
    story.let_pass(5.0)
    assert (story.record.phase, story.record.generation) == (Phase.RUNNING, 1)
    story.world.put_back(RUN, older)
    assert story.record.generation == 0
    story.let_pass(10.0)
    assert (story.record.phase, story.record.generation) == (Phase.RUNNING, 1)
    story.ends_well()


def test_a_node_without_a_runner_is_never_counted_on() -> None:
    """All of a node is killed while it offers itself: the generation that it was given ranks in ends by proof."""
    story = Story(nnodes=(1, 3), extra_nodes="grow")
    story.world.restart(RUN)
    story.let_pass(0.2)
    story.world.kill_everything("c", away_s=3.0)
    story.ends_well()
