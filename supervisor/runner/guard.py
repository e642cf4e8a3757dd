"""The guard: parent and child subreaper of one runner. What the runner leaves behind ends here.

A program of its own, run by path (supervisor/shell/guarding.py has its command line), with few imports: it is
there as long as the runner is. It has no network and no disk, and sleeps in wait(2) until the runner has ended.
With --watch it is a replacement: a child of the runner whose first guard has died (docs/decisions/001).
"""

import ctypes
import os
import select
import signal
import sys
from collections.abc import Sequence

if __name__ == "__main__":
    # -P and -S leave nothing of ours on the path. At its end, so that nothing of the standard library is hidden.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from supervisor.shell import cgroup, guarding, tree

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SNAPSHOT_EVERY_MS = 1000

_UNBLOCKABLE = {signal.SIGKILL, signal.SIGSTOP}
_NEEDED = {signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS}
_IGNORED = signal.valid_signals() - _UNBLOCKABLE - _NEEDED


def guard(incarnation: str, lock_fd: int, group: str | None, runner_argv: list[str]) -> None:
    """Start the runner, wait for its end, and end whatever is left of it."""
    if group is not None:
        cgroup.join(group)  # where that fails, descent and marker have to do
    become_subreaper()
    runner_pid = start_runner(lock_fd, runner_argv)
    while os.wait()[0] != runner_pid:
        pass  # a stray that came to us is reaped at once
    sweep(incarnation, group)


def watch(incarnation: str, group: str | None, runner_pid: int) -> None:
    """Wait for the end of the runner, our parent, and end whatever is left of it.

    Orphans don't come to a child. Outside of a cgroup the tree is looked at once a second, so that processes
    without the marker are known too when the runner is gone.
    """
    seen: list[tree.Process] = []
    timeout_ms = None if group is not None and os.getpid() in cgroup.members(group) else _SNAPSHOT_EVERY_MS
    pidfd = guarding.parent_pidfd(runner_pid)
    if pidfd is not None:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        while True:
            seen = tree.descendants(runner_pid, tree.processes())
            if ended.poll(timeout_ms):
                break
    sweep(incarnation, group, seen)


def sweep(incarnation: str, group: str | None, seen: Sequence[tree.Process] = ()) -> None:
    """End everything that is left: what is below us, in the cgroup or marked, and `seen` with what is below it."""

    def below() -> list[tree.Process]:
        reap()
        table = tree.processes()
        left = [now for old in seen if (now := table.get(old.pid)) and now.start_ticks == old.start_ticks]
        roots = [os.getpid(), *(process.pid for process in left)]
        return [*left, *(process for root in roots for process in tree.descendants(root, table))]

    if group is not None:
        cgroup.leave(group)  # so that the whole group can be killed in one stroke
    tree.sweep(incarnation, group, below)
    reap()


def start_runner(lock_fd: int, runner_argv: list[str]) -> int:
    """Start the runner with fresh signals, our standard files and the lock; returns its pid."""
    os.set_inheritable(lock_fd, True)
    pid = os.posix_spawn(
        runner_argv[0],
        [*runner_argv, "--guard", str(os.getpid())],
        os.environ,
        setpgroup=0,
        setsigmask=(),
        setsigdef=signal.valid_signals() - _UNBLOCKABLE,
    )
    # The runner's input is its own: a writer is to notice when it has ended.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return pid


def become_subreaper() -> None:
    """Orphans below us become our children, however often they forked (prctl(2), Linux 3.4)."""
    failed = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    assert not failed, os.strerror(ctypes.get_errno())


def reap() -> None:
    """Take the exit status of every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def shed_inheritance(lock_fd: int) -> None:
    """Undo what a parent may have left us with: ignored or blocked signals, a terminal, a folder, descriptors."""
    for number in signal.valid_signals() - _UNBLOCKABLE:
        signal.signal(number, signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if os.getpid() != os.getsid(0):
        os.setsid()
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != lock_fd:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed the folder


def main(arguments: list[str]) -> None:
    """Options come in pairs; what follows `--` is the runner's command line."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = dict(zip(arguments[:end:2], arguments[1:end:2], strict=True))
    incarnation, lock_fd = options["--incarnation"], int(options["--lock-fd"])
    group = None if options["--cgroup"] == "-" else options["--cgroup"]
    shed_inheritance(lock_fd)
    if "--watch" in options:
        watch(incarnation, group, int(options["--watch"]))
    else:
        guard(incarnation, lock_fd, group, arguments[end + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
