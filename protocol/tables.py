"""Reads a TOML file against a table of keys and finds everything that is wrong with it in one go.

job.toml (protocol/job.py) and supd.toml (supervisor/shell/config.py) are each one `Schema`: the single list of the
keys of that file. A check looks at one value, says what is wrong at its `Spot`, and gives the value in the form its
struct wants; values with a problem are left out, so that rules over several keys see only sound ones.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from protocol.errors import Problem

MAX_FILE_BYTES = 1 << 20
MAX_PROBLEMS = 100  # a file with more is not the file that was meant
MAX_KEY_PARTS = 64  # tomllib takes quadratic time over `a.b.c…`: 30,000 parts would stop a daemon for 20 s
MAX_SHOWN_CHARS = 60


class Kind(enum.IntEnum):
    """The digits of a problem's code, behind the letter of the file (J job.toml, S supd.toml). They stay stable."""

    NOT_TOML = 1
    NOT_UTF8 = 2
    TOO_LARGE = 3
    EMPTY = 4
    TOO_MANY = 5  # there are more problems than are listed
    UNKNOWN_KEY = 101
    UNKNOWN_TABLE = 102
    NOT_YET = 103  # known, but not in this version
    TYPE = 201
    MISSING = 202
    CHOICE = 203  # not one of a few words
    DURATION = 204
    RANGE = 205
    TEXT = 206  # empty, with a NUL, or not of the form that is wanted
    SIGNAL = 207
    ENV = 208  # not a variable's name, or a variable that supd sets itself
    ADDRESS = 211
    PATH = 212
    EXCLUSIVE = 301  # exactly one of some keys is wanted
    CONTRADICTION = 302
    UNUSABLE = 401  # a file or folder that is there, or is not, and cannot be used


class Found:
    """The problems of one file, in the order in which they stand there."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self.problems: list[Problem] = []

    @property
    def is_full(self) -> bool:
        """Whether no more problems are taken in."""
        return len(self.problems) > MAX_PROBLEMS

    def add(self, kind: Kind, key: str, value: str, message: str, hint: str) -> None:
        """Take in one problem; behind MAX_PROBLEMS of them, only the fact that there are more."""
        if self.is_full:
            return
        if len(self.problems) == MAX_PROBLEMS:
            kind, key, value = Kind.TOO_MANY, "", ""
            message, hint = f"more than {MAX_PROBLEMS} problems", "mend these first; is it the right file?"
        self.problems.append(Problem(f"{self._letter}{kind:03}", key, value, message, hint))


class Spot(NamedTuple):
    """Where a value stands: what its check says of it goes there."""

    path: str
    found: Found

    def below(self, name: str) -> "Spot":
        """The spot of an entry of the table at this one."""
        return Spot(f"{self.path}.{key_text(name)}" if self.path else key_text(name), self.found)

    def item(self, index: int) -> "Spot":
        """The spot of an item of the array at this one."""
        return Spot(f"{self.path}[{index}]", self.found)

    def wrong(self, kind: Kind, value: object, what: str, hint: str) -> None:
        """Say what is wrong; `what` goes on after the key, as in "needs a unit"."""
        self.found.add(kind, self.path, shown(value), f"`{self.path}` {what}", hint)

    def wrong_type(self, wanted: str, value: object, hint: str = "") -> None:
        """Say that the value is not what TOML calls `wanted`."""
        self.wrong(Kind.TYPE, value, f"must be {wanted}, not {type_text(value)}", hint or f"write {wanted}")


Check = Callable[[Spot, object], object]


class Key(NamedTuple):
    """One key of a table: how its value is checked, and the struct's field where that has another name."""

    check: Check
    field: str = ""
    is_required: bool = False


class Schema(NamedTuple):
    """All keys of a file."""

    top: Mapping[str, Key]  # those above the first [table]
    tables: Mapping[str, Mapping[str, Key]]
    later: Mapping[str, tuple[str, ...]]  # by table, "" for the top: what the design has and this version does not


# --- from bytes to values ----------------------------------------------------------------------------------------

_PART = r"""(?:(?<![\w-])[\w-]++|(?<!\\)"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?:{_PART}[ \t]*\.[ \t]*){{{MAX_KEY_PARTS}}}", re.ASCII)


def read_toml(data: bytes, found: Found) -> dict[str, Any] | None:
    """The file's content; None where it cannot be read, which is then its only problem."""
    import tomllib  # here, since most processes that know a JobSpec never read a file

    if len(data) > MAX_FILE_BYTES:
        hint = "is it the right file? data belongs in files of its own"
        found.add(Kind.TOO_LARGE, "", "", "the file is larger than 1 MiB", hint)
        return None
    try:
        text = data.decode("utf-8-sig")  # some editors put a byte order mark in front
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        found.add(Kind.NOT_UTF8, "", f"{data[exc.start]:#04x}", f"line {line} is not UTF-8", "save the file as UTF-8")
        return None
    if _DEEP_KEY.search(text):
        message = f"a key has more than {MAX_KEY_PARTS} parts with dots between"
        found.add(Kind.NOT_TOML, "", "", message, "no key has more than three; put text in quotes")
        return None
    try:
        return tomllib.loads(text)
    except RecursionError:
        found.add(Kind.NOT_TOML, "", "", "arrays or tables are nested too deeply", "nothing here is deeper than three")
    except tomllib.TOMLDecodeError as exc:
        hint = "strings stand in quotes, arrays in brackets, and a key only once in its table"
        found.add(Kind.NOT_TOML, "", "", f"not TOML: {exc}", hint)
    except ValueError:  # int() refuses numbers of thousands of digits
        found.add(Kind.NOT_TOML, "", "", "a number has thousands of digits", "numbers have at most 64 bits")
    return None


