"""Slurm's lists of nodes, as in `node[1-3],gpu-a[01-03,7]`: read here, so that no `scontrol` is needed."""

import re
from collections.abc import Iterator

HOSTS_MAX = 10_000
TEXT_MAX = 1 << 20
GROUPS_MAX = 8
"""Of brackets in one name: `rack[1-2]node[1-9]` has two."""

_TOKEN = re.compile(r"\[([0-9,-]+)\]|([^\[\],\s]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


class NotAHostlist(ValueError):
    """A text that is no list of hosts, or of too many; the text says why."""


def expand(text: str) -> tuple[str, ...]:
    """The names in their order; numbers keep their leading zeros. Raises NotAHostlist."""
    if len(text) > TEXT_MAX:
        raise NotAHostlist("it is too long")
    hosts: list[str] = []
    for entry in _entries(text):
        for name in _names(entry):
            hosts.append(name)
            if len(hosts) > HOSTS_MAX:
                raise NotAHostlist(f"it has more than {HOSTS_MAX} nodes")
    if not hosts:
        raise NotAHostlist("it is empty")
    return tuple(hosts)


def _entries(text: str) -> Iterator[list[str | list[str]]]:
    """What stands between the commas outside of brackets: pieces of text, and the choices of a bracket."""
    entry: list[str | list[str]] = []
    at = 0
    while at < len(text):
        if text[at] == ",":
            if not entry:
                raise NotAHostlist("a name is empty")
            yield entry
            entry, at = [], at + 1
            continue
        token = _TOKEN.match(text, at)
        if token is None:
            raise NotAHostlist(f"{text[at : at + 20]!r} is no name")
        entry.append(token[2] if token[1] is None else list(_numbers(token[1])))
        if sum(isinstance(piece, list) for piece in entry) > GROUPS_MAX:
            raise NotAHostlist(f"a name has more than {GROUPS_MAX} brackets")
        at = token.end()
    if entry:
        yield entry
    elif text:
        raise NotAHostlist("a name is empty")


def _numbers(text: str) -> Iterator[str]:
    """Of `01-03,7`: 01, 02, 03, 7."""
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise NotAHostlist(f"{part!r} is no range of numbers")
        first, last = found[1], found[2] or found[1]
        if int(first) > int(last):
            raise NotAHostlist(f"{part!r} has its first above its last")
        if int(last) - int(first) >= HOSTS_MAX:
            raise NotAHostlist(f"it has more than {HOSTS_MAX} nodes")
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))


def _names(entry: list[str | list[str]]) -> Iterator[str]:
    """Every name that an entry means, the last bracket counting fastest."""
    if not entry:
        yield ""
        return
    *before, last = entry
    for head in _names(before):
        for tail in [last] if isinstance(last, str) else last:
            yield head + tail
