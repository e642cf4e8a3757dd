"""Cases H75 to H77 of the field reports: whose interpreter, path and folder a rank has, and whether bytes stay bytes.

H74 is the torchrun-compatible command's. One node is looked at: the second one of H76 and H77 is left out.
"""

import json
import os
import shutil
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import command_job
from tests.e2e.supd import WORKERS, Supd, running_supd
from tests.e2e.surroundings import report, surroundings_job

HARD = """64(x2) 'a' "b" $HOME `id` {"k": [1, "two"]} %s %% a%2Bb {x} ${UNSET} \\ ;&|<>* ~ #"""
"""What a shell on the way, or a format, would change. (In a job file `{rank}` and `${HOME}` are filled in.)"""

TOML_STRINGS = json.dumps  # of TOML's basic strings JSON's are a part


# --- H75 -------------------------------------------------------------------------------------------------------------


def folder_with(path: Path, module: str) -> Path:
    """A folder that holds this module."""
    path.mkdir(exist_ok=True)
    (path / f"{module}.py").touch()
    return path


@pytest.fixture
def environment(short_dir: Path) -> Path:
    """An environment of the submitter's, with a module that is nowhere else."""
    root = short_dir / "env"
    venv.create(root, symlinks=True)
    folder_with(Path(sysconfig.get_path("purelib", vars={"base": str(root)})), "only_in_the_environment")
    return root


@pytest.fixture
def foreign(short_dir: Path) -> Iterator[Supd]:
    """A supd with an environment, a path and a working directory of its own; none of it must get into a job."""
    path = folder_with(short_dir / "of-supd", "of_the_daemon")
    with running_supd(short_dir, env={"PYTHONPATH": str(path), "VIRTUAL_ENV": "/nowhere"}) as supd:
        yield supd


PROGRAMS = {
    "script": 'script = "where.py"',
    "module": 'module = "whereabouts"',
    "command": 'command = ["python3", "where.py"]',
    "relative python": 'script = "where.py"\npython = "../env/bin/python3"',
}


@pytest.mark.parametrize("active", ["VIRTUAL_ENV", "PATH"])
def test_a_job_has_the_submitters_interpreter_path_and_the_job_files_folder_and_start_prints_them(
    foreign: Supd, environment: Path, active: str
) -> None:
    """H75. `active` is how the submitter's shell knows its environment."""
    project = folder_with(foreign.folder / "project", "beside_the_script")
    shutil.copy(WORKERS / "where.py", project)
    path = folder_with(foreign.folder / "of-me", "of_the_submitter")
    shutil.copy(WORKERS / "where.py", path / "whereabouts.py")
    bins = f"{environment}/bin:/usr/bin:/bin"
    env = {"VIRTUAL_ENV": str(environment)} if active == "VIRTUAL_ENV" else {"VIRTUAL_ENV": "", "PATH": bins}
    for mode, program in PROGRAMS.items():
        if mode == "command":
            env["PATH"] = bins  # nobody chooses an interpreter for a command: it is found on the submitter's PATH
        seen, job = foreign.folder / f"{mode}.json", project / "job.toml"
        job.write_text(f'name = "mine"\n[run]\n{program}\nargs = [{TOML_STRINGS(str(seen))}, "one"]\n')
        done = foreign.supctl("start", str(job), "--follow", env={**env, "PYTHONPATH": str(path)})
        got = json.loads(seen.read_text())
        assert (got["prefix"], got["cwd"], got["argv"]) == (str(environment), str(project), ["one"]), mode
        assert got["modules"] == ["of_the_submitter", "only_in_the_environment", "beside_the_script"], mode
        told = [line.strip() for line in done.stderr.splitlines()]
        assert {f"in {project}", f"PYTHONPATH {path}"} <= set(told)
        named = [Path(line.removeprefix("python ")) for line in told if line.startswith("python ")]
        assert len(named) == (mode != "command")
        assert all(os.path.samefile(python.parent, environment / "bin") for python in named)


