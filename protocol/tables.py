"""Reads a TOML file against a table of keys and finds everything that is wrong with it in one go.

job.toml (protocol/job_schema.py) and supd.toml (supervisor/shell/config.py) are each one `Schema`: the single list of
the keys of that file. A check looks at one value, says what is wrong at its `Spot`, and gives the value in the form its
struct wants; values with a problem are left out, so that rules over several keys see only sound ones.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from protocol.errors import MAX_PROBLEMS, About, KeyPath, Problem
from protocol.text import sendable

if TYPE_CHECKING:
    from protocol.snippets import Canvas, Source
    from protocol.spans import Mark

MAX_SHOWN_CHARS = 60


class Kind(enum.IntEnum):
    """The digits of a problem's code, behind the letter of the file (J job.toml, S supd.toml). They stay stable."""

    NOT_TOML = 1
    NOT_UTF8 = 2
    TOO_LARGE = 3
    EMPTY = 4
    TOO_MANY = 5  # there are more problems than are listed
    SETTING = 6  # a --set that cannot be read
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
    INVERTED = 210  # a range whose least is above its most
    ADDRESS = 211
    PATH = 212
    EXCLUSIVE = 301  # exactly one of some keys is wanted
    CONTRADICTION = 302
    PATTERN = 412  # not a regular expression, or one without the groups that it needs
    UNUSABLE = 401  # a file or folder that is there, or is not, and cannot be used
    BLIND = 501  # a limit on progress, where no rank is watched
    UNSAVED = 502  # restarts, and nothing known of checkpoints
    NO_EFFECT = 503  # a key that does nothing without another
    OUT_OF_ORDER = 504  # a limit that passes before another that it builds on, or a wait above the longest one
    LOOPBACK = 505  # ranks on several nodes, and an interface that no other node reaches


class Found:
    """The problems of one file, and the texts that they are shown in.

    `source` is the file's name for messages; values of the keys that `is_secret` are never shown. They are drawn for
    `canvas`.
    """

    def __init__(
        self,
        letter: str,
        source: str = "",
        *,
        is_secret: Callable[[KeyPath], bool] | None = None,
        canvas: "Canvas | None" = None,
    ) -> None:
        self._letter = letter
        self.source = source if source.isprintable() else quoted(source)
        self.problems: list[Problem] = []
        self._is_secret = is_secret
        self._canvas = canvas
        self._texts: list[tuple[KeyPath, Source]] = []  # the file's, then the options', with the key that they are of

    @property
    def is_full(self) -> bool:
        """Whether no more problems are taken in."""
        return len(self.problems) > MAX_PROBLEMS

    def add(
        self,
        kind: Kind,
        key: str,
        value: str,
        message: str,
        hint: str,
        *,
        about: About | None = None,
        other: tuple[About, str] | None = None,
        note: str = "",
    ) -> None:
        """Take in one problem; behind MAX_PROBLEMS of them, only the fact that there are more."""
        if self.is_full:
            return
        if len(self.problems) == MAX_PROBLEMS:
            kind, key, value, about, other, note = Kind.TOO_MANY, "", "", None, None, ""
            message, hint = f"more than {MAX_PROBLEMS} problems", "mend these first; is it the right file?"
        code = f"{self._letter}{kind:03}"
        self.problems.append(Problem(code, key, value, message, hint, about=about, other=other, note=note))

    def show(
        self, text: str, marks: Callable[[], "Mark | None"] = lambda: None, *, option: str = "", key: KeyPath = ()
    ) -> None:
        """From now on, problems with what is below `key` are shown in this text: the file's, or that of an option.

        `marks` finds its keys and values, where it is TOML; it is called only where something is to be shown.
        """
        from protocol.snippets import Source

        source = Source(option or self.source, text, marks, is_secret=self._is_secret, is_file=not option)
        self._texts.append((key, source))

    def origin_of(self, path: KeyPath) -> str:
        """Whose text the value at a path comes from: "file", or the name of the option."""
        source = self._source_of(path)
        return "file" if source is None or source.is_file else source.name

    def _source_of(self, path: KeyPath) -> "Source | None":
        return next((source for key, source in reversed(self._texts) if path[: len(key)] == key), None)

    def settled(self, problems: Iterable[Problem]) -> list[Problem]:
        """The same problems with their places in these texts, in the order in which they stand there."""
        from protocol.snippets import settle

        return settle(problems, self.source, self._texts, self._canvas)


