"""Sizes in job.toml and supd.toml: "200MB", "50GiB"."""

import re

from protocol.checks import string
from protocol.tables import Check, Kind, Spot, accepts

_UNITS: dict[str, int] = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate(("k", "M", "G", "T"), 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate(("K", "M", "G", "T"), 1)},
}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_SIZE = re.compile(rf"({_NUMBER})({'|'.join(_UNITS)})")
_HINT = 'write a size like "200MB" or "50GiB" (units B, kB, MB, GB, TB of 1000, KiB, MiB, GiB, TiB of 1024)'

SIZE_FORM = f"^{_SIZE.pattern.replace('(', '(?:', 1)}$"


def parse_size(text: str) -> int:
    """Bytes of a size like "200MB". Raises ValueError, whose text says how to write it."""
    match = _SIZE.fullmatch(text)
    if match:
        return round(float(match[1]) * _UNITS[match[2]])
    near = re.sub(r"\s", "", text)
    units = {unit.lower(): unit for unit in _UNITS} | {letter: f"{letter.upper()}B" for letter in "mgt"} | {"k": "kB"}
    found = re.fullmatch(rf"({_NUMBER})([A-Za-z]{{1,3}})", near)
    if found and found[2].lower() in units:
        raise ValueError(f'write "{found[1]}{units[found[2].lower()]}"')
    raise ValueError(_HINT)


def size_text(size: int) -> str:
    """A number of bytes as it would stand in a file, exactly: "200MB", "50GiB"."""
    count, unit = min((size // factor, unit) for unit, factor in _UNITS.items() if size % factor == 0)
    return f"{count}{unit}"


def size(low: int, high: int, *, is_off_allowed: bool = False) -> Check:
    """A check for a size in a range, both ends included; it gives bytes, or None for "off" where that is allowed."""
    form = {"type": "string", "pattern": SIZE_FORM}

    @accepts({"anyOf": [form, {"const": "off"}]} if is_off_allowed else form)
    def check(at: Spot, value: object) -> object:
        if is_off_allowed and value == "off":
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= high:
            at.wrong(Kind.TEXT, value, "needs a unit", f'write "{size_text(value)}"')
            return value
        if not isinstance(value, str):
            return string(at, value)
        try:
            found = parse_size(value)
        except ValueError as exc:
            at.wrong(Kind.TEXT, value, "cannot be read as a size", str(exc))
            return value
        if not low <= found <= high:
            at.wrong(Kind.RANGE, value, "is out of range", f'write "{size_text(low)}" to "{size_text(high)}"')
        return found

    return check
