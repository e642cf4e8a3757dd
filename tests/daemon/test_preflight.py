"""supervisor/daemon/preflight.py: what can be seen to be wrong before anything is started."""

import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from protocol.job import DevicesTable, RunTable, TopologyTable
from supervisor.daemon.preflight import device_problems, findings
from tests.protocol.build import job_spec, submitted


def problems(
    folder: Path,
    python: str = "/bin/sh",
    env: dict[bytes, bytes] | None = None,
    own_env: dict[str, str] | None = None,
    **run: Any,
) -> list[str]:
    spec = job_spec(run=RunTable(env=own_env or {}, **run))
    submitter = submitted(spec, folder=str(folder), python=python, env=env or {}).submitter
    return [f"{problem.key} {problem.value}" for problem in findings(spec, submitter, "n1")[0]]


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


def test_only_what_is_filled_in_is_left_to_the_launch(tmp_path: Path) -> None:
    scratch = {b"SCRATCH": bytes(tmp_path), b"RANK": b"7"}
    assert problems(tmp_path, script="{node}/${A}.py") == [f"run.script {tmp_path}/{{node}}/${{A}}.py"]
    assert problems(tmp_path, command=["sh"], workdir="out/{rank}/${NO}") == []
    assert problems(tmp_path, command=["sh"], workdir="out/{run}") == []
    assert problems(tmp_path, command=["sh"], workdir="${RANK}", env=scratch) == []
    assert problems(tmp_path, command=["sh"], workdir="${SCRATCH}", env=scratch) == []
    assert problems(tmp_path, command=["sh"], workdir="${SCRATCH}/no", env=scratch) == [f"run.workdir {tmp_path}/no"]


def test_a_folder_that_names_the_job_node_or_rank_is_looked_for_as_rank_0_will(tmp_path: Path) -> None:
    """A run that is to be replaced would be stopped for a job that cannot be launched."""
    workdir = "{job}-{gen}-{node}-{rank}-{local_rank}"
    assert problems(tmp_path, command=["sh"], workdir=workdir) == [f"run.workdir {tmp_path}/j-0-n1-0-0"]
    (tmp_path / "j-0-n1-0-0").mkdir()
    assert problems(tmp_path, command=["sh"], workdir=workdir) == []


def test_a_command_needs_no_python_and_has_to_be_there_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert problems(tmp_path, python="", command=["./train"]) == ["run.command ./train"]
    (tmp_path / "out" / "train").touch(0o600)
    assert problems(tmp_path, python="", command=["./train"], workdir="out") == ["run.command ./train"]
    (tmp_path / "out" / "train").chmod(0o700)
    assert problems(tmp_path, python="", command=["./train"], workdir="out") == []
    assert problems(tmp_path, python="", command=["./train"], workdir="out/{run}") == []
    assert problems(tmp_path, python="", script=".") != []


def test_a_command_is_looked_up_on_the_path_of_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "tool").touch(0o700)
    path = str(tmp_path)
    assert problems(tmp_path, command=["tool"]) == ["run.command tool"]
    assert problems(tmp_path, command=["tool"], own_env={"PATH": f"{path}:${{PATH}}"}, env={b"PATH": b"/bin"}) == []
    assert problems(tmp_path, command=["tool"], own_env={"PATH": "/opt/{run}"}) == []
    (tmp_path / ".env").write_text(f"PATH={path}\n")
    assert problems(tmp_path, command=["tool"], env_file=".env") == []


