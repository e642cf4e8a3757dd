"""stamper.py FOLDER: says when it ran, as long as it runs; ends with 0 once FOLDER/finish is there.

Each process has a file of its own, FOLDER/NODE.GENERATION.RANK.PID, and keeps two numbers in it: the time of its first
instruction and that of its newest one (CLOCK_BOOTTIME, seconds). They are still there when it was killed, frozen or
cut off, so that somebody may look afterwards whether two ran at once.
"""

import mmap
import os
import struct
import time

began_s = time.clock_gettime(time.CLOCK_BOOTTIME)

import sys  # noqa: E402  # what comes first is the stamp

folder, env = sys.argv[1], os.environ
own = f"{folder}/{env['SUPD_NODE']}.{env['SUPD_GENERATION']}.{env['RANK']}.{os.getpid()}"
with open(own, "w+b") as file:
    file.write(struct.pack("=dd", began_s, began_s))
    file.flush()
    page = mmap.mmap(file.fileno(), 16)
print("stamping", flush=True)
while not os.path.exists(f"{folder}/finish"):
    struct.pack_into("=d", page, 8, time.clock_gettime(time.CLOCK_BOOTTIME))
    time.sleep(0.01)
