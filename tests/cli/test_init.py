"""`supctl init`: a job file that is sound as it stands, whatever is found, and nothing overwritten."""

import os
from pathlib import Path

import pytest

from protocol.job_file import read_job
from tests.cli.conftest import Supctl

MAIN = 'if __name__ == "__main__":\n    main()\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    folder = tmp_path / "My Project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def is_sound(supctl: Supctl, file: str) -> bool:
    return supctl("validate", "--strict", "--local", file).code == 0


def test_the_training_script_of_the_folder_becomes_the_job(supctl: Supctl, folder: Path) -> None:
    (folder / "train.py").write_text(f"import argparse\nimport torch\n{MAIN}")
    (folder / "helpers.py").write_text("def help(): ...\n")
    (folder / "plot.py").write_text(MAIN)
    result = supctl("init")
    assert result.code == 0
    assert "wrote job.toml: train.py (also there: plot.py)" in result.err
    assert result.err.endswith("\n→ supctl validate job.toml\n")
    spec = read_job((folder / "job.toml").read_bytes(), "job.toml").spec
    assert (spec.name, spec.run.script) == ("my-project", "train.py")
    assert is_sound(supctl, "job.toml")


@pytest.mark.parametrize(
    ("files", "chosen", "name"),
    [
        ({"main.py": MAIN, "zoo.py": MAIN}, "main.py", "my-project"),
        ({"a.py": MAIN, "gpt_train.py": f"from torch import nn\n{MAIN}"}, "gpt_train.py", "gpt-train"),
        ({"a.py": "", "b.py": "import argparse\n"}, "b.py", "b"),
        ({"a.py": "", "b.py": ""}, "a.py", "a"),
        ({'odd "name".py': MAIN}, 'odd "name".py', "odd-name"),
        ({"latin.py": MAIN + "# \udce9\n"}, "latin.py", "latin"),
    ],
)
def test_of_several_scripts_the_likeliest_is_taken(
    supctl: Supctl, folder: Path, files: dict[str, str], chosen: str, name: str
) -> None:
    for file, text in files.items():
        (folder / file).write_text(text, errors="surrogateescape")
    assert supctl("init").code == 0
    spec = read_job((folder / "job.toml").read_bytes(), "job.toml").spec
    assert (spec.run.script, spec.name) == (chosen, name)
    assert is_sound(supctl, "job.toml")


@pytest.mark.parametrize("names", [(), ("setup.py", "test_it.py", "conftest.py", "_private.py")])
def test_where_no_script_is_found_the_place_for_it_is_shown(
    supctl: Supctl, folder: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        (folder / name).write_text(MAIN)
    result = supctl("init", "new.toml")
    assert (result.code, "no Python script found" in result.err) == (0, True)
    assert "# no script was found here" in (folder / "new.toml").read_text()
    assert is_sound(supctl, "new.toml")


def test_the_script_is_looked_for_beside_the_job_file(supctl: Supctl, folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "train.py").write_text(MAIN)
    assert "jobs/job.toml: train.py" in supctl("init", "jobs/job.toml").err


@pytest.mark.parametrize(
    ("visible", "nproc", "comment"),
    [
        ("0,1,2", "auto", "a rank for each GPU: 3 GPUs here"),
        ("0,-1,1", "auto", "a rank for each GPU: 1 GPU here"),
        ("", 1, "ranks on each node: 0 in CUDA_VISIBLE_DEVICES=, 1 CPUs; "),
        (",\n[x", 1, "ranks on each node: 0 in CUDA_VISIBLE_DEVICES=, [x, 1 CPUs; "),
    ],
)
def test_gpus_and_cpus_are_those_that_a_run_would_count(
    supctl: Supctl, folder: Path, monkeypatch: pytest.MonkeyPatch, visible: str, nproc: int | str, comment: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("supervisor.shell.devices.cpu_quota", lambda: 1.5)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(10)))
    text = supctl("init", "--stdout").out
    assert f"# {comment}" in text
    assert read_job(text.encode(), "x").spec.topology.nproc_per_node == nproc
    assert os.listdir(folder) == []


def test_a_file_that_is_there_is_overwritten_only_by_force(supctl: Supctl, folder: Path) -> None:
    (folder / "job.toml").write_text("mine")
    result = supctl("init")
    assert (result.code, (folder / "job.toml").read_text()) == (1, "mine")
    assert result.err == (
        "error[C015]: job.toml is there already\n→ supctl init --force job.toml, or supctl init --stdout\n"
    )
    assert supctl("init", "--force").code == 0
    assert (folder / "job.toml").read_text() != "mine"


def test_a_file_that_cannot_be_written_is_one_clear_error(supctl: Supctl, folder: Path) -> None:
    result = supctl("init", "nosuch/job.toml")
    assert (result.code, result.err.count("\n")) == (1, 2)
    assert result.err.startswith("error[C016]: cannot write nosuch/job.toml: No such file or directory")


def test_quiet_prints_the_file_and_nothing_else(supctl: Supctl, folder: Path) -> None:
    result = supctl("-q", "init")
    assert (result.out, result.err) == ("job.toml\n", "")
