"""hog.py CGROUP_FOLDER: rank 0 moves itself into the cgroup and takes memory until it is killed; others live on.

It first lives there for longer than the runner's look at memory cgroups, which comes once a second.
"""

import os
import sys
import time

print("begins", flush=True)
if os.environ["RANK"] == "0":
    with open(f"{sys.argv[1]}/cgroup.procs", "w") as file:
        file.write("0")
    time.sleep(2.5)
    taken = [os.urandom(1 << 20) for _ in range(256)]  # 256 MiB at most, should no limit hold
time.sleep(3600)
