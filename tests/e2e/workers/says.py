"""Ends with code 3, and says of it in its error file what the word for its rank stands for, as `@record` would.

error    that of a ValueError              late     the same, once rank 0's is 2 seconds old; then it ends
hang     the same, and does not end        nothing  it does not end
junk     bytes that are none   pipe        a pipe that nobody writes to         huge     more than is read
"""

import json
import os
import sys
import time
from pathlib import Path

path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
rank = int(os.environ["RANK"])
word = sys.argv[1:][rank]


def said(second: float) -> str:
    stack = f'Traceback (most recent call last):\n  File "train.py", line 3{rank}, in f\nValueError: no shard {rank}\n'
    extra = {"py_callstack": stack, "timestamp": str(int(second))}
    return json.dumps({"message": {"message": f"ValueError: no shard {rank}\nat all", "extraInfo": extra}})


if word == "late":
    first = path.with_name("rank-00000.error.json")
    while not first.exists() or time.time() < first.stat().st_mtime + 2:
        time.sleep(0.05)
if word in ("error", "late"):
    path.write_text(said(time.time()))
elif word == "hang":
    draft = path.with_name("draft")
    draft.write_text(said(time.time()))
    draft.rename(path)
elif word == "junk":
    path.write_bytes(b'{"message": {"message": \xff')
elif word == "pipe":
    os.mkfifo(path)
elif word == "huge":
    with path.open("wb") as file:
        file.truncate(1 << 30)
if word in ("hang", "nothing"):
    time.sleep(1000)
sys.exit(3)
