"""A rank that says a line, waits for a file named after its generation, says another, and fails once."""

import os
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
rank, generation = os.environ["RANK"], os.environ["SUPD_GENERATION"]
print(f"generation {generation} rank {rank} begins", flush=True)
while not (folder / f"go-{generation}").exists():
    time.sleep(0.01)
print(f"generation {generation} rank {rank} ends", flush=True)
sys.exit(generation == "0" and rank == "0")
