"""peers.py CODE ...: one code a rank, waited for by all. Rank R ignores TERM and exits with its code once every rank
is there; "term": it waits for TERM; "term:N": on TERM it exits with N. The working directory is the meeting place."""

import os
import signal
import sys
import time
from pathlib import Path

codes = sys.argv[1:]
own = codes[int(os.environ["RANK"])]
if own.startswith("term:"):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(int(own.partition(":")[2])))
elif own != "term":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(f"here-{os.environ['RANK']}").touch()
while not all(Path(f"here-{rank}").exists() for rank in range(len(codes))):
    time.sleep(0.01)
if not own.startswith("term"):
    os._exit(int(own))
time.sleep(3600)
