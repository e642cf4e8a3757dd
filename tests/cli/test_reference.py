"""The JSON Schemas of job.toml and supd.toml agree with the readers of these files."""

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from protocol.errors import FileInvalid
from protocol.job_file import read_job
from supervisor.cli.reference import FILES, JOB_FILE, SUPD_TOML, editor_schema, toml_default

ROOT = Path(__file__).parents[2]
JOB = jsonschema.Draft202012Validator(editor_schema(JOB_FILE))
CONFIG = jsonschema.Draft202012Validator(editor_schema(SUPD_TOML))

WHOLE_JOB: dict[str, Any] = {
    "schema": 1,
    "name": "my-job",
    "run": {
        "script": "train.py",
        "args": ["--lr", "1e-3"],
        "env": {"A": "1"},
        "inherit_env": ["HF_*"],
        "limits": {"nofile": 65536, "core": "unlimited"},
    },
    "topology": {"nnodes": "2:3", "nproc_per_node": "gpu", "rank_order": "label:rack", "node_labels": {"zone": "a"}},
    "restart": {"backoff": "1h30m", "never_on_exit": [2]},
    "stop": {"pre_signal": "usr1", "signal": "SIGTERM", "grace": "500ms", "finish_timeout": "off"},
    "progress": {"log_pattern": r"step (?P<step>\d+)", "log_ranks": "0,8-15"},
    "hang": {"phases": {"eval": "1h"}},
}


def is_read(text: str) -> bool:
    try:
        read_job(text.encode(), "job.toml")
    except FileInvalid:
        return False
    return True


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "jobs").glob("*.toml")), ids=lambda path: path.name)
def test_the_job_files_that_are_shipped_are_sound_for_editors(path: Path) -> None:
    JOB.validate(tomllib.loads(path.read_text()))


def test_a_job_file_with_every_kind_of_value_is_sound_for_editors() -> None:
    JOB.validate(WHOLE_JOB)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("", "nam", "x"),
        ("", "name", "My Job"),
        ("", "name", 1),
        ("", "schema", 2),
        ("", "restarts", {}),
        ("run", "module", "also"),
        ("run", "args", "--lr"),
        ("run", "env", {"RANK": "0"}),
        ("run", "env", {"SUPD_JOB": "x"}),
        ("run", "env", {"A": 1}),
        ("run", "limits", {"nofiles": 1}),
        ("run", "limits", {"nofile": -1}),
        ("run", "inherit_env", "submiter"),
        ("topology", "nproc_per_node", 0),
        ("topology", "nproc_per_node", "gpus"),
        ("topology", "nnodes", "2-3"),
        ("topology", "nnodes", 0),
        ("topology", "rank_order", "label:"),
        ("restart", "policy", "always"),
        ("restart", "never_on_exit", [0]),
        ("restart", "max_restart", 1),
        ("stop", "grace", 300),
        ("stop", "grace", "300"),
        ("stop", "grace", ""),
        ("stop", "grace", "1s1m"),
        ("stop", "abort_on_hang", "yes"),
        ("progress", "log_pattern", "step ([0-9]+)"),
        ("hang", "phases", {"eval": 60}),
        ("hang", "step_timeout", "on"),
    ],
)
def test_what_the_reader_refuses_editors_mark_too(table: str, key: str, value: object) -> None:
    wrong = copy.deepcopy(WHOLE_JOB)
    (wrong[table] if table else wrong)[key] = value
    assert not is_read(as_toml(wrong))
    assert [*JOB.iter_errors(wrong)] != []


@pytest.mark.parametrize("missing", ["name", "run"])
def test_what_must_be_there_is_missed_by_editors_too(missing: str) -> None:
    assert [*JOB.iter_errors({name: value for name, value in WHOLE_JOB.items() if name != missing})] != []


def test_the_whole_example_is_read_by_supd() -> None:
    assert is_read(as_toml(WHOLE_JOB))


def test_the_template_of_supd_toml_is_sound_for_editors_with_nothing_and_with_everything_in_it() -> None:
    template = (ROOT / "conf" / "supd.toml").read_text()
    for text in (template, re.sub(r"(?m)^#(\w+ = )", r"\1", template)):
        CONFIG.validate(tomllib.loads(text))


def test_the_defaults_that_the_reference_tells_are_those_in_effect() -> None:
    least = {"name": "a", "run": {"script": "a.py"}}
    schema = JOB_FILE.schema
    written: dict[str, Any] = {
        table: {name: default for name, key in keys.items() if (default := toml_default(key)) is not None}
        for table, keys in schema.tables.items()
    }
    written["run"] |= least["run"]
    settled = [read_job(as_toml(job).encode(), "job.toml").spec for job in (least, least | written)]
    bare, full = (msgspec.structs.replace(spec, origins={}) for spec in settled)
    assert bare == full


@pytest.mark.parametrize(
    ("table", "key", "value"), [("log", "level", "loud"), ("workers", "ready_runners", 9), ("listen", "peer", "here")]
)
def test_a_wrong_value_in_supd_toml_is_marked(table: str, key: str, value: object) -> None:
    assert [*CONFIG.iter_errors({table: {key: value}})] != []


@pytest.mark.parametrize("file", FILES.values(), ids=lambda file: file.name)
def test_every_default_is_a_value_that_its_key_can_have(file: Any) -> None:
    for keys in (file.schema.top, *file.schema.tables.values()):
        for name, key in keys.items():
            default = toml_default(key)
            if default is not None:
                errors = [*jsonschema.Draft202012Validator(key.check.json_schema).iter_errors(default)]
                assert errors == [], name


def as_toml(job: dict[str, Any]) -> str:
    lines = [f"{name} = {toml(value)}" for name, value in job.items() if not isinstance(value, dict)]
    for table, keys in job.items():
        if isinstance(keys, dict):
            lines += [f"[{table}]", *(f"{name} = {toml(value)}" for name, value in keys.items())]
    return "\n".join(lines)


def toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str():
            return f"'{value}'"
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{name} = {toml(inner)}' for name, inner in value.items())} }}"
        case _:
            raise TypeError(value)
