"""What a node would run: told by files alone, and read again only where they have changed."""

import os
import sys
from pathlib import Path

import pytest

from protocol.errors import Refused
from protocol.job import Job, JobSpec, RunTable, TopologyTable
from supervisor.runner import digest
from supervisor.runner.digest import Digests
from tests.protocol.build import submitted


def a_job(folder: Path, run: RunTable | None = None, *, python: str = sys.executable, **env: str) -> Job:
    """A job on two nodes whose file lies in `folder`."""
    spec = JobSpec(name="j", run=run or RunTable(script="t.py"), topology=TopologyTable(nnodes=(2, 2)))
    given = {
        name.encode(): value.encode() for name, value in {"PATH": "/usr/bin:/bin", "HOME": "/nobody", **env}.items()
    }
    return submitted(spec, folder=str(folder), python=python, env=given)


def looked(folder: Path, run: RunTable | None = None, **more: str) -> dict[str, str]:
    return Digests(a_job(folder, run, **more)).look()


def interpreter(prefix: Path, *, real: str = "python3.11", torch: str = "", lib: str = "lib") -> str:
    """A prefix that looks as one of Python's: bin/python3 -> bin/`real`, and perhaps a torch."""
    (prefix / "bin").mkdir(parents=True, exist_ok=True)
    program = prefix / "bin" / real
    program.write_text("#!/bin/false\n")
    program.chmod(0o755)
    (prefix / "bin" / "python3").symlink_to(real)
    place = prefix / lib / real / "site-packages"
    place.mkdir(parents=True)
    if torch:
        add_torch(place, torch)
    return str(prefix / "bin" / "python3")


def environment(place: Path, base: str, *, system: bool = False, version: str = "3.11.9", torch: str = "") -> str:
    """A virtual environment over that interpreter."""
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(base)
    shared = "true" if system else "false"
    home = os.path.dirname(base)
    text = f"home = {home}\ninclude-system-site-packages = {shared}\nversion = {version}\n"
    (place / "pyvenv.cfg").write_text(text)
    packages = place / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    if torch:
        add_torch(packages, torch)
    return str(place / "bin" / "python")


