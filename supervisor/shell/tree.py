"""Process trees: who is below whom, who belongs to a runner, and how to end them for good.

supd, the runner and the guard share it. It is kept light, because the guard is to be small
(docs/decisions/001). Three ways lead to a process: descent (a subreaper gets its orphans), the runner's
cgroup, and the marker in its environment. Formats: proc_pid_stat(5), proc_pid_environ(5).
"""

import os
import select
import signal
from collections.abc import Callable, Collection, Iterable

from supervisor.shell import cgroup
from supervisor.shell.clock import boot_s

MARKER = "SUPD_RUNNER"
"""The environment variable of every worker that holds its runner's incarnation."""

SWEEP_PATIENCE_S = 10.0
"""How long a sweep goes on against processes that don't end: those that wait for the kernel cannot."""

_PAUSE_S = 0.02  # between two passes over processes that have SIGKILL pending
_MAX_STAT_BYTES = 4096
_MAX_ENVIRON_BYTES = 8 << 20  # execve(2) takes no more than 6 MiB of arguments and environment


class Process:
    """A line of the process table. A pid is used again; a pid with its start time (`start_ticks`) is not."""

    __slots__ = ("pgrp", "pid", "ppid", "session", "start_ticks", "state", "threads")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses may hold anything, parentheses too.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0].decode()
        self.ppid = int(fields[1])
        self.pgrp = int(fields[2])
        self.session = int(fields[3])
        self.threads = int(fields[17])
        self.start_ticks = int(fields[19])

    @property
    def is_alive(self) -> bool:
        """Whether it can still run code. A zombie cannot, unless only its first thread has ended."""
        return self.state not in "ZX" or self.threads > 1

    def __repr__(self) -> str:
        return f"<pid {self.pid} {self.state}, child of {self.ppid}, started at {self.start_ticks}>"


def look(pid: int) -> Process | None:
    """The process that has this pid now; None: no one."""
    stat = _read(f"/proc/{pid}/stat", _MAX_STAT_BYTES)
    return Process(pid, stat) if stat else None


def processes() -> dict[int, Process]:
    """All processes by pid. The table is read line by line: what forks meanwhile may be missing."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def has_children() -> bool:
    """Whether this process has any child, zombies among them: the kernel's own word, and cheap to ask."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def descendants(root: int, table: dict[int, Process], *, without: Collection[int] = ()) -> list[Process]:
    """Everything below `root`, parents first; not those in `without`, nor what is below these."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    below: list[Process] = []
    parents = [root]
    while parents:
        fresh = [child for child in children.pop(parents.pop(), []) if child.pid not in without]
        below += fresh
        parents += [child.pid for child in fresh]
    return below


def leftovers(runner_pid: int, live_mains: Collection[int], helpers: Collection[int]) -> list[Process]:
    """What is below the runner and belongs to no live rank: the rest of ranks that have ended.

    `live_mains` are the main processes of ranks that still run, `helpers` the runner's own children (a
    replacement guard). A main leads its session: an orphan in it is its rank's, wherever it hangs now. An orphan
    in a session of its own cannot be told from those of other ranks and is a leftover.
    """
    table = processes()
    of_sessions = {process.pid for process in table.values() if process.session in live_mains}
    return descendants(runner_pid, table, without={*live_mains, *helpers, *of_sessions})


def marked(incarnation: str) -> list[Process]:
    """Our user's processes that carry `SUPD_RUNNER=<incarnation>`; what cannot be read is not ours."""
    variable = f"{MARKER}={incarnation}".encode()
    found: list[Process] = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        process = look(pid)  # before the rest: a pid that changes hands is noticed when it is signalled
        if process is not None and variable in _environ(pid) and _real_uid(pid) == os.getuid():
            found.append(process)
    return found


def cgroup_members(path: str) -> list[Process]:
    """The processes in a cgroup and in those below it."""
    return [process for process in map(look, cgroup.members(path)) if process is not None]


def signal_process(process: Process, number: int) -> bool:
    """Send a signal to exactly this process, never to another one that got its pid; False: gone, or not allowed."""
    pidfd = _pidfd(process)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)
    return True


