"""supervisor/logs/last_lines.py"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.logs.last_lines import LINE_BYTES_MAX, LINES_MAX, LastLines

lines = st.lists(st.one_of(st.binary(max_size=5), st.sampled_from([b"x" * 3000, b"y" * 2000])), max_size=60)


@settings(deadline=None)
@given(lines, st.lists(st.integers(0, 20_000), max_size=10))
def test_the_last_lines_do_not_depend_on_how_the_bytes_arrive(written: list[bytes], cuts: list[int]) -> None:
    output = b"\n".join(written)
    kept = LastLines()
    places = [0, *sorted(cuts), max([len(output), *cuts])]
    for start, end in itertools.pairwise(places):
        kept.feed(output[start:end])
    expected = output.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert kept.get() == tuple(line[:LINE_BYTES_MAX] for line in expected[-LINES_MAX:])


def test_bytes_behind_the_last_newline_count_as_a_line() -> None:
    kept = LastLines()
    kept.feed(b"first\nlast words")
    assert kept.get() == (b"first", b"last words")


def test_more_lines_are_kept_from_the_moment_on_at_which_they_are_asked_for() -> None:
    kept = LastLines()
    kept.feed(b"".join(b"%d\n" % number for number in range(100)))
    kept.keep_more()
    assert kept.get() == tuple(b"%d" % number for number in range(80, 100))
    kept.feed(b"".join(b"%d\n" % number for number in range(100, 400)))
    assert kept.get() == tuple(b"%d" % number for number in range(200, 400))
