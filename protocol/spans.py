"""Where the keys and values of a TOML text stand.

tomllib is the parser and tells no places, so this reads the text once more when something is to be shown in it. It
never raises. Its marks are believed only where it saw the same keys as tomllib: a wrong place is worse than none.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import KeyPath

MAX_DEPTH = 40  # of arrays and inline tables; nothing in our files is deeper than four

_SPACE = re.compile(r"[ \t]*+")
_GAP = re.compile(r"(?:[ \t\n]++|#[^\n]*+)*+")
_LINE_END = re.compile(r"[ \t]*+(?:#[^\n]*+)?(?:\n|\Z)")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'""")
_SCALAR = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+"""(?:"{0,2})'''
    r"""|'''(?:[^']|'(?!''))*+'''(?:'{0,2})"""
    r"""|(?!\"{3})"(?:[^"\\\n]|\\.)*+"|(?!'{3})'[^'\n]*+'"""
    r"""|[0-9]{4}-[0-9]{2}-[0-9]{2}[ ][0-9][0-9:.+Zz-]*+"""
    r"""|[^][ \t\n,{}#"']++""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


class Extent(NamedTuple):
    """A part of a text, by the offsets of its characters."""

    start: int
    end: int


class Mark:
    """Where one key and its value stand, and those below it. A table's value is the header it begins with."""

    __slots__ = ("entries", "key", "last", "value")

    def __init__(self, key: Extent | None, value: Extent | None) -> None:
        self.key = key  # None: an item of an array
        self.value = value  # None: a table without a header of its own
        self.entries: dict[str | int, Mark] = {}
        self.last: Mark | None = None  # of an array of tables

    def find(self, path: KeyPath) -> "Mark | None":
        """The mark at a path below this one."""
        mark: Mark | None = self
        for part in path:
            if mark is None:
                break
            mark = mark.entries.get(part)
        return mark


class Scan(NamedTuple):
    """What a text looks like, as far as it can be read."""

    root: Mark
    stopped: int | None  # the offset where it cannot be read on
    path: tuple[str, ...]  # the table and key that were read last
    value: int | None  # where that key's value begins, if it has got so far
    repeated: tuple[Extent, Extent] | None  # the first key that is given twice


def marks_of(text: str, document: Mapping[str, object]) -> Mark | None:
    """The marks of a text that tomllib reads as `document`; None where the two do not agree."""
    result = scan(text)
    return result.root if result.stopped is None and _agrees(result.root, document) else None


def scan(text: str) -> Scan:
    """Mark all keys and values of a text, up to the first place that is not TOML."""
    scanner = _Scanner(text)
    try:
        scanner.read_file()
    except _Stopped:
        return scanner.result(stopped=scanner.at)
    return scanner.result(stopped=None)


def scan_key(text: str) -> Scan:
    """Mark the KEY of a KEY=VALUE; VALUE is all that follows, whatever it is."""
    scanner = _Scanner(text)
    try:
        mark = scanner.read_key(scanner.root)
    except _Stopped:
        return scanner.result(stopped=scanner.at)
    mark.value = Extent(scanner.at, len(text))
    return scanner.result(stopped=None)


def part_of_string(text: str, string: Extent, within: tuple[int, int]) -> Extent | None:
    """Where these characters of a string's content stand; None for strings of several lines."""
    quote = text[string.start]
    if quote not in "\"'" or text.startswith(quote * 3, string.start):
        return None
    starts = [string.start + 1]
    while len(starts) <= within[1] and starts[-1] < string.end - 1:
        escape = _ESCAPE.match(text, starts[-1]) if quote == '"' else None
        starts.append(escape.end() if escape else starts[-1] + 1)
    return Extent(starts[within[0]], starts[within[1]]) if within[1] < len(starts) else None


def _agrees(root: Mark, document: Mapping[str, object]) -> bool:
    pairs: list[tuple[Mark, object]] = [(root, document)]
    while pairs:
        mark, value = pairs.pop()
        entries: dict[object, object] = {}
        if isinstance(value, dict):
            entries = value
        elif isinstance(value, list):
            entries = dict(enumerate(value))
        if mark.entries.keys() != entries.keys():
            return False
        pairs += [(below, entries[name]) for name, below in mark.entries.items()]
    return True


class _Stopped(Exception):
    """The text is not TOML from here on."""


class _Scanner:
    """Reads one text; takes more than TOML allows where that does no harm."""

    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text
        self.root = Mark(None, None)
        self._path: tuple[str, ...] = ()
        self._value: int | None = None
        self._repeated: tuple[Extent, Extent] | None = None

    def result(self, stopped: int | None) -> Scan:
        """What was read up to now."""
        return Scan(self.root, stopped, self._path, self._value, self._repeated)

    def read_file(self) -> None:
        """Read to the end."""
        table, table_path = self.root, self._path
        self._take(_GAP)
        while self.at < len(self._text):
            self._path, self._value = table_path, None
            if self._text.startswith("[", self.at):
                table = self._header()
                table_path = self._path
            else:
                self._value_of(self.read_key(table), 0)
            self._take(_LINE_END)
            self._take(_GAP)

    def read_key(self, table: Mark) -> Mark:
        """Read a key of a table up to its value, and give its mark."""
        parent, name, key = self._key(table)
        self._expect("=")
        self._take(_SPACE)
        if self._value is None:
            self._value = self.at
        mark = self._entry(parent, name, key)
        if mark.value or mark.entries:
            self._repeat(mark, key)
            if mark.value and not mark.entries:
                mark.entries[-1] = Mark(None, mark.value)  # both values stay marked: they may be secrets
            mark.entries[len(mark.entries)] = again = Mark(key, None)
            return again
        return mark

    def _header(self) -> Mark:
        start = self.at
        is_array = self._text.startswith("[[", start)
        self.at += 2 if is_array else 1
        self._path = ()
        parent, name, key = self._key(self.root)
        self._expect("]]" if is_array else "]")
        mark = self._entry(parent, name, key)
        header = Extent(start, self.at)
        if mark.value is None:
            mark.key, mark.value = key, header
        elif not is_array:
            self._repeat(mark, key)
        if is_array:
            mark.last = mark.entries[len(mark.entries)] = Mark(None, header)
        return mark.last or mark

    def _key(self, table: Mark) -> tuple[Mark, str, Extent]:
        """The table that a key with its dots ends in, the last part of it, and where that stands."""
        mark = table
        while True:
            self._take(_SPACE)
            start = self.at
            name = _unquoted(self._take(_KEY_PART))
            if self._value is None:
                self._path = (*self._path, name)
            key = Extent(start, self.at)
            self._take(_SPACE)
            if not self._text.startswith(".", self.at):
                return mark, name, key
            self.at += 1
            mark = self._entry(mark, name, key)
            mark = mark.last or mark

    def _entry(self, mark: Mark, name: str, key: Extent) -> Mark:
        return mark.entries.setdefault(name, Mark(key, None))

    def _repeat(self, mark: Mark, key: Extent) -> None:
        if mark.key and not self._repeated:
            self._repeated = mark.key, key

    def _value_of(self, mark: Mark, depth: int) -> None:
        start = self.at
        if depth > MAX_DEPTH:
            raise _Stopped
        if self._text.startswith("[", start):
            self._array(mark, depth)
        elif self._text.startswith("{", start):
            self._inline_table(mark, depth)
        else:
            self._take(_SCALAR)
        mark.value = Extent(start, self.at)

    def _array(self, mark: Mark, depth: int) -> None:
        self.at += 1
        self._take(_GAP)
        while not self._text.startswith("]", self.at):
            item = mark.entries[len(mark.entries)] = Mark(None, None)
            self._value_of(item, depth + 1)
            self._comma("]")
        self.at += 1

    def _inline_table(self, mark: Mark, depth: int) -> None:
        self.at += 1
        self._take(_GAP)
        while not self._text.startswith("}", self.at):
            self._value_of(self.read_key(mark), depth + 1)
            self._comma("}")
        self.at += 1

    def _comma(self, end: str) -> None:
        self._take(_GAP)
        if not self._text.startswith(end, self.at):
            self._expect(",")
            self._take(_GAP)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self.at)
        if match is None:
            raise _Stopped
        self.at = match.end()
        return match[0]

    def _expect(self, token: str) -> None:
        if not self._text.startswith(token, self.at):
            raise _Stopped
        self.at += len(token)


def _unquoted(part: str) -> str:
    """A part of a key without its quotes."""
    match part[0]:
        case "'":
            return part[1:-1]
        case '"':
            return _ESCAPE.sub(_character, part[1:-1])
        case _:
            return part


def _character(escape: re.Match[str]) -> str:
    number = escape[1] or escape[2]
    if number is None:
        return _ESCAPED.get(escape[3], escape[0])
    return chr(int(number, 16)) if int(number, 16) <= 0x10FFFF else escape[0]
