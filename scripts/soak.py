"""Rows of the table of losses, one after the other: processes, links and groups, for 0.4, 2 and 12 lease times."""

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from scripts.hosts.namespaces import why_impossible
from supervisor.shell.clock import boot_s
from tests.e2e.loss_rows import FOUR, THREE, of_groups, of_links, of_processes, of_slow_links
from tests.e2e.losses import Lease, Row, Stage


@dataclass(frozen=True)
class Part:
    """Rows that have one stage."""

    nodes: str
    lease: Lease
    rows: Sequence[Row]


@dataclass(frozen=True)
class Result:
    """Of one row."""

    row: Row
    took_s: float
    generation: int | None  # where the run was in the end
    failure: str  # "": its promise was kept


def parts(lease: Lease, pattern: str) -> list[Part]:
    """All rows whose name fits the pattern."""
    every = (
        (THREE, lease, of_processes()),
        (FOUR, lease, of_links()),
        (FOUR, lease, of_groups(lease)),
        (FOUR, Lease.DEFAULTS, of_slow_links()),
    )
    return [Part(nodes, times, [row for row in rows if fnmatchcase(row.name, pattern)]) for nodes, times, rows in every]


def play(part: Part, times: int, results: list[Result]) -> None:
    """Adds to `results`, and tells each as it comes."""
    with Stage(len(part.nodes), part.lease) as stage:
        for row in [*part.rows] * times:
            print(f"{row.name:<36}", end="", flush=True)
            began_s, generation, failure = boot_s(), None, ""
            try:
                generation = stage.play(row)
            except Exception as exc:  # whatever it is, the other rows are played
                failure = "\n    ".join([f"{type(exc).__name__}: {exc}", *getattr(exc, "__notes__", [])])
            results.append(Result(row, boot_s() - began_s, generation, failure))
            print("\n    ".join([_told(results[-1]), *(f"not counted: {why}" for why in stage.excused)]), flush=True)


def _told(result: Result) -> str:
    word = "BROKEN" if result.failure else f"kept, in generation {result.generation}"
    told = f"{word:<24}{result.took_s:7.1f} s   {result.row.course.value}"
    return f"{told}\n    {result.failure}" if result.failure else told


def summary(results: Iterable[Result]) -> str:
    """How often each promise was kept."""
    of: dict[str, list[Result]] = {}
    for result in results:
        of.setdefault(result.row.name, []).append(result)
    lines = [f"{'row':<36}{'kept':>9}{'slowest':>11}   promise"]
    for name, some in of.items():
        kept, slowest_s = sum(not result.failure for result in some), max(result.took_s for result in some)
        lines.append(f"{name:<36}{f'{kept}/{len(some)}':>9}{slowest_s:9.1f} s   {some[0].row.course.value}")
    broken = sum(bool(result.failure) for some in of.values() for result in some)
    lines.append(f"\n{broken} of {sum(map(len, of.values()))} were broken")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """`scripts/soak`; returns the exit code: 0, 1 where a promise was broken, 2 where nothing can be played."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--lease-defaults", action="store_true", help="times of the lease: 5 s instead of 2 s")
    parser.add_argument("--rows", default="*", metavar="PATTERN", help="only these, as in: 'node-*-long'")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="each so often (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the rows, and play none")
    options = parser.parse_args(argv)
    wanted = parts(Lease.DEFAULTS if options.lease_defaults else Lease.FAST, options.rows)
    if options.list:
        for part in wanted:
            for row in part.rows:
                length = f"{row.lasts * part.lease.ttl_s:g} s" if row.lasts else ""
                print(f"{row.name:<36}{length:<8}{row.course.value}")
        return 0
    why = why_impossible() or ("" if any(part.rows for part in wanted) else f"no row is like {options.rows}")
    if why:
        print(f"scripts/soak: error: {why}", file=sys.stderr)
        return 2
    results: list[Result] = []
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # what was started is to be ended
    try:
        for part in wanted:
            if part.rows:
                play(part, options.times, results)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    print(f"\n{summary(results)}")
    return 1 if any(result.failure for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
