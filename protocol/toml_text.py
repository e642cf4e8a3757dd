"""From the bytes of a TOML file to its document, or to the one problem that says why there is none."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protocol.errors import About
from protocol.tables import Found, Kind

if TYPE_CHECKING:
    from protocol.spans import Mark

MAX_FILE_BYTES = 1 << 20
MAX_ENTRIES = 20_000  # keys, and items of arrays: a daemon looks at each, and a megabyte could hold 500,000
MAX_KEY_PARTS = 64  # tomllib takes quadratic time over `a.b.c…`: 30,000 parts would stop a daemon for 20 s

_PART = r"""(?:(?<![\w-])[\w-]++|(?<!\\)"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?:{_PART}[ \t]*\.[ \t]*){{{MAX_KEY_PARTS}}}", re.ASCII)
_COORDINATES = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_LOOKED_AT_BYTES = 4096


class NotToml(Exception):
    """A text that cannot be read: why, how to mend it, and at which character, where that is known.

    `first` is where the key stands that is given a second time there.
    """

    def __init__(
        self, message: str, hint: str, offset: int | None = None, first: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.offset = offset
        self.first = first


def read_toml(data: bytes, found: Found) -> dict[str, Any] | None:
    """The file's content; None where it cannot be read, which is then its only problem."""
    if len(data) > MAX_FILE_BYTES:
        hint = "is it the right file? data belongs in files of its own"
        found.add(Kind.TOO_LARGE, "", "", "the file is larger than 1 MiB", hint)
        return None
    if foreign := _foreign(data):
        found.add(Kind.NOT_UTF8, "", "", *foreign)
        return None
    try:
        text = data.decode("utf-8-sig")  # some editors put a byte order mark in front
    except UnicodeDecodeError as exc:
        text, offset = _lossy(data, exc.start)
        found.show(text)
        line = text.count("\n", 0, offset) + 1
        message = f"line {line} is not UTF-8{_guess(data)}"
        value, about = f"{data[exc.start]:#04x}", About((), span=(offset, offset + 1))
        found.add(Kind.NOT_UTF8, "", value, message, "save the file as UTF-8", about=about)
        return None
    text = text.replace("\r\n", "\n")  # as tomllib counts
    try:
        document = parse_toml(text)
    except NotToml as exc:
        found.show(text)
        at = None if exc.offset is None else About((), span=(exc.offset, exc.offset + 1))
        other = (About((), span=exc.first), "first given here") if exc.first else None
        found.add(Kind.NOT_TOML, "", "", str(exc), exc.hint, about=at, other=other)
        return None
    if _is_crowded(document):
        hint = "is it the right file? data belongs in files of its own"
        found.add(Kind.TOO_LARGE, "", "", f"the file has more than {MAX_ENTRIES} keys and items", hint)
        return None

    def marks() -> "Mark | None":
        from protocol.spans import marks_of  # only where something is wrong

        return marks_of(text, document)

    found.show(text, marks)
    return document


def parse_toml(text: str) -> dict[str, Any]:
    """What tomllib makes of a text whose lines end in \\n. Raises NotToml for all that it will not take."""
    import tomllib  # here, since most processes that know a JobSpec never read a file

    if _DEEP_KEY.search(text):
        message = f"a key has more than {MAX_KEY_PARTS} parts with dots between"
        raise NotToml(message, "no key has more than three; put text in quotes")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise NotToml("arrays or tables are nested too deeply", "nothing here is deeper than three") from None
    except tomllib.TOMLDecodeError as exc:
        raise _explained(text, str(exc)) from None
    except ValueError:  # int() refuses numbers of thousands of digits
        raise NotToml("a number has thousands of digits", "numbers have at most 64 bits") from None


def _explained(text: str, said: str) -> NotToml:
    """What is told of a text, by what tomllib says."""
    from protocol.spans import scan
    from protocol.toml_hints import REPEATED_HINT, explained

    end = len(text.rstrip(" \t\n"))
    offset = _offset(text, said)
    message, hint, path = explained(_COORDINATES.sub("", said), text, end if offset is None else offset)
    result = scan(text)
    first = None
    if offset is not None and result.repeated and result.repeated[1].start <= offset:
        first, hint = result.repeated[0], REPEATED_HINT
    elif offset is not None and path and (mark := result.root.find(path)) and mark.key:
        first = mark.key if mark.key.end <= offset else None
    return NotToml(f"not TOML: {message}", hint, offset, first)


def _is_crowded(document: Mapping[str, object]) -> bool:
    """Whether a document has more keys and items than any file of ours."""
    count, left = 0, list[Mapping[str, object] | list[object]]([document])
    while left:
        table = left.pop()
        count += len(table)
        if count > MAX_ENTRIES:
            return True
        values = table if isinstance(table, list) else table.values()
        left += [value for value in values if isinstance(value, dict | list)]
    return False


def _offset(text: str, message: str) -> int | None:
    """Where tomllib stopped; at the end of a file, that is behind the last thing in it."""
    match = _COORDINATES.search(message)
    if match is None:
        return None
    if match[1] is None:
        return len(text.rstrip(" \t\n"))
    start = 0
    for _ in range(int(match[1]) - 1):
        start = text.index("\n", start) + 1
    return start + int(match[2]) - 1


def _foreign(data: bytes) -> tuple[str, str] | None:
    """What is to be said of a file that is no text, or text in another encoding."""
    head = data[:_LOOKED_AT_BYTES]
    zeros = head.count(0) / max(1, len(head))  # half of UTF-16's bytes are, where the text is mostly ASCII
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or 0.3 < zeros < 0.6:
        return "the file is UTF-16, not UTF-8", "save the file as UTF-8"
    if b"\0" in data or len(_CONTROLS.findall(head)) > len(head) // 10:
        return "the file is binary, not text", "is it the right file?"
    return None


def _lossy(data: bytes, start: int) -> tuple[str, int]:
    """A text with stand-ins for the bytes that are not UTF-8, and the offset of the first of them."""
    before = data[:start].decode("utf-8-sig").replace("\r\n", "\n")
    return before + data[start:].decode("utf-8", "replace").replace("\r\n", "\n"), len(before)


def _guess(data: bytes) -> str:
    try:
        data.decode("cp1252")
    except UnicodeDecodeError:
        return ""
    return ", by the look of it Latin-1 or Windows-1252"
