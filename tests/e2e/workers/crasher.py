"""crasher.py --rank R --code N|--signal N [--generations G] [--after S]: rank R ends so in generations below G."""

import argparse
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=-1, help="-1: every rank")
parser.add_argument("--code", type=int)
parser.add_argument("--signal", type=int)
parser.add_argument("--after", type=float, default=0.0)
parser.add_argument("--generations", type=int, default=1_000_000)
parser.add_argument("--then", type=float, default=3600.0, help="seconds that all others live")
options = parser.parse_args()
rank, generation = int(os.environ["RANK"]), int(os.environ["SUPD_GENERATION"])
print(f"rank {rank} generation {generation} pid {os.getpid()}", flush=True)
if options.rank in (-1, rank) and generation < options.generations:
    time.sleep(options.after)
    print(f"rank {rank} ends now", file=sys.stderr, flush=True)
    if options.signal is not None:
        signal.signal(options.signal, signal.SIG_DFL) if options.signal not in (9, 19) else None
        os.kill(os.getpid(), options.signal)
    os._exit(options.code or 0)
time.sleep(options.then)
