"""supervisor/daemon/app.py: beginning, refusing to begin, and ending."""

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import Refused, SupdError
from protocol.messages.control import GetStatus, Statuses
from supervisor.daemon import app
from tests.daemon.serving import ask, config_in, serving, wait_for


def coordinator_port(state: Path) -> int:
    return int((state / "coordinator").read_text().rpartition(":")[2])


async def test_what_supd_makes_is_its_users_alone(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        for folder, _, files in os.walk(config.state_dir):
            assert os.stat(folder).st_mode & 0o077 == 0, folder
            for name in files:
                path = os.path.join(folder, name)
                assert os.stat(path).st_mode & 0o077 == 0, path


async def test_it_leaves_no_socket_behind(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        assert await ask(config.control, GetStatus()) == Statuses(runs=())
    assert config.control.name not in os.listdir(config.control.parent)


@pytest.mark.parametrize(
    ("host", "found_at"), [("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("127.0.0.3", "127.0.0.3")]
)
async def test_its_runners_are_told_an_address_that_is_one(short_dir: Path, host: str, found_at: str) -> None:
    config = config_in(short_dir, peer=(host, 0))
    async with serving(config):
        assert (config.state_dir / "coordinator").read_text().rpartition(":")[0] == found_at


async def test_a_default_port_that_is_taken_is_followed_by_the_next_one(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = replace(config_in(short_dir), peer=("127.0.0.1", port), peer_is_default=True)
        async with serving(config):
            assert port < coordinator_port(config.state_dir) <= port + app.NEXT_PORTS


async def test_a_port_that_was_asked_for_and_is_taken_is_refused(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = replace(config_in(short_dir), peer=taken.getsockname(), peer_is_default=False)
        os.close(app.prepare(config))
        why = rf"cannot listen on 127.0.0.1:.*in use \(pid {os.getpid()} \("
        with pytest.RaisesGroup(pytest.RaisesExc(Refused, match=why)):
            await app.serve(config, asyncio.Event())


async def test_a_supd_that_loses_its_journal_ends_with_the_reason(short_dir: Path) -> None:
    config = config_in(short_dir)
    os.close(app.prepare(config))
    os.mkdir(config.state_dir / "journal.db")
    with pytest.raises(Refused, match="cannot use the journal"):
        await app.serve(config, asyncio.Event())


async def test_its_port_is_free_again_however_it_ends(short_dir: Path) -> None:
    """A listener that is left open keeps uvloop from closing, and with it supd from ending."""
    config = config_in(short_dir)
    lock = app.prepare(config)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.serve(config, asyncio.Event()))
        await wait_for("supd to listen", config.control.exists)
        task.cancel()
    os.close(lock)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", coordinator_port(config.state_dir))) != 0


def test_a_state_that_another_supd_uses_is_refused(short_dir: Path) -> None:
    config = config_in(short_dir)
    first = app.prepare(config)
    with pytest.raises(Refused, match=r"another supd \(pid \d+\) uses"):
        app.prepare(config)
    os.close(first)
    os.close(app.prepare(config))


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("state_dir", "file"),
        ("state_dir", "file/below"),
        ("logs_dir", "file"),
        ("credential", "missing/fleet.pem"),
        ("credential", "file/fleet.pem"),
        ("control", "file/c.sock"),
    ],
)
def test_a_place_that_cannot_be_used_is_told_plainly(short_dir: Path, key: str, place: str) -> None:
    (short_dir / "file").touch()
    with pytest.raises(SupdError, match=str(short_dir)):
        app.prepare(config_in(short_dir, **{key: short_dir / place}))


async def test_a_host_that_is_unknown_is_told_so(short_dir: Path) -> None:
    config = replace(config_in(short_dir), peer=("no-such-host.invalid", 0), peer_is_default=True)
    os.close(app.prepare(config))
    with pytest.RaisesGroup(pytest.RaisesExc(Refused, match=r"the host no-such-host.invalid is unknown")):
        await app.serve(config, asyncio.Event())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "choose from 'run'"),
        (["run", "--confg", "x"], "did you mean `--config`?"),
        (["run", "--conf", "x"], "did you mean `--config`?"),
        ([], "COMMAND"),
        (["run", "--old-is-dead"], "it goes with --coordinator"),
    ],
)
def test_a_wrong_command_line_is_told_like_every_other_error(words: list[str], said: str) -> None:
    done = subprocess.run([Path(sys.executable).parent / "supd", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("supd: error[F001]: ")
    assert said in done.stderr
    assert done.stderr.endswith(" --help\n")


def test_a_wrong_supd_toml_is_shown_with_every_problem_in_its_place(tmp_path: Path) -> None:
    file = tmp_path / "supd.toml"
    file.write_text("[node]\nnam = 'x'\n[workers]\nlinger = 60\n")
    done = subprocess.run(
        [Path(sys.executable).parent / "supd", "run", "--config", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 78
    assert done.stderr.startswith(f"error[S101]: unknown key `nam` in [node]\n  --> {file}:2:1\n   |\n 2 | nam = 'x'\n")
    assert f"  --> {file}:4:10\n" in done.stderr
    assert f"{file}: 2 errors.  supctl help S204 explains a code.\n" in done.stderr
