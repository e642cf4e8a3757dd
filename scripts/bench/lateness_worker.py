"""The ranks of the lateness bench: `lateness_worker.py idle|flood|spin|fill [FILE BYTES]`."""

import signal
import sys

LINE = b"step 1200 loss 3.1415 lr 0.0003 tokens/s 120000 and so on, as such lines go\n" * 400
READ_BYTES = 1 << 20


def idle() -> None:
    """Nothing at all."""
    while True:
        signal.pause()


def flood() -> None:
    """Output as fast as it is taken."""
    while True:
        sys.stdout.buffer.write(LINE)


def spin() -> None:
    """All the CPU that there is to be had."""
    while True:
        pass


def fill() -> None:
    """So much memory that little is left, and a large file read again and again through what is left."""
    held = bytearray(int(sys.argv[3]))
    held[::4096] = b"x" * len(held[::4096])
    while True:
        with open(sys.argv[2], "rb", buffering=0) as file:
            while file.read(READ_BYTES):
                pass


next(kind for kind in (idle, flood, spin, fill) if kind.__name__ == sys.argv[1])()
