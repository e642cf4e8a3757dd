"""clinging.py FOLDER: ends with 1 when another rank of its generation is gone, as programs do that lose touch with a
peer: rank R 0.05 s x R after it has seen that."""

import os
import sys
import time
from pathlib import Path

env = os.environ
rank, size, folder = int(env["RANK"]), int(env["WORLD_SIZE"]), Path(sys.argv[1])
marks = [folder / f"{env['SUPD_GENERATION']}.{other}" for other in range(size)]
own = folder / f"new-{os.getpid()}"
own.write_text(str(os.getpid()))
own.rename(marks[rank])
while not all(mark.exists() for mark in marks):
    time.sleep(0.01)
print("ready", flush=True)
pids = [int(mark.read_text()) for mark in marks]


def is_there(pid: int) -> bool:
    """Zombies count as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


while all(map(is_there, pids)):
    time.sleep(0.01)
time.sleep(0.05 * rank)
sys.exit(1)
