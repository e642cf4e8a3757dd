"""Ranks that cannot be spawned, and when a spawned one counts as started."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import command_job, finished
from tests.e2e.supd import Supd, wait_for

INVALID = 78
"""What supctl ends with where a job file has problems."""


def program(supd: Supd, first_line: str, mode: int = 0o755) -> str:
    """A script of the test's own."""
    path = supd.folder / "program"
    path.write_text(f"{first_line}\necho hello\n")
    path.chmod(mode)
    return str(path)


def assert_it_ended_at_once(supd: Supd, status: Any, path: str, reason: str) -> None:
    """One incident that names both, no second generation, nothing left."""
    incident = status["incident"]
    assert incident["cause"] == "spawn"
    assert path in incident["summary"]
    assert reason in incident["summary"]
    assert incident["summary"] in status["reason"]
    assert (status["generation"], status["restarts_used"], status["has_started"]) == (0, 0, False)
    wait_for("all to be gone", lambda: not supd.survivors())


@pytest.mark.parametrize(
    ("first_line", "mode", "reason"),
    [
        ("#!/bin/sh", 0o644, "program is not executable"),
        ("#!/no/such/interpreter", 0o755, "/no/such/interpreter: interpreter of"),
        ("no first line", 0o755, "its first line is no #! line"),
    ],
)
def test_a_program_that_cannot_be_executed_fails_the_run_with_path_and_reason(
    supd: Supd, first_line: str, mode: int, reason: str
) -> None:
    path = program(supd, first_line, mode)
    job = command_job(supd, "cannot", ["program"], nproc=3, run=f"env = {{ PATH = '{supd.folder}:/{{run}}' }}")
    status, ranks = finished(supd, job, "failed")
    assert_it_ended_at_once(supd, status, path, reason)
    assert all(r["pid"] is None for r in ranks)


@pytest.mark.parametrize(
    ("name", "run"),
    [("./no-such-program", 'workdir = "${SUPD_JOB}"'), ("no-such-program", 'env = { PATH = "/no/such/{run}" }')],
)
def test_a_program_that_is_not_there_fails_the_run_with_path_and_reason(supd: Supd, name: str, run: str) -> None:
    """Where only the launch can know: else such a job is not taken."""
    Path(supd.folder, "missing").mkdir()
    status, _ = finished(supd, command_job(supd, "missing", [name], nproc=3, run=run), "failed")
    assert_it_ended_at_once(supd, status, name, "not found")
    done = supd.supctl("start", str(command_job(supd, "known", [name])), check=False)
    assert (done.returncode, "error[J403]" in done.stderr) == (INVALID, True)


def test_no_other_rank_is_left_waiting_for_the_one_that_could_not_be_spawned(supd: Supd) -> None:
    """Ranks 0 and 1 have a working directory, rank 2 has none; a grace of 60 s is not waited for."""
    for rank in (0, 1):
        Path(supd.folder, f"place-{rank}").mkdir()
    job = supd.job("partly", "sleeper.py", nproc=4, run='workdir = "place-{rank}"', tables='[stop]\ngrace = "60s"')
    status, ranks = finished(supd, job, "failed")
    assert_it_ended_at_once(supd, status, str(supd.folder / "place-2"), "working directory: not found")
    assert status["incident"]["rank"] == 2
    assert [(r["signal"], r["stopped_by_supervisor"]) for r in ranks[:2]] == [("SIGTERM", True)] * 2
    assert [r["pid"] for r in ranks[2:]] == [None, None]


def test_a_job_that_names_what_is_not_there_is_refused_before_anything_is_started(supd: Supd) -> None:
    job = supd.job("refused", "no-such-script.py", run='workdir = "no-such-folder"')
    done = supd.supctl("start", str(job), check=False)
    assert done.returncode == INVALID
    assert "no-such-script.py" in done.stderr
    assert "no-such-folder" in done.stderr
    assert supd.json("status")["runs"] == []


def test_a_module_that_is_not_there_is_an_exit_with_the_interpreters_own_words(supd: Supd) -> None:
    path = supd.folder / "module.toml"
    path.write_text(
        f'name = "module"\n[run]\nmodule = "no_such_module"\npython = {json.dumps(sys.executable)}\n'
        "[topology]\nnproc_per_node = 2\n[restart]\nstart_after = '60s'\nbackoff = '0s'\nmax_restarts = 1\n"
    )
    status, _ = finished(supd, path, "failed")
    incident = status["incident"]
    assert (incident["cause"], incident["exit_code"]) == ("exit", 1)
    assert any("No module named no_such_module" in line for line in incident["stderr_tail"])
    wait_for("all to be gone", lambda: not supd.survivors())


def test_a_rank_counts_as_started_at_its_first_byte_also_while_others_are_being_spawned(supd: Supd) -> None:
    job = command_job(
        supd, "said", ["sh", "-c", "echo here; exec sleep 300"], nproc=8, tables="[restart]\nstart_after = '60s'"
    )
    supd.wait_state(supd.start_job(job), "running", timeout_s=30)
