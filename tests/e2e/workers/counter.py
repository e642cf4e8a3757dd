"""counter.py FOLDER: a numbered line every 20 ms, until there is a file `enough` in the folder."""

import itertools
import os
import sys
import time
from pathlib import Path

enough = Path(sys.argv[1]) / "enough"
for number in itertools.count():
    print(f"rank {os.environ['RANK']} line {number}", flush=True)
    if enough.exists():
        break
    time.sleep(0.02)
