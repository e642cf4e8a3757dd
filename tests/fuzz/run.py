"""The command line of scripts/fuzz."""

import argparse
import multiprocessing
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import structlog

from tests.fuzz.bombard import FRAMES_A_ROUND, play_round
from tests.fuzz.guest import play_guest
from tests.fuzz.machines import PLAYS

MEMORY = Path("/dev/shm")
"""Where supd's disk is, if it can be: what is waited for is no disk's speed."""

ROUND_LIMIT_S = 120
"""For the next round to end; one takes some seconds."""

GUEST_EVERY = 5
"""Of so many rounds one is about a supd that does not host."""

Found = tuple[int, Counter[str], str]
"""A round, what became of its frames, and why it has failed."""


def main() -> int:
    """Send frames, or play with a machine; ends with 1 at the first failure."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Says anything to supd, which must bear it.")
    parser.add_argument("--frames", type=int, default=100_000, metavar="N", help="how many; default: 100000")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="of another run, to say the same; default: any")
    parser.add_argument(
        "--from", type=int, default=0, dest="first", metavar="ROUND", help="the first round; default: 0"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes; default: one a core")
    parser.add_argument("--machine", choices=PLAYS, help="instead: one play of one machine, by --seed")
    given = parser.parse_args()
    if given.machine is not None:
        PLAYS[given.machine](Random(f"{given.machine} {given.seed}"))
        return 0
    in_memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="supd-f-", dir=in_memory, ignore_cleanup_errors=True) as folder:
        return send(Path(folder), given.seed, given.first, given.frames, given.jobs)


def send(folder: Path, seed: str, first: int, frames: int, jobs: int) -> int:
    """Rounds of frames, each to a supd of its own below `folder`; returns the exit code."""
    counts: Counter[str] = Counter()
    begun_s = time.perf_counter()
    rounds = [(folder, seed, first + number, size) for number, size in enumerate(sizes(frames))]
    next_round = first
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        try:
            results = pool.imap(one_round, rounds)
            for _ in rounds:
                number, found, error = results.next(ROUND_LIMIT_S)
                if error:
                    tell(f"{error}\n{again(seed, number)}")
                    return 1
                counts += found
                next_round = number + 1
        except multiprocessing.TimeoutError:
            tell(f"no end after {ROUND_LIMIT_S} s\n{again(seed, next_round)}")
            return 1
        except KeyboardInterrupt:
            tell(f"go on with: scripts/fuzz --seed {seed} --from {next_round}")
            return 130
    rate = counts.total() / (time.perf_counter() - begun_s)
    tell(f"{counts.total()} frames, {rate:.0f} a second, seed {seed}")
    for what, count in sorted(counts.items()):
        tell(f"{count:9} {what}")
    return 0


def again(seed: str, number: int) -> str:
    """How to see a failure again."""
    return f"again: scripts/fuzz --seed {seed} --from {number} --frames {FRAMES_A_ROUND}"


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def sizes(frames: int) -> Iterator[int]:
    """Of the rounds."""
    while frames > 0:
        yield min(frames, FRAMES_A_ROUND)
        frames -= FRAMES_A_ROUND


def one_round(what: tuple[Path, str, int, int]) -> Found:
    """One round, in a process of the pool."""
    base, seed, number, size = what
    structlog.configure(processors=[_drop])
    folder = base / str(number)
    folder.mkdir()
    try:
        play = play_guest if number % GUEST_EVERY == GUEST_EVERY - 1 else play_round
        return number, play(folder, f"{seed} {number}", size), ""
    except Exception:
        return number, Counter(), traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _drop(logger: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
