"""A real supd with real runners and workers, for tests: own folders, own socket, nothing left behind."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from supervisor.daemon import beats_dir
from supervisor.shell.cgroup import group_name, remove_cgroup
from supervisor.shell.clock import boot_s

T = TypeVar("T")

WORKERS = Path(__file__).parent / "workers"
BIN = Path(sys.executable).parent
TIMEOUT_S = 60.0
MARKER = "TEST_OF_SUPD"  # no SUPD_ in front: workers do not inherit what begins so


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float = TIMEOUT_S) -> T:
    """Look again and again until there is something to see (anything but None, False and an empty list)."""
    give_up_s = boot_s() + timeout_s
    while True:
        seen = look()
        if seen is not None and seen is not False and seen != []:
            return seen
        assert boot_s() < give_up_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.01)  # noqa: TID251  # the one place where tests wait


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie (pid 1 may reap late)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def carriers(marker: str) -> list[int]:
    """Every living process with `TEST_OF_SUPD=<marker>` in its environment."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and alive(int(name)):
                found.append(int(name))
    return found


class Supd:
    """One daemon of a test. What it started is ended with it, by the marker in its environment and by pid."""

    def __init__(
        self, folder: Path, *, config: str = "", env: Mapping[str, str] | None = None, argv: tuple[str, ...] = ()
    ) -> None:
        """`argv` goes in front of every command line, of supd and of supctl."""
        self.folder = folder
        self.argv = argv
        self.marker = f"{os.getpid()}-{folder.name}"
        self.control = folder / "c.sock"
        self.state = folder / "state"
        self.config = folder / "supd.toml"
        self.config.write_text(
            f'[listen]\ncontrol = "{self.control}"\npeer = "127.0.0.1:0"\n'
            f'[state]\ndir = "{self.state}"\nmin_free = "0%"\n'
            f'[log]\nlevel = "debug"\n{config}'
        )
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SUPD_"))}
        self.env |= {"SUPD_ADDR": str(self.control), MARKER: self.marker, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "supd.log"

    # --- the daemon ----------------------------------------------------------------------------------------------

    def start(self, *, argv: tuple[str, ...] = ()) -> None:
        """Start the daemon and wait until it answers. `argv` goes in front of its command line."""
        self.launch(argv=argv)
        self.wait_until_ready()

    def launch(self, *options: str, argv: tuple[str, ...] = ()) -> None:
        """Start the daemon, with more `options` of its own, and don't wait."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.argv, *argv, str(BIN / "supd"), "run", "--config", str(self.config), *options],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def wait_until_ready(self) -> None:
        """Wait until the daemon answers."""
        wait_for("supd to answer", self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"supd ended: {self.log.read_text()}"
        return self.supctl("status", check=False).returncode == 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal the daemon and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        """End everything: runs first, then the daemon, then whatever still carries the marker."""
        if self.process is not None:
            if self.process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # a run that waits for proof does not end
                    self.supctl("stop", "--all", "--now", check=False)
                self.kill(signal.SIGTERM)
                with contextlib.suppress(AssertionError):  # ready runners end by themselves, and tidy up
                    wait_for("everything to end", lambda: not carriers(self.marker), timeout_s=5)
            for pid in carriers(self.marker):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for lock in (self.state / "runners").glob("*.lock"):
                beats_dir.remove(None, lock.stem)
                group = lock.read_text()
                if group.endswith(group_name(lock.stem)):
                    wait_for(f"{group} to be empty", functools.partial(remove_cgroup, group))

    # --- the client ----------------------------------------------------------------------------------------------

    def supctl(
        self, *args: str, check: bool = True, timeout_s: float = TIMEOUT_S, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run supctl to its end; with `check` it must succeed."""
        done = subprocess.run(
            [*self.argv, str(BIN / "supctl"), *args],
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            cwd=self.folder,
        )
        assert not check or done.returncode == 0, (
            f"supctl {args} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        return done

    def popen(self, *args: str) -> subprocess.Popen[str]:
        """Start supctl and leave it running; both streams are pipes."""
        return subprocess.Popen(
            [*self.argv, str(BIN / "supctl"), *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def json(self, *args: str) -> Any:
        """The `data` of a read with --json."""
        return json.loads(self.supctl(*args, "--json").stdout)["data"]

    def job(self, name: str, worker: str, *args: str, tables: str = "", nproc: int = 2, run: str = "") -> Path:
        """Write a job file that runs `workers/<worker>`; `tables` is more TOML, `run` more lines of [run]."""
        path = self.folder / f"{name}.toml"
        path.write_text(
            f'name = "{name}"\n[run]\nscript = {json.dumps(str(WORKERS / worker))}\nargs = {json.dumps(list(args))}\n'
            f"python = {json.dumps(sys.executable)}\n{run}\n[topology]\nnproc_per_node = {nproc}\n{tables}"
        )
        return path

    def start_job(self, path: Path, *more: str) -> str:
        """`supctl start --detach`; returns the run."""
        done = self.supctl("start", str(path), "--detach", "--quiet", *more)
        return done.stdout.strip()

    def status(self, run: str = "") -> Any:
        """One run as it stands."""
        return self.json("status", *([run] if run else []))["runs"][0]

    def wait_state(self, run: str, *states: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Wait until the run is in one of these states; returns its status."""

        def look() -> Any:
            status = self.status(run)
            return status if status["state"] in states else None

        return wait_for(f"{run} to be {' or '.join(states)}", look, timeout_s)

    def ranks(self, run: str) -> Any:
        """The ranks of the newest generation, as `supctl ps --json` gives them."""
        return self.json("ps", run)["ranks"]

    def survivors(self) -> list[int]:
        """Living processes of this test but the daemon and supctl: workers and what they left behind.

        (Guards and runners don't count: they carry the marker too, and are known by their command line.)
        """
        ours = (b"supervisor.runner.app", b"runner/guard.py", b"bin/supd", b"bin/supctl")
        left = []
        for pid in carriers(self.marker):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()  # b"": it is ending, and its memory is gone
                if command and not any(word in command for word in ours):
                    left.append(pid)
        return left

    def runner_pids(self) -> list[int]:
        """Runners of this test that serve a run or wait for one."""
        return self._with_command(b"supervisor.runner.app", but=b"guard.py")

    def guard_pids(self) -> list[int]:
        """Guards of this test."""
        return self._with_command(b"runner/guard.py")

    def _with_command(self, word: bytes, but: bytes = b"\0\0") -> list[int]:
        found = []
        for pid in carriers(self.marker):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if word in command and but not in command:
                    found.append(pid)
        return found


@contextlib.contextmanager
def running_supd(
    folder: Path, *, config: str = "", env: Mapping[str, str] | None = None, argv: tuple[str, ...] = ()
) -> Iterator[Supd]:
    """A supd for the length of a `with` block."""
    supd = Supd(folder, config=config, env=env, argv=argv)
    try:
        supd.start()
        yield supd
    finally:
        supd.close()
