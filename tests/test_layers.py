"""Who may import whom (docs/architecture.md, "Layers"), and what may not be imported on the way to an answer."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {
    "protocol": {"protocol"},
    "supervisor.shell": {"protocol", "supervisor.shell"},
    "supervisor.logs": {"protocol", "supervisor.shell", "supervisor.logs"},
    "supervisor.daemon": {"protocol", "supervisor.shell", "supervisor.logs", "supervisor.daemon"},
    "supervisor.runner": {"protocol", "supervisor.shell", "supervisor.logs", "supervisor.runner", "supervisor.worker"},
    "supervisor.suprun": {"protocol", "supervisor.suprun"},
    "supervisor.front": {
        "protocol",
        "supervisor.shell",
        "supervisor.logs",
        "supervisor.daemon",
        "supervisor.runner",
        "supervisor.suprun",
        "supervisor.front",
    },
    "supervisor.cli": {"protocol", "supervisor.shell", "supervisor.logs", "supervisor.suprun", "supervisor.cli"},
    "tests.sim": {"protocol"},
}
"""Folder -> what it may import of ours. (supervisor.worker imports only itself: tests/worker/test_import.py.)"""

NEVER = {
    "tests.sim": {"asyncio", "socket", "torch"},  # virtual time needs no loop
    "protocol": {"asyncio", "socket", "os", "time", "random", "logging", "subprocess", "threading", "torch"},
    "supervisor.suprun": {"argparse", "asyncio", "os", "socket", "time", "torch"},  # pure, and read before anything
    "supervisor.cli": {"asyncio", "structlog", "uvloop", "torch"},  # supctl answers at once: no slow import
}
"""Folder -> what it may not import of others; nobody imports torch."""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also where it does so inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, folders: set[str]) -> bool:
    return any(module == folder or module.startswith(f"{folder}.") for folder in folders)


@pytest.mark.parametrize("folder", OURS)
def test_imports_follow_the_arrows(folder: str) -> None:
    files = sorted((ROOT / folder.replace(".", "/")).rglob("*.py"))
    assert files
    for path in files:
        for module in imports(path):
            where = f"{path.relative_to(ROOT)} imports {module}"
            assert not within(module, {"protocol", "supervisor"}) or within(module, OURS[folder]), where
            assert not within(module, NEVER.get(folder, {"torch"})), where


def test_protocol_needs_nothing_but_the_standard_library_and_msgspec() -> None:
    for path in sorted((ROOT / "protocol").rglob("*.py")):
        strange = {module.partition(".")[0] for module in imports(path)} - {"protocol", "msgspec"}
        assert strange <= sys.stdlib_module_names, f"{path.relative_to(ROOT)} imports {strange}"


def test_no_command_of_supctl_loads_what_takes_long_to_load_not_even_through_others() -> None:
    modules = [f"supervisor.cli.{path.stem}" for path in sorted((ROOT / "supervisor/cli").glob("[a-z]*.py"))]
    program = f"import {', '.join(modules)}, sys; print(*sorted({NEVER['supervisor.cli']} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.split() == []
