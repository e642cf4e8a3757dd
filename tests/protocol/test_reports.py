"""What the reports of several runners say together."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.coordinator_events import Seat
from protocol.messages.member import Part, Renewal
from protocol.reports import Reports, saved_step
from tests.protocol.build import assignment, exited, rank, renewal

SEATS = {
    "a": Seat(node="a", incarnation="a1", assignment=assignment(nnodes=2, world_size=4)),
    "b": Seat(node="b", incarnation="b1", assignment=assignment(nnodes=2, world_size=4, node_rank=1, first_rank=2)),
}
RUNNING = {"a": renewal(1, Part.RUNNING, 0, rank(0), rank(1)), "b": renewal(1, Part.RUNNING, 0, rank(2), rank(3))}


def test_of_a_node_that_has_not_reported_nothing_is_taken_for_granted() -> None:
    both = Reports(SEATS, RUNNING)
    assert both.all_launched
    assert both.all_started
    one = Reports(SEATS, {"a": RUNNING["a"]})
    assert not one.all_launched
    assert not one.all_started
    assert not Reports({}).all_finished


def test_who_has_ended_is_known_rank_by_rank() -> None:
    reports = Reports(SEATS, {"b": renewal(1, Part.RUNNING, 0, rank(2, exited(0)), rank(3))})
    assert reports.any_ended
    assert reports.unended(SEATS["b"]) == (3,)
    assert reports.unended(SEATS["a"]) == (0, 1)
    assert not reports.all_finished


def test_the_step_is_that_of_the_rank_behind_and_a_checkpoint_the_newest() -> None:
    a = renewal(1, Part.RUNNING, 0, rank(0, step=9, silent_s=0.0), rank(1), saved_step=4)
    b = renewal(1, Part.RUNNING, 0, rank(2, step=7, silent_s=3.0), saved_step=5)
    assert Reports(SEATS, {"a": a, "b": b}).last_step == (7, 3.0)
    assert saved_step([a, b]) == 5


PARTS = st.builds(
    lambda node, part, ended, started: (node, _report(node, part, ended, started)),
    st.sampled_from("ab"),
    st.sampled_from(Part),
    st.integers(0, 2),
    st.integers(0, 2),
)


def _report(node: str, part: Part, ended: int, started: int) -> Renewal:
    first = 0 if node == "a" else 2
    ranks = (rank(first + i, exited(0) if i < ended else None, started=i < started, first=first) for i in range(2))
    return renewal(1, part, 0, *ranks)


@given(st.lists(PARTS, max_size=12))
def test_counting_as_they_come_is_counting_the_newest_ones(heard: list[tuple[str, Renewal]]) -> None:
    reports = Reports(SEATS)
    for node, report in heard:
        reports.take_in(node, report)
    anew = Reports(SEATS, dict(heard))
    for what in ("all_finished", "all_launched", "all_started", "any_ended", "longest_life_s"):
        assert getattr(reports, what) == getattr(anew, what)
