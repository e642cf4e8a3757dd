"""copies.py FOLDER: notes its start, finds out whether its rank runs twice, ends with 0 once FOLDER/finish is there.

One lock a run and rank: it is free again when the process that held it is gone, and never before.
"""

import fcntl
import os
import sys
import time

folder, env = sys.argv[1], os.environ
who = f"{env['SUPD_RUN']} {env['RANK']} {env['SUPD_GENERATION']} {os.getpid()}"


def note(what: str) -> None:
    """One line in one write(2), which O_APPEND puts behind all others."""
    os.write(notes, f"{who} {what}\n".encode())


notes = os.open(f"{folder}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
lock = os.open(f"{folder}/{env['SUPD_RUN']}.{env['RANK']}", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("twice")
note("start")
print("started", flush=True)
while not os.path.exists(f"{folder}/finish"):
    time.sleep(0.05)
note("end")
