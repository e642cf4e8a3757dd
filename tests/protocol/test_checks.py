"""The checks of single values, and durations."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.checks import (
    MAX_DURATION_S,
    MAX_INT,
    array_of,
    choice,
    duration,
    duration_or_off,
    integer,
    matching,
    parse_duration_s,
    schema_version,
    string,
    text,
)
from protocol.tables import Check, Found, Kind, Spot


def objection(check: Check, value: object) -> tuple[Kind, str, str, str] | None:
    """What a check says of a value: kind, value as shown, message, hint."""
    found = Found("T")
    check(Spot("k", found), value)
    if not found.problems:
        return None
    (problem,) = found.problems
    return Kind(int(problem.code[1:])), problem.value, problem.message, problem.hint


def accepted(check: Check, value: object) -> object:
    found = Found("T")
    result = check(Spot("k", found), value)
    assert found.problems == []
    return result


# --- durations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "duration_s"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("0s", 0),
        ("1m1ms", 60.001),
        ("365d", MAX_DURATION_S),
    ],
)
def test_durations_are_seconds(written: str, duration_s: float) -> None:
    assert parse_duration_s(written) == duration_s


@pytest.mark.parametrize(
    "written",
    ["", "s", "-1s", "30m1h", "1s1s", "1e3s", "30 parsecs", ".5s", "1.s", "٣s", "9" * 500 + "s", "s1"],
)
def test_what_is_no_duration_is_told_how_to_write_one(written: str) -> None:
    with pytest.raises(ValueError, match='write a duration like "90s", "1h30m" or "500ms"'):
        parse_duration_s(written)


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("1 h", "1h"),
        ("1h 30m", "1h30m"),
        ("5M", "5m"),
        ("30sec", "30s"),
        ("2 min", "2m"),
        ("1 hour, 5 minutes", "1h5m"),
        ("250 milliseconds", "250ms"),
        ("3 Days", "3d"),
    ],
)
def test_what_is_nearly_a_duration_is_told_which_one(written: str, near: str) -> None:
    with pytest.raises(ValueError, match=f'^write "{near}"$'):
        parse_duration_s(written)


def test_a_duration_without_a_unit_is_told_to_take_one() -> None:
    with pytest.raises(ValueError, match='a duration needs a unit: write "300s"'):
        parse_duration_s("300")


@pytest.mark.parametrize("written", ["366d", "365d1ms", "999999999999h"])
def test_a_duration_is_at_most_a_year(written: str) -> None:
    with pytest.raises(ValueError, match="at most a year"):
        parse_duration_s(written)


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, int(MAX_DURATION_S) * 1000))
def test_a_duration_written_by_its_units_reads_back_the_same(duration_ms: int) -> None:
    rest, written = duration_ms, ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        written += f"{count}{unit}" if count else ""
    assert parse_duration_s(written or "0ms") == duration_ms / 1000


@settings(deadline=None)  # the machine may be busy
@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(written: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= parse_duration_s(written) <= MAX_DURATION_S


# --- checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (duration, "2m", 120.0),
        (duration_or_off, "off", None),
        (duration_or_off, "1s", 1.0),
        (string, "", ""),
        (text, "x", "x"),
        (choice("a", "b"), "b", "b"),
        (integer(-1, 5), -1, -1),
        (integer(1, 5, "auto"), "auto", "auto"),
        (array_of(string), [], ()),
        (array_of(string), ["a", ""], ("a", "")),
        (matching("[a-z]+", "a word", "write a-z"), "abc", "abc"),
        (schema_version, 1, 1),
    ],
)
def test_a_sound_value_comes_in_the_form_the_struct_wants(check: Check, value: object, expected: object) -> None:
    assert accepted(check, value) == expected


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (duration, 90, (Kind.DURATION, "90", "`k` needs a unit", 'write "90s"')),
        (duration, 300, (Kind.DURATION, "300", "`k` needs a unit", 'write "300s" or "5m"')),
        (duration, 1.5, (Kind.DURATION, "1.5", "`k` needs a unit", 'write "1.5s"')),
        (duration, -1, (Kind.DURATION, "-1", "`k` needs a unit", 'write it like "300s" or "5m"')),
        (duration, float("nan"), (Kind.DURATION, "nan", "`k` needs a unit", 'write it like "300s" or "5m"')),
        (duration, True, (Kind.TYPE, "true", "`k` must be a string, not a boolean", 'write it like "300s" or "5m"')),
        (
            duration,
            "5",
            (Kind.DURATION, '"5"', "`k` cannot be read as a duration", 'a duration needs a unit: write "5s"'),
        ),
        (string, 1, (Kind.TYPE, "1", "`k` must be a string, not an integer", 'put it in quotes: "1"')),
        (string, ["a"], (Kind.TYPE, "", "`k` must be a string, not an array", "write one string")),
        (string, "a\0b", (Kind.TEXT, '"a\\u0000b"', "`k` must not contain a NUL", "take the \\u0000 out")),
        (text, "", (Kind.TEXT, '""', "`k` must not be empty", "write something, or leave the key out for its default")),
        (choice("a", "b"), 1, (Kind.TYPE, "1", "`k` must be a string, not an integer", 'write "a" or "b"')),
        (choice("a", "b"), "x", (Kind.CHOICE, '"x"', "`k` is none of its choices", 'write "a" or "b"')),
        (integer(1, 5), True, (Kind.TYPE, "true", "`k` must be an integer, not a boolean", "write 1 to 5")),
        (integer(1, 5), 2.0, (Kind.TYPE, "2.0", "`k` must be an integer, not a float", "write 2")),
        (integer(1, 5), 2.5, (Kind.TYPE, "2.5", "`k` must be an integer, not a float", "write 1 to 5")),
        (integer(1, 5), 1e6, (Kind.TYPE, "1000000.0", "`k` must be an integer, not a float", "write 1 to 5")),
        (
            integer(0, MAX_INT),
            1e6,
            (Kind.TYPE, "1000000.0", "`k` must be an integer, not a float", "write 1000000"),
        ),
        (integer(1, 5), "4", (Kind.TYPE, '"4"', "`k` must be an integer, not a string", "write 4 without quotes")),
        (integer(1, 5), 6, (Kind.RANGE, "6", "`k` is out of range", "write 1 to 5")),
        (integer(0, MAX_INT), -2, (Kind.RANGE, "-2", "`k` is out of range", "write 0 or more")),
        (
            integer(0, MAX_INT, "unlimited"),
            10**22,
            (Kind.RANGE, "more than 64 bits", "`k` is out of range", f'write 0 to {MAX_INT} or "unlimited"'),
        ),
        pytest.param(
            integer(0, 9),
            1 << 90_000,
            (Kind.RANGE, "more than 64 bits", "`k` is out of range", "write 0 to 9"),
            id="an integer that Python refuses to print",
        ),
        (integer(1, 5, "auto"), "auot", (Kind.CHOICE, '"auot"', "`k` is none of its choices", 'did you mean "auto"?')),
        (integer(1, 5, "auto"), "x", (Kind.CHOICE, '"x"', "`k` is none of its choices", 'write 1 to 5 or "auto"')),
        (array_of(string), "x", (Kind.TYPE, '"x"', "`k` must be an array, not a string", 'write ["x"]')),
        *(
            (array_of(string), written, (Kind.TYPE, f'"{written}"', "`k` must be an array, not a string", hint))
            for written, hint in [
                ("--lr 3", 'write ["--lr", "3"]'),
                ("python t.py --x 'a b'", 'write ["python", "t.py", "--x", "a b"]'),
                ("it's", 'write ["it\'s"]'),
                ("", 'write [""]'),
            ]
        ),
        (array_of(integer(1, 9)), "2, 3", (Kind.TYPE, '"2, 3"', "`k` must be an array, not a string", "write [2, 3]")),
        (array_of(integer(1, 9)), "two", (Kind.TYPE, '"two"', "`k` must be an array, not a string", "write […]")),
        (
            duration_or_off,
            False,
            (
                Kind.TYPE,
                "false",
                "`k` must be a string, not a boolean",
                'write it like "300s" or "5m", or "off"',
            ),
        ),
        (array_of(string), {}, (Kind.TYPE, "", "`k` must be an array, not a table", "write […]")),
        (
            array_of(string),
            ["a", 1],
            (Kind.TYPE, "1", "`k[1]` must be a string, not an integer", 'put it in quotes: "1"'),
        ),
        (
            array_of(string, is_empty_allowed=False),
            [],
            (Kind.TEXT, "", "`k` must not be empty", "write at least one item, or leave the key out"),
        ),
        (matching("[a-z]+", "a word", "write a-z"), "A", (Kind.TEXT, '"A"', "`k` is not a word", "write a-z")),
        (
            schema_version,
            2,
            (Kind.NOT_YET, "2", "`k` is a format that this version cannot read", "install a newer supd, or write 1"),
        ),
        (schema_version, True, (Kind.TYPE, "true", "`k` must be an integer, not a boolean", "write 1")),
    ],
)
def test_a_wrong_value_is_told_with_the_key_the_value_and_the_mend(
    check: Check, value: object, expected: object
) -> None:
    assert objection(check, value) == expected