def check_tables(document: Mapping[str, object], schema: Schema, found: Found) -> dict[str, Any]:
    """The sound values of a file by field, those of a table in a dict of their own; absent keys stay absent."""
    root = Spot("", found)
    values: dict[str, Any] = {name: {} for name in schema.tables}
    for name, value in document.items():
        if name in schema.top:
            _check_key(root.below(name), schema.top[name], name, value, values)
        elif name not in schema.tables:
            _unknown(root.below(name), "", name, value, schema)
        elif isinstance(value, dict):
            _check_table(root.below(name), name, value, schema, values[name])
        else:
            root.below(name).wrong_type("a table", value, f"write [{name}] on a line of its own, and its keys below")
    _check_required(root, schema.top, document)
    for name, keys in schema.tables.items():
        table = document.get(name, {})
        if isinstance(table, dict):
            _check_required(root.below(name), keys, table)
    return values


def _check_table(
    at: Spot, table: str, content: Mapping[str, object], schema: Schema, values: dict[str, object]
) -> None:
    keys = schema.tables[table]
    for name, value in content.items():
        if name in keys:
            _check_key(at.below(name), keys[name], name, value, values)
        else:
            _unknown(at.below(name), table, name, value, schema)


def _check_key(at: Spot, key: Key, name: str, value: object, values: dict[str, Any]) -> None:
    before = len(at.found.problems)
    checked = key.check(at, value)
    if len(at.found.problems) == before:
        values[key.field or name] = checked


def _check_required(at: Spot, keys: Mapping[str, Key], content: Mapping[str, object]) -> None:
    for name, key in keys.items():
        if key.is_required and name not in content:
            spot = at.below(name)
            where = f"in [{at.path}]" if at.path else "at the top of the file"
            at.found.add(Kind.MISSING, spot.path, "", f"`{spot.path}` is missing", f"write {name} = … {where}")


def _unknown(at: Spot, table: str, name: str, value: object, schema: Schema) -> None:
    """Say of a key or table that is not in the schema what may have been meant."""
    if at.found.is_full:
        return  # a megabyte of keys is not worth a guess at each
    is_table = not table and (isinstance(value, dict) or (isinstance(value, list) and value and type(value[0]) is dict))
    shown_name = f"[{at.path}]" if is_table else f"`{at.path}`"
    if name in schema.later.get(table, ()):
        hint = "leave it out"
        at.found.add(Kind.NOT_YET, at.path, "", f"{shown_name} is not in this version", hint)
    elif is_table:
        hint = did_you_mean(name, schema.tables, "[{}]") or f"there are {_listed(f'[{t}]' for t in schema.tables)}"
        at.found.add(Kind.UNKNOWN_TABLE, at.path, "", f"unknown table {shown_name}", hint)
    else:
        known = schema.tables[table] if table else schema.top
        hint = (
            _home_of(name, schema)
            or did_you_mean(name, known)
            or f"{'[' + table + ']' if table else 'the top of the file'} has {_listed(known)}"
        )
        where = f" in [{table}]" if table else ""
        at.found.add(Kind.UNKNOWN_KEY, at.path, "", f"unknown key `{key_text(name)}`{where}", hint)


def _home_of(name: str, schema: Schema) -> str:
    if name in schema.top:
        return f"`{name}` belongs at the top of the file, above the first [table]"
    return " or ".join(f"it belongs in [{table}]" for table, keys in schema.tables.items() if name in keys)


# --- what is said about them -------------------------------------------------------------------------------------


def did_you_mean(word: str, known: Iterable[str], form: str = "`{}`") -> str:
    """ "did you mean `x`?", or "" where nothing known is near."""
    import difflib  # only where something is wrong

    near = difflib.get_close_matches(word[:MAX_SHOWN_CHARS], known, n=1)
    return f"did you mean {form.format(near[0])}?" if near else ""


def type_text(value: object) -> str:
    """What TOML calls a value of this type."""
    match value:
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a float"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def shown(value: object) -> str:
    """A value as it would stand in the file, cut short; "" for arrays and tables, which may be long or deep."""
    match value:
        case bool():
            return str(value).lower()
        case int() if value.bit_length() > 64:
            return "more than 64 bits"  # Python refuses to print the longest ones
        case int() | float():
            return str(value)
        case str():
            return quoted(value)
        case _:
            return ""


def quoted(text: str) -> str:
    """Text in quotes, on one line, cut short, and safe to print on a terminal."""
    cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    raw = msgspec.json.encode(cut).decode()
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in raw)


def key_text(name: str) -> str:
    """A key as it would stand in the file."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else quoted(name)


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
