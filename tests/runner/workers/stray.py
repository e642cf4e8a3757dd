"""Processes that are hard to get rid of: `stray.py KIND` writes `KIND PID` for each that it leaves, and sleeps.

Stdlib only, started by the tests. Each ends by itself after a minute, so that a failing test leaves nothing.
"""

import os
import signal
import sys
import threading
from typing import NoReturn

LIFETIME_S = 60


def say(name: str) -> None:
    os.write(1, f"{name} {os.getpid()}\n".encode())


def sleep() -> NoReturn:
    signal.alarm(LIFETIME_S)
    while True:
        signal.pause()


def forked(leaves_session: bool) -> bool:
    """Fork twice, so that the grandchild is an orphan: True in it."""
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return False
    if leaves_session:
        os.setsid()
    if os.fork() != 0:
        os._exit(0)
    return True


def sleeper() -> None:
    say("sleeper")


def deaf() -> None:
    """Ignores every signal that can be ignored."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
        signal.signal(number, signal.SIG_IGN)
    say("deaf")


def daemon() -> None:
    """Leaves a daemon behind that has a session of its own and no environment."""
    if forked(leaves_session=True):
        say("daemon")
        os.execve("/bin/sleep", ["sleep", str(LIFETIME_S)], {})
    say("parent")


def orphan() -> None:
    """Leaves an orphan in its own session."""
    if forked(leaves_session=False):
        say("orphan")
    else:
        say("parent")


def storm() -> None:
    """Fifty children, every other one in a session of its own, every third one with a child: 68 processes.

    No child ever comes back into the loop: it would double the storm at every turn.
    """
    for number in range(50):
        if os.fork() == 0:
            drop(number)
    say("drop")


def drop(number: int) -> NoReturn:
    if number % 2:
        os.setsid()
    if number % 3 == 0:
        os.fork()  # both go on to the same end
    say("drop")
    sleep()


def headless() -> None:
    """A process whose first thread has ended while another one runs on: a zombie by its looks only."""
    import ctypes

    threading.Thread(target=lambda: threading.Event().wait(LIFETIME_S)).start()
    say("headless")
    ctypes.CDLL(None).syscall(60, 0)  # exit(2) of this thread alone, on x86-64


KINDS = (sleeper, deaf, daemon, orphan, storm, headless)

if __name__ == "__main__":
    next(kind for kind in KINDS if kind.__name__ == sys.argv[1])()
    sleep()
