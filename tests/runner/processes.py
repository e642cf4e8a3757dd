"""Real processes for the tests of this folder: started, waited for, and ended whatever happens."""

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from supervisor.shell import tree
from supervisor.shell.clock import boot_s

WORKERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workers")
STRAY = os.path.join(WORKERS, "stray.py")
NOBODY = 65534
IS_ROOT = os.getuid() == 0

_READ_ALL = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *_READ_ALL] if IS_ROOT else []
"""In front of a command line: it runs as an ordinary user. Nothing to do for those who are one.

It may still read every file: interpreter and checkout often lie in root's home.
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Return as soon as `condition` holds; fail if it never does."""
    give_up_s = boot_s() + timeout_s
    while not condition():
        assert boot_s() < give_up_s, "the condition never held"
        threading.Event().wait(0.01)


def present(pid: int) -> tree.Process:
    """The process with this pid, which is there and alive."""
    process = tree.look(pid)
    assert process is not None
    assert process.is_alive
    return process


def is_gone(process: tree.Process) -> bool:
    """Whether it can run no more; pid 1 may reap it much later."""
    now = tree.look(process.pid)
    return now is None or now.start_ticks != process.start_ticks or not now.is_alive


def read_pids(child: subprocess.Popen[bytes], count: int) -> dict[str, list[tree.Process]]:
    """`count` lines of `NAME PID` from a child, by name."""
    assert child.stdout is not None
    found: dict[str, list[tree.Process]] = defaultdict(list)
    for _ in range(count):
        name, pid = child.stdout.readline().split()
        found[name.decode()].append(present(int(pid)))
    return found


@contextmanager
def stray(kind: str, count: int, env: dict[str, str]) -> Iterator[dict[str, list[tree.Process]]]:
    """A stray in a session of its own, with the processes that it leaves."""
    child = subprocess.Popen([sys.executable, STRAY, kind], env=env, stdout=subprocess.PIPE, start_new_session=True)
    found: dict[str, list[tree.Process]] = {}
    try:
        found = read_pids(child, count)
        yield found
    finally:
        end([process for group in found.values() for process in group])
        child.kill()
        child.communicate(timeout=15)


def end(started: list[tree.Process]) -> None:
    """End what is left of them, each by pid and start time."""
    for process in started:
        tree.signal_process(process, signal.SIGKILL)


def end_below(subreaper: tree.Process) -> None:
    """End whatever is below a subreaper, known to us or not; nothing to do where that one is gone.

    It is stopped from now on: it starts nobody any more, and still gets every orphan, so that nobody escapes.
    """
    if tree.signal_process(subreaper, signal.SIGSTOP):
        tree.kill_all(lambda: tree.descendants(subreaper.pid, tree.processes()))
