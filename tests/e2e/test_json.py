"""The documents of a real run, after a crash and at its end, are as the shipped schemas say."""

import json

import pytest

from protocol.exit_code import ExitCode
from tests.cli.json_check import problems, problems_of_all
from tests.e2e.jobs import command_job
from tests.e2e.supd import Supd

CRASH_ONCE = 'echo step 1; test "$SUPD_GENERATION" = 1 || { echo lost >&2; exit 7; }'


@pytest.fixture
def run(supd: Supd) -> str:
    """A run whose rank 1 failed in generation 0; it succeeded in the next one."""
    tables = '[restart]\nbackoff = "0s"\non_startup_failure = "restart"'
    path = command_job(supd, "twice", ["sh", "-c", CRASH_ONCE], nproc=2, tables=tables)
    name = supd.start_job(path)
    supd.wait_state(name, "succeeded")
    return name


def test_every_document_of_a_real_run_is_as_its_schema_says(supd: Supd, run: str) -> None:
    documents = {
        "status": ("status",),
        "ps": ("ps", run),
        "describe": ("describe", "rank", "1", run, "--env"),
        "wait": ("wait", run),
        "log-paths": ("logs", run, "--path"),
        "version": ("version",),
        "validate": ("validate", "twice.toml"),
    }
    for name, argv in documents.items():
        assert (name, problems(name, supd.supctl(*argv, "--json").stdout)) == (name, [])
    incident = supd.status(run)["incident"]
    assert (incident["cause"], incident["exit_code"]) == ("exit", 7)
    for name, argv in {"event": ("events", run), "log-line": ("logs", run, "--gen", "all", "-r", "all")}.items():
        assert problems_of_all(name, supd.supctl(*argv, "--json").stdout.splitlines()) == []
    assert problems("error", supd.supctl("ps", "nosuch", "--json", check=False).stderr) == []


def test_what_the_node_finds_wrong_with_a_file_has_its_place_as_the_schema_says(supd: Supd) -> None:
    path = command_job(supd, "wrong", ["true"], run='env_file = "nowhere.env"')
    line = path.read_text().splitlines().index('env_file = "nowhere.env"') + 1
    result = supd.supctl("validate", str(path), "--json", check=False)
    assert (result.returncode, problems("validate", result.stdout)) == (ExitCode.INVALID, [])
    (problem,) = json.loads(result.stdout)["data"]["problems"]
    assert (problem["code"], problem["file"], problem["line"]) == ("J402", str(path), line)
