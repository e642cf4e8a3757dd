"""supervisor/daemon/log_gaps.py: what is told of output that is not kept any more."""

import pytest

from supervisor.daemon.log_gaps import not_kept

RULE = "is not kept any more ([logs] keep_generations)"


@pytest.mark.parametrize(
    ("there", "wanted", "told"),
    [
        ({"a": (0, 1, 5)}, range(6), [f"the output of generations 2-4 {RULE}"]),
        ({"a": (0, 4, 5), "b": (0, 4, 5), "c": ()}, range(3, 4), [f"the output of generation 3 {RULE}"]),
        ({"a": (0, 1, 5), "b": (0, 4, 5)}, range(4, 5), [f"the output of generation 4 on a {RULE}"]),
        ({"a": (0, 1, 5)}, range(1, 2), []),
        ({"a": (0, 1, 5)}, range(5, 7), []),
    ],
)
def test_generations_that_a_node_has_removed_are_told_in_one_line(
    there: dict[str, tuple[int, ...]], wanted: range, told: list[str]
) -> None:
    assert not_kept(there, wanted, 3, ()) == told


def test_a_node_that_had_no_part_in_a_generation_has_removed_nothing() -> None:
    assert not_kept({"joined later": (3, 4, 5), "was away": (0, 5)}, range(6), 20, ()) == []


def test_output_that_is_gone_with_its_run_is_told_of_nodes_that_had_a_part_in_it() -> None:
    rule = "is not kept any more ([state] max_disk, min_free)"
    assert not_kept({"a": (), "b": ()}, range(1), 20, ["a", "b", "c"]) == [f"the output of this run {rule}"]
    assert not_kept({"a": (), "b": (0,)}, range(1), 20, ["a", "b"]) == [f"the output of this run on a {rule}"]
    assert not_kept({"a": (), "b": (0,)}, range(1), 20, ["b"]) == []
