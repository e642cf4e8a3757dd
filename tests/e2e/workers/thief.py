"""thief.py FREE: takes every ephemeral port but FREE of them, and changes these without end: one goes, one is taken.

Prints a line once all others are taken.
"""

import contextlib
import random
import socket
import sys
import time

held = []
with contextlib.suppress(OSError):
    while True:
        held.append(socket.create_server(("127.0.0.1", 0)))
for _ in range(int(sys.argv[1])):
    held.pop(random.randrange(len(held))).close()
print(len(held), flush=True)
while True:
    with contextlib.suppress(OSError):
        held.append(socket.create_server(("127.0.0.1", 0)))
        held.pop(random.randrange(len(held))).close()
    time.sleep(0.05)
