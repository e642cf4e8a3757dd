"""protocol/spans.py: where keys and values stand in a TOML text."""

import time
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import KeyPath
from protocol.spans import Extent, Mark, marks_of, part_of_string, scan, scan_key


def loaded(text: str) -> tuple[Mark, dict[str, Any]]:
    document = tomllib.loads(text)
    root = marks_of(text, document)
    assert root is not None, text
    return root, document


EVERYTHING = "\n".join(
    [
        "# a comment = 1",
        "bare-1_ = 1 # more",
        r'"quo\u0074ed \"" = 2',
        "'literal \"key\"' = 3",
        "dotted.a . \"b c\".'d' = 4",
        r'basic = "a # \" \\ \u00e9 \U0001F600"',
        "literal = 'C:\\no\\escape \"'",
        'multi = """\none "" \\""" two \\\n   three""""',
        "raw = '''\nit's '' [x]\n'''''",
        "empty = ['', \"\", '''''', \"\"\"\"\"\"]",
        "numbers = [+1_000, 0xdead, -0.5e+3, inf, nan, true]",
        "dates = [1979-05-27T07:32:00Z, 1979-05-27 07:32:00.5-07:00, 1979-05-27, 07:32:00]",
        "nested = [ [1, 2 ], # why\n  [\n  \"]\", '}' # ,\n, ]\n , ]",
        "inline = { a = 1, b.c = [ { d = 'x' } ], \"e f\" = {} }",
        "\t[ table . 'sub' ] # end",
        "x = 1",
        "[table]",
        "y.z = 2",
        "[[array]]",
        "k = 1",
        "[array.below]",
        "k = 2",
        "[[array]]",
        "[[array.deep]]",
        "k = 3",
    ]
)


@pytest.mark.parametrize("text", [EVERYTHING, "", "\n", "#", "x=1", "x = 1 # y = 2", "[a]", "[[a]]", "[a]\n[a.b]\n"])
def test_every_form_of_toml_is_marked_where_it_stands(text: str) -> None:
    check_marks(text, *loaded(text))


def check_marks(text: str, mark: Mark, value: object) -> None:
    """What stands at a mark reads as the key and value that tomllib gives."""
    entries = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    assert mark.entries.keys() == entries.keys()
    for name, below in mark.entries.items():
        if below.key is None:
            assert isinstance(name, int)
        else:
            assert tomllib.loads(f"{text[slice(*below.key)]} = 1") == {name: 1}
        if below.value is not None and not (is_header(text, below) and isinstance(entries[name], dict | list)):
            written = tomllib.loads(f"x = {text[slice(*below.value)]}")["x"]
            assert repr(written) == repr(entries[name])  # nan is no nan
        check_marks(text, below, entries[name])


def is_header(text: str, mark: Mark) -> bool:
    assert mark.value is not None
    line = text[text.rfind("\n", 0, mark.value.start) + 1 : mark.value.start]
    return text[mark.value.start] == "[" and not line.strip()


# --- texts that tomllib takes ------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text) + '"'


CHARS = st.characters(exclude_categories=["Cs"], exclude_characters="\r")
BARE = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True)
KEY = st.one_of(BARE, st.text(CHARS, max_size=4).map(quoted))
SPACE = st.sampled_from(["", " ", "\t", "  "])
STRINGS = st.one_of(
    st.text(CHARS, max_size=9).map(quoted),
    st.text(st.sampled_from('ab #[]{}=,."\\é日'), max_size=9).map(lambda text: f"'{text}'"),
    st.text(st.sampled_from('ab #[]{}=,."\\\n日'), max_size=9).map(lambda text: f"'''{text}'''"),
    st.text(st.sampled_from("ab #[]{}=,.'\n日"), max_size=9).map(lambda text: f'"""{text}"""'),
)
SCALARS = st.one_of(
    STRINGS,
    st.sampled_from(
        ["true", "0", "-1", "1_0", "0x1f", "1.5e3", "inf", "1979-05-27", "1979-05-27 07:32:00Z", "07:32:00"]
    ),
)
GAP = st.sampled_from(["", " ", "\n", " # ]}\n", "\n\n\t"])


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    item = st.tuples(GAP, values, GAP).map("".join)
    return st.lists(item, max_size=4).map(lambda items: f"[{','.join(items)}]")


