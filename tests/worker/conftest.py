"""A page in a file, and the oldest Python of this machine that `import supd` promises to run on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.runner.beats import package_dir
from supervisor.worker import page
from supervisor.worker.page import Beat

Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    """A page that nobody has written to."""
    path = tmp_path / "page"
    path.write_bytes(page.blank())
    return path


@pytest.fixture
def shown(page_file: Path) -> Callable[[], Beat]:
    """What the page shows now."""

    def read() -> Beat:
        beat = page.read(page_file.read_bytes())
        assert beat is not None
        return beat

    return read


def _candidates() -> Iterator[str]:
    yield from sorted(str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python"))
    yield from filter(None, (shutil.which(f"python3.{minor}") for minor in range(8, sys.version_info.minor)))


def _version(python: str) -> tuple[int, int] | None:
    """None for what is none, like pyenv's stand-in for a version that is not active."""
    done = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=False)
    words = done.stdout.split()
    return None if done.returncode else (int(words[0]), int(words[1]))


@pytest.fixture(scope="session")
def oldest_python() -> str:
    """The oldest of at least 3.8 that is here; the running one, if there is no older."""
    versions = {python: _version(python) for python in (*_candidates(), sys.executable)}
    return min((version, python) for python, version in versions.items() if version and version >= (3, 8))[1]


@pytest.fixture(params=["the oldest Python", "this Python"])
def python(request: pytest.FixtureRequest, oldest_python: str) -> str:
    """Both ends of what is promised."""
    return oldest_python if request.param == "the oldest Python" else sys.executable


@pytest.fixture
def run(python: str, page_file: Path, tmp_path: Path) -> Run:
    """Runs a program as a worker of supd has it: with a page, and the package found by PYTHONPATH alone."""

    def run_program(program: str) -> subprocess.CompletedProcess[str]:
        variables = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "SUPD_"))}
        variables |= {"SUPD_HEARTBEAT": str(page_file), "PYTHONPATH": package_dir(tmp_path)}
        return subprocess.run(
            [python, "-c", program],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run_program
