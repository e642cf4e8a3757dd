"""The guard and the runner come before the ranks: for the CPU, and last where the kernel needs memory (nice(2),
proc_pid_oom_score_adj(5)). Where that is not allowed one goes without. Kept light for the guard (docs/decisions/001).
"""

import os

_NICE = -10  # beside 32 busy ranks a CPU it has a fifth of that, with -5 a tenth; it needs a hundredth, but at once
_OOM_SCORE_ADJ = -900

_OOM_FILE = b"/proc/self/oom_score_adj"
_AUTOGROUP_FILE = b"/proc/self/autogroup"

Precedence = tuple[int, int]
"""Of a process: its nice value and its oom_score_adj."""


def take_precedence() -> Precedence:
    """Put this thread, and the threads that it starts, before others; returns what was, for `give_back`."""
    before = os.getpriority(os.PRIO_PROCESS, 0), _oom_score_adj()
    _set_nice(min(before[0], _NICE))
    _write(_OOM_FILE, min(before[1], _OOM_SCORE_ADJ))
    return before


def give_back(before: Precedence) -> None:
    """For a child that is to have what its parent had first. Nothing but system calls: it may come after a fork."""
    _set_nice(before[0])
    _write(_OOM_FILE, before[1])


def take_precedence_as_a_session() -> None:
    """The same for our session as a whole. Where the kernel groups processes by session, each has the same share of the
    CPUs, whatever it is of (sched(7), "The autogroup feature"); ranks have sessions, and so groups, of their own."""
    _write(_AUTOGROUP_FILE, _NICE)


def _set_nice(value: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, value)
    except OSError:
        return


def _oom_score_adj() -> int:
    try:
        fd = os.open(_OOM_FILE, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 16))
    finally:
        os.close(fd)


def _write(path: bytes, value: int) -> None:
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, b"%d" % value)
    except OSError:
        return
    finally:
        os.close(fd)
