"""Text that is fit to travel and to be shown: whatever a path or a person brings."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

LINE_MAX = 500
"""Characters of one line in a message; a reason in a worker's environment counts against its limit (execve(2))."""

Line = Annotated[str, Meta(max_length=LINE_MAX)]
"""Of a message: what `one_line` gives."""


def range_text(least: int, most: int) -> str:
    """A number of nodes as it is written: "4", or "2:3" for a range."""
    return str(least) if least == most else f"{least}:{most}"


def host_port(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def sendable(text: str) -> str:
    """The text as UTF-8 can have it: bytes that were none (surrogates, PEP 383) come out as question marks."""
    return text.encode(errors="replace").decode()


def one_line(text: str, limit: int = LINE_MAX) -> str:
    """The text on one printable line of at most `limit` characters.

    Bytes that are no UTF-8 (surrogates, PEP 383) come out as replacement signs: they could not be sent.
    """
    sound = text.encode(errors="surrogateescape").decode(errors="replace")
    line = " ".join("".join(c if c.isprintable() else " " for c in sound).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def some_of(names: Iterable[str], most: int = 8) -> str:
    """`a, b, c`, and how many more there are above `most`."""
    known = tuple(names)
    more = len(known) - most
    return ", ".join(known[:most]) + (f" and {more} more" if more > 0 else "")


def numbers_text(numbers: Iterable[int]) -> str:
    """`1-3,7`: at least one of them, in order, neighbours folded."""
    ordered = sorted(numbers)
    starts = [number for before, number in pairwise([ordered[0] - 2, *ordered]) if number != before + 1]
    ends = [number for number, behind in pairwise([*ordered, ordered[-1] + 2]) if behind != number + 1]
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True))
