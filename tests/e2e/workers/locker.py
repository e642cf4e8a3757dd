"""Forks twice; the grandchild, in a session of its own, deaf to TERM, holds the only lock on `device`."""

import fcntl
import os
import signal
import time

device = os.open("device", os.O_WRONLY | os.O_CREAT, 0o600)
try:
    fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    raise SystemExit("the device is busy") from None
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in (0, 1, 2):
            os.close(fd)
        time.sleep(3600)
    os._exit(0)
os.wait()
os.close(device)
print("ready", flush=True)
time.sleep(3600)
