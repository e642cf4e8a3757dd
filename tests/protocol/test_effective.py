"""protocol/effective.py: every setting of a job with its origin, and no secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checks import MAX_DURATION_S, parse_duration_s
from protocol.effective import MASK, duration_text, effective, is_secret
from protocol.job_file import read_job
from protocol.job_schema import SCHEMA

JOB = b"""
name = "hello"
[run]
command = ["sleep", "1"]
args = ["a \\u0007b"]
env = { HF_TOKEN = "hf_1234", A = "b", "odd.name" = "c" }
limits = { core = "unlimited" }
[stop]
grace = "90s"
finish_timeout = "off"
[hang]
phases = { eval = "1500ms", upload = "off" }
"""


def shown(job: bytes = JOB, **submitted: object) -> dict[str, tuple[str, str]]:
    settings = effective(read_job(job, "job.toml").spec, **submitted)  # type: ignore[arg-type]
    return {setting.key: (setting.value, setting.origin) for setting in settings}


def test_what_the_file_says_is_shown_as_it_would_stand_there() -> None:
    settings = shown()
    assert settings["name"] == ('"hello"', "file")
    assert settings["run.command"] == ('["sleep", "1"]', "file")
    assert settings["run.args"] == (r'["a \u0007b"]', "file")
    assert settings["run.env.A"] == ('"b"', "file")
    assert settings['run.env."odd.name"'] == ('"c"', "file")
    assert settings["run.limits.core"] == ('"unlimited"', "file")
    assert settings["stop.grace"] == ('"1m30s"', "file")
    assert settings["stop.finish_timeout"] == ('"off"', "file")
    assert settings["hang.phases.eval"] == ('"1s500ms"', "file")
    assert settings["hang.phases.upload"] == ('"off"', "file")


def test_every_other_key_has_its_default() -> None:
    settings = shown()
    assert settings["hang.phases.checkpoint"] == ('"30m"', "default")
    assert settings["hang.step_timeout"] == ('"off"', "default")
    assert settings["stop.signal"] == ('"SIGTERM"', "default")
    assert settings["stop.abort_on_hang"] == ("true", "default")
    for table, keys in SCHEMA.tables.items():
        for name in keys.keys() - {"script", "module", "env_file", "node_labels"}:
            assert any(key == f"{table}.{name}" or key.startswith(f"{table}.{name}.") for key in settings)


def test_where_the_job_says_nothing_the_submitters_place_stands() -> None:
    settings = shown(folder="/home/ada", python="/usr/bin/python3", limits={"core": 0, "nofile": -1})
    assert settings["run.workdir"] == ('"/home/ada"', "default")
    assert settings["run.python"] == ('"/usr/bin/python3"', "submitter")
    assert settings["run.limits.nofile"] == ('"unlimited"', "submitter")
    assert settings["run.limits.core"] == ('"unlimited"', "file")


def test_the_value_of_a_secret_is_not_among_them() -> None:
    assert shown()["run.env.HF_TOKEN"] == (MASK, "file")
    own = JOB.replace(b"args =", b'secret_env = ["A"]\nargs =')
    assert shown(own)["run.env.A"] == (MASK, "file")


def test_what_was_said_on_the_command_line_has_that_as_its_origin() -> None:
    spec = read_job(JOB, "job.toml", settings=("stop.grace=5m", "run.env.A=z"), name="other", args=("--x",)).spec
    settings = {setting.key: (setting.value, setting.origin) for setting in effective(spec)}
    assert settings["name"] == ('"other"', "--name")
    assert settings["stop.grace"] == ('"5m"', "--set")
    assert settings["run.env.A"] == ('"z"', "--set")
    assert settings["run.args"] == (r'["a \u0007b", "--x"]', "--")


@pytest.mark.parametrize("name", ["HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD_FILE"])
def test_a_secret_is_known_by_its_name_whatever_its_case(name: str) -> None:
    assert is_secret(name, ("*TOKEN*", "*secret*", "*Password*"))
    assert not is_secret("HOME", ("*TOKEN*", "*SECRET*"))


@given(st.integers(0, int(MAX_DURATION_S) * 1000))
def test_a_duration_is_written_as_it_is_read(ms: int) -> None:
    assert round(parse_duration_s(duration_text(ms / 1000)) * 1000) == ms
