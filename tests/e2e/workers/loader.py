"""Its child, with TERM's default action, makes items; asked to end, it needs one more of them before it can save."""

import os
import signal
import sys
import time

name = f"{os.environ['SUPD_GENERATION']}-{os.environ['RANK']}"
wanted_r, wanted_w = os.pipe()
items_r, items_w = os.pipe()
if os.fork() == 0:
    os.close(wanted_w)
    while os.read(wanted_r, 1):
        os.write(items_w, b"x" * 8)
    os._exit(0)
os.close(wanted_r)
os.close(items_w)


def save(number: int, frame: object) -> None:
    time.sleep(0.1)  # whoever else was signalled has had the time to end
    try:
        os.write(wanted_w, b"1")
        item = os.read(items_r, 8)
    except BrokenPipeError:
        item = b""
    if not item:
        sys.exit("the data loader is dead")
    open(f"saved-{name}", "w").close()
    os._exit(0)


signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
