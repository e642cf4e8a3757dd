"""Records what an earlier version of supd leaves in its state folder, by running that version. (How it is read:
test_state.py. A state that was recorded is never recorded again.)

    python tests/compat/record_state.py NAME COMMIT

It makes tests/compat/states/NAME: a run that is done, one that has failed, one whose runner was killed together with
its supd and, where that version has fleets, a node that has gone. It needs root, for a host name that says nothing.
"""

import argparse
import contextlib
import os
import shutil
import signal
import site
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATES = ROOT / "tests" / "compat" / "states"
MARKER = "TEST_OF_SUPD"
TIMEOUT_S = 60.0
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname n1 && exec "$@"', "sh")

JOBS = {
    "done": ("[run]\ncommand = ['true']\n", ""),
    "broken": (
        "[run]\ncommand = ['sh', '-c', 'echo out of luck >&2; exit 3']\n",
        "[restart]\nmax_restarts = 1\non_startup_failure = 'restart'\n",
    ),
    "active": ("[run]\ncommand = ['sleep', '1000000']\n", ""),
}


def wait_for(what: str, look: Callable[[], object]) -> None:
    """Look again and again until it is so."""
    give_up_s = time.monotonic() + TIMEOUT_S  # noqa: TID251  # other versions are run here: nothing of ours
    while not look():
        assert time.monotonic() < give_up_s, f"waited {TIMEOUT_S:g} s for {what}"  # noqa: TID251
        time.sleep(0.05)  # noqa: TID251


def carriers(marker: str) -> list[int]:
    """Every living process that carries the marker."""
    wanted, found = f"{MARKER}={marker}".encode(), []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def free_port() -> int:
    """One that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Version:
    """One version of supd, with an environment of its own: runners start without PYTHONPATH."""

    def __init__(self, commit: str, folder: Path) -> None:
        self.folder = folder
        tree = folder / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", commit], capture_output=True, check=True, cwd=ROOT).stdout
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        venv.create(folder / "venv", symlinks=True)
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        packages.joinpath("tree.pth").write_text(f"{tree}\n{site.getsitepackages()[0]}\n")
        self.python = str(folder / "venv" / "bin" / "python")
        self.has_fleets = (tree / "protocol" / "fleet.py").exists()


class Node:
    """A supd of that version."""

    def __init__(self, version: Version, name: str, port: int, join: str = "") -> None:
        self.version, self.name = version, name
        self.folder = version.folder / name
        self.folder.mkdir()
        self.state, self.control = self.folder / "state", self.folder / "c.sock"
        self.config = self.folder / "supd.toml"
        fleet = f'[fleet]\njoin = ["{join}"]\n' if join else ""
        self.config.write_text(
            f'[node]\nname = "{name}"\n[listen]\ncontrol = "{self.control}"\npeer = "127.0.0.1:{port}"\n'
            f'[state]\ndir = "{self.state}"\n[workers]\ncgroup = "off"\nready_runners = 0\n{fleet}'
        )
        self.env = {"PATH": "/usr/bin:/bin", "HOME": "/root", MARKER: str(version.folder)}

    def start(self) -> None:
        argv = [*NAMED, self.version.python, "-P", "-m", "supervisor.daemon.app", "run", "--config", str(self.config)]
        with (self.folder / "log").open("ab") as log:
            subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        wait_for(f"{self.name} to answer", lambda: self.supctl("status").returncode == 0)

    def supctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        code = "from supervisor.cli.app import main; raise SystemExit(main())"
        argv = [self.version.python, "-P", "-c", code, *args]
        env = {**self.env, "SUPD_ADDR": str(self.control)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd="/")

    def start_job(self, name: str) -> str:
        run, more = JOBS[name]
        path = self.folder / f"{name}.toml"
        path.write_text(f"name = '{name}'\n{run}workdir = '/'\n[topology]\nnproc_per_node = 2\n{more}")
        done = self.supctl("start", str(path), "--detach", "--quiet")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


def kept(node: Node, name: str) -> None:
    """Keep what it has left: the journal as SQL, records and locks as they are."""
    target = STATES / name
    target.mkdir()
    with contextlib.closing(sqlite3.connect(node.state / "journal.db")) as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        lines = [*db.iterdump(), f"PRAGMA user_version = {version};"]
    (target / "journal.sql").write_text("\n".join(lines) + "\n")
    for found in [*node.state.glob("runs/*/*.record"), *node.state.glob("runners/*.lock")]:
        copy = target / found.relative_to(node.state)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, copy)


@contextlib.contextmanager
def ended(marker: str) -> Iterator[None]:
    """Nothing that carries the marker is alive behind it."""

    def killed() -> bool:
        for pid in carriers(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not carriers(marker)

    try:
        yield
    finally:
        wait_for("everything to end", killed)


def record(name: str, commit: str, folder: Path) -> None:
    """Run that version, and keep what it leaves."""
    version, port = Version(commit, folder), free_port()
    join = f"127.0.0.1:{port}" if version.has_fleets else ""
    node = Node(version, "n1", port, join)
    with ended(str(folder)):
        node.start()
        if version.has_fleets:
            other = Node(version, "n2", free_port(), join)
            other.state.mkdir(mode=0o700)
            shutil.copy(node.state / "fleet.pem", other.state)
            other.start()
            wait_for("n2 to join", lambda: "n2" in node.supctl("nodes").stdout)
        for job in ("done", "broken"):
            node.supctl("wait", node.start_job(job))
        run = node.start_job("active")
        wait_for("it to run", lambda: '"running"' in node.supctl("status", run, "--json").stdout)
    kept(node, name)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("commit")
    args = parser.parse_args()
    if (STATES / args.name).exists():
        sys.exit(f"{STATES / args.name} is there already")
    folder = Path(tempfile.mkdtemp(prefix="supd-old-"))
    try:
        record(args.name, args.commit, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
