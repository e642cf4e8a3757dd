"""saver.py [--until FILE | --for S]: asked to end by TERM, it takes its time to save, says so, and ends with 0.
With --rank-0-ends rank 0 does not wait for that, and ends with 0 at once.

In its working directory: `term-JOB-GEN-RANK` when TERM has come, `saved-JOB-GEN-RANK` when it has saved; and in
`starts` a line "JOB GEN RANK" for each start.
"""

import os
import signal
import sys
import time

place = [os.environ[name] for name in ("SUPD_JOB", "SUPD_GENERATION", "RANK")]
name = "-".join(place)


def save(number: int, frame: object) -> None:
    open(f"term-{name}", "w").close()
    if "--until" in sys.argv:
        while not os.path.exists(sys.argv[sys.argv.index("--until") + 1]):
            time.sleep(0.01)
    if "--for" in sys.argv:
        time.sleep(float(sys.argv[sys.argv.index("--for") + 1]))
    open(f"saved-{name}", "w").close()
    os._exit(0)


signal.signal(signal.SIGTERM, save)
with open("starts", "a") as starts:
    starts.write(" ".join(place) + "\n")
print("ready", flush=True)
if "--rank-0-ends" in sys.argv and os.environ["RANK"] == "0":
    sys.exit()
while True:
    signal.pause()
