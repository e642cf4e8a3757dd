"""What a wheel brings along beside the packages."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT_S = 100.0


def test_a_wheel_brings_the_manual_pages_and_the_schemas(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a build leaves things behind
    for folder in ("protocol", "supervisor", "docs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", tmp_path, source], check=True, timeout=LIMIT_S)
    (wheel,) = tmp_path.glob("*.whl")
    installed = [name.partition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()]
    wanted = [f"share/man/man1/{path.name}" for path in (ROOT / "docs" / "man").glob("*.1")]
    wanted += [f"share/supd/schemas/{path.name}" for path in (ROOT / "docs" / "schemas").glob("*.json")]
    assert sorted(filter(None, installed)) == sorted(wanted)
