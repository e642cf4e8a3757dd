"""Points in time as people write them, on a node whose clock is an hour ahead of UTC."""

import time
from collections.abc import Iterator

import pytest

from supervisor.cli.arguments import UsageError
from supervisor.cli.moments import later_s, local_time, moment_s, utc_time

NOON_S = 1_800_014_400.0  # 2027-01-15T12:00:00Z, which is 13:00 here


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("10m", "2027-01-15T11:50:00.000Z"),
        ("1h30m", "2027-01-15T10:30:00.000Z"),
        ("500ms", "2027-01-15T11:59:59.500Z"),
        ("12:30", "2027-01-15T11:30:00.000Z"),
        ("9:05:07", "2027-01-15T08:05:07.000Z"),
        ("13:00:00", "2027-01-15T12:00:00.000Z"),
        ("13:01", "2027-01-14T12:01:00.000Z"),
        ("2027-01-15T11:00:00Z", "2027-01-15T11:00:00.000Z"),
        ("2027-01-15T11:00:00.25+02:00", "2027-01-15T09:00:00.250Z"),
        ("2027-01-15 11:00", "2027-01-15T10:00:00.000Z"),
        ("2027-01-15", "2027-01-14T23:00:00.000Z"),
    ],
)
def test_a_moment_is_so_long_ago_or_when_a_clock_here_last_showed_it_or_a_date(written: str, moment: str) -> None:
    assert utc_time(moment_s("--since", written, NOON_S)) == moment


@pytest.mark.parametrize("written", ["", "x", "10", "-5m", "24:00", "12:60", "12:3", "0000-00-00", "9999-99-99"])
def test_what_is_no_moment_is_told_with_an_example(written: str) -> None:
    with pytest.raises(UsageError) as caught:
        moment_s("--until", written, NOON_S)
    assert str(caught.value).startswith(f"--until {written!r} is no ")
    assert "14:05" in caught.value.hint


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("13:30", "2027-01-15T12:30:00.000Z"),
        ("13:00", "2027-01-15T12:00:00.000Z"),
        ("02:30", "2027-01-16T01:30:00.000Z"),
        ("+3h", "2027-01-15T15:00:00.000Z"),
        ("in 1h30m", "2027-01-15T13:30:00.000Z"),
        ("2027-02-01T02:30", "2027-02-01T01:30:00.000Z"),
    ],
)
def test_a_moment_to_come_is_so_far_off_or_when_a_clock_here_next_shows_it_or_a_date(written: str, moment: str) -> None:
    assert utc_time(later_s("--at", written, NOON_S)) == moment


@pytest.mark.parametrize(
    "written",
    [
        *("", "3h", "+", "in", "in -3h", "+-3h", "in 02:30", "+2027-02-01T02:30", "+400d"),
        *("25:00", "2027-01-15T10:00", "2027-99-01", "2028-02-01T02:30"),
    ],
)
def test_what_is_no_moment_to_come_is_told_with_an_example(written: str) -> None:
    with pytest.raises(UsageError) as caught:
        later_s("--at", written, NOON_S)
    assert str(caught.value).startswith("--at ")


def test_a_moment_is_shown_to_the_millisecond_and_blank_where_it_is_not_known() -> None:
    assert local_time(NOON_S + 0.9996) == "13:00:01.000"
    assert utc_time(NOON_S + 0.9996) == "2027-01-15T12:00:01.000Z"
    assert (local_time(0), utc_time(0)) == (" " * 12, " " * 24)
