"""The keys of --json's objects: of each its JSON Schema, and how its value is made from what supd has said."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from supervisor.cli.moments import utc_time

Schema = Mapping[str, object]


class Field(NamedTuple):
    """One key. Its value is what `form` makes of the attribute (of a mapping: the item) called `of`; "": of the key's
    own name."""

    schema: Schema
    of: str = ""
    form: Callable[[Any], object] = lambda value: value


Fields = Mapping[str, Field]


def filled(fields: Fields, thing: Any) -> dict[str, object]:
    """The object that is made from `thing`: every key, in this order."""
    get = thing.__getitem__ if isinstance(thing, Mapping) else thing.__getattribute__
    return {key: field.form(get(field.of or key)) for key, field in fields.items()}


def text(about: str, of: str = "", form: Callable[[Any], object] = lambda value: value) -> Field:
    """A string."""
    return Field({"type": "string", "description": about}, of, form)


def fixed(word: str, about: str) -> Field:
    """Always the same word, whatever is there."""
    return Field({"const": word, "description": about}, form=lambda _value: word)


def word(about: str, words: Mapping[str, str]) -> Field:
    """One of a few, by what supd calls it; none can be added."""
    return Field({"enum": list(words.values()), "description": about}, form=words.__getitem__)


def flag(about: str) -> Field:
    """True or false."""
    return Field({"type": "boolean", "description": about})


def whole(about: str, low: int | None = 0, of: str = "", form: Callable[[Any], object] = lambda value: value) -> Field:
    """A whole number, not below `low`."""
    return Field({"type": "integer", **({} if low is None else {"minimum": low}), "description": about}, of, form)


def number(about: str, of: str = "") -> Field:
    """Any number."""
    return Field({"type": "number", "description": about}, of)


def time(about: str, of: str = "") -> Field:
    """RFC 3339 in UTC with milliseconds, from seconds since 1970, of which 0 stands for a time that is not known."""
    pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"
    return Field({"type": "string", "pattern": pattern, "description": about}, of, utc_or_none)


def utc_or_none(seconds: float) -> str | None:
    """RFC 3339; None for a time that is not known."""
    return utc_time(seconds) if seconds else None


def several(about: str, item: Field, of: str = "") -> Field:
    """A list."""
    schema = {"type": "array", "items": item.schema, "description": about}
    return Field(schema, of, lambda values: [item.form(value) for value in values])


def group(about: str, fields: Fields) -> Field:
    """An object. Every key is required; it is open, since later versions add keys."""
    properties = {key: field.schema for key, field in fields.items()}
    schema = {"type": "object", "description": about, "required": list(fields), "properties": properties}
    return Field(schema, form=lambda thing: filled(fields, thing))


def maybe(field: Field) -> Field:
    """Null where the value is None or an empty text."""
    schema = {"anyOf": [field.schema, {"type": "null"}]}
    return Field(schema, field.of, lambda value: None if value is None or value == "" else field.form(value))


def as_json(schema: Schema) -> str:
    """A schema as people read it, and as it is shipped."""
    import json

    return json.dumps(schema, indent=2, ensure_ascii=False)