def tables(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    entries = st.dictionaries(BARE, values, max_size=3)
    return entries.map(lambda given: "{ " + ", ".join(f"{key} = {value}" for key, value in given.items()) + " }")


VALUES = st.recursive(SCALARS, lambda values: arrays(values) | tables(values), max_leaves=6)
DOTTED = st.lists(KEY, min_size=1, max_size=3).flatmap(lambda parts: SPACE.map(lambda gap: f"{gap}.{gap}".join(parts)))
LINES = st.one_of(
    st.tuples(SPACE, DOTTED, SPACE, st.just("="), SPACE, VALUES, st.sampled_from(["", " # x = 1"])).map("".join),
    DOTTED.map(lambda key: f"[{key}]"),
    DOTTED.map(lambda key: f"[[ {key} ]]"),
    st.sampled_from(["", "# nothing"]),
)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(LINES, max_size=8).map("\n".join))
def test_a_mark_is_right_or_absent_in_any_text_that_tomllib_takes(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert isinstance(scan(text).root, Mark)
        return
    check_marks(text, *loaded(text))
    assert document is not None


@settings(deadline=None)  # the machine may be busy
@given(st.one_of(st.text(), st.text(st.sampled_from("ab=.[]{}\"'\\#,\n 1"))))
def test_any_text_can_be_scanned_and_marks_lie_within_it(text: str) -> None:
    for result in (scan(text), scan_key(text)):
        assert result.stopped is None or 0 <= result.stopped <= len(text)
        marks = [result.root]
        while marks:
            mark = marks.pop()
            marks += mark.entries.values()
            for extent in (mark.key, mark.value):
                assert extent is None or 0 <= extent.start <= extent.end <= len(text)


def test_where_scanner_and_parser_disagree_there_are_no_marks() -> None:
    assert marks_of("a = 1", {"b": 1}) is None
    assert marks_of("a = [1]", {"a": [1, 2]}) is None
    assert marks_of("a = 1", {"a": {"b": 1}}) is None
    assert marks_of("a = ", {"a": 1}) is None
    deep = "[" * 42 + "]" * 42
    assert marks_of(f"a = {deep}", tomllib.loads(f"a = {deep}")) is None


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"key-{i} = {{ a.b = [1, 'x'] }}\n" for i in range(10_000)),
        "x = [" + "1," * 100_000 + "]",
        "x = " + "[" * 200_000,
        "x = '" + "a" * 500_000,
        'x = """' + '"\\' * 200_000,
        "[[a]]\n" * 50_000,
        "a = 1\n" * 50_000,
        " \t\n#\n" * 100_000,
        "=" * 500_000,
    ],
    ids=range(9),
)
def test_scanning_takes_time_in_proportion_to_the_size(text: str) -> None:
    began_s = time.thread_time()
    scan(text)
    assert time.thread_time() - began_s < 5


# --- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "key", "value"),
    [
        ("[a.b]\n[a]\nx = 1", ("a",), "a@1", "[a]@1"),
        ("[a.b]\nx = 1", ("a",), "a@0", None),
        ("a.b = 1", ("a", "b"), "b@0", "1@0"),
        ("[[a]]\n[[a]]\nx = 1", ("a", 1), None, "[[a]]@1"),
        ("x = [1, 2]", ("x", 1), None, "2@0"),
    ],
)
def test_a_table_is_where_its_header_stands_and_an_item_where_it_is(
    text: str, path: KeyPath, key: str | None, value: str | None
) -> None:
    mark = loaded(text)[0].find(path)
    assert mark is not None
    assert (described(text, mark.key), described(text, mark.value)) == (key, value)


def described(text: str, extent: Extent | None) -> str | None:
    """What stands there, and in which line from 0."""
    return extent and f"{text[slice(*extent)]}@{text.count(chr(10), 0, extent.start)}"


@pytest.mark.parametrize(
    ("text", "within", "part"),
    [
        (r"'a\(b)'", (2, 5), "(b)"),
        (r'"a\\(b)"', (2, 5), "(b)"),
        (r'"\u0041(b)"', (1, 4), "(b)"),
        ('"abc"', (3, 3), ""),
        ('"abc"', (3, 4), None),
        ('"""abc"""', (0, 1), None),
        ("'''abc'''", (0, 1), None),
        ("5", (0, 1), None),
    ],
)
def test_a_part_of_a_string_is_found_behind_its_escapes(text: str, within: tuple[int, int], part: str | None) -> None:
    extent = part_of_string(text, Extent(0, len(text)), within)
    assert (extent and text[slice(*extent)]) == part


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a.b=x y", ("a", "b"), "x y"),
        ("a = ", ("a",), ""),
        ('a."b=c"="d"', ("a", "b=c"), '"d"'),
        ("a=b=c", ("a",), "b=c"),
    ],
)
def test_a_setting_is_a_key_and_all_that_follows(text: str, path: KeyPath, value: str) -> None:
    result = scan_key(text)
    assert (result.path, text[result.value :]) == (path, value)


@pytest.mark.parametrize("text", ["", "a", "=1", "a b=1", "a.=1", '"a=1', "[a]=1"])
def test_what_has_no_key_has_no_value_either(text: str) -> None:
    assert scan_key(text).value is None


def test_the_first_key_that_stands_twice_is_found_with_the_one_before() -> None:
    text = "[a]\nx = 1\ny.z = 2\ny.z = 3\nx = 4\n"
    repeated = scan(text).repeated
    assert repeated is not None
    assert [described(text, extent) for extent in repeated] == ["z@2", "z@3"]
    assert scan("[a]\n[b]\n[a]").repeated == (Extent(1, 2), Extent(9, 10))
    assert scan("[[a]]\n[[a]]\n[a.b]\n[a]").repeated is not None
    assert scan(EVERYTHING).repeated is None
