"""What is measured: supd as a user gets it, from a wheel of this checkout, and torchrun, in one environment."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "2.13.0"
SOURCES = ("protocol", "supervisor", "pyproject.toml", "README.md", "LICENSE")
NOT_PASSED_ON = ("PYTHON", "TORCH", "PET_", "SUPD_", "OMP_")
"""Variables that would change what is measured: PYTHONDONTWRITEBYTECODE alone makes every start compile anew."""

PIP_LIMIT_S = 1800


def clean_env() -> dict[str, str]:
    """The environment without what would change the figures."""
    return {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}


def prepare(venv: Path, *, with_torch: bool) -> Path:
    """Make the environment, or update it where the checkout has changed; returns its folder of commands."""
    python = venv / "bin" / "python"
    if not python.exists():
        _say(f"making {venv}")
        _run(sys.executable, "-m", "venv", str(venv))
    if with_torch and _version(python, "torch").partition("+")[0] != TORCH:
        _say(f"installing torch {TORCH} (the first time takes a minute or two)")
        _run(str(python), "-m", "pip", "install", "--quiet", f"torch=={TORCH}")
    stamp, wanted = venv / "supd-from", _digest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _say("building and installing a wheel of this checkout")
        _install_wheel(python)
        stamp.write_text(wanted)
    return python.parent


def _install_wheel(python: Path) -> None:
    pip = (str(python), "-m", "pip")
    with tempfile.TemporaryDirectory(prefix="supd-bench-wheel-") as name:
        source = Path(name, "source")  # a copy: what an earlier build left in the checkout must not get in
        source.mkdir()
        for part in SOURCES:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, source / part)
        _run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", name, str(source))
        (wheel,) = Path(name).glob("supd-*.whl")
        _run(*pip, "install", "--quiet", str(wheel))  # with what it needs
        _run(*pip, "install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))  # the version may be the same


def _digest() -> str:
    """Changes with every file that gets into the wheel."""
    sums = hashlib.sha256()
    for part in SOURCES:
        whole = ROOT / part
        for file in sorted(whole.rglob("*")) if whole.is_dir() else [whole]:
            if file.is_file() and file.suffix != ".pyc":
                sums.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return sums.hexdigest()


def _version(python: Path, distribution: str) -> str:
    look = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.run([str(python), "-c", look], capture_output=True, text=True, check=False).stdout.strip()


def _run(*argv: str) -> None:
    subprocess.run(argv, env=clean_env(), stdin=subprocess.DEVNULL, check=True, timeout=PIP_LIMIT_S)


def _say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)
