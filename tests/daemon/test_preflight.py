"""supervisor/daemon/preflight.py: what can be seen to be wrong before anything is started."""

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import JobInvalid
from protocol.job import RunTable
from supervisor.daemon.preflight import check_job
from tests.protocol.build import job_spec, submitted


def problems(folder: Path, python: str = "/bin/sh", env: dict[bytes, bytes] | None = None, **run: Any) -> list[str]:
    spec = job_spec(run=RunTable(**run))
    try:
        check_job(spec, submitted(spec, folder=str(folder), python=python, env=env or {}).submitter)
    except JobInvalid as exc:
        return [f"{problem.key} {problem.value}" for problem in exc.problems]
    return []


def test_a_job_whose_files_are_there_is_fine_wherever_its_paths_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / ".env").touch()
    assert problems(tmp_path, script="train.py", env_file=".env", workdir=str(tmp_path)) == []


def test_everything_that_is_missing_is_told_at_once_with_its_full_path(tmp_path: Path) -> None:
    assert problems(tmp_path, python="no-python", script="train.py", env_file="a/.env", workdir="/no/where") == [
        f"run.script {tmp_path}/train.py",
        f"run.env_file {tmp_path}/a/.env",
        "run.workdir /no/where",
        "run.python no-python",
    ]


def test_a_folder_is_no_script_and_a_file_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert problems(tmp_path, script=".", workdir="file") == [
        f"run.script {tmp_path}/.",
        f"run.workdir {tmp_path}/file",
    ]


def test_paths_that_only_the_launch_can_fill_in_are_left_to_it(tmp_path: Path) -> None:
    assert problems(tmp_path, script="{node}/train.py", workdir="${SCRATCH}/x") == []


def test_a_command_needs_no_python(tmp_path: Path) -> None:
    assert problems(tmp_path, python="", command=["./train"]) == []
    assert problems(tmp_path, python="", script=".") != []


@pytest.mark.parametrize(("path", "is_found"), [(b"/bin", True), (b"/no/where", False)])
def test_the_interpreter_is_looked_up_in_the_submitters_path(tmp_path: Path, path: bytes, is_found: bool) -> None:
    found = problems(tmp_path, python="sh", env={b"PATH": path}, module="train")
    assert found == ([] if is_found else ["run.python sh"])
