"""holder.py: leaves a child behind that ignores TERM and holds stdout; rank 1 then fails with an exception."""

import os
import subprocess
import time

subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 3600"])
print("ready", flush=True)
if os.environ["RANK"] == "1":
    raise RuntimeError("rank 1 has had enough")
time.sleep(3600)
