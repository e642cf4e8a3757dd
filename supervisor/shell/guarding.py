"""How a guard is started: by supd above a new runner, and by a runner whose guard has died."""

import os
import select
import sys
from collections.abc import Mapping, Sequence

from supervisor.shell.lease_page import LeasePage

GUARD = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runner", "guard.py")


class Tie:
    """What ties a runner to suprun: `fd` is the read end of a pipe whose write end only suprun has. When that has
    ended, however that came, all that the runner has started ends, and suprun's folders are removed."""

    __slots__ = ("fd", "folder", "logs")  # a guard is kept light

    def __init__(self, fd: int, folder: str, logs: str) -> None:
        self.fd = fd
        self.folder = folder
        self.logs = logs

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Tie | None":
        """What `options` have said; None: there is none."""
        if "--tie-fd" not in options:
            return None
        return cls(int(options["--tie-fd"]), options["--tie-folder"], options["--tie-logs"])

    @property
    def is_cut(self) -> bool:
        """Whether suprun has ended."""
        poll = select.poll()
        poll.register(self.fd, 0)  # POLLHUP is told all the same: there is no writer left
        return bool(poll.poll(0))

    @property
    def options(self) -> list[str]:
        """For whoever inherits `fd`."""
        return ["--tie-fd", str(self.fd), "--tie-folder", self.folder, "--tie-logs", self.logs]


def pairs(arguments: Sequence[str]) -> dict[str, str]:
    """The options of a guard, and of a runner: words in pairs. (argparse is as much to load as all else of a guard.)"""
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def guard_argv(options: Sequence[str], runner_argv: Sequence[str]) -> list[str]:
    """The command line of a guard that starts `runner_argv` as its child; `options` as `guard_options` gives them.

    Lock and tie must be inherited (`pass_fds`); guard and runner have them under the same numbers. Standard input goes
    on to the runner, and `--guard PID --page-fd FD --poke-fd FD` is put behind the runner's arguments: the guard's pid,
    and the page of the lease (lease_page.py).
    """
    return [*_interpreter(), *options, "--", *runner_argv]


def watch_argv(
    incarnation: str, lock_fd: int, group: str | None, runner_pid: int, page: LeasePage, tie: Tie | None = None
) -> list[str]:
    """The command line of a replacement guard, to be started by the runner itself: its child watches its parent.

    It is to inherit `lock_fd`, the descriptors of the page and that of the tie.
    """
    what = guard_options(incarnation, lock_fd, group, tie)
    return [*_interpreter(), "--watch", str(runner_pid), *page_options(page), *what]


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


def _interpreter() -> list[str]:
    """A guard's is bare: no PYTHON* variables (-E), no foreign folder on the path (-P), no site packages (-S)."""
    return [sys.executable, "-E", "-P", "-S", GUARD]


def guard_options(incarnation: str, lock_fd: int, group: str | None, tie: Tie | None = None) -> list[str]:
    """What each guard is told: its runner, the lock that both hold, their cgroup if they have one, and their tie."""
    what = ["--incarnation", incarnation, "--lock-fd", str(lock_fd), "--cgroup", group or "-"]
    return [*what, *(tie.options if tie else ())]
