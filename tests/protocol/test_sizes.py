"""protocol/sizes.py"""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.sizes import parse_size, size, size_text
from protocol.tables import Found, Spot


@pytest.mark.parametrize(
    ("written", "bytes"),
    [("0B", 0), ("200MB", 200_000_000), ("64KiB", 65536), ("1.5GiB", 3 << 29), ("2TB", 2 * 10**12), ("12kB", 12_000)],
)
def test_a_size_is_a_number_with_a_unit_of_1000_or_1024(written: str, bytes: int) -> None:
    assert parse_size(written) == bytes


@pytest.mark.parametrize(
    ("written", "mend"),
    [("200 MB", "200MB"), ("50gib", "50GiB"), ("5G", "5GB"), ("64k", "64kB"), ("1.5mb", "1.5MB"), ("7KB", "7kB")],
)
def test_what_is_nearly_a_size_is_told_as_one(written: str, mend: str) -> None:
    with pytest.raises(ValueError, match=f'^write "{mend}"$'):
        parse_size(written)


@pytest.mark.parametrize("written", ["", "MB", "-1MB", "1e6B", "1 000MB x", "5 bananas", "1" * 40 + "B"])
def test_what_is_no_size_is_told_how_to_write_one(written: str) -> None:
    with pytest.raises(ValueError, match=r'^write a size like "200MB" or "50GiB"'):
        parse_size(written)


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 1 << 49))
def test_a_size_reads_back_as_it_was_written(number: int) -> None:
    assert parse_size(size_text(number)) == number


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_size_or_a_value_error(written: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_size(written) >= 0


@pytest.mark.parametrize("value", [True, 1.5, 5, -5, 1 << 70, [], {}, "x", "1B", "1TB", "off", float("nan"), "a\0"])
def test_a_value_that_is_no_size_in_range_is_one_problem(value: object) -> None:
    found = Found("J")
    size(10, 1000)(Spot("k", found, ("k",)), value)
    assert len(found.problems) == 1
