"""strays.py RATE SECONDS CODE: double-forks RATE children a second that live for 50 ms each, then exits with CODE."""

import os
import sys
import time

rate, seconds, code = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
print("begins", flush=True)
for _ in range(round(rate * seconds)):
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(1 / rate)
os._exit(code)
