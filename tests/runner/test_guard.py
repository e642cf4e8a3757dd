import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.shell import cgroup, guarding, tree
from tests.runner.processes import AS_NOBODY, WORKERS, end, is_gone, present, wait_until

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
        argv = [*user, *guarding.guard_argv(incarnation, lock_fd, group, runner)]
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

    def read(self) -> tuple[str, Any]:
        """The next line that somebody in the family says."""
        assert self.guard.stdout is not None
        name, _, value = self.guard.stdout.readline().decode().partition(" ")
        if name != "facts":
            self.started.append(present(int(value)))
        return name, json.loads(value)

    def read_all(self, lines: int) -> dict[str, Any]:
        """The facts of the runner, after it and its strays have said `lines` lines."""
        facts = dict(self.read() for _ in range(lines))["facts"]
        self.runner = present(facts["pid"])
        return dict(facts)

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
        self.guard.kill()
        end([*self.started, *([self.runner] if hasattr(self, "runner") else [])])
        self.guard.communicate(timeout=15)


@pytest.fixture(params=["root with a cgroup", "without a cgroup", "an ordinary user"])
def setting(request: pytest.FixtureRequest, group: str | None) -> tuple[str | None, list[str]]:
    """The cgroup, and what is in front of the command line."""
    match request.param:
        case "root with a cgroup":
            return group, []
        case "without a cgroup":
            return None, []
        case _:
            return None, AS_NOBODY


@pytest.fixture
def family(setting: tuple[str | None, list[str]], incarnation: str, tmp_path: Path) -> Iterator[Family]:
    group, user = setting
    family = Family(incarnation, group, tmp_path, STRAYS, user)
    yield family
    family.close()


def test_a_killed_runner_leaves_nothing_behind(family: Family) -> None:
    family.read_all(LINES + 1)
    assert family.is_locked()
    tree.signal_process(family.runner, signal.SIGKILL)
    assert family.guard.wait(15) == 0
    family.assert_gone()


def test_a_runner_that_ends_by_itself_leaves_nothing_behind(family: Family) -> None:
    family.read_all(LINES + 1)
    family.end_input()
    assert family.guard.wait(15) == 0
    family.assert_gone()


def test_a_guard_that_is_killed_is_replaced_and_the_runner_leaves_nothing_behind(family: Family) -> None:
    family.read_all(LINES + 1)
    family.guard.kill()
    name, _ = family.read()
    assert name == "replacement"
    assert not is_gone(family.runner)
    assert family.is_locked()
    # It has looked at the tree, or blocks for good, when it sleeps in poll(2).
    wait_until(lambda: sleeps_in_poll(family.started[-1].pid))
    tree.signal_process(family.runner, signal.SIGKILL)
    family.assert_gone()


def sleeps_in_poll(pid: int) -> bool:
    """System call 7 of x86-64, or 73 (ppoll) of the generic table."""
    return cgroup.read_text(f"/proc/{pid}/syscall").split(" ")[0] in ("7", "73", "271")


def test_signals_do_not_end_a_guard(family: Family) -> None:
    family.read_all(LINES + 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP):
        family.guard.send_signal(number)
    tree.signal_process(family.runner, signal.SIGKILL)
    assert family.guard.wait(15) == 0
    family.assert_gone()


def test_a_sweep_of_the_guard_touches_nobody_else(family: Family, incarnation: str) -> None:
    family.read_all(LINES + 1)
    env = {"PATH": os.environ["PATH"], tree.MARKER: incarnation + "x"}
    with subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as innocent:
        tree.signal_process(family.runner, signal.SIGKILL)
        assert family.guard.wait(15) == 0
        assert innocent.poll() is None
        innocent.communicate(timeout=15)


def test_a_runner_starts_with_fresh_signals_and_its_own_descriptors_in_its_cgroup(
    family: Family, setting: tuple[str | None, list[str]]
) -> None:
    facts = family.read_all(LINES + 1)
    # Python itself ignores these two.
    assert facts["ignored"] == [signal.SIGPIPE, signal.SIGXFSZ]
    assert facts["blocked"] == []
    assert facts["fds"] == [0, 1, 2, family.lock_fd]
    ours = cgroup.parse_memberships(cgroup.read_text("/proc/self/cgroup")).get("", "")
    assert facts["group"] == (os.path.join(ours, os.path.basename(setting[0])) if setting[0] else ours)


def rss_kib(pid: int) -> int:
    return int(cgroup.read_text(f"/proc/{pid}/status").partition("VmRSS:")[2].split()[0])


def test_a_guard_is_little_more_than_a_bare_interpreter_and_sleeps(family: Family) -> None:
    family.read_all(LINES + 1)
    bare = [sys.executable, "-E", "-P", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(bare, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as interpreter:
        assert interpreter.stdout is not None
        interpreter.stdout.readline()
        assert rss_kib(family.guard.pid) < rss_kib(interpreter.pid) + 3 * 1024
        interpreter.communicate(b"\n", timeout=15)
    wait_until(lambda: present(family.guard.pid).state == "S")


def test_the_cgroup_is_removed_with_the_last_of_the_runner(group: str | None, incarnation: str, tmp_path: Path) -> None:
    family = Family(incarnation, group, tmp_path, ["daemon"], [])
    try:
        family.read_all(3)
        tree.signal_process(family.runner, signal.SIGKILL)
        assert family.guard.wait(15) == 0
        family.assert_gone()
        assert group is None or not os.path.exists(group)
    finally:
        family.close()


def test_a_runner_that_cannot_be_started_ends_the_guard(incarnation: str, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        argv = guarding.guard_argv(incarnation, lock.fileno(), None, ["/no/such/runner"])
        ended = subprocess.run(argv, pass_fds=(lock.fileno(),), stderr=subprocess.PIPE, check=False, timeout=15)
    assert ended.returncode == 1
    assert b"/no/such/runner" in ended.stderr
