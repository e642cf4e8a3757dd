"""A JobSpec as the text of a job.toml: what `protocol.job_file.read_job` reads back as the same job."""

from collections.abc import Iterator, Mapping

from protocol.effective import toml_of, toml_of_entry
from protocol.job import JobSpec
from protocol.job_schema import SCHEMA
from protocol.tables import Key, key_text
from protocol.text import one_line

COMMENT_COLUMN = 34


def written_keys(spec: JobSpec) -> Iterator[str]:
    """The keys of a spec that are not what they would be if nothing were said of them, like "stop.grace"."""
    for table, keys in SCHEMA.tables.items():
        values = getattr(spec, table)
        for name, key in keys.items():
            field = key.field or name
            if getattr(values, field) != getattr(type(values)(), field):
                yield f"{table}.{name}"


def job_text(spec: JobSpec, comments: Mapping[str, str] | None = None) -> str:
    """The least file that says the same; `comments` stand behind the lines of these keys."""
    notes = comments or {}
    wanted = {*written_keys(spec), *notes}
    lines = [_line("name", toml_of(SCHEMA.top["name"], spec.name), notes.get("name", ""))]
    for table, keys in SCHEMA.tables.items():
        names = [name for name in keys if f"{table}.{name}" in wanted]
        if names:
            lines += ["", f"[{table}]"]
        for name in names:
            value = getattr(getattr(spec, table), keys[name].field or name)
            lines.append(_line(name, _value(keys[name], value), notes.get(f"{table}.{name}", "")))
    return "".join(f"{line}\n" for line in lines)


def _value(key: Key, value: object) -> str:
    if isinstance(value, dict):
        entries = (f"{key_text(name)} = {toml_of_entry(entry)}" for name, entry in value.items())
        return f"{{ {', '.join(entries)} }}"
    return toml_of(key, value)


def _line(name: str, value: str, comment: str) -> str:
    setting = f"{name} = {value}"
    return f"{setting:<{COMMENT_COLUMN}}  # {one_line(comment)}" if comment else setting
