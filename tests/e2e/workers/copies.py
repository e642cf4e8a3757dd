"""copies.py FOLDER: notes its start, finds out who else of its run is alive, ends with 0 once FOLDER/finish is there.

Notes are lines "RUN RANK GENERATION PID WHAT": `start`, `end`, and `twice` where its rank, or any rank of another
generation, is alive at its start. Each process holds a lock of its own, one byte of a file (fcntl(2)): it is free again
when the process is gone, and never before. Every fourth takes a second to end when it is asked to: who does not wait
for the last one is seen.
"""

import fcntl
import os
import signal
import struct
import sys
import time

folder, env = sys.argv[1], os.environ
who = f"{env['SUPD_RUN']} {env['RANK']} {env['SUPD_GENERATION']} {os.getpid()}"
FLOCK = "hhqqi"
RANKS_MAX = 1000
first = int(env["SUPD_GENERATION"]) * RANKS_MAX
own = first + int(env["RANK"])


def note(what: str) -> None:
    """One line in one write(2), which O_APPEND puts behind all others."""
    os.write(notes, f"{who} {what}\n".encode())


def end_slowly(number: int, frame: object) -> None:
    """A second later."""
    time.sleep(1.0)
    os._exit(128 + number)


def is_held(start: int, length: int) -> bool:
    """Whether another process holds a lock there; a length of 0: to the end."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind: int = struct.unpack(FLOCK, fcntl.fcntl(locks, fcntl.F_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


if os.getpid() % 4 == 0:
    signal.signal(signal.SIGTERM, end_slowly)
notes = os.open(f"{folder}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
locks = os.open(f"{folder}/{env['SUPD_RUN']}", os.O_RDWR | os.O_CREAT, 0o600)
others = is_held(own, 1) or (first and is_held(0, first)) or is_held(first + RANKS_MAX, 0)
fcntl.lockf(locks, fcntl.LOCK_EX, 1, own)
if others:
    note("twice")
note("start")
print("started", flush=True)
while not os.path.exists(f"{folder}/finish"):
    time.sleep(0.05)
note("end")
