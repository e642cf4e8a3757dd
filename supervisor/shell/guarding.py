"""How a guard is started: by supd above a new runner, and by a runner whose guard has died."""

import os
import sys
from collections.abc import Sequence

from supervisor.shell.lease_page import LeasePage

GUARD = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runner", "guard.py")


def guard_argv(incarnation: str, lock_fd: int, group: str | None, runner_argv: Sequence[str]) -> list[str]:
    """The command line of a guard that starts `runner_argv` as its child.

    `lock_fd` must be inherited (`pass_fds`); guard and runner have it under the same number. Standard input goes on to
    the runner, and `--guard PID --page-fd FD --poke-fd FD` is put behind the runner's arguments: the guard's pid, and
    the page of the lease (lease_page.py). `group` is its cgroup, if it has one.
    """
    return [*_python(), *_what(incarnation, lock_fd, group), "--", *runner_argv]


def watch_argv(incarnation: str, lock_fd: int, group: str | None, runner_pid: int, page: LeasePage) -> list[str]:
    """The command line of a replacement guard, to be started by the runner itself: its child watches its parent.

    It is to inherit `lock_fd` and the descriptors of the page.
    """
    return [*_python(), "--watch", str(runner_pid), *page_options(page), *_what(incarnation, lock_fd, group)]


def page_options(page: LeasePage) -> list[str]:
    """What tells a process that inherits the page where it is."""
    return ["--page-fd", str(page.page_fd), "--poke-fd", str(page.poke_fd)]


def parent_pidfd(pid: int) -> int | None:
    """A pidfd of our parent, which is readable when it has ended; None: that process is our parent no more.

    No start time is needed: if it still is our parent after the pidfd was opened, the pidfd is its.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if os.getppid() == pid:
        return pidfd
    os.close(pidfd)
    return None


def _python() -> list[str]:
    """A bare interpreter: no PYTHON* variables (-E), no foreign folder on the path (-P), no site packages (-S)."""
    return [sys.executable, "-E", "-P", "-S", GUARD]


def _what(incarnation: str, lock_fd: int, group: str | None) -> list[str]:
    return ["--incarnation", incarnation, "--lock-fd", str(lock_fd), "--cgroup", group or "-"]
