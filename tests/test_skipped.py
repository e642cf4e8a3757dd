"""scripts/skipped.py, which keeps tests from going missing unnoticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/skipped.py"
TESTS = """
import pytest

@pytest.mark.skip(reason="no GPU")
@pytest.mark.parametrize("count", [1, 2])
def test_parameters(count): ...

class TestClass:
    def test_method(self): pytest.skip("no reason")

def test_that_runs(): ...
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is not allowed to skip")


def verdict(folder: Path, tests: str, *allowed: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and output for what a pytest of its own says of `tests`."""
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "allowed").write_text("".join(f"{line}\n" for line in allowed))
    pytest_command = [sys.executable, "-m", "pytest", "-q", "--junit-xml=report", "-o", "junit_family=xunit1"]
    subprocess.run(pytest_command, cwd=folder, check=False, stdout=subprocess.DEVNULL)
    command = [sys.executable, str(SCRIPT), "report", "allowed", *options]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


@as_root
def test_a_skipped_test_that_is_not_named_fails(tmp_path: Path) -> None:
    code, told = verdict(tmp_path, TESTS, "test_it.py::test_parameters  # needs a GPU")
    assert code == 1
    assert "NOT ALLOWED: test_it.py::TestClass::test_method: no reason" in told


def test_skipped_tests_that_are_named_are_listed_and_pass(tmp_path: Path) -> None:
    code, told = verdict(tmp_path, TESTS, "test_it.py::test_parameters", "test_it.py::TestClass::test_method")
    assert code == 0
    assert told.splitlines() == [
        "2 skipped",
        "  allowed: test_it.py::TestClass::test_method: no reason",
        "  allowed: test_it.py::test_parameters: no GPU",
    ]


def test_a_test_that_is_expected_to_fail_fails(tmp_path: Path) -> None:
    tests = "import pytest\n\n@pytest.mark.xfail(reason='later')\ndef test_later(): assert False\n"
    code, told = verdict(tmp_path, tests, "test_it.py::test_later")
    assert code == 1
    assert "NOT ALLOWED: test_it.py::test_later: expected to fail: later" in told


def test_a_module_that_needs_torch_may_be_skipped_only_where_torch_is_not_expected(tmp_path: Path) -> None:
    tests = "import pytest\n\npytest.skip(\"could not import 'torch'\", allow_module_level=True)\n"
    assert verdict(tmp_path, tests, options=("--without-torch",)) == (0, "0 skipped, and 1 that need torch\n")
    if os.geteuid() == 0:
        code, told = verdict(tmp_path, tests)
        assert (code, told.splitlines()[1]) == (1, "  NOT ALLOWED: test_it.py: could not import 'torch'")
