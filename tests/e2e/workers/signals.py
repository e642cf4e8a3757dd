"""signals.py [--end-on NAME]: writes the names of the signals it gets to `got-JOB-RANK`, one a line, in order.

It has a child that would die of any of them and is looked at then: "child dead" is a line too. Ends with 0 on NAME.
"""

import os
import signal
import subprocess
import sys

child = subprocess.Popen(["sleep", "3600"])
end_on = sys.argv[sys.argv.index("--end-on") + 1] if "--end-on" in sys.argv else "SIGTERM"


def note(number: int, frame: object) -> None:
    name = signal.Signals(number).name
    with open(f"got-{os.environ['SUPD_JOB']}-{os.environ['RANK']}", "a") as file:
        file.write(f"{name}\n" if child.poll() is None else f"{name}, child dead\n")
    if name == end_on:
        os._exit(0)


for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
print("ready", flush=True)
while True:
    signal.pause()
