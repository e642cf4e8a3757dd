"""The worker of every side: says when its first line ran, then sleeps; on SIGUSR1 it says so and dies, and on SIGTERM
it says that it was told to end.

Stamps are lines `EVENT RANK PID SECONDS` (CLOCK_MONOTONIC, one clock for all processes of a machine), appended to the
file that BENCH_STAMPS names: nothing is taken from output, which one side may hold back.
"""

import time

FIRST_LINE_S = time.clock_gettime(time.CLOCK_MONOTONIC)

import os  # noqa: E402  # nothing before the line above that could take time
import signal  # noqa: E402

STAMPS = os.open(os.environ["BENCH_STAMPS"], os.O_WRONLY | os.O_APPEND)


def stamp(event: str, at_s: float) -> None:
    """One line, in one write."""
    os.write(STAMPS, f"{event} {os.environ['RANK']} {os.getpid()} {at_s!r}\n".encode())


def die(*_: object) -> None:
    """Fail, at a known time."""
    stamp("died", time.clock_gettime(time.CLOCK_MONOTONIC))
    os._exit(1)


def leave(number: int, _frame: object) -> None:
    """End by the very signal, as a program does that knows nothing of it."""
    stamp("told", time.clock_gettime(time.CLOCK_MONOTONIC))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


stamp("started", FIRST_LINE_S)
signal.signal(signal.SIGUSR1, die)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"running\n")
while True:
    signal.pause()
