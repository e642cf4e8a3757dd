"""Ignores TERM and INT, and appends "GEN RANK PID" to `beats` in its working directory, again and again."""

import os
import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
line = f"{os.environ['SUPD_GENERATION']} {os.environ['RANK']} {os.getpid()}\n".encode()
beats = os.open("beats", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
print("ready", flush=True)
while True:
    os.write(beats, line)
    time.sleep(0.02)
