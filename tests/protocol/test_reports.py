"""protocol/reports.py: what two nodes' reports come to."""

from protocol import reports
from protocol.coordinator_events import Seat
from protocol.messages.member import Part
from tests.protocol.build import assignment, exited, rank, renewal

SEATS = {
    "a": Seat(node="a", incarnation="a1", assignment=assignment(nproc=2, first_rank=0)),
    "b": Seat(node="b", incarnation="b1", assignment=assignment(nproc=2, first_rank=2)),
}
A = renewal(1, Part.RUNNING, 0, rank(0, step=7, silent_s=1.0), rank(1, step=7, silent_s=3.0), saved_step=4)
B = renewal(1, Part.RUNNING, 0, rank(2, step=9), rank(3, exited(0, ran_s=5.0)))


def test_of_a_node_that_has_not_reported_nothing_is_taken_for_granted() -> None:
    assert reports.all_launched(SEATS, {"a": A, "b": B})
    assert not reports.all_launched(SEATS, {"a": A})
    assert not reports.all_started(SEATS, {"a": A})
    assert reports.all_started(SEATS, {"a": A, "b": B})
    done = renewal(2, Part.FINISHED, 0)
    assert not reports.all_finished(SEATS, {"a": done, "b": B})
    assert reports.all_finished(SEATS, {"a": done, "b": done})


def test_who_has_ended_is_known_rank_by_rank() -> None:
    assert not reports.any_ended({"a": A})
    assert reports.any_ended({"a": A, "b": B})
    assert [reports.unended(seat, {"a": A, "b": B}) for seat in SEATS.values()] == [(0, 1), (2,)]
    assert (reports.longest_life_s({"a": A}), reports.longest_life_s({"a": A, "b": B})) == (None, 5.0)


def test_the_step_is_that_of_the_rank_behind_and_a_checkpoint_the_newest() -> None:
    assert reports.last_step({"b": B, "a": A}) == (7, 1.0)
    assert reports.last_step({}) is None
    assert (reports.saved_step([A, B]), reports.saved_step([B])) == (4, None)
