"""victims.py FILE: in generation 0, once FILE is there, rank 3 ends with 7, and all others die of it: by themselves a
little later, or, asked to end by TERM, in their own time with 1."""

import os
import signal
import sys
import time

rank = int(os.environ["RANK"])
is_last = os.environ["SUPD_GENERATION"] != "0"


def die(number: int, frame: object) -> None:
    if not is_last:
        time.sleep(0.3 * (1 + rank))
        os._exit(1)
    os._exit(0)


signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 0 and not is_last else die)
print("ready", flush=True)
while is_last or not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
if rank == 3:
    os._exit(7)
time.sleep(1.0)
os._exit(1)
