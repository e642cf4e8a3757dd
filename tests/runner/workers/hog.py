"""Joins the cgroups whose folders are its arguments, says its pid, waits for a line, and takes more and more memory."""

import os
import sys

for folder in sys.argv[1:]:
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write("0")
os.write(1, f"hog {os.getpid()}\n".encode())
sys.stdin.readline()
taken = [os.urandom(1 << 20) for _ in range(256)]  # 256 MiB at most, should no limit hold