def kill_once(found: Iterable[Process], *, but: Collection[int] = ()) -> list[Process]:
    """SIGKILL those that are alive and return them. Never pid 1, never ourselves, nor those in `but`."""
    spared = (1, os.getpid(), *but)
    alive = {process.pid: process for process in found if process.is_alive and process.pid not in spared}
    for process in alive.values():
        signal_process(process, signal.SIGKILL)
    return list(alive.values())


def kill_all(find: Callable[[], Iterable[Process]], patience_s: float = SWEEP_PATIENCE_S) -> list[Process]:
    """SIGKILL whatever `find` finds, again and again, until it finds nobody alive; returns those that don't end.

    Blocks for up to `patience_s`. One empty pass is not believed: the table is not read in one instant, and a
    process in the middle of execve(2) shows no environment.
    """
    give_up_s = boot_s() + patience_s
    empty_passes = 0
    while empty_passes < 2:
        alive = kill_once(find())
        empty_passes = 0 if alive else empty_passes + 1
        if alive and boot_s() >= give_up_s:
            return alive
        if alive:
            _await_end(alive[-1], _PAUSE_S)
    return []


def kill_below(runner_pid: int, incarnation: str, group: str | None) -> list[Process]:
    """SIGKILL, once, whatever belongs to a runner that lives on, but neither to itself nor to us; returns it.

    As long as it lives all of that is below it (it is a subreaper), and gets the signal first: to look for what bears
    the cgroup or the marker takes longer, and may wait for a process that is stuck in the kernel.
    """
    spared = (runner_pid,)
    killed = kill_once(descendants(runner_pid, processes()), but=spared)
    if group is not None:
        killed += kill_once(cgroup_members(group), but=spared)
    return killed + kill_once(marked(incarnation), but=spared)


def sweep(
    incarnation: str,
    group: str | None,
    also: Callable[[], Iterable[Process]] = tuple,
    patience_s: float = SWEEP_PATIENCE_S,
) -> list[int]:
    """End everything of a dead runner, by cgroup, marker and what `also` finds; returns the pids that don't end.

    Blocks for up to `patience_s`: supd calls it in a thread. The cgroup is removed when it is empty.
    """
    if group is None:
        return [process.pid for process in kill_all(lambda: [*marked(incarnation), *also()], patience_s)]
    assert os.path.basename(group) == cgroup.group_name(incarnation), f"{group} is not the cgroup of {incarnation}"
    if os.getpid() not in cgroup.members(group):
        cgroup.kill_members(group)
    stuck = kill_all(lambda: [*cgroup_members(group), *marked(incarnation), *also()], patience_s)
    cgroup.remove_cgroup(group)
    return [process.pid for process in stuck]


def _pidfd(process: Process) -> int | None:
    """A pidfd of exactly this process: it is opened first, so that the comparison holds from then on.

    None: it is gone, or we have no descriptor left. A pass that killed nobody for that reason is repeated.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    now = look(process.pid)
    if now is not None and now.start_ticks == process.start_ticks:
        return pidfd
    os.close(pidfd)
    return None


def _await_end(process: Process, timeout_s: float) -> None:
    pidfd = _pidfd(process)
    if pidfd is None:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(timeout_s * 1000)
    finally:
        os.close(pidfd)


def _environ(pid: int) -> list[bytes]:
    return _read(f"/proc/{pid}/environ", _MAX_ENVIRON_BYTES).split(b"\0")


def _real_uid(pid: int) -> int | None:
    """From status(5), not from the owner of /proc/PID, which is root for a process that may not be dumped."""
    _, found, rest = _read(f"/proc/{pid}/status", _MAX_STAT_BYTES).partition(b"\nUid:\t")
    return int(rest.split(maxsplit=1)[0]) if found else None


def _read(path: str, limit_bytes: int) -> bytes:
    """The start of a file in /proc; b"" for a process that is gone or may not be read.

    Raises OSError where no descriptor is left to look with: what cannot be seen is not proven gone.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(limit_bytes) or b""
    except OSError as exc:
        if exc.errno in cgroup.NOTHING_SEEN:
            raise
        return b""
