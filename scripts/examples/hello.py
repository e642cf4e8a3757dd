"""The smallest job: every rank says where it stands, then counts. Kill one of them and see all come back."""

import argparse
import os
import time

try:
    from supd import beat
except ImportError:  # outside supd: there is nobody to tell

    def beat(step: int) -> None:
        """The step is done."""


def main() -> None:
    """Count to `--steps`, one step each `--pace` seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pace", type=float, default=0.5, metavar="SECONDS")
    options = parser.parse_args()

    rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    generation = os.environ.get("SUPD_GENERATION", "0")
    print(f"hello from rank {rank} of {world_size}, generation {generation}, pid {os.getpid()}", flush=True)
    for step in range(1, options.steps + 1):
        time.sleep(options.pace)  # noqa: TID251  # stands for the work of a step
        print(f"step {step}", flush=True)
        beat(step)


if __name__ == "__main__":
    main()
