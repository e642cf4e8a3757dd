"""Every setting that a job has in effect, with its origin: what `describe` and `validate --show-config` show. Pure."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from protocol.job import JobSpec
from protocol.job_schema import SCHEMA
from protocol.messages.control import Setting
from protocol.tables import Key, key_text
from protocol.text import sendable

MASK = "***"

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_NOT_IN_EFFECT = ("run.script", "run.module", "run.command", "run.env_file")
"""Keys that are nothing unless the job gives them."""


def effective(
    spec: JobSpec, *, folder: str = "", python: str = "", limits: Mapping[str, int] | None = None
) -> tuple[Setting, ...]:
    """The settings of a job in the order of its schema, secrets masked.

    `folder` is the job file's, `python` and `limits` are the submitter's: they stand where the job says nothing. An
    entry of a table like [run.env] is a setting of its own.
    """
    submitted = {
        "run.workdir": _toml(folder) if folder else "",
        "run.python": _toml(python) if python else "",
        **{f"run.limits.{name}": _toml(_limit(value)) for name, value in sorted((limits or {}).items())},
    }
    settings = [Setting(key="name", value=_toml(spec.name), origin=spec.origins.get("name", "file"))]
    for table, keys in SCHEMA.tables.items():
        for name, key in keys.items():
            settings += _settings(spec, table, name, key, submitted)
    return tuple(settings)


def is_secret(name: str, globs: Iterable[str]) -> bool:
    """Whether the value of this variable is masked wherever it is shown; case does not count."""
    return any(fnmatch.fnmatchcase(name.upper(), glob.upper()) for glob in globs)


def duration_text(seconds: float) -> str:
    """A duration as it would stand in a job file: "1h30m", "500ms"."""
    left_ms = round(seconds * 1000)
    pieces = []
    for unit, unit_ms in _UNITS_MS:
        count, left_ms = divmod(left_ms, unit_ms)
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces) or "0s"


def _settings(spec: JobSpec, table: str, name: str, key: Key, submitted: Mapping[str, str]) -> Iterator[Setting]:
    path = f"{table}.{name}"
    value = getattr(getattr(spec, table), key.field or name)
    if isinstance(value, dict):
        yield from _entries(spec, path, value, submitted)
    elif spec.is_written(path):
        yield Setting(key=path, value=toml_of(key, value), origin=spec.origins[path])
    elif submitted.get(path):
        origin = "default" if path == "run.workdir" else "submitter"  # a default that depends on the file's place
        yield Setting(key=path, value=submitted[path], origin=origin)
    elif path not in _NOT_IN_EFFECT:
        yield Setting(key=path, value=key.default if value == "" else toml_of(key, value), origin="default")


def _entries(
    spec: JobSpec, path: str, table: Mapping[str, str | int | float | None], submitted: Mapping[str, str]
) -> Iterator[Setting]:
    for name, value in table.items():
        entry = f"{path}.{key_text(name)}"
        is_masked = path == "run.env" and is_secret(name, spec.run.secret_env)
        text = MASK if is_masked else toml_of_entry(value)
        yield Setting(key=entry, value=text, origin=spec.origins.get(entry, "default"))
    for entry, text in submitted.items():
        if entry.startswith(f"{path}.") and entry.removeprefix(f"{path}.") not in table:
            yield Setting(key=entry, value=text, origin="submitter")


def toml_of_entry(value: str | int | float | None) -> str:
    """A value in a table like [run.env], as it would stand in a job file."""
    match value:
        case float():  # hang.phases
            return _toml(duration_text(value))
        case None:
            return _toml("off")
        case int():  # run.limits
            return _toml(_limit(value))
        case str():  # run.env, topology.node_labels
            return _toml(value)


def toml_of(key: Key, value: object) -> str:
    """The value of a key as it would stand in a job file; of one that is no table."""
    if key.written is not None:
        return _toml(key.written(value))
    match value:
        case None:
            return '"off"'
        case float() if key.field.endswith("_s"):
            return _toml(duration_text(value))
        case _:
            return _toml(value)


def _limit(value: int) -> int | str:
    return "unlimited" if value < 0 else value


def _toml(value: object) -> str:
    """A value as TOML, on one line; JSON has the same words for all that a job file holds."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = msgspec.json.encode(sendable(value) if isinstance(value, str) else value).decode()
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