def test_lines_of_an_env_file_that_a_launch_would_refuse_are_told_before(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\nRANK=0\n" + "nonsense\n" * 20)
    spec = job_spec(run=RunTable(command=("sh",), env_file=".env"))
    [problem], _ = findings(spec, submitted(spec, folder=str(tmp_path)).submitter, "n1")
    assert (problem.code, problem.key) == ("J404", "run.env_file")
    assert "line 2: supd sets RANK itself for every rank; line 3: not NAME=VALUE" in problem.message
    assert problem.message.endswith("and 11 more")


@pytest.mark.parametrize(
    ("nproc", "visibility", "is_fine"),
    [("gpu", "all", False), ("auto", "all", True), (2, "virtual", True), (3, "virtual", False), (3, "all", True)],
)
def test_devices_that_this_node_lacks_are_told_before_anything_is_started(
    nproc: int | str, visibility: str, is_fine: bool
) -> None:
    visible = "" if nproc == "gpu" else "0,1"
    spec = structs.replace(
        job_spec(run=RunTable(command=("sh",), env={"CUDA_VISIBLE_DEVICES": visible})),
        topology=TopologyTable(nproc_per_node=nproc),
        devices=DevicesTable(visibility=visibility),
    )
    found = device_problems(spec, submitted(spec).submitter)
    assert [(p.code, p.key) for p in found] == ([] if is_fine else [("J405", "topology.nproc_per_node")])


@pytest.mark.parametrize(
    ("backend", "nproc", "visible", "told"),
    [
        ("nccl", 1, "", 'backend = "nccl" needs a GPU for each rank, and this node has none: '),
        ("nccl", 3, "0,1", 'backend = "nccl" needs a GPU for each of 3 ranks, and there are 2: '),
        ("nccl", 2, "0,1", ""),
        ("nccl", "gpu", "0,1", ""),
        ("gloo", 3, "", ""),
        ("auto", 3, "", ""),
    ],
)
def test_a_backend_that_the_node_has_not_the_gpus_for_is_told_before_anything_is_started(
    backend: str, nproc: int | str, visible: str, told: str
) -> None:
    run = RunTable(command=("sh",), backend=backend, env={"CUDA_VISIBLE_DEVICES": visible})
    spec = structs.replace(job_spec(run=run), topology=TopologyTable(nproc_per_node=nproc))
    found = device_problems(spec, submitted(spec).submitter)
    assert [(p.code, p.key, p.value) for p in found] == ([("J408", "run.backend", '"nccl"')] if told else [])
    assert all(problem.message.startswith(told) for problem in found)


@pytest.mark.parametrize(("path", "is_found"), [(b"/bin", True), (b"/no/where", False)])
def test_the_interpreter_is_looked_up_in_the_submitters_path(tmp_path: Path, path: bytes, is_found: bool) -> None:
    found = problems(tmp_path, python="sh", env={b"PATH": path}, module="train")
    assert found == ([] if is_found else ["run.python sh"])


def test_an_interpreter_that_is_not_executable_is_not_told_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "python").touch(0o644)
    spec = job_spec(run=RunTable(module="train", python="./python"))
    [problem], _ = findings(spec, submitted(spec, folder=str(tmp_path)).submitter, "n1")
    assert problem.code == "J401"
    assert problem.message.endswith("/python: program is not executable (chmod +x)")


def test_what_is_there_and_of_the_wrong_kind_is_not_told_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spec = job_spec(run=RunTable(script=".", workdir="file"))
    found, _ = findings(spec, submitted(spec, folder=str(tmp_path), python="/bin/sh").submitter, "n1")
    assert [problem.message for problem in found] == [
        f"`run.script`: that is a folder, not a file: {tmp_path}/.",
        f"`run.workdir`: that is a file, not a folder: {tmp_path}/file",
    ]


def test_more_ranks_than_a_runner_has_files_for_are_a_problem_of_the_job_file() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        spec = structs.replace(job_spec(), topology=TopologyTable(nproc_per_node=4000))
        (problem,) = device_problems(spec, submitted(spec).submitter)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (problem.code, problem.key, problem.value) == ("J407", "topology.nproc_per_node", "4000")


@pytest.mark.parametrize(
    ("python", "run", "is_told"),
    [
        ("own/bin/python3", {"script": "t.py"}, True),
        ("own/bin/python3", {"script": "t.py", "python": "/bin/sh"}, False),
        ("own/bin/python3", {"script": "t.py", "python": "own/bin/python3"}, False),
        ("/bin/sh", {"script": "t.py"}, False),
        ("/bin/sh", {"command": ("python3",)}, True),
        ("own/bin/python3", {"command": ("sh",)}, False),
        ("own/bin/python3", {"command": ("no-such-program",)}, False),
    ],
)
def test_ranks_that_would_run_in_supds_own_environment_by_no_word_of_the_job_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, run: dict[str, Any], is_told: bool
) -> None:
    own = tmp_path / "own/bin/python3"
    own.parent.mkdir(parents=True)
    own.touch(0o700)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setattr("importlib.util.find_spec", {"torch": None}.get)
    spec = job_spec(run=RunTable(**run))
    path = f"{own.parent}:/bin".encode()
    named = str(tmp_path / python)
    submitter = submitted(spec, folder=str(tmp_path), python=named, env={b"PATH": path}).submitter
    _, found = findings(spec, submitter, "n1")
    assert [str(own) in warning for warning in found] == [True] * is_told
    monkeypatch.setattr("importlib.util.find_spec", {"torch": "there"}.get)
    assert findings(spec, submitter, "n1")[1] == [], "the user's own, with supd in it"
