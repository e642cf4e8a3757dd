"""Fleets from seeds, on all cores: the real machines of protocol/ in virtual time, with everything going wrong."""

import argparse
import os
import sys
import time

from tests.sim import coverage
from tests.sim.draws import Nodes
from tests.sim.setup import NAMES
from tests.sim.simulate import Findings, run_many, run_one, told

TAIL = 60
"""Lines of a trace that are shown of a failure."""

FAILURES_MAX = 20
"""Failures that are told."""

NODES_LEAST = 3
"""With fewer there is nobody to bear witness."""


def main(argv: list[str] | None = None) -> int:
    """`scripts/simulate`; returns the exit code: 0, 1 where a rule was broken or something was never met."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="how many (default: 500)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="begin with this one")
    parser.add_argument("--nodes", type=_nodes, metavar="A-B", help="fleets of so many nodes (default: 3-8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: cores)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    args = parser.parse_args(argv)
    if args.seed is not None:
        world, failure = run_one(args.seed, args.nodes, is_traced=True)
        print(told(world, failure, sys.maxsize if args.trace else TAIL if failure else 0))
        print("a rule was broken" if failure else "every rule was kept")
        return 1 if failure else 0
    return _search(range(args.first, args.first + max(args.seeds, 0)), max(args.jobs, 1), args.nodes)


def _nodes(text: str) -> Nodes:
    least, _, most = text.partition("-")
    if not (least.isdecimal() and most.isdecimal() and NODES_LEAST <= int(least) <= int(most) <= len(NAMES)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A-B, of {NODES_LEAST} to {len(NAMES)}")
    return int(least), int(most)


def _search(seeds: range, jobs: int, nodes: Nodes | None) -> int:
    found, left, began_s = Findings(), set(seeds), time.perf_counter()
    try:
        for done, some in run_many(seeds, jobs, nodes):
            found.add(some)
            left -= set(done)
            _tell_progress(found, seeds, began_s)
    except KeyboardInterrupt:
        of = "" if nodes is None else f"--nodes {nodes[0]}-{nodes[1]} "
        print(f"\nstopped; go on with: scripts/simulate {of}--from {min(left)} --seeds {seeds.stop - min(left)}")
        return 130
    print("\n")
    for name, count in sorted(found.seen.items()):
        print(f"{count:10,} {name}")
    never, unknown = coverage.never_met(found.seen), coverage.unknown(found.seen)
    for name in never:
        print(f"{'never':>10} {name}")
    for name in unknown:
        print(f"{'unknown':>10} {name} (tests/sim/coverage.py)")
    if found.failures:
        print(f"\n{len(found.failures)} of {found.seeds} seeds broke a rule. The first:\n")
        print(told(*run_one(found.failures[0].seed, nodes, is_traced=True), TAIL))
        for failure in found.failures[1:FAILURES_MAX]:
            print(f"also seed {failure.seed}: {failure.what}")
    return 1 if found.failures or never or unknown else 0


def _tell_progress(found: Findings, seeds: range, began_s: float) -> None:
    rate = found.seeds / (time.perf_counter() - began_s)
    text = f"{found.seeds} of {len(seeds)} seeds, {rate:.0f} seeds/s, {found.virtual_s / 3600:.1f} h of fleets"
    is_last = found.seeds == len(seeds)
    if sys.stdout.isatty() or is_last:
        print(f"\r{text}, {len(found.failures)} broke a rule", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
