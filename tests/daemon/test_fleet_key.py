"""`supd fleet key new` and `show`, as they are typed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.shell.make_credential import credential, write_once

BIN = Path(sys.executable).parent
LIMIT_S = 60.0


def fleet_key(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    config = folder / "supd.toml"
    config.write_text(f'[state]\ndir = "{folder}/state"\n')
    environ = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    argv = [str(BIN / "supd"), "fleet", "key", *words, "--config", str(config)]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_new_key_is_private_and_shown_by_its_fingerprint(short_dir: Path) -> None:
    made = fleet_key(short_dir, "new")
    assert (made.returncode, made.stderr) == (0, "")
    path = short_dir / "state" / "fleet.pem"
    assert re.fullmatch(rf"credential   {path}\nfingerprint  sha256 ([0-9a-f]{{2}}:){{31}}[0-9a-f]{{2}}\n", made.stdout)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert fleet_key(short_dir, "show").stdout == made.stdout


def test_a_key_that_is_there_is_not_overwritten(short_dir: Path) -> None:
    fleet_key(short_dir, "new")
    before = (short_dir / "state" / "fleet.pem").read_bytes()
    again = fleet_key(short_dir, "new")
    assert (again.returncode, again.stdout) == (1, "")
    assert "error[F014]: " in again.stderr
    assert "move it away" in again.stderr
    assert (short_dir / "state" / "fleet.pem").read_bytes() == before


def test_two_keys_have_two_fingerprints_and_a_copy_has_the_same(short_dir: Path) -> None:
    shown = []
    for name in ("a", "b", "c"):
        folder = short_dir / name
        (folder / "state").mkdir(0o700, parents=True)
        if name == "c":
            (folder / "state" / "fleet.pem").write_bytes((short_dir / "a" / "state" / "fleet.pem").read_bytes())
            (folder / "state" / "fleet.pem").chmod(0o600)
        else:
            write_once(str(folder / "state" / "fleet.pem"), credential())
        shown.append(fleet_key(folder, "show").stdout.splitlines()[1])
    assert shown[0] != shown[1]
    assert shown[0] == shown[2]


def test_where_there_is_no_key_that_is_said_and_none_is_made(short_dir: Path) -> None:
    shown = fleet_key(short_dir, "show")
    assert (shown.returncode, shown.stdout) == (78, "")
    assert "error[F013]: there is no fleet key" in shown.stderr
    assert "supd fleet key new" in shown.stderr
    assert not (short_dir / "state").exists()


@pytest.mark.parametrize(
    ("content", "mode", "code"), [(b"", 0o600, "F012"), (b"root:x:0\n", 0o644, "F011"), (None, 0o640, "F011")]
)
def test_what_is_no_key_or_not_private_is_not_shown(
    short_dir: Path, content: bytes | None, mode: int, code: str
) -> None:
    path = short_dir / "state" / "fleet.pem"
    path.parent.mkdir(0o700)
    path.write_bytes(credential() if content is None else content)
    path.chmod(mode)
    shown = fleet_key(short_dir, "show")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert f"error[{code}]: " in shown.stderr
