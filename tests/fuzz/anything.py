"""Any message of a kind, made from its types: mostly what could be true, sometimes the odd and the extreme.

Seeded and quick (some 10 us a message), which hypothesis is not: for the many frames of scripts/fuzz.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

from msgspec import inspect as kinds

Make = Callable[[Random], Any]

WORDS: dict[str, tuple[str, ...]] = {
    "node": ("a", "b", "c", "z"),
    "run": ("train@000001", "train@000001", "other@000002", "third@000003", ""),
    "runs": ("train@000001", "other@000002"),
    "wanted": ("train@000001", "other@000002"),
    "old": ("train@000001", "other@000002"),
    "forgotten": ("train@000001", "other@000002"),
    "signals": ("SIGUSR1", "SIGTERM"),
    "at": ("next-checkpoint", "now", "time"),
    "incarnation": ("a1", "b1", "c1", "a2"),
    "settled": ("a1", "b1", "a2"),
    "identity": ("identity-of-a", "identity-of-b", "identity-of-c"),
    "fleet": ("default", "default", "default", "other"),
    "join": ("host:29410", "127.0.0.1:29410"),
}
NUMBERS: dict[str, tuple[int, ...]] = {
    "versions": (1, 1, 1, 2),
    "generation": (-1, 0, 0, 1, 2),
    "control_version": (1, 1, 1, 2),
}
"""What fields of these names mostly hold, or the items of them: so that what is said has to do with what there is."""

TEXTS = ("", "x", "a\nb", "é", "\0", "../../etc", "\U0001f680" * 30, "%s{}\x1b[0m", "y" * 60)
INTS = (0, 1, 2, 3, 7, 100, -1, 2**31, -(2**63), 2**63 - 1, 2**64 - 1)
FLOATS = (0.0, 1.0, 0.25, 60.0, -1.0, 1e-300, 1e300, math.inf, -math.inf, math.nan)
ODD = 0.05
"""Share of values that are not what the field's name lets one expect."""

ITEMS_MAX = 2


def anything(kind: Any) -> Make:
    """A function that makes messages of a kind: a struct, or a union of them."""
    return _maker(kinds.type_info(kind), "")


@cache
def _struct_maker(cls: type[Any]) -> Make:
    info = kinds.type_info(cls)
    assert isinstance(info, kinds.StructType | kinds.NamedTupleType)
    makers: dict[str, Make] = {}  # filled below: a struct may hold itself
    required = {field.name for field in info.fields if field.required}

    def make(rng: Random) -> Any:
        random = rng.random
        return cls(**{name: m(rng) for name, m in makers.items() if name in required or random() < 0.7})

    makers |= {field.name: _maker(field.type, field.name) for field in info.fields}
    return make


def _maker(kind: kinds.Type, name: str) -> Make:
    match kind:
        case kinds.StructType() | kinds.NamedTupleType():
            return _struct_maker(kind.cls)
        case kinds.EnumType():
            words = tuple(kind.cls)
            return lambda rng: rng.choice(words)
        case kinds.IntType():
            limits = [i for i in (kind.ge, kind.le) if i is not None]
            ints = [i for i in INTS if _is_between(i, kind)]
            usual = [i for i in NUMBERS.get(name, (0, 1, 2, 3)) if i in ints] or ints
            return _mostly(usual, [*ints, *limits])
        case kinds.FloatType():
            usual_floats = [f for f in (0.0, 0.5, 60.0) if _is_between(f, kind)]
            return _mostly(usual_floats, [f for f in FLOATS if _is_between(f, kind)])
        case kinds.StrType():
            usual_texts = [t for t in WORDS.get(name, ("", "word", "longer words")) if _is_within(t, kind)]
            return _mostly(usual_texts, [t for t in TEXTS if _is_within(t, kind)] or usual_texts)
        case kinds.BytesType():
            return lambda rng: rng.choice((b"", b"x", b"\xff\0\n"))
        case kinds.BoolType():
            return lambda rng: rng.random() < 0.5
        case kinds.NoneType():
            return lambda _: None
        case kinds.VarTupleType():
            item = _maker(kind.item_type, name)
            most_items = ITEMS_MAX if kind.max_length is None else min(ITEMS_MAX, kind.max_length)
            least_items = kind.min_length or 0
            return lambda rng: tuple(item(rng) for _ in range(rng.randint(least_items, most_items)))
        case kinds.TupleType():
            items = [_maker(item, name) for item in kind.item_types]
            return lambda rng: tuple(item(rng) for item in items)
        case kinds.DictType():
            key = _maker(kind.key_type, name if name in WORDS else "node")
            value = _maker(kind.value_type, name)
            return lambda rng: {key(rng): value(rng) for _ in range(rng.randint(0, ITEMS_MAX))}
        case kinds.UnionType():
            choices = [_maker(choice, name) for choice in kind.types]
            return lambda rng: rng.choice(choices)(rng)
        case _:
            raise AssertionError(f"nothing of kind {kind}")


def _is_between(number: float, kind: kinds.IntType | kinds.FloatType) -> bool:
    """Whether it keeps the limits of its type."""
    return (
        (kind.ge is None or number >= kind.ge)
        and (kind.gt is None or number > kind.gt)
        and (kind.le is None or number <= kind.le)
        and (kind.lt is None or number < kind.lt)
    )


def _is_within(text: str, kind: kinds.StrType) -> bool:
    """Whether it keeps the limits of its type."""
    most = len(text) if kind.max_length is None else kind.max_length
    return (kind.min_length or 0) <= len(text) <= most and re.search(kind.pattern or "", text) is not None


def _mostly(usual: Sequence[Any], odd: Sequence[Any]) -> Make:
    """One of the usual values, and now and then an odd one."""
    return lambda rng: rng.choice(odd) if rng.random() < ODD else rng.choice(usual)
