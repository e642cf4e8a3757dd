"""scripts/local_fleet, as users call it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.hosts import command
from scripts.hosts.local_fleet import MARKER, LocalFleet
from tests.e2e.supd import WORKERS, wait_for
from tests.netns import needs_namespaces

Call = Callable[..., int]


@pytest.fixture
def call(short_dir: Path) -> Iterator[Call]:
    """Runs a subcommand on this test's own folder; what is up afterwards is ended."""
    folder = short_dir / "fleet"

    def run(subcommand: str, *args: str) -> int:
        return command.main([subcommand, "--dir", str(folder), *args])

    yield run
    if folder.exists():
        LocalFleet(folder).down()


def state_of(fleet: LocalFleet, asked: str) -> dict[str, str]:
    """The states of all nodes, as one of them tells."""
    done = fleet.supctl(asked, "nodes", "--json")
    assert done.returncode == 0, done.stderr
    return {node["node"]: node["state"] for node in json.loads(done.stdout)["data"]["nodes"]}


def carriers(token: str) -> list[int]:
    """Living processes of a fleet."""
    variable = f"{MARKER}={token}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ, state = (
                (folder / "environ").read_bytes(),
                (folder / "stat").read_text().rpartition(")")[2].split()[0],
            )
        except OSError:
            continue
        if variable in environ.split(b"\0") and state not in "ZX":
            found.append(int(folder.name))
    return found


def job(folder: Path, worker: str, *args: str) -> str:
    """A job of one rank on each of two nodes."""
    path = folder / "job.toml"
    path.write_text(
        f'name = "both"\n[run]\nscript = "{WORKERS / worker}"\nargs = {json.dumps(args)}\n'
        f'python = "{sys.executable}"\n[topology]\nnnodes = 2\nnproc_per_node = 1\n'
    )
    return str(path)


def test_a_fleet_is_up_runs_a_job_on_its_nodes_and_is_gone(
    call: Call, short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("up", "2") == 0
    shell, table = capsys.readouterr()
    fleet = LocalFleet(short_dir / "fleet")
    assert f"export SUPD_ADDR={fleet.control('a')} GLOO_SOCKET_IFNAME=lo\n" in shell
    assert [line.split()[0] for line in table.splitlines()] == ["NODE", "a", "b"]
    assert state_of(fleet, "b") == {"a": "ready", "b": "ready"}

    done = fleet.supctl("b", "start", job(short_dir, "sleeper.py", "--for", "0"), "--follow", "--quiet")
    assert done.returncode == 0, done.stderr
    assert call("down") == 0
    assert (carriers(fleet.token), fleet.folder.exists()) == ([], False)
    assert call("down") == 0  # nothing to do


def test_exec_runs_a_command_that_talks_to_its_node_and_gives_its_exit_code(call: Call, short_dir: Path) -> None:
    assert call("up", "1") == 0
    script = "import sys; from scripts.hosts.command import main; sys.exit(main(sys.argv[1:]))"
    words = ["exec", "--dir", str(short_dir / "fleet"), "a", "--", "sh", "-c", 'echo "$SUPD_ADDR"; exit 7']
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, f"{short_dir}/fleet/a/control.sock\n")


def test_down_ends_what_a_crash_of_everything_that_supervises_has_left(call: Call, short_dir: Path) -> None:
    assert call("up", "2") == 0
    fleet = LocalFleet(short_dir / "fleet")
    assert fleet.supctl("a", "start", job(short_dir, "sleeper.py"), "--detach").returncode == 0
    for node in fleet.nodes.values():
        os.kill(node.pid, signal.SIGKILL)
    wait_for("all supd to be dead", lambda: not any(node.is_alive for node in fleet.nodes.values()))
    assert call("down") == 0
    assert (carriers(fleet.token), fleet.folder.exists()) == ([], False)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["up", "0"], "0 hosts: 1 to 26 can be had"),
        (["status"], "there is no fleet in"),
        (["link", "a", "cut"], "there is no fleet in"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    call: Call, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert call(*words) == 1
    error = capsys.readouterr().err
    assert (error.count("\n"), complaint in error) == (1, True)


def test_a_fleet_on_loopback_has_no_links_to_disturb(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("up", "1") == 0
    assert call("link", "a", "cut") == 1
    assert "nodes on 127.0.0.x have no links" in capsys.readouterr().err
    assert call("up", "1") == 1
    assert "is there already" in capsys.readouterr().err


@needs_namespaces
def test_a_node_that_is_cut_off_is_unreachable_until_its_link_is_healed(
    call: Call, short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("up", "2", "--netns") == 0
    fleet = LocalFleet(short_dir / "fleet")
    assert call("link", "b", "cut") == 0
    wait_for("b to be unreachable", lambda: state_of(fleet, "a")["b"] == "unreachable")
    capsys.readouterr()
    assert call("status") == 0
    assert " cut " in capsys.readouterr().err
    assert call("link", "b", "heal") == 0
    wait_for("b to be back", lambda: state_of(fleet, "a")["b"] == "ready")
    assert call("between", "a", "b", "cut-there") == 0
    assert call("between", "a", "b", "loss", "5") == 0
    capsys.readouterr()
    assert call("status") == 0
    told = capsys.readouterr().err
    assert "from a to b: drop, loss 5 %" in told
    assert "from b to a: loss 5 %" in told
    assert call("between", "a", "b", "heal") == 0
    assert fleet.links().paths() == {}
    assert call("link", "b", "delay") == 1
    assert call("link", "b", "delay", "10") == 0
    assert fleet.links().links()["b"]["delay_ms"] == 10
