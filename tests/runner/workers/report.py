"""Writes as JSON what a worker was started with."""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path

with open("/proc/self/status") as file:
    status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
death_signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death_signal))
umask = os.umask(0)
json.dump(
    {
        "argv": sys.argv[1:],
        "blocked": status["SigBlk"],
        "cwd": os.getcwd(),
        "death_signal": death_signal.value,
        "env": dict(os.environ),
        "fds": sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")),
        "group": os.getpgrp(),
        # As the kernel has it, less the two that Python ignores at its own start.
        "ignored": int(status["SigIgn"], 16) & ~(1 << 12) & ~(1 << 24),
        "input": os.readlink("/proc/self/fd/0"),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in ("NOFILE", "CORE")},
        "nice": os.nice(0),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "session": os.getsid(0),
        "umask": umask,
    },
    sys.stdout,
)
