"""What can be written in job.toml and supd.toml: the words that stand around the lists of their keys.

The keys themselves are in the schema of each file. From both come `supctl help FILE`, the pages docs/job-file.md and
docs/supd-toml.md, conf/supd.toml, and the JSON Schemas for editors.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from textwrap import wrap
from typing import NamedTuple

from protocol.job import RESERVED_ENV, RESERVED_ENV_PREFIX
from protocol.tables import Key, Schema

COLUMNS = 79
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
EXPANDED = "✦"


class File(NamedTuple):
    """One of the two files; texts are Markdown that can be read as it is."""

    name: str
    schema_module: str  # loaded where it is needed
    title: str
    intro: str
    about: Mapping[str, str]  # table -> what it is there for
    notes: Mapping[str, str]  # table -> what more there is to say
    one_of: Mapping[str, tuple[str, ...]]  # table -> keys of which exactly one is given
    examples: Mapping[str, str]  # of keys whose default is no value
    foot: str

    @property
    def schema(self) -> Schema:
        """Its keys."""
        schema = import_module(self.schema_module).SCHEMA
        assert isinstance(schema, Schema)
        return schema


JOB_FILE = File(
    name="job.toml",
    schema_module="protocol.job_schema",
    title="The job file",
    intro="""\
A job.toml says what to run, on how many ranks, and what happens when one
fails. Check one with `supctl validate FILE`. The shortest:

```toml
name = "my-job"

[run]
script = "train.py"
```

- **Durations** are strings with units, the largest first: `"90s"`, `"1h30m"`,
  `"500ms"`, `"1.5s"` (d, h, m, s, ms), from 0 to a year (365 days). A bare
  number is an error.
- **Sizes** are strings with a unit: `"200MB"`, `"1.5GiB"` (B; kB, MB, GB, TB of
  1000; KiB, MiB, GiB, TiB of 1024).
- **Signals** are names, with SIG in front or without: `"SIGUSR1"`, `"usr1"`.
- **Relative paths** start at the folder of the job file.
- Keys marked ✦ are **expanded** on the node: `{job} {run} {gen} {node} {rank}
  {local_rank}`, and `${NAME}` of a variable that is set. Anything else in
  braces stays as it is; `{{` and `$$` give one `{` and one `$`.
- The file is UTF-8 and at most 1 MiB. A key that is not listed here is an
  error.
""",
    about={
        "run": "What every rank executes.",
        "topology": "How many ranks.",
        "devices": "What a rank sees of the node's accelerators and CPUs.",
        "rendezvous": "How the ranks find each other.",
        "restart": "What happens after a failure.",
        "stop": "How ranks are ended, on every path: stop, restart, and after a failure.",
        "progress": "How the step of a rank is known.",
        "hang": "How long a rank may show no progress, and what happens then.",
        "checkpoint": "How a save is noticed.",
        "preemption": "How it is known that a node will be taken away, and what follows.",
        "logs": "How the output of the ranks is kept: [docs/logs.md](logs.md).",
    },
    notes={
        "restart": "How supd decides, with a table: [docs/restarts.md](restarts.md).",
        "run": "`env` and `env_file` cannot set what supd sets itself for every rank: "
        f"{', '.join(sorted(RESERVED_ENV))}, and whatever begins with {RESERVED_ENV_PREFIX}.",
        "hang": "How a program shows beats and phases: [docs/heartbeat.md](heartbeat.md). A limit that is passed is "
        "told as an event, and what follows is `action`'s to say; no limit passes for a rank that is done.",
    },
    one_of={"run": ("script", "module", "command")},
    examples={},
    foot="`supctl validate` shows all problems of a file at once, each with a code that stays "
    "([error-codes.md](error-codes.md)). Editors check a job file by [job.toml.json](schemas/job.toml.json), which "
    "`supctl help json job.toml` prints; those with taplo find it by a first line `#:schema PATH`.",
)

SUPD_TOML = File(
    name="supd.toml",
    schema_module="supervisor.shell.config",
    title="supd.toml",
    intro="""\
What a supd is told. Every key is optional, and so is the file: without
`--config`, supd reads `$XDG_CONFIG_HOME/supd/supd.toml`
(`~/.config/supd/supd.toml`) where there is one. `conf/supd.toml` is a template.

Relative paths start at the file's folder, and `~/` at the home folder.
Durations and sizes are strings with units, as in [the job file](job-file.md). A key that
is not listed here is an error. XDG variables that hold a relative path are
ignored, as the XDG base directory specification says.

