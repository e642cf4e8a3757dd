"""acts.py ACT...: does one act after the other, then ends with 0.

An act is a word, perhaps with an argument (`beat:20`), and in front of it perhaps who does it: `r1/` only rank 1,
`g0/` only generation 0 (`g0/r1/block`).

    print        writes a line to standard output
    beat:N       makes N steps, ten a second, and beats at each
    phase:NAME   declares a phase; `phase:` ends it
    done         says that no more beats come
    sleep:S      shows nothing for S seconds
    block        shows nothing for ever
    usleep:S     sleeps in C, without giving up the interpreter's lock
    child:N      lets a child process make N steps, which then ends
    rest         waits for a file `end` in the working directory
"""

import ctypes
import os
import subprocess
import sys
import time

import supd

RANK, GENERATION = os.environ["RANK"], os.environ["SUPD_GENERATION"]
steps = 0


def beat(times):
    global steps
    for _ in range(int(times)):
        steps += 1
        supd.beat(steps)
        time.sleep(0.1)


def block_for_ever():
    while True:
        time.sleep(60)


def hold_the_lock(seconds):
    ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))


def rest():
    while not os.path.exists("end"):
        beat(1)


for word in sys.argv[1:]:
    *who, act = word.split("/")
    act, _, argument = act.partition(":")
    if not all(w in (f"r{RANK}", f"g{GENERATION}") for w in who):
        continue
    if act == "print":
        print(f"rank {RANK} generation {GENERATION} pid {os.getpid()}", flush=True)
    elif act == "beat":
        beat(argument)
    elif act == "phase":
        supd.phase(argument)
    elif act == "done":
        supd.done()
    elif act == "sleep":
        time.sleep(float(argument))
    elif act == "block":
        block_for_ever()
    elif act == "usleep":
        hold_the_lock(argument)
    elif act == "child":
        subprocess.run([sys.executable, __file__, f"beat:{argument}"], check=True)
    elif act == "rest":
        rest()
    else:
        sys.exit(f"no such act: {word}")