def add_torch(place: Path, version: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / f"torch-{version}.dist-info").mkdir()
    (place / "torchvision-0.99.dist-info").mkdir(exist_ok=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a job with a script."""
    (tmp_path / "t.py").write_text("print(1)\n")
    return tmp_path


# --- script and job ----------------------------------------------------------------------------------------------


def test_a_script_is_told_by_its_content_and_by_nothing_else(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "t.py").write_text("print(1)\n")
    script = looked(folder)["script"]
    assert script == looked(other)["script"]
    assert len(script) == digest.DIGITS
    (other / "t.py").write_text("print(2)\n")
    assert looked(other)["script"] != script
    module = RunTable(module="a")
    assert looked(folder, module)["script"] == looked(other, module)["script"] != script


def test_a_script_is_read_again_when_it_has_changed_and_only_then(folder: Path) -> None:
    digests, script = Digests(a_job(folder)), folder / "t.py"
    first, status = digests.look(), script.stat()
    script.write_text("print(2)\n")
    os.utime(script, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.look() == first, "by its size and time it is the same"
    os.utime(script, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert digests.look()["script"] != first["script"]


def test_a_script_with_data_in_it_is_told_by_its_size_and_its_beginning(folder: Path) -> None:
    def script(size: int, head: bytes) -> str:
        with (folder / "t.py").open("wb") as file:
            file.write(head)
            file.truncate(size)
        return looked(folder)["script"]

    large = digest.WHOLE_MAX_BYTES + 1
    assert len({script(large, b"a"), script(large + 1, b"a"), script(large, b"b")}) == 3
    assert script(large, b"a") == script(large, b"a")


@pytest.mark.parametrize("kind", ["nothing", "a folder", "a pipe"])
def test_a_script_that_is_none_is_a_reason_to_run_nothing_here(folder: Path, kind: str) -> None:
    path = folder / "t.py"
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    with pytest.raises(Refused) as refused:
        looked(folder)
    assert (refused.value.code, str(path) in str(refused.value)) == ("F209", True)


def test_jobs_that_differ_in_a_setting_differ_and_the_value_of_a_secret_is_no_part_of_it(folder: Path) -> None:
    def job(**changed: object) -> str:
        return looked(folder, RunTable(script="t.py", **changed))["job"]  # type: ignore[arg-type]

    assert job() != job(args=("--lr", "1"))
    assert job(env={"A": "1"}) != job(env={"A": "2"})
    assert job(env={"HF_TOKEN": "a"}) == job(env={"HF_TOKEN": "b"}) != job()


# --- interpreter and torch ---------------------------------------------------------------------------------------


def test_an_interpreter_is_told_by_its_path_its_real_name_and_the_version_of_its_environment(folder: Path) -> None:
    base = interpreter(folder / "usr")
    assert looked(folder, python=base)["python"] == f"{base} (python3.11)"
    own = environment(folder / "venv", base)
    assert looked(folder, python=own)["python"] == f"{own} (python3.11, 3.11.9)"


def test_an_interpreter_that_is_named_is_searched_on_the_path_of_the_job(folder: Path) -> None:
    interpreter(folder / "usr")
    named = RunTable(script="t.py", python="python3")
    assert (
        looked(folder, named, PATH=f"/nowhere:{folder}/usr/bin")["python"] == f"{folder}/usr/bin/python3 (python3.11)"
    )
    assert looked(folder, named, PATH="/nowhere")["python"] == "python3 (python3)", "its launch will tell"


def test_an_interpreter_that_is_not_there_is_a_reason_to_run_nothing_here(folder: Path) -> None:
    with pytest.raises(Refused, match="no interpreter /nowhere/python"):
        looked(folder, python="/nowhere/python")


def test_a_command_is_used_as_it_is_and_nothing_is_said_of_its_python(folder: Path) -> None:
    found = looked(folder, RunTable(command=("python", "t.py")))
    assert (found["python"], found["torch"]) == ("none", "none")


def test_torch_is_that_of_the_interpreters_own_packages(folder: Path) -> None:
    base = interpreter(folder / "usr", torch="2.12.0")
    assert looked(folder, python=base)["torch"] == "2.12.0"
    assert looked(folder, python=interpreter(folder / "none"))["torch"] == "none"
    debian = interpreter(folder / "debian")
    add_torch(folder / "debian" / "lib" / "python3" / "dist-packages", "2.6.0")
    assert looked(folder, python=debian)["torch"] == "2.6.0"


def test_an_environment_has_the_packages_of_its_base_only_where_it_says_so(folder: Path) -> None:
    base = interpreter(folder / "usr", torch="2.12.0")
    assert looked(folder, python=environment(folder / "own", base))["torch"] == "none"
    assert looked(folder, python=environment(folder / "both", base, system=True))["torch"] == "2.12.0"
    assert (
        looked(folder, python=environment(folder / "first", base, system=True, torch="2.13.0+cpu"))["torch"]
        == "2.13.0+cpu"
    )


def test_what_the_job_adds_to_the_path_of_modules_comes_first_and_a_users_own_before_all_users(folder: Path) -> None:
    base = interpreter(folder / "usr", torch="2.12.0")
    add_torch(folder / "added", "2.14.0")
    add_torch(folder / "home" / ".local" / "lib" / "python3.11" / "site-packages", "2.13.0")
    home = str(folder / "home")
    assert looked(folder, python=base, HOME=home)["torch"] == "2.13.0"
    assert looked(folder, python=base, HOME=home, PYTHONNOUSERSITE="1")["torch"] == "2.12.0"
    assert looked(folder, python=base, HOME=home, PYTHONPATH=f"/nowhere::{folder}/added")["torch"] == "2.14.0"


def test_a_torch_that_is_put_in_place_of_another_is_seen(folder: Path) -> None:
    base = interpreter(folder / "usr", torch="2.12.0")
    digests = Digests(a_job(folder, python=base))
    assert digests.look()["torch"] == "2.12.0"
    packages = folder / "usr" / "lib" / "python3.11" / "site-packages"
    (packages / "torch-2.12.0.dist-info").rename(packages / "torch-2.13.0.dist-info")
    assert digests.look()["torch"] == "2.13.0"


def test_the_interpreter_of_these_tests_is_found_without_running_it(folder: Path) -> None:
    found = looked(folder)["python"]
    assert found.startswith(f"{sys.executable} (python3.{sys.version_info.minor}")
