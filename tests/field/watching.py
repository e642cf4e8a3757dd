"""What several field cases need: looking again later, programs in a shell, terminals, and whole nodes that are lost."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.shell.clock import boot_s
from tests.e2e.fleet import Fleet
from tests.e2e.jobs import command_job
from tests.e2e.supd import Supd, wait_for
from tests.e2e.threes import ranks_on

WINDOW_S = 1.0
"""How long what must not come is waited for. The ground rules say 5 s; the cases' times are scaled down with it."""

LEASE_S = 3.5
PATIENT = (
    f'[lease]\nrenew = "0.4s"\nalone = "0.8s"\nsuspect = "1.2s"\nfence = "3s"\nttl = "{LEASE_S}s"\nword = "0.8s"\n'
)
"""Short times of the lease, but for `fence`: a loaded machine has two seconds to answer."""

_TAKE_TERMINAL = """
import fcntl, os, sys, termios
if os.getsid(0) != os.getpid():
    os.setsid()
tty = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(tty, termios.TIOCSCTTY, 0)
for fd in (0, 1, 2):
    os.dup2(tty, fd)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def stays(what: str, is_so: Callable[[], bool], window_s: float = WINDOW_S) -> None:
    """Look again and again, for `window_s`: it is so and stays so."""
    until_s = boot_s() + window_s

    def look() -> bool:
        assert is_so(), f"no more: {what}"
        return boot_s() >= until_s

    wait_for(what, look)


def nothing_is_left(supd: Supd) -> None:
    """No process of a job is alive now, by its marker, and none turns up."""

    def look() -> bool:
        left = supd.survivors()
        assert not left, {pid: _read(f"/proc/{pid}/cmdline") + _read(f"/proc/{pid}/stat") for pid in left}
        return True

    stays("nothing is left", look)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().replace("\0", " ")
    except OSError as exc:
        return repr(exc)


def shell_job(supd: Supd, name: str, script: str, *, tables: str = "", nproc: int = 2) -> Path:
    """Write a job file whose ranks are `bash -c SCRIPT`; `$PYTHON` is our interpreter."""
    env = f"env = {{ PYTHON = {json.dumps(sys.executable)} }}"
    return command_job(supd, name, ["bash", "-c", script], run=env, nproc=nproc, tables=tables)


def running(supd: Supd, job: Path, generation: int = 0) -> str:
    """Start a job and wait until all of its ranks have started; returns the run."""
    run = supd.start_job(job)
    runs_at(supd, run, generation)
    return run


def runs_at(supd: Supd, run: str, generation: int) -> Any:
    """Wait until every rank of the run is known to run at this generation; returns its status.

    (A new supd says "running" by its journal before the runner has told it of the ranks.)
    """

    def look() -> Any:
        status = supd.status(run)
        assert not status["is_final"], status
        is_running = (status["state"], status["generation"]) == ("running", generation)
        return status if is_running and status["ranks_running"] == status["ranks"] else None

    return wait_for(f"{run} to run at generation {generation}", look)


def pids(supd: Supd, run: str) -> dict[int, int]:
    """The main process of every rank of the newest generation."""
    return {rank["rank"]: rank["pid"] for rank in supd.ranks(run)}


def events(supd: Supd, run: str, kind: str) -> list[Any]:
    """The run's events of one kind."""
    lines = supd.supctl("events", run, "--json").stdout.splitlines()
    return [event for event in map(json.loads, lines) if event.get("kind") == kind]


def runner_log(supd: Supd, run: str) -> str:
    """What the run's runners logged."""
    return "".join(path.read_text() for path in sorted((supd.state / "runs" / run).glob("*.log")))


def everything(fleet: Fleet, name: str) -> list[int]:
    """All processes of a node that runs on this machine with others: supd, guards, runners, ranks."""
    supd = fleet[name]
    assert supd.process is not None
    return [supd.process.pid, *supd.guard_pids(), *supd.runner_pids(), *ranks_on(fleet, supd)]


def send(number: int, pids: Iterable[int]) -> None:
    """The same signal to all that are there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """These processes get SIGSTOP, and SIGCONT at the end."""
    known = list(pids)
    try:
        send(signal.SIGSTOP, known)
        yield
    finally:
        send(signal.SIGCONT, known)


@dataclass(frozen=True)
class Terminal:
    """A pseudo-terminal; a program behind `argv` gets it as its controlling terminal and its standard files."""

    master: int
    argv: tuple[str, ...]  # goes in front of the program's command line

    def type(self, text: bytes) -> None:
        """Press keys."""
        os.write(self.master, text)

    def read(self) -> bytes:
        """What has been shown since the last time; b"" also once everybody has left."""
        with contextlib.suppress(OSError):
            return os.read(self.master, 65536)
        return b""


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    """A terminal that is closed at the end of the block."""
    master, slave = os.openpty()
    os.set_blocking(master, False)
    path = os.ttyname(slave)
    try:
        yield Terminal(master, (sys.executable, "-c", _TAKE_TERMINAL, path))
    finally:
        os.close(slave)
        os.close(master)
