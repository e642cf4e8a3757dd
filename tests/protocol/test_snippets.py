"""protocol/snippets.py: what a problem looks like where it stands."""

import tomllib

import pytest

from protocol.errors import About, KeyPath, Place, Problem
from protocol.snippets import COLUMNS_MIN, Canvas, Source, settle
from protocol.spans import marks_of
from protocol.tables import Found, Kind


def snippet(
    text: str, *path: str | int, is_key: bool = False, other: KeyPath | None = None, canvas: Canvas | None = None
) -> list[str]:
    """The lines below the message of a problem with the value (or key) at a path."""
    return problem_at(text, About(path, is_key=is_key), other, canvas).snippet.split("\n")


def problem_at(text: str, about: About, other: KeyPath | None = None, canvas: Canvas | None = None) -> Problem:
    label = (About(other, is_key=about.is_key), "the other") if other else None
    problem = Problem("T201", "", "", "is wrong", "mend it", about=about, other=label)
    source = Source("f.toml", text, lambda: marks_of(text, tomllib.loads(text)), is_secret=lambda path: "env" in path)
    (settled,) = settle([problem], "f.toml", [((), source)], canvas)
    return settled


def test_a_value_is_underlined_and_told_how_to_mend_it() -> None:
    assert snippet("# x\na = 12", "a") == [
        "  --> f.toml:2:5",
        "   |",
        " 2 | a = 12",
        "   |     ^^ mend it",
    ]


def test_a_key_is_underlined_where_the_problem_is_the_key() -> None:
    assert snippet('a . "b c" = 12', "a", "b c", is_key=True)[2:] == [' 1 | a . "b c" = 12', "   |     ^^^^^ mend it"]


def test_the_gutter_fits_the_number_of_the_line() -> None:
    assert snippet("\n" * 1233 + "a = 1", "a") == [
        "    --> f.toml:1234:5",
        "     |",
        "1234 | a = 1",
        "     |     ^ mend it",
    ]


@pytest.mark.parametrize(
    ("text", "caret"),
    [
        ("a = { '日本' = 1, b = 2 }", "^"),
        ("a = {\tb = 2 }", "^"),
        ("a = { '\u0301e' = 1, b = 2 }", "^"),
        ("a = { 'x\u200b\u202e' = 1, b = 2 }", "^"),
        ("a = { 'ｆｕｌｌ한글' = 1, b = '日本' }", "^^^^^^"),
    ],
)
def test_the_carets_stand_under_the_value_behind_tabs_and_characters_of_any_width(text: str, caret: str) -> None:
    _, _, shown, carets = snippet(text, "a", "b")
    line, under = shown[5:], carets[5:].removesuffix(" mend it")
    assert under.strip() == caret
    assert columns_of(line[: line.index("b = ") + 4]) == under.index("^")


def columns_of(text: str) -> int:
    """Columns of a terminal, for the characters of these tests."""
    return sum(0 if c == "\u0301" else 2 if c > "\u1100" and c != "\ufffd" else 1 for c in text)


def test_what_a_terminal_might_obey_is_not_shown() -> None:
    text = 'a = 1 # \x85\u202e\u2028"'
    assert snippet(text, "a")[2:] == [' 1 | a = 1 # \ufffd\ufffd\ufffd"', "   |     ^ mend it"]


def test_of_a_value_of_several_lines_the_first_is_underlined() -> None:
    text = 'a = [\n  1,\n]\nb = """\nx\n"""'
    assert snippet(text, "a")[2:] == [" 1 | a = [", "   |     ^ mend it"]
    assert snippet(text, "b")[2:] == [' 4 | b = """', "   |     ^^^ mend it"]
    assert problem_at(text, About(("b",))).place == Place("f.toml", 4, 5, 3)


def test_a_second_place_is_shown_with_it_in_the_order_of_the_file() -> None:
    assert snippet("aa = 1\nb = 2", "b", is_key=True, other=("aa",))[2:] == [
        " 1 | aa = 1",
        "   | -- the other",
        " 2 | b = 2",
        "   | ^ mend it",
    ]
    assert snippet("b = 2\n\n\naa = 1", "b", other=("aa",))[2:] == [
        " 1 | b = 2",
        "   |     ^ mend it",
        "...",
        " 4 | aa = 1",
        "   |      - the other",
    ]


def test_two_places_of_one_line_share_it() -> None:
    assert snippet("x = { a = 1, b = 2 }", "x", "b", other=("x", "a"))[2:] == [
        " 1 | x = { a = 1, b = 2 }",
        "   |           - the other",
        "   |                  ^ mend it",
    ]


