"""protocol/toml_hints.py: what is said of a text that is not TOML."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.tables import Found
from protocol.toml_hints import REPEATED_HINT, SYNTAX_HINT, explained
from protocol.toml_text import NotToml, parse_toml, read_toml


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("grace = 30s", 'write "30s"'),
        ("grace = 1h30m # long", 'write "1h30m"'),
        ("x = True", "write true"),
        ("x = [\n  False]", "write false"),
        ("x = None", "there is no such value: leave the key out"),
        ("x = 010", "a number does not begin with 0: take it out, or put quotes around text"),
        ("script = train.py", "put text in quotes"),
        ("x = /data/a b", "put text in quotes"),
        ("x =", "write a value behind the ="),
        ("x = “a”", "write straight quotes: \" or '"),
        ("x = (1, 2)", "an array stands in brackets: [ ]"),
        ("x == 1", "write one = between key and value"),
        (r'x = "C:\data"', "in single quotes a backslash is no more than that: '…'"),
        (r'x = "C:\Users"', "in single quotes a backslash is no more than that: '…'"),
        ("[run\nx = 1", "close the bracket: [TABLE]"),
        ("[[run]\nx = 1", "close the brackets: [[TABLE]]"),
        ("[run] x = 1", "the keys of a table stand on lines of their own, below it"),
        ('x = ["a" "b"]', "put a comma between the items"),
        ('x = [\n "a"\n "b"]', "put a comma between the items"),
        ("x = [1, 2", "close the array with ]"),
        ("x = [1, 2\n[run]", "close the array with ]"),
        ("x = [1, 2\ny = 1", "close the array with ]"),
        ("name: x", "write = in place of the colon: KEY = VALUE"),
        ("name", "a line is KEY = VALUE, or [TABLE]"),
        ('{ "a": 1 }', "a line is KEY = VALUE, or [TABLE]"),
        ("x = {\n a = 1 }", "what is in { } stands on one line; for several lines, write [TABLE] and its keys below"),
        (
            "x = { a = 1, # c\n}",
            "what is in { } stands on one line; for several lines, write [TABLE] and its keys below",
        ),
        ("x = { a = 1, }", "take out the comma before }"),
        ("x = { a = 1 b = 2 }", "put a comma between the entries, and } behind the last one"),
        ("x = 1,\ny = 2", "take out the ,: nothing stands at the end of a line"),
        ('x = "a";', "take out the ;: nothing stands at the end of a line"),
        ('x = "a" "b"', "a line is one KEY = VALUE, and nothing stands behind that"),
        ("x = 1 // c", "a comment begins with #"),
        ("// c", "a comment begins with #"),
        ('x = "a', "close the string with its quote; text of several lines stands in \"\"\" or '''"),
        ('x = "a\nb"', "close the string with its quote; text of several lines stands in \"\"\" or '''"),
        ("x = 1\nx = 2", REPEATED_HINT),
        ("x = '\x01'", SYNTAX_HINT),
    ],
)
def test_what_is_not_toml_is_told_what_was_probably_meant(text: str, hint: str) -> None:
    with pytest.raises(NotToml) as caught:
        parse_toml(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "message", "first"),
    [
        ("[run]\nenv.A = '1'\n[run.env]\nB = '2'", "[run.env] is given twice", "env"),
        ("[run.env]\nA = '1'\n[run.env]", "[run.env] is given twice", "env"),
        ("[a.'b c']\n[a.'b c']", '[a."b c"] is given twice', "'b c'"),
        ("x.a = {}\n[x]\na.B = 1", "[x] is given twice", "x"),
        ("x.a = {}\nx.a.B = 1", "`x.a` is complete where it was given first, and takes no more keys", "a"),
    ],
)
def test_a_table_given_twice_is_named_as_in_the_file_and_shown_with_the_first_one(
    text: str, message: str, first: str
) -> None:
    with pytest.raises(NotToml, match=r"^not TOML: ") as caught:
        parse_toml(text)
    assert str(caught.value) == f"not TOML: {message}"
    assert caught.value.first is not None
    assert text[slice(*caught.value.first)] == first
    found = Found("T", "f.toml")
    assert read_toml(text.encode(), found) is None
    assert "- first given here" in found.settled(found.problems)[0].snippet


@settings(deadline=None)  # the machine may be busy
@given(st.text(st.sampled_from("a1.=[]{}\"'#,\n :;/\\"), max_size=12), st.text(max_size=8))
def test_any_text_is_toml_or_not_whatever_the_parser_says_of_it(text: str, more: str) -> None:
    with contextlib.suppress(NotToml):
        parse_toml(text + more)
    assert explained("something new", text, len(text)) == ("something new", SYNTAX_HINT, ())
