"""Writes any bytes in any chunks: SEED and the rank say which. In the middle it waits for the file GO.

Imported by the test, which knows by that what is to come out.
"""

import os
import random
import sys
import time
from collections.abc import Iterator

PIECES = 120


def chunks(seed: str, rank: int) -> Iterator[bytes]:
    """What this rank writes, write by write."""
    rng = random.Random(f"{seed}/{rank}")
    for _ in range(PIECES):
        kind = rng.randrange(6)
        size = rng.choice((1, 10, 100, 1000, 10_000))
        if kind == 0:
            yield rng.randbytes(size)
        elif kind == 1:
            yield b"\n" * rng.randrange(1, 5)
        elif kind == 2:
            yield b"\r" + b"#" * (size % 80)
        elif kind == 3:
            yield "\N{FULL BLOCK}".encode()[: rng.randrange(1, 4)]
        else:
            yield b"".join(b"%d of %d\n" % (number, rank) for number in range(min(size, 1000)))


def main() -> None:
    """Write it all."""
    seed, go = sys.argv[1:]
    rank = int(os.environ["RANK"])
    for number, chunk in enumerate(chunks(seed, rank)):
        if number == PIECES // 2:
            open(f"{go}.{rank}", "w").close()
            while not os.path.exists(go):
                time.sleep(0.01)  # the test says when
        while chunk:
            chunk = chunk[os.write(1, chunk) :]


if __name__ == "__main__":
    main()
