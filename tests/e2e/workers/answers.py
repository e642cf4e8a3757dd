"""answers.py HOW: gets the pre-signal USR1 and answers it: by "done" (supd.done()), by "save" (another number in
`marker`, which rank 0 writes), by "say" (the same as a line of output), or not at all ("silent"). TERM ends it.

In its working directory `told-JOB-GEN-RANK` has a JSON object a line: what it was sent, and what SUPD_STOP_FILE and
SUPD_RESUME_STEP said by then.
"""

import json
import os
import signal
import sys

import supd

how, env = sys.argv[1], os.environ
rank, generation = int(env["RANK"]), int(env["SUPD_GENERATION"])


def stop_file() -> object:
    try:
        with open(env["SUPD_STOP_FILE"]) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def tell(what: str) -> None:
    line = {"what": what, "file": stop_file(), "path": env["SUPD_STOP_FILE"], "resume": env.get("SUPD_RESUME_STEP")}
    with open(f"told-{env['SUPD_JOB']}-{generation}-{rank}", "a") as file:
        file.write(json.dumps(line) + "\n")


def save(step: int) -> None:
    if rank == 0:
        with open("marker.new", "w") as marker:
            marker.write(f"step-{step}")
        os.replace("marker.new", "marker")


def on_pre_signal(number: int, frame: object) -> None:
    tell("USR1")
    if how == "done":
        supd.done()
    elif how == "save":
        save(100 * (generation + 1))
    elif how == "say":
        print("saved", 100 * (generation + 1), flush=True)


def on_term(number: int, frame: object) -> None:
    tell("TERM")
    os._exit(0)


signal.signal(signal.SIGUSR1, on_pre_signal)
signal.signal(signal.SIGTERM, on_term)
supd.beat(generation)
tell("start")
print("ready", flush=True)
while True:
    signal.pause()
