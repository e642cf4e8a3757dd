"""`supctl validate`: problems and warnings where they stand, what is in effect, and what supd adds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import Place
from protocol.messages.control import Done, Failure, FileProblem
from tests.cli.conftest import FakeDaemon, Result, Script

Supctl = Callable[..., Result]
Daemon = Callable[[Script], FakeDaemon]

SOUND = 'name = "hello"\n[run]\ncommand = ["true"]\n'
DOUBTFUL = SOUND + '[stop]\npre_wait = "5s"\n'


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    return tmp_path / "job.toml"


def data(result: Result) -> Any:
    return json.loads(result.out)["data"]


def test_problems_are_told_with_their_place_for_people_and_programs(supctl: Supctl, job_file: Path) -> None:
    job_file.write_text(SOUND + "[stop]\ngrace = 300\n")
    result = supctl("validate", "--local", str(job_file))
    assert (result.code, result.out) == (78, "")
    assert f"  --> {job_file}:5:9\n   |\n 5 | grace = 300\n" in result.err
    result = supctl("validate", "--local", "--json", str(job_file))
    assert result.code == 78
    assert data(result)["problems"] == [
        {
            "code": "J204",
            "key": "stop.grace",
            "value": "300",
            "message": "`stop.grace` needs a unit",
            "hint": 'write "300s" or "5m"',
            "file": str(job_file),
            "line": 5,
            "column": 9,
            "length": 3,
        }
    ]


def test_local_asks_no_supd(supctl: Supctl, daemon: Daemon, job_file: Path) -> None:
    job_file.write_text(SOUND)
    asked = daemon(lambda _request: [Failure(code="J401", message="not so", exit_code=78)])
    result = supctl("validate", "--local", str(job_file))
    assert (result.code, asked.requests) == (0, [])
    assert "only the file" not in result.err


def test_what_may_not_be_meant_is_told_and_only_with_strict_a_failure(supctl: Supctl, job_file: Path) -> None:
    job_file.write_text(DOUBTFUL)
    for more, code in ((), 0), (("--strict",), 6):
        result = supctl("validate", "--local", *more, str(job_file))
        assert result.code == code
        assert "is valid" in result.err
        assert "warning[J503]: `stop.pre_wait` has no effect without `stop.pre_signal`\n" in result.err
        assert '\n 5 | pre_wait = "5s"\n' in result.err
    job_file.write_text(SOUND)
    assert supctl("validate", "--local", "--strict", str(job_file)).code == 0


def test_warnings_are_findings_of_the_document(supctl: Supctl, job_file: Path) -> None:
    job_file.write_text(DOUBTFUL)
    result = supctl("validate", "--local", "--strict", "--json", str(job_file))
    assert result.code == 6
    assert (data(result)["valid"], data(result)["problems"]) == (True, [])
    assert [(finding["code"], finding["line"]) for finding in data(result)["findings"]] == [("J503", 5)]


def test_what_supd_says_of_the_file_too_is_told_once_and_what_it_says_of_its_node_as_well(
    supctl: Supctl, daemon: Daemon, job_file: Path
) -> None:
    job_file.write_text(DOUBTFUL)
    daemon(lambda _request: [Done(file_warnings=("warning[J503]: in other words",), warnings=("nofile is cut",))])
    result = supctl("validate", str(job_file))
    assert (result.err.count("J503"), result.err.count("nofile is cut")) == (1, 1)
    assert json.loads(supctl("validate", "--json", str(job_file)).out)["warnings"] == ["nofile is cut"]
    job_file.write_text(SOUND)
    assert supctl("validate", "--strict", str(job_file)).code == 6


def test_problems_that_supd_finds_are_problems_of_the_document(supctl: Supctl, daemon: Daemon, job_file: Path) -> None:
    job_file.write_text(SOUND)
    problem = FileProblem(
        code="J402", key="run.script", value="/x", message="no such file", hint="look", place=Place("job.toml", 3, 1, 6)
    )
    daemon(lambda _request: [Failure(code="J000", message="error[J402]: …", exit_code=78, problems=(problem,))])
    result = supctl("validate", "--json", str(job_file))
    assert (result.code, data(result)["valid"]) == (78, False)
    assert [(found["code"], found["line"]) for found in data(result)["problems"]] == [("J402", 3)]


def test_a_file_that_is_too_large_is_a_problem_like_any_other(supctl: Supctl, job_file: Path) -> None:
    job_file.write_text(SOUND + "#" * (2 << 20))
    result = supctl("validate", "--local", "--json", str(job_file))
    assert (result.code, [found["code"] for found in data(result)["problems"]]) == (78, ["J003"])


def test_the_changes_of_a_call_are_checked_with_the_file(supctl: Supctl, daemon: Daemon, job_file: Path) -> None:
    job_file.write_text(SOUND)
    result = supctl("validate", "--local", str(job_file), "--set", "stop.grace=300", "--name", "My Job")
    assert result.code == 78
    assert "  --> --set stop.grace=300\n" in result.err
    assert "  --> --name My Job\n" in result.err
    asked = daemon(lambda _request: [Done()])
    assert supctl("validate", str(job_file), "--set", "stop.grace=3s", "--name", "other").code == 0
    (request,) = asked.requests
    assert (request.settings, request.name, request.check_only) == (("stop.grace=3s",), "other", True)  # type: ignore[union-attr]


def test_an_empty_name_is_a_name_that_is_wrong(supctl: Supctl, daemon: Daemon, job_file: Path) -> None:
    job_file.write_text(SOUND)
    result = supctl("validate", "--local", str(job_file), "--name", "")
    assert (result.code, "error[J206]: `name` is not a job name" in result.err) == (78, True)
    asked = daemon(lambda _request: [Done()])
    assert supctl("start", str(job_file), "--dry-run", "--name", "").code == 0
    assert asked.requests[0].name == ""  # type: ignore[union-attr]  # so that supd sees it


def test_a_supd_toml_is_told_by_its_tables(supctl: Supctl, job_file: Path) -> None:
    job_file.write_text('[node]\nname = "n1"\n')
    result = supctl("validate", "--local", str(job_file))
    assert result.code == 78
    assert result.err.endswith("→ it looks like a supd.toml, which supd reads itself: supd run --config FILE\n")


def test_what_is_in_effect_is_shown_with_who_gave_it(supctl: Supctl, job_file: Path) -> None:
    job_file.write_text(SOUND + 'env = { API_TOKEN = "secret" }\n')
    call = ("validate", "--local", "--show-config", str(job_file), "--set", "stop.grace=90s", "--name", "other")
    lines = supctl(*call).out.splitlines()
    assert 'name = "other"   # --name' in lines
    assert f'run.command = ["true"]   # {job_file}' in lines
    assert 'stop.grace = "1m30s"   # --set' in lines
    assert 'restart.backoff = "5s"   # default' in lines
    assert any(line.endswith("   # the submitter") for line in lines)
    assert not any("secret" in line and "secret_env" not in line for line in lines)
    settings = data(supctl(*call, "--json"))["settings"]
    assert {"key": "stop.grace", "value": '"1m30s"', "origin": "--set"} in settings
    assert data(supctl("validate", "--local", "--json", str(job_file)))["settings"] is None


def test_where_the_first_problem_stands_is_in_the_error_document(
    supctl: Supctl, daemon: Daemon, job_file: Path
) -> None:
    place = Place("job.toml", 3, 1, 6)
    problem = FileProblem(code="J402", key="run.script", value="/x", message="no such file", hint="look", place=place)
    daemon(lambda _request: [Failure(code="J000", message="error[J402]: …", exit_code=78, problems=(problem,))])
    result = supctl("status", "--json")
    assert json.loads(result.err)["where"] == {"file": "job.toml", "line": 3, "column": 1}