`supd run --dev` keeps everything below one folder of its own, takes any free
port on 127.0.0.1, and does not read your own supd.toml.
""",
    about={
        "node": "What this node is called, and what jobs can ask for.",
        "listen": "Where supd is reached.",
        "fleet": "What this node is part of.",
        "lease": "How long a node of a run may be silent, and what happens then.",
        "state": "Where supd keeps what it knows; on a disk of this node.",
        "workers": "The runners of this node.",
        "log": "supd's own log.",
    },
    notes={
        "lease": "What the host of the fleet has here holds for all nodes, and for a generation what was there when it "
        "began. How to choose the times: [operations.md](operations.md).",
    },
    one_of={},
    examples={
        "node.name": '"gpu-01"',
        "listen.advertise": '"10.0.0.7"',
        "listen.interface": '"eth0"',
        "listen.control": '"~/supd.sock"',
        "fleet.credential": '"fleet.pem"',
        "state.dir": '"/var/tmp/me/supd"',
        "state.logs_dir": '"/scratch/me/logs"',
        "state.max_disk": '"200GiB"',
        "state.min_free": '"20GiB"',
    },
    foot="Its error codes begin with an S: [error-codes.md](error-codes.md). Editors check it by "
    "[supd.toml.json](schemas/supd.toml.json), which `supctl help json supd.toml` prints.",
)

FILES = {file.name: file for file in (JOB_FILE, SUPD_TOML)}


def toml_default(key: Key) -> object:
    """The value that is the key's default, None where that is told in words, or there is none."""
    import tomllib  # only where a reference is made

    try:
        return tomllib.loads(f"x = {key.default}")["x"]
    except tomllib.TOMLDecodeError:
        return None


def key_paths(schema: Schema) -> Iterator[str]:
    """Every table and every key, in the schema's order."""
    yield from schema.top
    for table, keys in schema.tables.items():
        yield table
        yield from (f"{table}.{key}" for key in keys)


# --- as text -----------------------------------------------------------------------------------------------------


def overview(file: File) -> str:
    """What the file is, and which tables and keys it has."""
    schema = file.schema
    lines = [LINK.sub(r"\1", file.intro), "keys", *_paragraph(", ".join(schema.top), 2)]
    for table, keys in schema.tables.items():
        lines += ["", f"[{table}]  {file.about[table]}", *_paragraph(", ".join(keys), 2)]
    return "\n".join([*lines, "", f"supctl help {file.name} TABLE or KEY says what they mean"])


def table_text(file: File, table: str) -> str:
    """A table with its keys."""
    lines = [f"[{table}]", *_paragraph(file.about[table])]
    if table in file.one_of:
        lines += _paragraph(one_of_text(file.one_of[table]))
    for name, key in file.schema.tables[table].items():
        lines += ["", *_key_lines(name, key)]
    if table in file.notes:
        lines += ["", *_paragraph(file.notes[table])]
    return "\n".join(lines)


def key_text(file: File, path: str) -> str:
    """One key: `path` is like "stop.grace"."""
    table, _, name = path.rpartition(".")
    keys = file.schema.tables[table] if table else file.schema.top
    lines = [f"{file.name}, [{table}]" if table else f"{file.name}, at the top", "", *_key_lines(name, keys[name])]
    if path in file.examples:
        lines += ["", f"  like: {name} = {file.examples[path]}"]
    if keys[name].is_expanded:
        lines += [
            "",
            f"  {EXPANDED} {{rank}}, ${{NAME}} and the like are filled in on the node: supctl help {file.name}",
        ]
    if name in file.one_of.get(table, ()):
        lines += ["", *_paragraph(one_of_text(file.one_of[table]), 2)]
    return "\n".join(lines)


def one_of_text(keys: tuple[str, ...]) -> str:
    """That exactly one of these keys is given."""
    *most, last = (f"`{key}`" for key in keys)
    return f"Exactly one of {', '.join(most)} and {last} is given."


def _key_lines(name: str, key: Key) -> list[str]:
    default = "required" if key.is_required else f"default: {key.default}" if key.default else ""
    mark = f" {EXPANDED}" if key.is_expanded else ""
    head = f"{name}  {'; '.join(filter(None, (key.type + mark, default)))}"
    return [*_paragraph(head, 2, more=4), *_paragraph(key.meaning, 6)]


def _paragraph(text: str, indent: int = 0, *, more: int = 0) -> list[str]:
    """Wrapped; all lines but the first are indented by `more`."""
    first, rest = " " * indent, " " * (indent + more)
    return wrap(LINK.sub(r"\1", text), COLUMNS, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


# --- for editors -------------------------------------------------------------------------------------------------


def editor_schema(file: File) -> dict[str, object]:
    """The file's keys as JSON Schema (draft 2020-12)."""
    schema = file.schema
    tables = {table: _table_schema(file, table, keys) for table, keys in schema.tables.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": file.name,
        "description": f"{file.title} of supd, version 1",
        **_object_schema(schema.top, tables, tuple(file.one_of)),
    }


def _table_schema(file: File, table: str, keys: Mapping[str, Key]) -> dict[str, object]:
    choice = {"oneOf": [{"required": [key]} for key in file.one_of[table]]} if table in file.one_of else {}
    return {"description": file.about[table], **_object_schema(keys, {}, ()), **choice}


def _object_schema(keys: Mapping[str, Key], tables: Mapping[str, object], needed: tuple[str, ...]) -> dict[str, object]:
    required = [*(name for name, key in keys.items() if key.is_required), *needed]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _key_schema(key) for name, key in keys.items()} | dict(tables),
        **({"required": required} if required else {}),
    }


def _key_schema(key: Key) -> dict[str, object]:
    default = toml_default(key)
    return {
        "description": key.meaning or key.type,
        **key.check.json_schema,
        **({} if default is None else {"default": default}),
    }
