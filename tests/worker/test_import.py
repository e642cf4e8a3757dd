"""What `import supd` costs, and where it works: old Pythons, wheels, editable installs, beside others' modules."""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.worker.conftest import Run

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "supervisor/worker"
SOURCES = sorted(PACKAGE.glob("*.py"))


TAKE_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    module, _, attribute = name.partition(".")
    assert not attribute or hasattr(importlib.import_module(module), attribute), name
"""


def library_names(tree: ast.AST) -> set[str]:
    """Every module that is imported, and `module.name` for what is taken from it."""
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return modules | {ast.unparse(node) for node in attributes if ast.unparse(node.value) in modules}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_package_is_written_in_python_3_8_with_names_of_its_library(path: Path, oldest_python: str) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            assert node.level == 1, f"{path.name}:{node.lineno}: only its own files, by relative imports"
    subprocess.run([oldest_python, "-c", TAKE_ALL, *library_names(tree)], check=True)


def test_importing_it_loads_little(run: Run) -> None:
    done = run("""
import sys
before = set(sys.modules)
import supd
print(*sorted(set(sys.modules) - before))
""")
    library = {"__future__", "_struct", "itertools", "mmap", "struct", "time"}
    assert set(done.stdout.split()) <= library | {"supd", "supd.beat", "supd.page"}


def test_it_offers_three_calls_and_each_says_what_it_does(run: Run) -> None:
    done = run("import supd; print(*supd.__all__); assert all(getattr(supd, name).__doc__ for name in supd.__all__)")
    assert (done.stdout.split(), done.stderr) == (["beat", "done", "phase"], "")


def test_it_needs_and_shadows_no_module_of_the_users_own(run: Run, tmp_path: Path) -> None:
    for name in ("protocol", "beat", "page", "worker"):
        (tmp_path / f"{name}.py").write_text("WHOSE = 'the user'\n")
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor/__init__.py").write_text("WHOSE = 'the user'\n")
    done = run("""
import beat, page, protocol, supervisor, supd, worker
supd.beat(1)
print({module.WHOSE for module in (beat, page, protocol, supervisor, worker)})
""")
    assert (done.stdout, done.stderr) == ("{'the user'}\n", "")


# --- installed ---------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what is installed: a build leaves things behind."""
    copy = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
    for folder in ("protocol", "supervisor"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    return copy


IMPORT_ALL = """
import json, site, sys
site.addsitedir(sys.argv[1])
sys.path.append(sys.argv[2])
import supd, supd.page, supervisor.worker.page, supervisor.runner.beats, protocol.messages
files = {supd: "__init__.py", supd.page: "page.py", supervisor.worker.page: "page.py"}
print(json.dumps({module.__file__: name for module, name in files.items()}))
"""


@pytest.mark.parametrize("how", [[], ["--editable"]], ids=["wheel", "editable"])
def test_an_installed_supd_has_the_package_under_both_names(source: Path, tmp_path: Path, how: list[str]) -> None:
    prefix = tmp_path / "prefix"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    pip += ["--no-build-isolation", "--no-index", "--ignore-installed", "--prefix", str(prefix), *how, str(source)]
    subprocess.run(pip, check=True, timeout=100)
    site = sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)})
    needed = sysconfig.get_path("purelib")  # what others have made; its .pth files, one of this checkout, are not read
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, site, needed]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    for file, original in json.loads(done.stdout).items():
        assert Path(file).is_relative_to(tmp_path)
        assert Path(file).read_text() == (PACKAGE / original).read_text()


def test_every_package_of_the_checkout_is_installed(source: Path) -> None:
    listed = set(tomllib.loads((source / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {str(path.parent.relative_to(source)).replace(os.sep, ".") for path in source.rglob("__init__.py")}
    assert listed == found | {"supd"}
