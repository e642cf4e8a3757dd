"""supervisor/suprun/shell_words.py: the words that a shell would see, with variables as they are told."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.suprun.shell_words import NotShell, Piece, Shell

LIMIT_S = 60.0


def words(text: str) -> list[list[str]]:
    return [[word.told for word in command] for command in Shell(text).commands]


PLAIN = [
    "a b  c\td",
    "a 'b c' \"d e\" f\\ g ''",
    "a\\\nb c \\\n  d",
    '\'a\\nb\' "a\\"b\\n" "x\\\ny"',
    "a#b # c d",
    "$'a\\nb\\'c' x",
    "--x='a b'c\"d\"",
    "a; b && c || d | e & f",
    "a >out 2>&1 b <in &>>all c 3",
    "a\n\n# c\nb",
    "a 'x\ny'",
    '$ a$ "$"',
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_has_the_words_that_bash_sees(text: str) -> None:
    """Commands behind the first are told apart by their count alone: bash would run them."""
    first = words(text)[0]
    if len(words(text)) > 1:
        return
    script = f"cd /; exec 3>&1; f() {{ printf '%s\\0' \"$@\" >&3; }}; in=/dev/null; f {text}\n"
    script = script.replace(">out", ">/dev/null").replace("<in", "</dev/null").replace("&>>all", "&>>/dev/null")
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=LIMIT_S)
    assert first == done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a; b && c || d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a\n\n# c\nb", [["a"], ["b"]]),
        ("a >out 2>&1 b <in &>>all c 3", [["a", "b", "c", "3"]]),
        ("", []),
        ("# only this", []),
    ],
)
def test_commands_end_where_a_shell_ends_them(text: str, commands: list[list[str]]) -> None:
    assert words(text) == commands


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("$A", [("$A", True)]),
        ("x${A}y", [("x", False), ("${A}", True), ("y", False)]),
        ('"x $A"', [("x ", False), ("$A", True)]),
        ("'$A'", [("$A", False)]),
        ("\\$A", [("$A", False)]),
        ("--a=$(f $(g) | h)-1", [("--a=", False), ("$(f $(g) | h)", True), ("-1", False)]),
        ("`f x`", [("`f x`", True)]),
        ("~/a", [("~", True), ("/a", False)]),
        ("--a=~/b", [("--a=~/b", False)]),
        ("'~/a'", [("~/a", False)]),
        ("~ada", [("~ada", False)]),
        ("a*.py", [("a", False), ("*", True), (".py", False)]),
        ("${A:-b c}$1$@", [("${A:-b c}", True), ("$1", True), ("$@", True)]),
    ],
)
def test_variables_stay_as_they_are_told(text: str, pieces: list[tuple[str, bool]]) -> None:
    ((word,),) = Shell(text).commands
    assert word.pieces == tuple(Piece(*piece) for piece in pieces)


@pytest.mark.parametrize("text", ["a \\  # why\n b", "a \\ \n b", "a \\\t\n b", "a \\   # why"])
def test_a_comment_behind_a_backslash_is_seen_and_the_lines_are_joined(text: str) -> None:
    shell = Shell(text)
    assert shell.has_broken_joins
    assert [word.told for word in shell.commands[0]] == ["a", "b"][: 1 + ("b" in text)]
    assert not Shell("a \\\n b\\ c").has_broken_joins


@pytest.mark.parametrize("text", ["'a", '"a', "$(a", "${a", "`a", "$'a", '"a\\', "a\0b", "x" * 70_000])
def test_what_no_shell_takes_is_refused(text: str) -> None:
    with pytest.raises(NotShell):
        Shell(text)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), min_size=1, max_size=5))
def test_quoted_words_come_out_as_they_went_in(given_words: list[str]) -> None:
    given_words = [word.replace("\r\n", "\n") for word in given_words]
    assert words(shlex.join(given_words)) == [given_words]


@given(st.text(alphabet="a'\"\\$(){}`# \n;&|<>12", max_size=20))
def test_any_text_is_words_or_refused(text: str) -> None:
    try:
        commands = words(text)
    except NotShell:
        return
    assert all(commands)
