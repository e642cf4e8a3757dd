"""until.py FILE: lives until FILE is there, and ends with the exit code that FILE holds for this rank, else with 0."""

import os
import sys
import time

rank = os.environ["RANK"]
print(f"rank {rank} generation {os.environ['SUPD_GENERATION']} pid {os.getpid()}", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
with open(sys.argv[1], encoding="ascii") as file:
    codes = dict(line.split() for line in file)
print(f"rank {rank} ends now", file=sys.stderr, flush=True)
sys.exit(int(codes.get(rank, "0")))