def test_an_interpreter_that_is_not_there_is_refused_at_start_with_its_name_and_never_replaced(supd: Supd) -> None:
    """H75: by path, by name, and where the submitter has none at all."""
    job, nowhere = supd.folder / "job.toml", {"PATH": "/nowhere", "VIRTUAL_ENV": ""}
    for name, env in (("env/bin/no-python", {}), ("no-such-python", {}), ("", nowhere)):
        python = f'python = "{name}"' if name else ""
        job.write_text(f'name = "none"\n[run]\nmodule = "this"\n{python}\n')
        done = supd.supctl("start", str(job), env=env, check=False)
        assert done.returncode == 78, done.stderr
        assert "no such interpreter on this node" in done.stderr
        assert name in done.stderr
    assert supd.json("status")["runs"] == []


# --- H76 and H77 -----------------------------------------------------------------------------------------------------


def seen_by_a_rank(supd: Supd, env: Mapping[str, str], run: str, args: list[str], extra: list[str]) -> Any:
    """What a rank was born with: `env` is the submitter's, `run` lines of [run], `args` the job file's, `extra` go
    behind `--`."""
    supd.supctl("start", str(surroundings_job(supd, *args, run=run)), "--follow", "--quiet", "--", *extra, env=env)
    return report(supd)


def test_what_a_shell_would_change_arrives_byte_for_byte_from_every_place(supd: Supd) -> None:
    """H76."""
    born = seen_by_a_rank(supd, {"MINE": HARD}, f"env = {{ OURS = {TOML_STRINGS(HARD)} }}", [HARD], [HARD, "--", ""])
    assert (born.env["MINE"], born.env["OURS"]) == (HARD, HARD)
    assert born.argv == [HARD, HARD, "--", ""]


LINES = {
    "IFS": " \t\n",
    "BASH_FUNC_f%%": '() {  echo "a\n b"\n}',
    "LINES": "\none\r\ntwo\n\n",
    "TABS": "\ta\vb\f",
    "NOT_UTF8": os.fsdecode(b"\xff\xfe caf\xe9 \x80"),
    "ESCAPES": "\x1b[31mred\x7f",
    "LONG": "x" * 100_000,
    "EMPTY": "",
}


def test_newlines_tabs_foreign_bytes_and_long_values_arrive_byte_for_byte(supd: Supd) -> None:
    """H77. A TOML file cannot hold bytes that are no UTF-8, so there these are left out."""
    lines = {name: value for name, value in LINES.items() if name not in ("NOT_UTF8", "BASH_FUNC_f%%")}
    table = ", ".join(f"JOB_{name} = {TOML_STRINGS(value)}" for name, value in lines.items())
    words = [*lines.values()]
    born = seen_by_a_rank(supd, LINES, f"env = {{ {table} }}", words, words)
    for name, value in LINES.items():
        assert born.environ[os.fsencode(name)] == os.fsencode(value), name
    for name, value in lines.items():
        assert born.env[f"JOB_{name}"] == value, name
    assert born.argv == [*words, *words]


def test_an_argument_that_is_no_utf8_arrives_byte_for_byte_or_is_refused(supd: Supd) -> None:
    """H77, behind `--`."""
    word = os.fsdecode(b"caf\xe9")
    job = surroundings_job(supd)
    done = supd.supctl("start", str(job), "--follow", "--quiet", "--", word, check=False)
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        assert report(supd).argv == [word]
    else:
        assert "UTF-8" in done.stderr


@pytest.mark.parametrize("what", ["variable BIG", "argument 1"])
def test_what_the_kernel_does_not_take_is_refused_by_name(supd: Supd, what: str) -> None:
    """H77: one string of a command may have 128 KiB (execve(2)), here 200 kB are tried."""
    big = "x" * 200_000
    run = f"env = {{ BIG = {TOML_STRINGS(big)} }}" if "variable" in what else f"args = [{TOML_STRINGS(big)}]"
    done = supd.supctl("start", str(command_job(supd, "big", ["true"], run=run)), check=False)
    assert done.returncode == 4
    assert f"{what} has 2000" in done.stderr
    assert "no single one may have over 131072" in done.stderr
