"""writer.py BYTES END: BYTES of text without a newline to each stream, then exit END, or by signal -END."""

import os
import signal
import sys

size, end = int(sys.argv[1]), int(sys.argv[2])
for fd, word in ((1, b"out"), (2, b"err")):
    text = b"".join(b"%s-%07d " % (word, n) for n in range(size // 12 + 1))[:size]
    while text:
        text = text[os.write(fd, text) :]
if end < 0:
    os.kill(os.getpid(), -end)
    signal.pause()
os._exit(end)
