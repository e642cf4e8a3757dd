"""A guard with a stand-in for its runner, for the tests of this folder."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from supervisor.shell import cgroup, guarding, tree
from tests.runner.processes import WORKERS, end, end_below, is_gone, present, wait_until

STAND_IN = os.path.join(WORKERS, "stand_in.py")
STRAYS = ["deaf", "daemon", "orphan", "storm"]
LINES = 1 + 2 + 2 + 68


class Family:
    """A guard with a stand-in for its runner and what that one started; all of it is ended at exit."""

    def __init__(self, incarnation: str, group: str | None, folder: Path, strays: list[str], user: list[str]) -> None:
        self.lock = folder / "lock"
        lock_fd = os.open(self.lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        runner = [sys.executable, STAND_IN, incarnation, str(lock_fd), group or "-", *strays]
        argv = [*user, *guarding.guard_argv(guarding.guard_options(incarnation, lock_fd, group), runner)]
        self.started: list[tree.Process] = []
        # What a careless parent hands down: an ignored SIGCHLD, a blocked SIGTERM, a descriptor.
        theirs, ours = os.pipe()
        self.guard = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(lock_fd, theirs),
            preexec_fn=lambda: (
                signal.signal(signal.SIGCHLD, signal.SIG_IGN),
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
            ),
        )
        os.close(lock_fd)
        os.close(theirs)
        os.close(ours)
        self.lock_fd = lock_fd
        self.subreapers = [present(self.guard.pid)]

    def read(self) -> tuple[str, Any]:
        """The next line that somebody in the family says."""
        assert self.guard.stdout is not None
        name, _, value = self.guard.stdout.readline().decode().partition(" ")
        if name not in ("facts", "held"):
            self.started.append(present(int(value)))
        return name, json.loads(value)

    def read_all(self, lines: int) -> dict[str, Any]:
        """The facts of the runner, after it and its strays have said `lines` lines."""
        facts = dict(self.read() for _ in range(lines))["facts"]
        self.runner = present(facts["pid"])
        self.subreapers.append(self.runner)
        return dict(facts)

    def hold(self, lease: str) -> None:
        """Let the lease end so many seconds from now; `none`: there is none."""
        self._say(f"hold {lease}")
        assert self.read()[0] == "held"

    def _say(self, line: str) -> None:
        assert self.guard.stdin is not None
        self.guard.stdin.write(f"{line}\n".encode())
        self.guard.stdin.flush()

    def start_more(self, stray: str) -> int:
        """Let the stand-in start another stray, which may be dead before it says anything; its pid."""
        self._say(f"start {stray}")
        assert self.guard.stdout is not None
        while (words := self.guard.stdout.readline().split())[0] != b"started":
            pass
        return int(words[1])

    def end_input(self) -> None:
        """Close the runner's standard input: the stand-in ends."""
        assert self.guard.stdin is not None
        self.guard.stdin.close()
        self.guard.stdin = None

    def is_locked(self) -> bool:
        """Whether somebody in the family holds the lock."""
        with self.lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def assert_gone(self) -> None:
        """Nobody is alive, and the lock is free."""
        wait_until(lambda: not self.is_locked())
        assert [process for process in (self.runner, *self.started) if not is_gone(process)] == []

    def close(self) -> None:
        """End all of it, whatever it has had no time to tell us of too: that holds our pipe open."""
        for subreaper in self.subreapers:  # the guard, and the runner in case that the guard is dead already
            end_below(subreaper)
        end([*self.subreapers, *self.started])
        self.guard.communicate(timeout=15)


def sleeps_in_poll(pid: int) -> bool:
    """System call 7 of x86-64, 271 (ppoll), or 73 (ppoll) of the generic table; of proc_pid_syscall(5)."""
    return cgroup.read_text(f"/proc/{pid}/syscall").partition(" ")[0] in ("7", "73", "271")
