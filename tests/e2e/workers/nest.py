"""Starts a child that makes a session of its own, starts a `sleep` and waits for it; its pid goes to `nest-RANK`."""

import os
import subprocess
import sys
import time

CHILD = "import os, subprocess; os.setsid(); subprocess.run(['sleep', '3600'])"

child = subprocess.Popen([sys.executable, "-c", CHILD])
while os.getsid(child.pid) == os.getsid(0):
    time.sleep(0.01)
print("ready", flush=True)
child.wait()
