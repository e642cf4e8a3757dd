"""What a command line gives beside the job file: --set KEY=VALUE, --name, and arguments behind --."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocol.errors import About, KeyPath
from protocol.spans import Extent, Mark, Scan, marks_of, scan_key
from protocol.tables import Found, Kind, Schema, key_text
from protocol.toml_text import MAX_KEY_PARTS, NotToml, parse_toml

MAX_SETTINGS = 100
MAX_SETTING_CHARS = 4096

_FORM = "write KEY=VALUE, as in --set stop.grace=60s"
_STRUCTURED = ("'", '"', "[", "{")  # what begins so is meant to be TOML, and no bare word


def with_settings(document: Mapping[str, Any], settings: Sequence[str], schema: Schema, found: Found) -> dict[str, Any]:
    """The document with each KEY=VALUE in its place; what cannot be read, or has no place, is told and left out.

    VALUE is TOML, else a bare word that stands for itself; so do numbers and the like where the key takes text.
    """
    result = dict(document)
    if len(settings) > MAX_SETTINGS:
        found.add(Kind.SETTING, "", "", f"more than {MAX_SETTINGS} times --set", "write a job file")
        return result
    for number, text in enumerate(settings):
        if len(text) > MAX_SETTING_CHARS:
            message = f"a --set has more than {MAX_SETTING_CHARS} characters"
            found.add(Kind.SETTING, "", "", message, "write it into the job file")
        else:
            result = _with_setting(result, text, number, schema, found)
    return result


def with_name(document: dict[str, Any], name: str | None, found: Found) -> dict[str, Any]:
    """The document with this name, where one is given."""
    if name is None:
        return document
    root, whole = Mark(None, None), Extent(0, len(name))
    root.entries["name"] = Mark(whole, whole)
    found.show(name, lambda: root, option="--name", key=("name",))
    return {**document, "name": name}


def with_args(document: dict[str, Any], args: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """The document with these behind its run.args, and whether any were put there."""
    run = document.get("run", {})
    if not args or not isinstance(run, dict) or not isinstance(run.get("args", []), list):
        return document, False
    return {**document, "run": {**run, "args": [*run.get("args", []), *args]}}, True


def origins_of(document: Mapping[str, Any], origin_of: Callable[[KeyPath], str]) -> dict[str, str]:
    """Who gave each key of a document: "file", "--set" or "--name". Entries of a table count as keys."""
    origins: dict[str, str] = {}
    left: list[tuple[KeyPath, str, object]] = [((name,), key_text(name), value) for name, value in document.items()]
    while left:
        path, key, value = left.pop()
        if isinstance(value, dict):
            left += [((*path, name), f"{key}.{key_text(name)}", below) for name, below in value.items()]
        else:
            origins[key] = origin_of(path)
    return origins


def _with_setting(document: dict[str, Any], text: str, number: int, schema: Schema, found: Found) -> dict[str, Any]:
    text = text.replace("\r\n", "\n")
    key = scan_key(text)
    try:
        value = _value_of(text, key, schema)
    except NotToml as exc:
        path = ("--set", number)  # no key of a file: the place of a text without one
        found.show(text, option="--set", key=path)
        at = exc.offset or 0
        found.add(Kind.SETTING, "", "", str(exc), exc.hint, about=About(path, span=(at, at + 1)))
        return document

    def marks() -> Mark:
        return marks_of(text, _put({}, key.path, value)) or key.root

    found.show(text, marks, option="--set", key=key.path)
    blocked = _blocked(document, key.path)
    if not blocked:
        return _put(document, key.path, value)
    part = key.root.find(blocked)
    name = ".".join(map(key_text, blocked))
    found.add(
        Kind.TYPE,
        name,
        "",
        f"`{name}` is no table, and has no keys to be set",
        f"--set {name}=VALUE sets it as a whole",
        about=About(key.path, span=part.key if part else None),
        other=(About(blocked), "no table"),
    )
    return document


def _value_of(text: str, key: Scan, schema: Schema) -> object:
    """The value of KEY=VALUE. Raises NotToml, with the offset in `text`."""
    if key.value is None:
        raise NotToml("a --set has no KEY=VALUE that can be read", _FORM, key.stopped)
    if len(key.path) > MAX_KEY_PARTS:
        raise NotToml(f"a key has more than {MAX_KEY_PARTS} parts with dots between", _FORM, 0)
    written = text[key.value :]
    try:
        content = parse_toml(f"x={written}")
    except NotToml as exc:
        if written.startswith(_STRUCTURED) or exc.offset is None:
            at = 0 if exc.offset is None else exc.offset - len("x=")
            raise NotToml(str(exc), exc.hint, key.value + min(at, len(written))) from None
        return written
    value = content["x"] if len(content) == 1 else written
    is_plain = not isinstance(value, str | list | dict)
    return written if is_plain and _takes_text(schema, key.path, written) else value


def _takes_text(schema: Schema, path: Sequence[str], text: str) -> bool:
    """Whether this text is sound as a string at this path."""
    table, *names = path
    key = schema.tables.get(table, {}).get(names[0]) if names else schema.top.get(table)
    form: object = key.check.json_schema if key else None
    for _ in names[1:]:
        form = form.get("additionalProperties") if isinstance(form, Mapping) else None
    return isinstance(form, Mapping) and form.get("type") == "string" and bool(re.search(form.get("pattern", ""), text))


def _blocked(document: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, ...]:
    """The key on the way to a path whose value is no table; () for none."""
    table: object = document
    for depth, name in enumerate(path):
        if not isinstance(table, dict):
            return path[:depth]
        table = table.get(name, {})
    return ()


def _put(table: Mapping[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    """A copy of a table with a value at a path below it."""
    name, *rest = path
    if rest:
        value = _put(table.get(name, {}), rest, value)
    return {**table, name: value}
