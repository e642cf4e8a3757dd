"""Says who it is, then lives until it is ended; `--for S` ends it by itself with 0."""

import os
import sys
import time

env = os.environ
print(f"rank {env['RANK']} of {env['WORLD_SIZE']} generation {env['SUPD_GENERATION']} pid {os.getpid()}")
time.sleep(float(sys.argv[sys.argv.index("--for") + 1]) if "--for" in sys.argv else 3600)
