"""Starts a guard with its runner."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Protocol

from protocol.dataclass import dataclass
from supervisor.shell import cgroup, guarding

NOT_PASSED_ON = ("PYTHON", "LD_PRELOAD", "NOTIFY_SOCKET", "LISTEN_", "SUPD_")
"""Of supd's environment: what would change our own processes, or is meant for supd alone."""

SUPRUNS_OWN = ("NOTIFY_SOCKET", "LISTEN_", "SUPD_")
"""Of suprun's: its ranks have all the rest, and our own processes are started with -E."""

RUNNER = (sys.executable, "-E", "-P", "-m", "supervisor.runner.app")
"""It has site packages, and nothing of the user's own."""


class GuardProcess(Protocol):
    """A child of ours, as subprocess.Popen has it."""

    pid: int

    @property
    def stdin(self) -> IO[bytes] | None:
        """The runner reads it."""

    def poll(self) -> int | None:
        """None: it has not ended."""

    def wait(self) -> int:
        """Until it has ended."""


@dataclass(frozen=True)
class Started:
    """A runner that waits for a run."""

    incarnation: str
    guard: GuardProcess
    cgroup: str | None


@dataclass(frozen=True)
class Orders:
    """What a guard is to be started with: options of its own and of its runner, in a session of its own and in /."""

    guard: list[str]
    runner: list[str]
    environ: dict[bytes, bytes]
    log_fd: int  # its standard error
    kept_fds: tuple[int, ...]  # to be inherited


@dataclass(frozen=True)
class Embedded:
    """What differs where supd's parts run inside suprun."""

    tie: guarding.Tie  # runners end with this process, and have its whole environment
    ahead: Started | None  # a runner that was started before all else
    hosts: bool | None  # whether this node hosts the coordinator; None: it is alone
    launch: Mapping[str, str]  # what all nodes have to be told alike


def new_incarnation() -> str:
    """The name of another runner."""
    return os.urandom(8).hex()


def lock_path(folder: Path, incarnation: str) -> Path:
    """The file whose lock is held for as long as a runner lives."""
    return folder / f"{incarnation}.lock"


def executed(orders: Orders) -> GuardProcess:
    """Guard and runner as programs of their own."""
    return subprocess.Popen(
        guarding.guard_argv(orders.guard, [*RUNNER, *orders.runner]),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=orders.log_fd,
        env=orders.environ,
        cwd="/",
        pass_fds=orders.kept_fds,
        start_new_session=True,
        bufsize=0,
    )


def start_runner(
    folder: Path,
    incarnation: str,
    *,
    uses_cgroup: bool,
    log_level: str,
    tie: guarding.Tie | None = None,
    start: Callable[[Orders], GuardProcess] = executed,
) -> Started:
    """Start one whose files are in `folder`. Blocks for about 2 ms; raises OSError."""
    lock = os.open(lock_path(folder, incarnation), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        group = cgroup.make_runner_cgroup(incarnation) if uses_cgroup else None
        os.write(lock, (group or "-").encode())
        with open(folder / f"{incarnation}.log", "ab", buffering=0) as log_file:
            orders = Orders(
                guard=guarding.guard_options(incarnation, lock, group, tie),
                runner=["--lock-fd", str(lock), "--cgroup", group or "-", "--log-level", log_level],
                environ=_environment(NOT_PASSED_ON if tie is None else SUPRUNS_OWN),
                log_fd=log_file.fileno(),
                kept_fds=(lock, *([tie.fd] if tie else ())),
            )
            guard = start(orders)
    finally:
        os.close(lock)
    return Started(incarnation, guard, group)


def _environment(left_out: tuple[str, ...]) -> dict[bytes, bytes]:
    named = tuple(map(os.fsencode, left_out))
    return {name: value for name, value in os.environb.items() if not name.startswith(named)}
