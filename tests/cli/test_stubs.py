"""The commands as installed: no folder of the user's can put its modules before ours."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.cli.conftest import LIMIT_S

ROOT = Path(__file__).parents[2]
SHADOWS = ("protocol", "supervisor", "types", "logging", "argparse", "socket", "msgspec", "enum", "re")


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with our packages on its path, and the stubs installed as an installer does it."""
    root = tmp_path_factory.mktemp("venv")
    venv.create(root, symlinks=True)
    lib = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
    (lib / "paths.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    (lib / "sitecustomize.py").write_text(
        "import os\nif 'COUNT_STARTS' in os.environ:\n    open(os.environ['COUNT_STARTS'], 'a').write('start\\n')\n"
    )
    for name in ("supctl", "supd"):
        shebang, _, body = (ROOT / "supervisor" / "bin" / name).read_text().partition("\n")
        assert shebang == "#!python"
        (root / "bin" / name).write_text(f"#!{root}/bin/python\n{body}")
        (root / "bin" / name).chmod(0o755)
    return root / "bin"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules named like ours and like the library's, that end any process which imports them."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(f"import os\nos.write(2, b'shadow {name}')\nos._exit(99)\n")
    return folder


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.mark.parametrize("name", ["supctl", "supd"])
def test_modules_on_the_users_pythonpath_do_not_shadow_ours(bin_dir: Path, hostile: Path, name: str) -> None:
    environ = clean_environ() | {"PYTHONPATH": str(hostile), "PYTHONWARNINGS": "error"}
    result = subprocess.run([bin_dir / name, "--help"], env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    assert (result.returncode, result.stderr) == (0, "")
    assert name in result.stdout


@pytest.mark.parametrize("name", ["supctl", "supd"])
def test_modules_in_the_working_directory_do_not_shadow_ours(bin_dir: Path, hostile: Path, name: str) -> None:
    result = subprocess.run(
        [bin_dir / name, "--help"], env=clean_environ(), cwd=hostile, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_modules_beside_the_commands_do_not_shadow_ours(bin_dir: Path) -> None:
    shadow = bin_dir / "argparse.py"
    shadow.write_text("raise SystemExit('shadow')\n")
    try:
        subprocess.run([bin_dir / "supctl"], env=clean_environ(), capture_output=True, timeout=LIMIT_S, check=True)
    finally:
        shadow.unlink()


def test_arguments_exit_code_and_environment_survive_the_second_start(bin_dir: Path, hostile: Path) -> None:
    environ = clean_environ() | {"PYTHONPATH": str(hostile), "SUPD_ADDR": "/nowhere else"}
    result = subprocess.run(
        [bin_dir / "supctl", "status", "it's a job"], env=environ, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (result.returncode, "/nowhere else" in result.stderr) == (69, True)


@pytest.mark.parametrize(("variable", "starts"), [("PYTHONUNBUFFERED", 1), ("PYTHONOPTIMIZE", 2), ("PYTHONPATH", 2)])
def test_only_what_could_change_our_code_costs_a_second_interpreter_start(
    bin_dir: Path, tmp_path: Path, variable: str, starts: int
) -> None:
    count = tmp_path / "count"
    environ = clean_environ() | {variable: "1", "COUNT_STARTS": str(count)}
    subprocess.run([bin_dir / "supctl"], env=environ, capture_output=True, timeout=LIMIT_S, check=True)
    assert count.read_text() == "start\n" * starts


def test_both_stubs_are_the_same_but_for_what_they_start() -> None:
    supctl, supd = ((ROOT / "supervisor" / "bin" / name).read_text() for name in ("supctl", "supd"))
    differing = [a for a, b in zip(supctl.splitlines(), supd.splitlines(), strict=True) if a != b]
    assert len(differing) == 2
    assert all(os.access(ROOT / "supervisor" / "bin" / name, os.X_OK) for name in ("supctl", "supd"))
