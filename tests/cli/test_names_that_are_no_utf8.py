"""Names in bytes that are no UTF-8, which files, folders and arguments may have: told, or shown with a `?`."""

import json
import os
from pathlib import Path

import pytest

from protocol.messages.control import Done
from tests.cli.conftest import Daemon, Supctl

ODD = os.fsdecode(b"b\xe9")
JOB = 'name = "a"\n[run]\ncommand = ["true"]\n'


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A job file with such a name, in such a folder."""
    folder = tmp_path / ODD
    folder.mkdir()
    file = folder / f"{ODD}.toml"
    file.write_text(JOB)
    return file


@pytest.mark.parametrize("more", [[], ["--json"], ["--show-config"], ["--json", "--show-config"]])
def test_a_job_file_is_checked_and_shown(supctl: Supctl, odd: Path, more: list[str]) -> None:
    result = supctl("validate", "--local", *more, str(odd))
    assert result.code == 0
    assert "b?.toml" in result.out + result.err
    if "--json" in more:
        assert json.loads(result.out)["data"]["valid"] is True


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("given", [["--name", ODD], ["--set", f"{ODD}=1"], ["--set", f"run.script=[{ODD}"]])
def test_what_is_wrong_with_an_argument_is_told(supctl: Supctl, odd: Path, more: list[str], given: list[str]) -> None:
    assert supctl("validate", "--local", *more, *given, str(odd)).code == 78


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_is_wrong_with_a_file_is_told(supctl: Supctl, odd: Path, more: list[str]) -> None:
    assert supctl("validate", "--local", *more, str(odd.with_name(f"{ODD}.no"))).code == 78
    odd.write_text("x =\n")
    assert supctl("validate", "--local", *more, str(odd)).code == 78


def test_a_setting_is_shown(supctl: Supctl, odd: Path) -> None:
    result = supctl("validate", "--local", "--show-config", "--set", f'run.args=["{ODD}"]', str(odd))
    assert (result.code, 'run.args = ["b?"]' in result.out) == (0, True)


@pytest.mark.parametrize("command", ["start", "validate"])
def test_what_cannot_be_sent_to_supd_is_refused(supctl: Supctl, daemon: Daemon, odd: Path, command: str) -> None:
    daemon(lambda _request: [Done()])
    result = supctl(command, str(odd))
    assert (result.code, "error[C013]" in result.err) == (2, True)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_address_where_nobody_is_is_named(supctl: Supctl, tmp_path: Path, more: list[str]) -> None:
    result = supctl("--addr", str(tmp_path / ODD), "status", *more)
    assert (result.code, "/b?" in result.err) == (69, True)
