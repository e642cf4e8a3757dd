"""Every document of --json is as its schema says: no key is missing, and none is there that the schema lacks."""

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from protocol.exit_code import ExitCode
from protocol.messages.control import (
    Description,
    Done,
    End,
    EventRecord,
    Incident,
    LogChunk,
    Paths,
    RankStatus,
    Setting,
    Statuses,
)
from supervisor.cli.documents import DOCUMENTS, json_schema
from tests.cli.conftest import Daemon, Step, Supctl, a_run, one_run
from tests.cli.json_check import problems, problems_of_all

INCIDENT = Incident(
    number=1,
    generation=0,
    cause="signal",
    summary="rank 0 on n1 (pid 11) killed by SIGKILL",
    node="n1",
    rank=0,
    local_rank=0,
    pid=11,
    signal="SIGKILL",
    shell_code=137,
    wall_s=1.8e9,
    stderr_tail=(b"\xff",),
    evidence="oom-kill",
)
RANKS = (
    RankStatus(rank=0, node="n1", local_rank=0, pid=11, state="stalled", step=7, phase="checkpoint", silent_s=61.5),
    RankStatus(rank=1, node="n1", local_rank=1, pid=None, state="exited", exit_code=0, ended_wall_s=1.8e9, ran_s=2.5),
)
KNOWN = a_run(
    state="stalled",
    incident=INCIDENT,
    rank_list=RANKS,
    saved_step=4,
    step=7,
    total_steps=100,
    rate=0.5,
    eta_s=186.0,
    loss=1.25,
    silent_s=61.5,
)
UNKNOWN = a_run(
    state="starting",
    generation=None,
    ranks=None,
    ranks_running=0,
    nodes=(),
    user="",
    waiting_for="a node",
    wait_left_s=3.5,
    logs_dir="",
)
DESCRIPTION = Description(
    status=KNOWN,
    source="job.toml",
    settings=(Setting(key="stop.grace", value='"30s"', origin="default"),),
    command=("python", "train.py"),
    cwd="/work",
    limits={"nofile": 1024, "core": -1},
    env=(("RANK", "0", "supd"), ("HF_TOKEN", "***", "inherited")),
    files=("/logs/rank-00000.out",),
)
EVENT = EventRecord(
    id=9,
    wall_s=1.8e9,
    run=KNOWN.run,
    generation=None,
    kind="job.accepted",
    text="by ada",
    detail={"user": "ada", "nnodes": 1, "is_final": False, "grace_s": 0.5, "node": None},
)
CHUNKS = (
    LogChunk(generation=0, node="n1", rank=0, stream="out", data=b"step 1\n"),
    LogChunk(generation=0, node="n1", rank=1, stream="err", data=b"\xff\n", times=((0, 1.8e9),)),
)

OVER = a_run(state="succeeded", is_final=True, ended_wall_s=1.8e9 + 5)


@pytest.mark.parametrize("run", [KNOWN, UNKNOWN, OVER], ids=lambda run: run.state)
def test_status_of_a_run_in_any_state_is_as_its_schema_says(supctl: Supctl, daemon: Daemon, run: Step) -> None:
    daemon(one_run(run))  # type: ignore[arg-type]
    assert problems("status", supctl("status", "--json").out) == []


@pytest.mark.parametrize(
    ("name", "argv", "rest"),
    [
        ("ps", ("ps",), ()),
        ("describe", ("describe",), (DESCRIPTION,)),
        ("describe", ("describe", "rank", "1", "--env"), (DESCRIPTION,)),
        ("log-paths", ("logs", "--path"), (Paths(paths=("/logs/rank-00000.out",)),)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value and isinstance(value[0], str) else None,
)
def test_a_document_is_as_its_schema_says(
    supctl: Supctl, daemon: Daemon, name: str, argv: Sequence[str], rest: Sequence[Step]
) -> None:
    daemon(one_run(KNOWN, *rest))
    result = supctl(*argv, "--json")
    assert (result.err, problems(name, result.out)) == ("", [])


def test_wait_prints_the_run_as_status_does(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(OVER, Statuses(runs=(OVER,)), End()))
    assert problems("wait", supctl("wait", "--json").out) == []


def test_a_line_of_logs_is_as_its_schema_says(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(KNOWN, *CHUNKS, End()))
    result = supctl("logs", "--json")
    assert problems_of_all("log-line", result.out.splitlines()) == []


def test_a_line_of_events_is_as_its_schema_says(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(KNOWN, EVENT, End()))
    result = supctl("events", "--json")
    assert problems_of_all("event", result.out.splitlines()) == []


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('name = "a"\n[run]\nscript = "x.py"\n[stop]\npre_wait = "1s"\n', ExitCode.OK),
        ("nam = 1\n[stop]\ngrace = 300\n", ExitCode.INVALID),
    ],
)
def test_validate_of_a_sound_and_of_a_wrong_file_is_as_its_schema_says(
    supctl: Supctl, daemon: Daemon, tmp_path: Path, content: str, code: ExitCode
) -> None:
    daemon(lambda _request: [Done(notes=("python: /usr/bin/python3",), warnings=("warning[J501]: …",))])
    file = tmp_path / "job.toml"
    file.write_text(content)
    for more in ((), ("--show-config",)):
        result = supctl("validate", str(file), "--json", *more)
        assert (result.code, problems("validate", result.out)) == (code, [])


@pytest.mark.parametrize("has_daemon", [True, False])
def test_version_is_as_its_schema_says_also_where_no_supd_answers(
    supctl: Supctl, daemon: Daemon, has_daemon: bool
) -> None:
    if has_daemon:
        daemon(lambda _request: [])
    assert problems("version", supctl("version", "--json").out) == []


@pytest.mark.parametrize("argv", [("status", "nosuch"), ("logs", "--bogus"), ("validate", "/nowhere/job.toml")])
def test_an_error_is_as_its_schema_says(supctl: Supctl, daemon: Daemon, argv: Sequence[str]) -> None:
    daemon(one_run(KNOWN))
    result = supctl(*argv, "--json")
    assert (result.out, problems("error", result.err)) == ("", [])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_sound_json_schema_and_says_what_every_key_means(name: str) -> None:
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert [*_without_words(schema, "$")] == []


def test_keys_that_a_later_version_adds_are_no_fault_for_readers_of_this_one(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(KNOWN))
    text = supctl("ps", "--json").out.replace('"warnings"', '"added":1,"warnings"')
    assert problems("ps", text) == ["$: Additional properties are not allowed ('added' was unexpected)"]
    jsonschema.Draft202012Validator(json_schema("ps")).validate(json.loads(text))


def _without_words(schema: object, path: str) -> list[str]:
    """Paths of keys that have no description."""
    if isinstance(schema, list):
        return [found for value in schema for found in _without_words(value, path)]
    if not isinstance(schema, dict):
        return []
    found = []
    for name, value in schema.get("properties", {}).items():
        choices = value.get("anyOf", [value])
        if not any("description" in choice for choice in choices):
            found.append(f"{path}.{name}")
    for name, value in schema.items():
        inner = value.values() if name == "properties" else [value]
        found += [one for child in inner for one in _without_words(child, f"{path}.{name}")]
    return found
