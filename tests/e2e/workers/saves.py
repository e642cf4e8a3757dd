"""saves.py FOLDER [ARG ...]: rank 0 saves whenever FOLDER/save is there, and takes that away; ends with 0 on TERM.

A save is a number in FOLDER/marker, one higher than before. FOLDER/notes gets lines "GENERATION RANK NODE WHAT", of
which WHAT is `start` with the reason of the restart and the arguments, or the name of a signal.
"""

import os
import signal
import sys
import time

folder, env = sys.argv[1], os.environ
who = f"{env['SUPD_GENERATION']} {env['RANK']} {env['SUPD_NODE']}"


def note(what: str) -> None:
    """One line in one write(2), which O_APPEND puts behind all others."""
    os.write(notes, f"{who} {what}\n".encode())


def heed(number: int, frame: object) -> None:
    """Ends on TERM."""
    note(signal.Signals(number).name)
    if number == signal.SIGTERM:
        os._exit(0)


notes = os.open(f"{folder}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, heed)
note(f"start {env.get('SUPD_RESTART_REASON', '')!r} {' '.join(sys.argv[2:])}".rstrip())
print("started", flush=True)
step = int(env.get("SUPD_RESUME_STEP") or 0)
while True:
    if env["RANK"] == "0" and os.path.exists(f"{folder}/save"):
        os.unlink(f"{folder}/save")
        step += 1
        with open(f"{folder}/marker.new", "w") as marker:
            marker.write(str(step))
        os.replace(f"{folder}/marker.new", f"{folder}/marker")
    time.sleep(0.02)
