"""Stories of loss: silence, cuts, pauses, and a coordinator that is away (architecture, section 4)."""

import pytest

from protocol.coordinator_events import Phase
from protocol.messages.fleet import Joined, NodeOrder
from protocol.messages.member import Answer, Stop
from tests.sim.cuts import both_ways
from tests.sim.setup import HOST
from tests.sim.story import RUN, Story


def assert_goes_on(story: Story) -> None:
    """Its first generation has not ended."""
    assert (story.record.phase, story.record.generation, story.record.incidents) == (Phase.RUNNING, 0, 0)


def test_training_goes_on_while_every_supd_and_the_coordinator_are_away_for_ten_minutes() -> None:
    story = Story()
    for node in "abc":
        story.world.kill_supd(node, away_s=600.0)
    story.let_pass(590.0)
    assert_goes_on(story)
    story.let_pass(20.0)
    assert_goes_on(story)
    story.ends_well()


@pytest.mark.parametrize("ways", [[("a", "b"), ("b", "a")], [("a", "b")], [("b", "a")]])
def test_training_goes_on_where_only_the_coordinators_link_to_one_node_is_cut(ways: list[tuple[str, str]]) -> None:
    story = Story()
    story.cut(ways, 30.0)
    story.let_pass(25.0)
    assert_goes_on(story)
    assert story.world.clock.seen["passed on: answer"] > 0
    story.let_pass(15.0)
    assert_goes_on(story)
    story.ends_well()


def test_a_node_that_is_cut_off_ends_its_ranks_before_the_others_go_on_and_is_told_to_stop_when_it_comes_back() -> None:
    story = Story(nnodes=(2, 3), extra_nodes="grow")
    story.cut_off("b", 20.0)
    story.let_pass(12.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["a", "c"])
    assert story.record.incident is not None
    assert story.record.incident.cause == "node-lost"
    story.let_pass(15.0)
    member = story.runner_on("b").member
    assert member is not None
    assert (member.part, member.generation) == ("stopped", 1)
    story.ends_well()


def test_members_that_are_cut_off_together_end_their_ranks_and_the_rest_goes_on() -> None:
    story = Story(nnodes=(1, 3), extra_nodes="grow")
    story.cut(both_ways([("a", "b"), ("a", "c")]), 30.0)
    story.let_pass(20.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["a"])
    story.ends_well()


def test_what_runs_on_a_machine_that_thaws_is_gone_as_soon_as_its_guard_has_read_the_clock() -> None:
    story = Story(nnodes=(2, 3), extra_nodes="grow")
    story.world.freeze("c", 20.0)
    story.let_pass(12.0)
    assert (story.record.generation, story.nodes) == (1, ["a", "b"])
    assert story.rank_on("c").generation == 0
    story.let_pass(8.5)
    assert {worker.generation for worker in story.world.truth.living(RUN)} == {1}
    story.ends_well()


def test_the_guard_of_a_runner_that_is_frozen_ends_its_ranks_when_their_lease_is_over() -> None:
    story = Story(nnodes=(2, 3), extra_nodes="grow")
    story.runner_on("b").freeze(30.0)
    story.world.truth.shake("b", for_s=30.0)
    story.let_pass(10.0)
    assert story.world.clock.seen["guard: kills"] == 1
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["a", "c"])
    story.ends_well()


def test_a_machine_that_is_switched_off_is_lost_by_its_lease_alone() -> None:
    story = Story(nnodes=(2, 3), extra_nodes="grow")
    story.world.switch_off("b", 30.0)
    story.let_pass(8.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["a", "c"])
    story.ends_well()


def test_a_coordinator_that_has_lost_its_journal_takes_over_what_runs() -> None:
    story = Story()
    seats = story.record.seats
    story.world.lose_journal()
    assert RUN not in story.world.journal.runs
    story.let_pass(10.0)
    assert_goes_on(story)
    assert story.record.seats == seats
    story.ends_well()


def test_what_runs_alone_is_taken_over_by_a_coordinator_that_has_begun_an_earlier_generation_elsewhere() -> None:
    """Found by random seeds: its journal was lost, nobody else knew of what is newer, and who is ahead is believed."""
    story = Story(nnodes=(1, 3), extra_nodes="grow", names="abcd", exclude=("a",))
    for node in "cd":
        story.cut_off(node, 15.0)
    story.let_pass(10.0)
    story.world.restart(RUN)
    story.let_pass(2.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 2, ["b"])
    story.cut_off("b", 40.0)
    story.world.lose_journal()
    story.let_pass(25.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["c", "d"])
    story.let_pass(30.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 2, ["b"])
    story.ends_well()


def test_a_later_generation_that_has_failed_unheard_is_charged_whatever_was_wanted_of_an_earlier_one() -> None:
    """Found by random seeds: an operator restarts what an old journal holds, and that ended long ago."""
    story = Story(names="abcd", exclude=("a",))
    older = story.record
    story.crash("b")
    story.let_pass(5.0)
    assert (story.record.phase, story.record.generation, story.record.ledger.used) == (Phase.RUNNING, 1, 1)
    story.world.put_back(RUN, older)
    story.cut(both_ways([("a", node) for node in "bcd"]), 4.0)
    for node in "bcd":
        story.crash(node)
    story.let_pass(3.5)
    story.world.restart(RUN)
    story.let_pass(0.1)
    assert (story.record.phase, story.record.generation, story.record.restart is None) == (Phase.STOPPING, 0, False)
    story.let_pass(10.0)
    assert (story.record.phase, story.record.generation, story.record.ledger.used) == (Phase.RUNNING, 2, 1)
    story.ends_well()


