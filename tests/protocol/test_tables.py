"""Reading a TOML file against a schema."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.checks import choice, duration, integer, text
from protocol.errors import MAX_PROBLEMS
from protocol.tables import Found, Key, Kind, Schema, check_tables, quoted
from protocol.toml_text import MAX_ENTRIES, MAX_FILE_BYTES, MAX_KEY_PARTS, read_toml

SCHEMA = Schema(
    top={"title": Key(text, "string", "", "", is_required=True)},
    tables={
        "box": {
            "size": Key(integer(1, 9), "int", "", "", is_required=True),
            "wait": Key(duration, "duration", "", "", field="wait_s"),
        },
        "lid": {"colour": Key(choice("red", "green"), "word", "", "")},
    },
    later={"": ("hinge",), "box": ("depth",)},
)


def found_in(source: str) -> list[tuple[str, str, str, str]]:
    """All problems of a file: code, key, message, hint."""
    found = Found("T")
    document = read_toml(source.encode(), found)
    if document is not None:
        check_tables(document, SCHEMA, found)
    return [(p.code, p.key, p.message, p.hint) for p in found.problems]


def test_sound_values_come_by_field_and_absent_keys_stay_absent() -> None:
    found = Found("T")
    document = read_toml(b'title = "x"\n[box]\nsize = 3\nwait = "2m"\n', found)
    assert document is not None
    assert check_tables(document, SCHEMA, found) == {"title": "x", "box": {"size": 3, "wait_s": 120.0}, "lid": {}}
    assert found.problems == []


def test_all_problems_are_found_in_one_go_and_in_the_order_of_the_file() -> None:
    assert found_in("titel = 1\n[box]\nsize = 10\nwait = 300\n[lid]\ncolour = 'gren'\n") == [
        ("T101", "titel", "unknown key `titel`", "did you mean `title`?"),
        ("T205", "box.size", "`box.size` is out of range", "write 1 to 9"),
        ("T204", "box.wait", "`box.wait` needs a unit", 'write "300s" or "5m"'),
        ("T203", "lid.colour", "`lid.colour` is none of its choices", 'did you mean "green"?'),
        ("T202", "title", "`title` is missing", "write title = … at the top of the file"),
    ]


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("[box]\nsiez = 3", "unknown key `siez` in [box]", "did you mean `size`?"),
        ("[box]\nqqq = 3", "unknown key `qqq` in [box]", "[box] has size and wait"),
        ("qqq = 3", "unknown key `qqq`", "the top of the file has title"),
        ("[box]\ncolour = 'red'", "unknown key `colour` in [box]", "it belongs in [lid]"),
        ("wait = '2s'", "unknown key `wait`", "it belongs in [box]"),
        (
            "[lid]\ntitle = 'x'",
            "unknown key `title` in [lid]",
            "`title` belongs at the top of the file, above the first [table]",
        ),
        ("SIZE = 3\n[box]\nSiZe = 3", "unknown key `SiZe` in [box]", "did you mean `size`?"),
        ("BOX.size = 3", "unknown table [BOX]", "did you mean [box]?"),
        ("[lids]", "unknown table [lids]", "did you mean [lid]?"),
        ("[[lids]]", "unknown table [lids]", "did you mean [lid]?"),
        ("[qqq]", "unknown table [qqq]", "there are [box] and [lid]"),
        ("hinge = 1", "`hinge` is not in this version", "leave it out"),
        ("[[hinge]]", "[hinge] is not in this version", "leave it out"),
        ("[box]\ndepth = 1", "`box.depth` is not in this version", "leave it out"),
        ('"" = 1', 'unknown key `""`', "the top of the file has title"),
        ("box = 3", "`box` must be a table, not an integer", "write [box] on a line of its own, and its keys below"),
        ("[[box]]", "`box` must be a table, not an array", "write [box] on a line of its own, and its keys below"),
    ],
)
def test_what_is_not_in_the_schema_is_told_with_what_may_have_been_meant(line: str, message: str, hint: str) -> None:
    assert (message, hint) in [(m, h) for _, _, m, h in found_in(line)]


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"x = ", Kind.NOT_TOML, "Invalid value"),
        (b"x = yes", Kind.NOT_TOML, "Invalid value"),
        (b"x = 1\nx = 2\n", Kind.NOT_TOML, "Cannot overwrite a value"),
        (b"x = " + b"1" * 5000, Kind.NOT_TOML, "thousands of digits"),
        (b"x = " + b"[" * 100_000, Kind.NOT_TOML, "too deeply"),
        (b"ok = 1\nx = '\xff'", Kind.NOT_UTF8, "line 2"),
        (b"#" * (MAX_FILE_BYTES + 1), Kind.TOO_LARGE, "1 MiB"),
        (b"#" * 10_000_000, Kind.TOO_LARGE, "1 MiB"),
        ("näme = 1\n# ok".encode("latin-1"), Kind.NOT_UTF8, "Latin-1"),
        ("name = 1".encode("utf-16"), Kind.NOT_UTF8, "UTF-16"),
        ("name = 1".encode("utf-16-le"), Kind.NOT_UTF8, "UTF-16"),
        (b"\x7fELF" + bytes(range(256)), Kind.NOT_UTF8, "binary"),
        (b"x = 1\0", Kind.NOT_UTF8, "binary"),
        (b"[" + b"a." * 70 + b"a]", Kind.NOT_TOML, "64 parts"),
        (b"x = [" + b"1," * MAX_ENTRIES + b"]", Kind.TOO_LARGE, "20000 keys and items"),
        (b"x = [" + b"[1]," * (MAX_ENTRIES // 2) + b"]", Kind.TOO_LARGE, "20000 keys and items"),
        (b"".join(b"[a.b%d]\n" % i for i in range(MAX_ENTRIES)), Kind.TOO_LARGE, "20000 keys and items"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_problem(data: bytes, kind: Kind, says: str) -> None:
    found = Found("T")
    assert read_toml(data, found) is None
    (problem,) = found.problems
    assert problem.code == f"T{kind:03}"
    assert says in problem.message


def test_a_byte_order_mark_does_no_harm() -> None:
    assert read_toml(b"\xef\xbb\xbfx = 1", Found("T")) == {"x": 1}


@pytest.mark.parametrize("form", ["{}a = 1", "[{}a]", "x = {{ {}a = 1 }}", "{}'a' = 1"])
@pytest.mark.parametrize("part", ["a.", '"a b" . ', r'"\"".', "'a'\t."])
def test_a_key_of_very_many_parts_is_refused_before_it_can_stop_a_daemon(form: str, part: str) -> None:
    found = Found("T")
    began_s = time.thread_time()
    assert read_toml(form.format(part * (200_000 // len(part))).encode(), found) is None
    assert time.thread_time() - began_s < 5  # tomllib alone takes minutes
    assert "parts" in found.problems[0].message


@pytest.mark.parametrize("char", ["a", "\\", '"', "'", ".", '\\"', "a.", '"".', "\n", "["])
def test_reading_takes_time_in_proportion_to_the_size(char: str) -> None:
    began_s = time.thread_time()
    read_toml(b'x = """' + char.encode() * ((MAX_FILE_BYTES - 16) // len(char)), Found("T"))
    assert time.thread_time() - began_s < 5


def test_text_with_many_dots_is_no_key() -> None:
    dots = "10.0.0.1." * 1000
    assert read_toml(f'x = ["{"a.b," * 1000}", "{dots[:MAX_KEY_PARTS]}", "...{"." * 1000}"]'.encode(), Found("T"))


def test_a_hopeless_file_is_told_at_most_a_hundred_problems() -> None:
    problems = found_in("".join(f"k{i} = 1\n" for i in range(MAX_ENTRIES)))
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1] == ("T005", "", "more than 100 problems", "mend these first; is it the right file?")


@settings(deadline=None)  # the machine may be busy
@given(st.text(max_size=200))
def test_what_is_shown_of_a_text_is_one_short_line_and_safe_for_a_terminal(value: str) -> None:
    line = quoted(value)
    assert line.isprintable()
    assert len(line) <= 6 * 61 + 2
