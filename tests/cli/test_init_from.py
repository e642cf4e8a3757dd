"""`supctl init --from`: the job file that says what a launch line of torchrun says."""

import io
import os
from pathlib import Path

import pytest

from protocol.job_file import read_job
from tests.cli.conftest import Supctl
from tests.suprun.launch_lines import ELASTIC, INLINE, SINGLE_NODE, SLURM, STATIC


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a script."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", [SINGLE_NODE, STATIC.format(rank=1), SLURM, ELASTIC])
def test_a_launch_line_becomes_a_sound_job_file(supctl: Supctl, folder: Path, line: str) -> None:
    result = supctl("init", "--from", line)
    assert result.code == 0
    assert result.err.startswith("✓ wrote job.toml: train.py\n")
    assert result.err.endswith("\n→ supctl validate job.toml\n")
    assert supctl("validate", "--strict", "--local", "job.toml").code == 0
    assert read_job((folder / "job.toml").read_bytes(), "x").spec.topology.nproc_per_node == 8


def test_what_only_a_shell_knows_is_told_in_one_line(supctl: Supctl, folder: Path) -> None:
    result = supctl("init", "--stdout", "--from", SLURM)
    assert "\n  topology.nnodes: the line says $SLURM_NNODES, which only the shell that runs it knows: write it\n" in (
        result.err
    )
    assert "# the line says $SLURM_NNODES" in result.out
    assert os.listdir(folder) == ["train.py"]


def test_a_line_that_torchrun_does_not_take_ends_with_the_one_that_works(supctl: Supctl, folder: Path) -> None:
    result = supctl("init", "--from", INLINE)
    assert (result.code, result.err.count("\n")) == (2, 2)
    assert result.err.startswith("error[C026]: -c is an option of python, and none of torchrun or suprun\n→ suprun ")
    assert os.listdir(folder) == ["train.py"]


def test_a_script_comes_in_on_standard_input(supctl: Supctl, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SLURM))
    assert supctl("-q", "init", "--from", "-").out == "job.toml\n"
    assert (folder / "job.toml").exists()


def test_a_job_file_in_another_folder_says_where_the_line_runs(supctl: Supctl, folder: Path) -> None:
    (folder / "jobs").mkdir()
    assert supctl("init", "jobs/job.toml", "--from", SINGLE_NODE).code == 0
    run = read_job((folder / "jobs" / "job.toml").read_bytes(), "x").spec.run
    assert (run.script, run.workdir) == (f"{folder}/train.py", str(folder))


def test_a_file_that_is_there_is_overwritten_only_by_force(supctl: Supctl, folder: Path) -> None:
    (folder / "job.toml").write_text("mine")
    result = supctl("init", "--from", SINGLE_NODE)
    assert (result.code, (folder / "job.toml").read_text()) == (1, "mine")
    assert supctl("init", "--force", "--from", SINGLE_NODE).code == 0
