"""Checks of single values in a job.toml's [topology] (its keys: job_schema.py)."""

import re

from protocol.checks import array_of, string, text
from protocol.errors import About
from protocol.job import MAX_NNODES
from protocol.tables import Kind, Spot, accepts, did_you_mean, shown
from protocol.text import range_text

NODE_GLOBS_MAX = 1000
NODE_GLOB_CHARS_MAX = 255

_FORM = 'the form is "MIN:MAX"'
_BOUNDS = f"numbers of nodes are 1 to {MAX_NNODES}"
_NUMBER = {"type": "integer", "minimum": 1, "maximum": MAX_NNODES}


@accepts({"anyOf": [_NUMBER, {"type": "string", "pattern": "^[0-9]{1,9}:[0-9]{1,9}$"}]})
def nnodes(at: Spot, value: object) -> object:
    """The least and the most nodes, of a number or of "MIN:MAX"."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        is_whole = isinstance(value, float) and value.is_integer() and 1 <= value <= MAX_NNODES
        hint = f"write {int(value)}" if is_whole and isinstance(value, float) else 'write 4, or "2:4" for a range'
        at.wrong_type('an integer or "MIN:MAX"', value, hint)
        return value
    if isinstance(value, int):
        least = most = value
    else:
        numbers = re.fullmatch("([0-9]{1,9}):([0-9]{1,9})", value)
        if numbers is None:
            _not_a_range(at, value)
            return value
        least, most = map(int, numbers.groups())
    if not (1 <= least <= MAX_NNODES and 1 <= most <= MAX_NNODES):
        at.wrong(Kind.RANGE, value, "is out of range", _BOUNDS)
    elif least > most:
        message = f"minimum is above maximum in `{at.path}`"
        hint = f'{_FORM}; did you mean "{most}:{least}"?'
        at.found.add(Kind.INVERTED, at.path, shown(value), message, hint, about=About(at.parts))
    return (least, most)


def _not_a_range(at: Spot, value: str) -> None:
    """Say what a string is to be that is no range."""
    if re.fullmatch("[0-9]{1,9}", value):
        at.wrong_type("an integer", value, f"write {value} without quotes")
        return
    near = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:[:,-]|\.\.|to)\s*([0-9]{1,9})\s*", value)
    least, most = sorted(map(int, near.groups())) if near else (2, 4)
    hint = f'{_FORM}; did you mean "{least}:{most}"?' if near else f'{_FORM}, as in "{least}:{most}"'
    at.wrong(Kind.TEXT, value, "is not a number of nodes", hint)


def written_nnodes(value: tuple[int, int]) -> int | str:
    """The least and the most as they stand in the file."""
    least, most = value
    return least if least == most else range_text(least, most)


_GLOBS = array_of(text)


@accepts({**_GLOBS.json_schema, "maxItems": NODE_GLOBS_MAX})
def node_globs(at: Spot, value: object) -> object:
    """Patterns over names of nodes, as in Python's fnmatch."""
    globs = _GLOBS(at, value)
    if isinstance(value, list):
        if len(value) > NODE_GLOBS_MAX:
            at.wrong(Kind.TEXT, value, f"has more than {NODE_GLOBS_MAX} items", "write patterns, or use node_labels")
            return globs
        for i, item in enumerate(value):
            if isinstance(item, str) and len(item) > NODE_GLOB_CHARS_MAX:
                at.item(i).wrong(Kind.TEXT, item, "is too long", f"write at most {NODE_GLOB_CHARS_MAX} characters")
    return globs


_ORDERS = ("name", "join")


@accepts({"anyOf": [{"enum": list(_ORDERS)}, {"type": "string", "pattern": "^label:."}]})
def rank_order(at: Spot, value: object) -> object:
    """By what the nodes of a job are put in order."""
    if not isinstance(value, str):
        return string(at, value)
    if value not in _ORDERS and not (value.startswith("label:") and len(value) > len("label:")):
        hint = did_you_mean(value, _ORDERS, '"{}"') or 'write "name", "join" or "label:KEY"'
        at.wrong(Kind.CHOICE, value, "is none of its choices", hint)
    return value
