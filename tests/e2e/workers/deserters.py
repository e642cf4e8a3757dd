"""deserters.py FILE keep|clear: leaves two processes outside of its session, one an orphan; FILE gets all three pids.

With `clear` they have an empty environment. All live until they are ended.
"""

import os
import sys
import time

where, how = sys.argv[1], sys.argv[2]


def note() -> None:
    with open(where, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


def desert() -> None:
    """Go on as another program, in a session of its own, deaf to SIGTERM's usual senders."""
    os.setsid()
    note()
    os.execve("/bin/sleep", ["sleep", "3600"], {} if how == "clear" else dict(os.environ))


note()
if os.fork() == 0:
    desert()
middle = os.fork()
if middle == 0:
    if os.fork() == 0:
        desert()
    os._exit(0)
os.waitpid(middle, 0)
print("ready", flush=True)
time.sleep(3600)
