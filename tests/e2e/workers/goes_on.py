"""Trains until a signal tells it to end, saves, and ends with 75 once all ranks have. With a save it is soon done."""

import os
import signal
import sys
import time
from pathlib import Path

rank, world_size = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
start = os.environ.get("SLURM_RESTART_COUNT", "0")
told: list[int] = []


def on_signal(number: int, _frame: object) -> None:
    """Leaves a line in a file: what is printed may be lost, Slurm ends whoever shows it as well."""
    told.append(number)
    with Path(f"told-{rank}").open("a") as file:
        print(signal.Signals(number).name, file=file)


for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, on_signal)
print(f"up {rank} start={start}", flush=True)
if start == "0":
    while not told:
        time.sleep(0.05)
    Path(f"saved-{rank}").touch()
    while len([*Path().glob("saved-*")]) < world_size:
        time.sleep(0.05)
    sys.exit(75)
assert Path(f"saved-{rank}").exists()
print(f"done {rank}", flush=True)
