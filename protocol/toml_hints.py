"""What was probably meant where a text is not TOML: tomllib says what it expected, and where it stopped.

No hint repeats what stands in the text, which may be a secret; only what is a duration or a truth is told again.
"""

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

from protocol.tables import key_text

SYNTAX_HINT = "strings stand in quotes, and arrays in brackets"
REPEATED_HINT = "a key or table is given only once: keep one"

_ASSIGNED = re.compile(r"[ \t]*(?:[\w.-]|\"[^\"]*\"|'[^']*')+[ \t]*=[ \t]*")
_WORD = re.compile(r"[^ \t,\]}#]*")
_DURATION = re.compile(r"(?:[0-9.]{1,9}(?:ms|s|m|h|d)){1,3}")
_NUMBER_WITH_ZERO = re.compile(r"[+-]?0[0-9_]+")
_BEGINS_ANEW = re.compile(r"\[[\w\"']|[\w.\"'-]+[ \t]*=")
_NAMESPACE = re.compile(r"Cannot (declare|mutate immutable namespace|redefine namespace) (\(.*\))")


class _Stop(NamedTuple):
    """Where the parser stopped: what stands in that line before it, and from there on."""

    before: str
    rest: str


def explained(said: str, text: str, offset: int) -> tuple[str, str, tuple[str, ...]]:
    """What to say of a text in which tomllib stopped at an offset: message, hint, and the path of a key given before.

    `said` is tomllib's message without its coordinates. The path is empty where the message is not about one.
    """
    if match := _NAMESPACE.match(said):
        path = tuple(map(str, ast.literal_eval(match[2])))
        name = ".".join(map(key_text, path))
        if match[1] == "declare":
            return f"[{name}] is given twice", REPEATED_HINT, path
        return f"`{name}` is complete where it was given first, and takes no more keys", "write them there", path
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    stop = _Stop(text[start:offset], text[offset : len(text) if end < 0 else end])
    hint = next((hint(stop) for beginning, hint in _HINTS.items() if said.startswith(beginning)), "")
    return said, hint or SYNTAX_HINT, ()


def _of_key(stop: _Stop) -> str:
    if stop.rest.startswith(":"):
        return "write = in place of the colon: KEY = VALUE"
    return "a line is KEY = VALUE, or [TABLE]"


def _of_header(stop: _Stop) -> str:
    is_array = stop.before.lstrip().startswith("[[")
    return "close the brackets: [[TABLE]]" if is_array else "close the bracket: [TABLE]"


def _of_key_part(stop: _Stop) -> str:
    if "{" not in stop.before:
        return "write a name, with quotes around it where it has other characters than letters, digits, - and _"
    if stop.rest.startswith("}"):
        return "take out the comma before }"
    return _of_inline_table(stop)


def _of_inline_table(stop: _Stop) -> str:
    if not stop.rest.strip() or stop.rest.lstrip().startswith("#"):
        return "what is in { } stands on one line; for several lines, write [TABLE] and its keys below"
    return "put a comma between the entries, and } behind the last one"


def _of_array(stop: _Stop) -> str:
    is_at_end = not stop.rest or (not stop.before.strip() and _BEGINS_ANEW.match(stop.rest))
    return "close the array with ]" if is_at_end else "put a comma between the items"


def _of_value(stop: _Stop) -> str:
    return _of_no_value(stop.rest)


def _of_no_value(value: str) -> str:
    """What stands where a value is expected, and is none."""
    word = _WORD.match(value)
    assert word is not None, value
    if not value:
        return "write a value behind the ="
    if word[0].lower() in ("true", "false"):
        return f"write {word[0].lower()}"
    if word[0].lower() in ("none", "null", "nil"):
        return "there is no such value: leave the key out"
    if _DURATION.fullmatch(word[0]):
        return f'write "{word[0]}"'
    if _NUMBER_WITH_ZERO.fullmatch(word[0]):
        return "a number does not begin with 0: take it out, or put quotes around text"
    if value[0] in "“”„‘’":
        return "write straight quotes: \" or '"
    if value[0] == "(":
        return "an array stands in brackets: [ ]"
    if value[0] in "=>:":
        return "write one = between key and value"
    return "put text in quotes"


def _of_rest(stop: _Stop) -> str:
    """What stands behind a statement, which may be whole, or end there only for the parser."""
    if stop.before.lstrip().startswith("["):
        return "the keys of a table stand on lines of their own, below it"
    if stop.rest[:1] in (",", ";"):
        return f"take out the {stop.rest[0]}: nothing stands at the end of a line"
    if stop.rest.startswith("//"):
        return "a comment begins with #"
    line = stop.before + stop.rest
    match = _ASSIGNED.match(line)
    if match and not line.startswith(("'", '"', "[", "{"), match.end()):
        return _of_no_value(line[match.end() :])
    return "a line is one KEY = VALUE, and nothing stands behind that"


def _of_statement(stop: _Stop) -> str:
    return "a comment begins with #" if stop.rest.startswith("//") else "a line is KEY = VALUE, or [TABLE]"


_OPEN_STRING = "close the string with its quote; text of several lines stands in \"\"\" or '''"
_BACKSLASH = "in single quotes a backslash is no more than that: '…'"

_HINTS: dict[str, Callable[[_Stop], str]] = {
    "Expected '=' after a key": _of_key,
    "Expected ']": _of_header,  # and ']]'
    "Invalid initial character for a key part": _of_key_part,
    "Unclosed inline table": _of_inline_table,
    "Unclosed array": _of_array,
    "Invalid value": _of_value,
    "Expected newline or end of document": _of_rest,
    "Invalid statement": _of_statement,
    "Duplicate inline table key": lambda _: REPEATED_HINT,
    "Cannot overwrite a value": lambda _: REPEATED_HINT,
    "Unescaped '\\'": lambda _: _BACKSLASH,
    "Invalid hex value": lambda _: _BACKSLASH,
    "Escaped character is not": lambda _: _BACKSLASH,
    "Unterminated string": lambda _: _OPEN_STRING,
    "Expected \"'": lambda _: _OPEN_STRING,
    "Illegal character '\\n'": lambda _: _OPEN_STRING,
}
"""By how tomllib's message begins; other versions of Python may say other things, and then there is SYNTAX_HINT."""
