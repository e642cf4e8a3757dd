"""Spawns a worker as the runner does, says both pids, and waits to be killed."""

import os
import signal
import sys

sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

from supervisor.runner.spawn import WorkerCommand, spawn

worker = spawn(WorkerCommand(argv=["sleep", "60"], env={b"PATH": b"/bin:/usr/bin"}, cwd="/", limits={}, umask=0o22))
os.write(1, f"spawner {os.getpid()}\nworker {worker.pid}\n".encode())
signal.alarm(60)
signal.pause()
