"""The guard: parent and child subreaper of one runner. What the runner leaves behind ends here.

A program of its own, run by path (supervisor/shell/guarding.py has its command line), with few imports: it is
there as long as the runner is. It has no network and no disk, and sleeps in poll(2) until the runner has ended. While
there is a lease it looks at the clock once a second; when that is over, it kills the ranks, whatever has become of the
runner, which lives on and reports it. With --watch it is a replacement: a child of the runner whose first guard has
died (docs/decisions/001).
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence

if __name__ == "__main__":
    # -P and -S leave nothing of ours on the path. At its end, so that nothing of the standard library is hidden.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from supervisor.shell import cgroup, guarding, tree
from supervisor.shell.boot_timer import BootTimer
from supervisor.shell.clock import boot_s
from supervisor.shell.lease_page import LeasePage
from supervisor.shell.precedence import take_precedence, take_precedence_as_a_session

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

_LOOK_S = 1.0
"""Between two looks at the page while there is a lease, and between two looks at the tree."""

_MARGIN_S = 0.05
"""How long after its end a lease is enforced: a runner that was answered in the last instant is about to write it."""

_KILL_AGAIN_S = 0.05
"""Between two passes over what has to go; after those that find nobody new the pause doubles, up to _LOOK_S."""

_UNBLOCKABLE = {signal.SIGKILL, signal.SIGSTOP}
_NEEDED = {signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS}
_IGNORED = signal.valid_signals() - _UNBLOCKABLE - _NEEDED


def executed(argv: list[str]) -> int:
    """A runner as a program of its own, with fresh signals; returns its pid."""
    default = signal.valid_signals() - _UNBLOCKABLE
    return os.posix_spawn(argv[0], argv, os.environ, setpgroup=0, setsigmask=(), setsigdef=default)


def guard(
    incarnation: str,
    lock_fd: int,
    group: str | None,
    runner_argv: list[str],
    tie: guarding.Tie | None,
    start: Callable[[list[str]], int],
) -> None:
    """Start the runner, hold it to its lease, wait for its end, and end whatever is left of it."""
    if group is not None:
        cgroup.join(group)  # where that fails, descent and marker have to do
    become_subreaper()
    page = LeasePage.make()
    runner_pid = start_runner(lock_fd, page, runner_argv, tie, start)
    take_precedence()  # only now: the runner is to know what its workers are to have
    take_precedence_as_a_session()  # the runner is in it as well
    enforcer = Enforcer(incarnation, group, runner_pid, page, tie)
    enforcer.outlive(os.pidfd_open(runner_pid))
    sweep(incarnation, group, enforcer.seen)
    enforcer.tidy_up()


def watch(incarnation: str, group: str | None, runner_pid: int, page: LeasePage, tie: guarding.Tie | None) -> None:
    """Hold the runner, our parent, to its lease, wait for its end, and end whatever is left of it.

    Orphans don't come to a child. Outside of a cgroup the tree is looked at once a second, so that processes
    without the marker are known too when the runner is gone.
    """
    take_precedence_as_a_session()
    enforcer = Enforcer(incarnation, group, runner_pid, page, tie)
    enforcer.remembers = group is None or os.getpid() not in cgroup.members(group)
    pidfd = guarding.parent_pidfd(runner_pid)
    if pidfd is not None:
        enforcer.outlive(pidfd)
    sweep(incarnation, group, enforcer.seen)
    enforcer.tidy_up()


class Enforcer:
    """Kills the ranks of a runner that lives, but has no lease for them any more; and the runner itself, where it is
    tied to a process that has ended."""

    def __init__(
        self, incarnation: str, group: str | None, runner_pid: int, page: LeasePage, tie: guarding.Tie | None
    ) -> None:
        self._incarnation = incarnation
        self._group = group
        self._runner_pid = runner_pid
        self._page = page
        self._tie = tie
        self._timer = BootTimer()  # which also sees the end of a suspended machine's sleep at once
        self._pause_s = _KILL_AGAIN_S
        self._killed: set[int] = set()  # by the last pass: what is still there only waits for the kernel
        self.remembers = False  # whether the tree is to be looked at
        self.seen: list[tree.Process] = []  # what was below the runner at the last look

    def outlive(self, runner_pidfd: int) -> None:
        """Until the runner has ended."""
        events = select.poll()
        for fd in (runner_pidfd, self._page.poke_fd, self._timer.fd):
            events.register(fd, select.POLLIN)
        if self._tie is not None:
            events.register(self._tie.fd, 0)  # POLLHUP is told all the same: there is no writer left
        while True:
            wait_s = self._enforce()  # first of all, whatever there is: we may have been stopped
            if self.remembers:
                self.seen = tree.descendants(self._runner_pid, tree.processes())
                wait_s = _LOOK_S if wait_s is None else min(wait_s, _LOOK_S)
            self._timer.set(None if wait_s is None else boot_s() + wait_s)
            ready = {fd for fd, _ in events.poll()}
            if runner_pidfd in ready:
                return
            if self._tie is not None and self._tie.fd in ready:
                self.seen = tree.descendants(self._runner_pid, tree.processes())
                with contextlib.suppress(ProcessLookupError):  # it has just ended, and its parent is not us
                    signal.pidfd_send_signal(runner_pidfd, signal.SIGKILL)
                return
            self._page.take_poke()
            reap()

    def tidy_up(self) -> None:
        """Once nothing is left: remove what the process has left to whose end we are tied, whenever that came."""
        if self._tie is not None and self._tie.is_cut:
            import shutil  # it loads much

            for folder in (self._tie.logs, self._tie.folder):
                shutil.rmtree(folder, ignore_errors=True)

    def _enforce(self) -> float | None:
        """Kill what is left, if the lease is over; returns when to look again. None: there is no lease."""
        left_s = self._page.left_s()
        if left_s is None or left_s > -_MARGIN_S:
            self._pause_s = _KILL_AGAIN_S
            return None if left_s is None else min(left_s + _MARGIN_S, _LOOK_S)
        try:
            killed = {p.pid for p in tree.kill_below(self._runner_pid, self._incarnation, self._group)}
        except OSError:
            return _KILL_AGAIN_S  # no descriptor was left to look with
        self._pause_s = _KILL_AGAIN_S if killed - self._killed else min(2 * self._pause_s, _LOOK_S)
        self._killed = killed
        return self._pause_s


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


def start_runner(
    lock_fd: int, page: LeasePage, runner_argv: list[str], tie: guarding.Tie | None, start: Callable[[list[str]], int]
) -> int:
    """Start the runner with our standard files, the lock, the page of the lease and the tie; returns its pid."""
    for fd in (lock_fd, page.page_fd, page.poke_fd, *([tie.fd] if tie else ())):
        os.set_inheritable(fd, True)
    what = ["--guard", str(os.getpid()), *guarding.page_options(page), *(tie.options if tie else ())]
    pid = start([*runner_argv, *what])
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


def take_default_signals() -> None:
    """None is ignored, blocked or handled, as after posix_spawn in `executed`."""
    for number in signal.valid_signals() - _UNBLOCKABLE:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def shed_inheritance(kept_fds: Sequence[int]) -> None:
    """Undo what a parent may have left us with: ignored or blocked signals, a terminal, a folder, descriptors."""
    for number in signal.valid_signals() - _UNBLOCKABLE:
        signal.signal(number, signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if os.getpid() != os.getsid(0):
        os.setsid()
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept_fds:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed the folder


def main(arguments: list[str], start: Callable[[list[str]], int] = executed) -> None:
    """Options come in pairs; what follows `--` is the runner's command line, which `start` starts in a process group of
    its own."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = guarding.pairs(arguments[:end])
    incarnation, lock_fd = options["--incarnation"], int(options["--lock-fd"])
    group = None if options["--cgroup"] == "-" else options["--cgroup"]
    tie = guarding.Tie.of(options)
    kept = (lock_fd, *([tie.fd] if tie else ()))
    if "--watch" in options:
        page_fd, poke_fd = int(options["--page-fd"]), int(options["--poke-fd"])
        shed_inheritance((*kept, page_fd, poke_fd))
        watch(incarnation, group, int(options["--watch"]), LeasePage(page_fd, poke_fd), tie)
    else:
        shed_inheritance(kept)
        guard(incarnation, lock_fd, group, arguments[end + 1 :], tie, start)


if __name__ == "__main__":
    main(sys.argv[1:])
