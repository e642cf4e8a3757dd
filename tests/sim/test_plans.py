"""Stories of what operators want of nodes and of runs that go on, as random seeds have found them."""

from dataclasses import replace

from protocol.coordinator_events import Phase, ResumeRequested, ScaleRequested
from protocol.job import RestartTable
from tests.sim.story import RUN, Story
from tests.sim.upkeep import drain_now, undrain_now

WAIT_S = 4.0


def test_one_of_two_nodes_that_are_to_be_free_goes_where_there_is_one_spare_and_the_other_stays() -> None:
    """P3: who stays is the last resort, and is counted on."""
    story = Story(names="abcd")
    assert story.nodes == ["a", "b", "c"]
    for node in "bc":
        drain_now(story.world, node, WAIT_S, at_checkpoint=True)
    story.let_pass(WAIT_S + 10.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["a", "b", "d"])
    undrain_now(story.world, "c")
    story.let_pass(10.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 2, ["a", "c", "d"])
    story.ends_well()


def test_a_node_that_is_to_be_free_serves_while_the_spare_is_left_out_and_is_left_at_once_then() -> None:
    """V6 leaves the spare out of one generation; that ends as it begins, of what the one before had ended of."""
    story = Story(names="abcd")
    story.rank_on("c").is_deaf = True  # so that the generation takes its whole grace to end
    drain_now(story.world, "b", WAIT_S, at_checkpoint=True)
    story.let_pass(WAIT_S + 1.0)
    assert (story.record.phase, story.record.planned) == (Phase.STOPPING, "b is to be free")
    story.world.restart(RUN, without="d")
    story.let_pass(10.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 2, ["a", "d", "c"])
    story.ends_well()


def test_a_node_that_may_be_used_again_when_it_is_too_late_does_not_save_the_run() -> None:
    story = Story()
    story.world.truth.quiet_since_s = 0.0  # nothing goes wrong here
    drain_now(story.world, "c", 0.0, at_checkpoint=False)
    story.let_pass(1.0)
    assert story.record.phase is Phase.FORMING
    story.let_pass(story.gathers_until_s - story.world.clock.now_s - 0.02)
    undrain_now(story.world, "c")
    story.let_pass(0.05)
    assert (story.record.phase, story.record.lacked_nodes) == (Phase.FAILED, True)


def test_the_first_failure_after_an_operator_has_let_the_run_go_on_is_followed_by_no_wait() -> None:
    """docs/restarts.md: it goes on with all counts as at the start, whatever it was held for."""
    story = Story(restart=RestartTable(max_restarts=1, backoff_s=20.0, on_budget_spent="hold", exclude_node_after=0))
    for generation in (0, 1):
        assert (story.record.phase, story.record.generation) == (Phase.RUNNING, generation)
        story.crash("b")
        story.let_pass(5.0)
    assert (story.record.phase, story.record.generation) == (Phase.HELD, 1)
    story.world.operate(RUN, ResumeRequested("me"))
    for generation in (2, 3):
        story.let_pass(5.0)
        assert (story.record.phase, story.record.generation) == (Phase.RUNNING, generation)
        story.crash("b")
    story.let_pass(5.0)
    assert story.record.phase is Phase.HELD
    story.ends_well()


def test_a_run_that_is_to_be_on_more_nodes_waits_for_who_may_come_until_last_call_and_then_goes_on_as_before() -> None:
    """P5: as many as were there before would do, and are not all."""
    story = Story((1, 2), names="abcd")
    story.world.machines["d"].busy_until_s = story.world.clock.now_s + 60.0
    story.world.operate(RUN, ScaleRequested((4, 4), 60.0, "me"))
    story.world.restart(RUN)
    story.let_pass(4.5)
    assert (story.record.phase, story.record.nnodes_before) == (Phase.FORMING, (1, 2))
    assert "last call" in story.waits_for
    story.let_pass(5.0)
    assert (story.record.phase, story.nodes) == (Phase.RUNNING, ["a"])
    story.ends_well()


def test_the_deadline_of_a_scale_does_not_count_from_when_it_was_on_disk() -> None:
    story = Story()
    story.world.setup = replace(story.world.setup, slow_write=1.0)
    story.world.has_faults = True
    story.world.operate(RUN, ScaleRequested((2, 2), WAIT_S, "me"))
    story.let_pass(WAIT_S + 10.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["a", "b"])
    assert story.world.clock.seen["fault: slow write"] > 0


def test_a_node_that_was_to_be_free_at_once_is_left_though_two_later_wishes_give_it_time() -> None:
    """Found by random seeds: a disk is slow, and what the run is told of the first of three is right until then."""
    story = Story(names="abcd")
    story.world.setup = replace(story.world.setup, slow_write=1.0)
    story.world.has_faults = True
    story.world.operate(RUN, ScaleRequested((3, 3), WAIT_S, "me"))
    story.world.has_faults = False
    for wait_s in (0.0, 30.0, 60.0):
        drain_now(story.world, "b", wait_s, at_checkpoint=False)
    assert story.record.nnodes is None
    story.let_pass(10.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["a", "d", "c"])


def test_a_run_that_was_scaled_at_the_expense_of_a_budget_that_is_spent_fails_of_its_next_failure() -> None:
    """P7: growth waits for a budget, and an operator's scale does not."""
    story = Story(restart=RestartTable(max_restarts=1, count_membership=True, exclude_node_after=0))
    story.crash("c")
    story.let_pass(5.0)
    story.world.operate(RUN, ScaleRequested((2, 2), WAIT_S, "me"))
    story.let_pass(WAIT_S + 10.0)
    assert (story.record.phase, story.nodes, story.record.ledger.used) == (Phase.RUNNING, ["a", "b"], 2)
    story.crash("b")
    story.let_pass(5.0)
    assert (story.record.phase, "restart budget spent (2 of 1)" in story.record.reason) == (Phase.FAILED, True)
    story.ends_well()
