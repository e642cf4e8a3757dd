"""Says how it was launched, does what the words say, and ends with a code.

sleep            until a signal ends it          deaf       SIGTERM does nothing
exit:RANK:CODE   that rank ends with that code   once       only in generation 0
family           has a child in a session of its own
usr1             says so when SIGUSR1 comes
"""

import os
import signal
import subprocess
import sys
import time

NAMES = "RANK LOCAL_RANK WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"

words = sys.argv[1:]
rank = int(os.environ["RANK"])
if "deaf" in words:
    signal.signal(signal.SIGTERM, lambda *_: print(f"deaf {rank}", flush=True))
if "usr1" in words:
    signal.signal(signal.SIGUSR1, lambda *_: print(f"warned {rank}", flush=True))
if "family" in words:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
sys.stdout.write("up " + " ".join(f"{name}={os.environ[name]}" for name in NAMES.split()) + "\n")
sys.stdout.flush()
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for word in words:
    if word.startswith("exit:"):
        _, which, code = word.split(":")
        if rank == int(which) and (is_first or "once" not in words):
            sys.exit(int(code))
if "sleep" in words or ("once" in words and is_first):
    end = time.time() + 1000
    while time.time() < end:
        time.sleep(0.1)
print(f"done {rank}", flush=True)
