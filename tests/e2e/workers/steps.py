"""steps.py HOW TOTAL [FILE]: makes steps, about 50 a second, and shows them; then waits for a file `end`.

HOW is log (a line a step), bar (a progress bar on stderr), file (FILE holds the number), json (FILE holds an
object), or noise (lines without a step). With a file `hold` in the working directory it begins only when that is
gone. Rank 1 makes but half of the steps.
"""

import json
import os
import sys
import time

how, total = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])


def write(text: str) -> None:
    draft = f"{sys.argv[3]}.new"
    with open(draft, "w") as file:
        file.write(text)
    os.replace(draft, sys.argv[3])


print("ready", flush=True)
while os.path.exists("hold"):
    time.sleep(0.01)
for step in range(1, (total if rank != 1 else total // 2) + 1):
    if how == "log":
        print(f"[rank {rank}] step {step}/{total} loss {100 / step:.3f} lr 1e-4", flush=True)
    elif how == "bar":
        print(f"\r{step * 100 // total:3}%|###| {step}/{total} [00:01<00:09]", end="", file=sys.stderr, flush=True)
    elif how == "file":
        write(str(step))
    elif how == "json":
        write(json.dumps({"step": step, "total": total, "loss": 100 / step}))
    else:
        print("1" + "x" * 1000, flush=True)
    time.sleep(0.02)
if how == "bar":
    print(file=sys.stderr)
while not os.path.exists("end"):
    time.sleep(0.01)
