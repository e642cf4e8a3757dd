"""With its child it can only end in step: asked to end, it waits for the child's end (which nobody asks but supd)."""

import os
import signal
import subprocess

child = subprocess.Popen(["sleep", "3600"])


def save(number: int, frame: object) -> None:
    child.wait()
    open(f"saved-{os.environ['RANK']}", "w").close()
    os._exit(0)


signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
