"""A guard and its runner that are forked off this process: they need not load what it has loaded.

Only while it has neither threads nor an event loop (docs/decisions/012). They are made as the executed ones are: a
session of their own, no descriptor but theirs, fresh signals, and words of their own for ps(1) and pkill(1).
"""

import ctypes
import gc
import os
import sys
import traceback
from collections.abc import Callable, Collection
from functools import partial
from typing import IO, NoReturn

from supervisor.front import preload as preload
from supervisor.runner import guard
from supervisor.shell import guarding
from supervisor.shell.runner_start import Orders

CRASHED = 70


class Forked:
    """A child, as subprocess.Popen has it."""

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit status; None: it has not ended."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        code = self._reap(0)
        assert code is not None
        return code

    def _reap(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def forked(orders: Orders) -> Forked:
    """Start a guard that starts its runner in the same way."""
    gc.freeze()  # what there is now is looked through by no process any more, and stays shared
    theirs, ours = os.pipe()
    pid = os.fork()
    if not pid:
        _be(lambda: _guard(orders, theirs))
    os.close(theirs)
    return Forked(pid, open(ours, "wb", buffering=0))


def _guard(orders: Orders, stdin: int) -> None:
    os.setsid()
    incarnation = guarding.pairs(orders.guard)["--incarnation"]
    _take_words("supd-guard", incarnation)
    _leave_variables(os.environb.keys() - orders.environ.keys())
    null = os.open(os.devnull, os.O_WRONLY)
    for number, fd in enumerate((stdin, null, orders.log_fd)):
        os.dup2(fd, number)
    gc.enable()
    guard.main([*orders.guard, "--", *orders.runner], partial(_fork_runner, incarnation))


def _fork_runner(incarnation: str, options: list[str]) -> int:
    pid = os.fork()
    if not pid:
        _be(lambda: _runner(incarnation, options))
    return pid


def _runner(incarnation: str, options: list[str]) -> None:
    os.setpgid(0, 0)
    guard.take_default_signals()
    _take_words("supd-runner", incarnation)
    gc.disable()
    from supervisor.runner import app  # only here

    gc.freeze()
    gc.enable()
    app.main(options)


def _be(what: Callable[[], None]) -> NoReturn:
    """To the end of this process, which never returns to what it has been before."""
    status = CRASHED
    try:
        what()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _take_words(*words: str) -> None:
    """In place of suprun's, which name the script: who kills all that has its name is not to kill what cleans up."""
    with open("/proc/self/comm", "w") as name:
        name.write(words[0])
    start, end = _places()[:2]
    room = end - start - 1  # the last byte stays 0: else the kernel looks for more behind it
    ctypes.memmove(start, "\0".join(words).encode()[:room].ljust(room, b"\0"), room)


def _leave_variables(names: Collection[bytes]) -> None:
    """Also for those who look at us: a rank's marker (shell/tree.py) is not ours, where suprun is a rank."""
    for name in names:  # first: it is looked for by what is written there
        del os.environb[name]
    at = _places()[2]
    with open("/proc/self/environ", "rb") as file:
        variables = file.read().split(b"\0")
    for variable in variables:
        if variable.partition(b"=")[0] in names:
            ctypes.memset(at, 0, len(variable))
        at += len(variable) + 1


def _places() -> tuple[int, int, int]:
    """Where words begin and end in memory, and where variables begin: fields 48, 49 and 50 of proc_pid_stat(5)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46]), int(fields[47])