def test_the_coordinator_is_frozen_and_judges_nobody_by_that_time() -> None:
    story = Story()
    story.world.supds[HOST].freeze(20.0)
    story.world.truth.shake(HOST, for_s=20.0)
    story.let_pass(40.0)
    assert_goes_on(story)
    story.ends_well()


def test_the_word_of_a_coordinator_that_was_replaced_ends_nothing() -> None:
    """It lives on beside the next one, has lost touch with others of the run, and ends the generation for that."""
    story = Story()
    runner = story.runner_on("b")
    connection = runner.line.connection
    story.world.kill_supd(HOST, away_s=0.5)
    story.let_pass(5.0)
    assert connection is not None
    assert runner.member is not None
    replaced, number = story.world.journal.epoch - 1, runner.member.report().number
    connection.send_down(Answer(number=number, epoch=replaced, order=Stop(generation=0)))
    story.let_pass(5.0)
    assert_goes_on(story)
    assert story.world.clock.seen["ignored: answer of a coordinator that was replaced"] == 1
    story.ends_well()


def test_a_node_takes_neither_an_order_nor_a_welcome_of_a_coordinator_that_was_replaced() -> None:
    """An order would have no runner there, and who welcomes is the one to follow."""
    story = Story()
    story.world.kill_supd(HOST, away_s=0.5)
    story.let_pass(5.0)
    supd, epoch = story.world.supds["b"], story.world.journal.epoch
    replaced = {
        "order of a coordinator": NodeOrder(number=0, epoch=epoch - 1),
        "host": Joined(version=1, epoch=epoch - 1, host="c"),
    }
    for name, message in replaced.items():
        assert supd.line.connection is not None
        supd.line.connection.greet(message)
        story.let_pass(2.0)
        assert story.world.clock.seen[f"refused: {name} that was replaced"] == 1
        assert (supd.epoch, supd.machine.follows) == (epoch, HOST)
    assert_goes_on(story)
    story.ends_well()


def test_a_run_whose_only_node_is_dark_waits_for_proof_and_an_operator_can_give_it() -> None:
    story = Story(nnodes=(1, 1), exclude=("a",))
    node = story.nodes[0]
    story.world.switch_off(node, 1000.0)
    story.let_pass(30.0)
    assert (story.record.phase, story.record.generation) == (Phase.RUNNING, 0)
    assert node in story.waits_for
    assert f"supctl node lost {node}" in story.waits_for
    assert story.world.host is not None
    story.world.host.lose_node(node, "me")
    story.let_pass(8.0)
    assert (story.record.phase, story.record.generation) == (Phase.RUNNING, 1)
    assert story.nodes != [node]


def test_who_has_stopped_and_is_lost_gives_no_word_to_those_that_run_on() -> None:
    """Found by hand: b, whose witnesses had stopped unheard, got their word for ever, and was lost by their loss."""
    story = Story(nnodes=(1, 5), extra_nodes="grow", names="abcdef", exclude=("a",))
    assert story.nodes == ["b", "c", "d", "e", "f"]
    story.cut(both_ways([(here, there) for here in "bcdf" for there in "ae"]), 40.0)
    story.let_pass(0.3)
    for node in "cdf":
        rank = story.rank_on(node)
        rank.crew.crash(rank, 1, None)
    story.let_pass(30.0)
    assert (story.record.phase, story.record.generation, story.nodes) == (Phase.RUNNING, 1, ["e"])
    story.ends_well()


@pytest.mark.parametrize("with_journal", [True, False])
def test_training_goes_on_where_the_coordinator_is_moved_by_mistake_while_it_is_well(with_journal: bool) -> None:
    story = Story()
    assert story.world.moves.begin("b", old_is_dead=True, with_journal=with_journal)
    story.let_pass(1.1)
    assert story.world.moves.are_two
    story.let_pass(30.0)
    assert (story.world.truth.host, story.world.moves.is_on) == ("b", False)
    assert_goes_on(story)
    story.ends_well()


def test_a_coordinator_that_thaws_after_it_was_replaced_gives_way_and_nobody_obeys_it() -> None:
    story = Story()
    story.world.supds[HOST].freeze(25.0)
    story.world.truth.shake(HOST, for_s=25.0)
    assert story.world.moves.begin("b", old_is_dead=False, with_journal=True)
    story.let_pass(40.0)
    assert story.world.clock.seen["taken: host that gives way"] == 1
    assert story.world.truth.host == "b"
    assert_goes_on(story)
    story.ends_well()


def test_a_coordinator_that_is_cut_off_with_no_rank_beside_it_is_replaced_without_any_harm() -> None:
    story = Story(names="abcd", exclude=("a",))
    story.cut_off("a", 25.0)
    story.let_pass(1.0)
    assert story.world.moves.begin("b", old_is_dead=False, with_journal=True)
    story.let_pass(45.0)
    assert (story.world.truth.host, story.world.moves.is_on) == ("b", False)
    assert_goes_on(story)
    story.ends_well()


def test_the_coordinator_is_not_moved_while_it_lives() -> None:
    story = Story()
    assert story.world.moves.begin("b", old_is_dead=False, with_journal=True)
    story.let_pass(10.0)
    assert (story.world.truth.host, story.world.moves.is_on) == (HOST, False)
    assert story.world.clock.seen["refused: move while the old host lives, or may"] == 1
    assert_goes_on(story)
    story.ends_well()