@pytest.mark.parametrize("columns", [COLUMNS_MIN, 80, 120, 300])
def test_a_long_line_is_cut_around_the_carets_to_the_width_of_the_terminal(columns: int) -> None:
    text, canvas = "a = [" + "10, " * 1000 + "]", Canvas(columns)
    for item in (0, 4, 5, 6, 13, 500, 990, 999):
        lines = snippet(text, "a", item, canvas=canvas)
        _, _, shown, carets, *_ = lines
        assert max(map(len, lines)) <= columns
        assert shown[carets.index("^") : carets.rindex("^") + 1] == "10"
    _, _, shown, carets, hint = snippet(text, "a", canvas=canvas)
    assert shown.startswith(" 1 | a = [10, ")
    assert shown.endswith("...")
    assert carets.count("^") == columns - len(" 1 | a = ...")
    assert hint == "   |     mend it"
    far = snippet(text, "a", 999, canvas=canvas)
    assert snippet(text, "a", 999, other=("a", 0), canvas=canvas) == far  # the other is out of sight


def test_a_hint_that_does_not_fit_behind_the_carets_stands_below_them() -> None:
    text = f"a = '{'x' * 60}' # {'y' * 60}"
    assert snippet(text, "a", canvas=Canvas(70))[2:] == [
        f" 1 | a = '{'x' * 57}...",
        f"   |     {'^' * 58}",
        "   |     mend it",
    ]
    assert snippet("a = [ [ 'abcdefghijklmnopqrstuvwxyz' ] ]", "a", 0, 0, canvas=Canvas(COLUMNS_MIN))[3:] == [
        f"   |         {'^' * 24}",
        "   |         mend it",
    ]


def test_wide_characters_count_twice_where_a_line_is_cut() -> None:
    lines = snippet(f"a = '{'日本' * 100}'", "a", canvas=Canvas(80))
    assert max(map(columns_of, lines)) in (79, 80)


def test_on_a_terminal_without_unicode_the_carets_stand_under_what_it_shows() -> None:
    text = "a = { '日本é…\u200b\u0301' = 1, b = 2 }"
    assert snippet(text, "a", "b", canvas=Canvas(is_ascii=True))[2:] == [
        " 1 | a = { '??????' = 1, b = 2 }",
        "   |                         ^ mend it",
    ]


def test_values_of_a_secret_table_are_never_shown() -> None:
    assert snippet("env = { A = 'top secret', B = 2 }", "env", "B", is_key=True)[2:] == [
        " 1 | env = { A = ***, B = *** }",
        "   |                  ^ mend it",
    ]
    assert snippet("x = { y.env.A = 'top secret' }", "x", is_key=True)[2] == " 1 | x = { y.env.A = *** }"
    assert snippet("env = 'top secret'", "env")[2:] == [" 1 | env = ***", "   |       ^^^ mend it"]
    assert snippet("[env]", "env", is_key=True)[2] == " 1 | [env]"
    long = f"env = {{ A = '{'secret' * 100}', B = 2, C = '{'secret' * 100}' }}"
    assert "secret" not in "".join(snippet(long, "env", "B"))
    assert "secret" not in "".join(snippet(long, "env", "A"))
    assert "secret" not in "".join(snippet(long, "env", "C"))


def test_without_a_place_the_file_is_named() -> None:
    assert snippet("a = 1", "nosuch") == ["  --> f.toml", "   = mend it"]


def test_problems_come_in_the_order_in_which_they_stand_and_those_without_a_place_last() -> None:
    source = Source("f.toml", "a = 1\nb = 2", lambda: marks_of("a = 1\nb = 2", {"a": 1, "b": 2}))
    problems = [Problem("T1", name, "", "", "", about=About((name,))) for name in ("x", "b", "a")]
    assert [problem.key for problem in settle(problems, "f.toml", [((), source)])] == ["a", "b", "x"]


@pytest.mark.parametrize("name", ["a\x1b[31m.toml", "a\nb.toml"])
def test_a_name_of_a_file_that_a_terminal_might_obey_is_made_safe(name: str) -> None:
    found = Found("T", name)
    found.add(Kind.EMPTY, "", "", "the file is empty", "write something")
    assert all(line.isprintable() for line in found.settled(found.problems)[0].snippet.split("\n"))


# --- texts that are not TOML -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[env]\nTOKEN = SECRET words",
        "[env]\nTOKEN = 'SECRET",
        "[env]\nexport TOKEN=SECRET",
        "[env]\nTOKEN: SECRET",
        "[env]\nA = 1\nTOKEN = '''\nSECRET\n",
        "[env]\nTOKEN = 'SECRET'\nTOKEN = 'SECRET'",
        "env = { TOKEN = 'SECRET', B = }",
        "env = { TOKEN = 'SECRET' \nB = 1",
        "env: { TOKEN = 'SECRET' }",
        "env.TOKEN = SECRET\nenv.B = 1",
        "env = 'SECRET'\nenv = 'SECRET'",
        "[env] TOKEN = 'SECRET'",
        "[env\nTOKEN = 'SECRET'",
        "a = [1\n[env]\nTOKEN = 'SECRET'\n",
    ],
)
def test_a_secret_is_not_shown_either_where_the_text_is_not_toml(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)
    source = Source("f.toml", text, lambda: None, is_secret=lambda path: "env" in path)
    for at in range(len(text)):
        problem = Problem("T001", "", "", "", "", about=About((), span=(at, at + 1)))
        assert "SECRET" not in settle([problem], "f.toml", [((), source)])[0].snippet