class Spot(NamedTuple):
    """Where a value stands: what its check says of it goes there."""

    path: str  # for people
    found: Found
    parts: KeyPath = ()

    def below(self, name: str) -> "Spot":
        """The spot of an entry of the table at this one."""
        path = f"{self.path}.{key_text(name)}" if self.path else key_text(name)
        return Spot(path, self.found, (*self.parts, name))

    def item(self, index: int) -> "Spot":
        """The spot of an item of the array at this one."""
        return Spot(f"{self.path}[{index}]", self.found, (*self.parts, index))

    @property
    def is_of_option(self) -> bool:
        """Whether the value comes from a --set."""
        return self.found.origin_of(self.parts) == "--set"

    def spelled(self, value: str) -> str:
        """A value of TOML as it is written there: on a command line, in quotes against the shell."""
        if not self.is_of_option:
            return value
        import shlex  # only where something is wrong

        return f"--set {shlex.quote(f'{self.path}={value}')}"

    def table_hint(self, in_file: str) -> str:
        """How to write a table, which is no value of a --set."""
        return f"set its keys: --set {self.path}.KEY=VALUE" if self.is_of_option else in_file

    def wrong(
        self,
        kind: Kind,
        value: object,
        what: str,
        hint: str,
        *,
        within: tuple[int, int] | None = None,
        note: str = "",
    ) -> None:
        """Say what is wrong; `what` goes on after the key, as in "needs a unit".

        It is about those characters of a string that are `within`, from and to.
        """
        about = About(self.parts, within=within)
        self.found.add(kind, self.path, shown(value), f"`{self.path}` {what}", hint, about=about, note=note)

    def wrong_type(self, wanted: str, value: object, hint: str = "") -> None:
        """Say that the value is not what TOML calls `wanted`."""
        self.wrong(Kind.TYPE, value, f"must be {wanted}, not {type_text(value)}", hint or f"write {wanted}")

    def wrong_key(self, kind: Kind, message: str, hint: str) -> None:
        """Say what is wrong with the key itself, or with a value that is not to be shown."""
        self.found.add(kind, self.path, "", message, hint, about=About(self.parts, is_key=True))


class Check(NamedTuple):
    """Looks at one value; and the values that pass, as JSON Schema says it: a little wider where it lacks the words."""

    look: Callable[[Spot, object], object]
    json_schema: Mapping[str, object]

    def __call__(self, at: Spot, value: object) -> object:
        """Say at the spot what is wrong; gives the value in the form its struct wants."""
        return self.look(at, value)


def accepts(json_schema: Mapping[str, object]) -> Callable[[Callable[[Spot, object], object]], Check]:
    """Makes a function the check of the values that pass this JSON Schema."""
    return lambda look: Check(look, json_schema)


class Key(NamedTuple):
    """One key of a table: how its value is checked, what the reference says of it, and where it goes."""

    check: Check
    type: str  # in words
    default: str  # as it would stand in the file, or words; "" for none
    meaning: str
    field: str = ""  # of the struct, where that has another name
    written: Callable[[Any], object] | None = None  # makes its value what stands in the file, where that is another
    is_required: bool = False
    is_expanded: bool = False  # {rank}, ${NAME} and the like are filled in on the node


class Schema(NamedTuple):
    """All keys of a file."""

    top: Mapping[str, Key]  # those above the first [table]
    tables: Mapping[str, Mapping[str, Key]]
    later: Mapping[str, tuple[str, ...]]  # by table, "" for the top: what the design has and this version does not


# --- from a document to values -----------------------------------------------------------------------------------


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
            at = root.below(name)
            at.wrong_type("a table", value, at.table_hint(f"write [{name}] on a line of its own, and its keys below"))
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
        at.wrong_key(Kind.NOT_YET, f"{shown_name} is not in this version", hint)
    elif is_table:
        hint = did_you_mean(name, schema.tables, "[{}]") or f"there are {_listed(f'[{t}]' for t in schema.tables)}"
        at.wrong_key(Kind.UNKNOWN_TABLE, f"unknown table {shown_name}", hint)
    else:
        known = schema.tables[table] if table else schema.top
        hint = (
            _home_of(at, name, schema)
            or did_you_mean(name, known)
            or f"{'[' + table + ']' if table else 'the top of the file'} has {_listed(known)}"
        )
        where = f" in [{table}]" if table else ""
        at.wrong_key(Kind.UNKNOWN_KEY, f"unknown key `{key_text(name)}`{where}", hint)


def _home_of(at: Spot, name: str, schema: Schema) -> str:
    homes = [table for table, keys in schema.tables.items() if name in keys]
    if at.is_of_option:
        return " or ".join(f"write {home}" for home in [name] * (name in schema.top) + [f"{t}.{name}" for t in homes])
    if name in schema.top:
        return f"`{name}` belongs at the top of the file, above the first [table]"
    return " or ".join(f"it belongs in [{table}]" for table in homes)


# --- what is said about them -------------------------------------------------------------------------------------


def did_you_mean(word: str, known: Iterable[str], form: str = "`{}`") -> str:
    """ "did you mean `x`?", or "" where nothing known is near. What begins like the word is nearest."""
    import difflib  # only where something is wrong

    by_lower = {name.lower(): name for name in known}
    lower = word[:MAX_SHOWN_CHARS].lower()
    begun = [name for name in by_lower if len(lower.strip("-")) > 1 and name.startswith(lower)]
    near = difflib.get_close_matches(lower, begun or by_lower, n=1, cutoff=0.0 if begun else 0.6)
    return f"did you mean {form.format(by_lower[near[0]])}?" if near else ""


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
    raw = msgspec.json.encode(sendable(cut)).decode()
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in raw)


def key_text(name: str) -> str:
    """A key as it would stand in the file."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else quoted(name)


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
