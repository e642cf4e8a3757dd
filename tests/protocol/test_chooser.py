"""protocol/chooser.py"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chooser import CHOOSER_MAX, FORM, Chooser, parse
from protocol.selector import choose_ranks

NODES = ("gpu-01", "gpu-02", "gpu-03", "gpu-10")
PER_NODE = 4


def chosen(text: str) -> list[int]:
    """The ranks of four nodes, of four ranks each, that it chooses."""
    chooser = parse(text)
    every = range(len(NODES) * PER_NODE)
    return [rank for rank in every if chooser.wants(rank, rank % PER_NODE, NODES[rank // PER_NODE])]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", [0]),
        ("0,3", [0, 3]),
        ("8-15", [8, 9, 10, 11, 12, 13, 14, 15]),
        ("!0-13", [14, 15]),
        ("local:0", [0, 4, 8, 12]),
        ("local:2-3", [2, 3, 6, 7, 10, 11, 14, 15]),
        ("gpu-03", [8, 9, 10, 11]),
        ("gpu-0[2-4]", [4, 5, 6, 7, 8, 9, 10, 11]),
        ("gpu-[03-10]", [8, 9, 10, 11, 12, 13, 14, 15]),
        ("gpu-03/local:2", [10]),
        ("gpu-0[1-2]/local:0-1", [0, 1, 4, 5]),
        ("!gpu-0[1-3]", [12, 13, 14, 15]),
        ("gpu-02,!local:1,0", [0, 4, 6, 7]),
        ("all,!0-14", [15]),
        ("all", [*range(16)]),
        ("99", []),
    ],
)
def test_ranks_are_chosen_by_number_by_place_on_the_node_and_by_node(text: str, ranks: list[int]) -> None:
    assert chosen(text) == ranks


@given(
    st.lists(
        st.tuples(st.booleans(), st.none() | st.tuples(st.integers(0, 15), st.integers(0, 15))), min_size=1, max_size=5
    )
)
def test_ranks_alone_are_chosen_as_everywhere_else(pieces: list[tuple[bool, tuple[int, int] | None]]) -> None:
    words = [f"{'!' * is_out}{'all' if ranks is None else f'{min(ranks)}-{max(ranks)}'}" for is_out, ranks in pieces]
    assert chosen(",".join(words)) == [*choose_ranks(",".join(words), 16)]


def test_a_node_is_asked_only_if_one_of_its_ranks_may_be_meant() -> None:
    def may_want(text: str) -> list[str]:
        chooser = parse(text)
        return [node for number, node in enumerate(NODES) if chooser.may_want(node, number * PER_NODE, PER_NODE)]

    assert may_want("0,5") == ["gpu-01", "gpu-02"]
    assert may_want("!0-11") == ["gpu-10"]
    assert may_want("gpu-03/local:3") == ["gpu-03"]
    assert may_want("gpu-03/local:4") == []
    assert may_want("local:1") == [*NODES]


def test_what_is_named_can_be_compared_with_what_is_there() -> None:
    chooser = parse("0,!8-9,gpu-0[1-2],gpu-01/local:3,local:7,all")
    assert chooser.ranks == (range(1), range(8, 10))
    assert chooser.nodes == ("gpu-01", "gpu-02")
    assert [piece.local_ranks for piece in chooser.pieces] == [None, None, None, range(3, 4), range(7, 8), None]
    assert [piece.text for piece in chooser.pieces][1] == "8-9"


@pytest.mark.parametrize(
    "text", ["", ",", "0,", "-1", "!", "local:", "local:x", "gpu 1", "a/b", "gpu-03/local", "0 ,1", "gpu-0[1-]"]
)
def test_another_form_is_an_error_that_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"write them like"):
        parse(text)


def test_ranges_the_wrong_way_round_and_texts_without_end_are_refused() -> None:
    for text in ("5-3", "local:2-1", "gpu-[3-1]"):
        with pytest.raises(ValueError, match="has to be the lower one"):
            parse(text)
    with pytest.raises(ValueError, match="more than"):
        parse("gpu-[1-9999999]")
    with pytest.raises(ValueError, match="characters"):
        parse("0," * CHOOSER_MAX)
    assert isinstance(parse(",".join(str(rank) for rank in range(4000))), Chooser)
    assert "gpu-03/local:2" in FORM
