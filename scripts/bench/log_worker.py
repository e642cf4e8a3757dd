"""A rank that writes: so many numbered lines of 100 bytes as fast as `print` goes, or so many a second with the time in
each.

Stamps as worker.py's. It waits for the file that BENCH_GO names, so that its own start is not measured, and after its
last line it sleeps. With BENCH_BUFFERED its stdout has Python's usual buffer, else none (`python -u`).
"""

import os
import signal
import sys
import time

LINE_BYTES = 100
STAMPS = os.open(os.environ["BENCH_STAMPS"], os.O_WRONLY | os.O_APPEND)
RANK = os.environ["RANK"]


def now_s() -> float:
    """The clock of the stamps."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def stamp(event: str) -> None:
    """One line, in one write."""
    os.write(STAMPS, f"{event} {RANK} {os.getpid()} {now_s()!r}\n".encode())


def flood(lines: int) -> None:
    """As fast as it goes."""
    fill = "x" * (LINE_BYTES - len(f"{RANK} {0:08d} ") - 1)
    for number in range(lines):
        print(f"{RANK} {number:08d} {fill}")
    sys.stdout.flush()


def tick(lines: int, every_s: float) -> None:
    """One line after the other, at its time."""
    due_s = now_s()
    for _ in range(lines):
        due_s += every_s
        time.sleep(max(due_s - now_s(), 0))  # noqa: TID251  # the pace that is to be measured
        print(f"at {now_s()!r}")


stamp("started")
print(f"{RANK} ready", flush=True)
while not os.path.exists(os.environ["BENCH_GO"]):
    time.sleep(0.002)  # noqa: TID251  # until all are there
if os.environ.get("BENCH_BUFFERED"):
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # for the rest of its life
stamp("began")
if every_s := float(os.environ.get("BENCH_EVERY_S", 0)):
    tick(int(os.environ["BENCH_LINES"]), every_s)
else:
    flood(int(os.environ["BENCH_LINES"]))
stamp("written")
while True:
    signal.pause()
