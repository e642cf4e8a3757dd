"""Runs many seeds on many cores, and gathers what they have met (used by scripts/simulate and by test_seeds.py)."""

import os
import signal
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from tests.sim.draws import Nodes
from tests.sim.world import World

CHUNK = 10
"""Seeds that a process takes at a time."""


@dataclass
class Failure:
    """A seed with which a rule was broken."""

    seed: int
    nodes: Nodes | None  # how many there may be; None: 3 to 8
    at_s: float
    what: str


@dataclass
class Findings:
    """What some seeds have met."""

    seeds: int = 0
    virtual_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Take in what other seeds have met."""
        self.seeds += other.seeds
        self.virtual_s += other.virtual_s
        self.seen += other.seen
        self.failures = sorted([*self.failures, *other.failures], key=lambda failure: failure.seed)


def run_one(seed: int, nodes: Nodes | None = None, *, is_traced: bool = False) -> tuple[World, Failure | None]:
    """One fleet, and how it failed."""
    world = World(seed, nodes=nodes, is_traced=is_traced)
    try:
        world.run()
    except Exception as exc:  # whatever a machine raises is a finding
        last = traceback.extract_tb(exc.__traceback__)[-1]
        where = f"{os.path.relpath(last.filename)}:{last.lineno}"
        return world, Failure(seed, nodes, world.clock.now_s, f"{str(exc) or repr(exc)} ({where})")
    return world, None


def run_some(seeds: Iterable[int], nodes: Nodes | None) -> Findings:
    """Some fleets, one after the other."""
    found = Findings()
    for seed in seeds:
        world, failure = run_one(seed, nodes)
        found.seeds += 1
        found.virtual_s += world.clock.now_s
        found.seen += world.clock.seen
        if failure is not None:
            found.failures.append(failure)
    return found


def run_many(seeds: range, jobs: int, nodes: Nodes | None = None) -> Iterator[tuple[range, Findings]]:
    """The findings of so many processes, as they come in, with the seeds that they are of."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs, initializer=_ignore_interrupts) as pool:
        futures = {pool.submit(run_some, chunk, nodes): chunk for chunk in chunks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C is for the process that prints."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def repro(failure: Failure) -> str:
    """The line that shows a failure again."""
    nodes = "" if failure.nodes is None else f"--nodes {failure.nodes[0]}-{failure.nodes[1]} "
    return f"scripts/simulate {nodes}--seed {failure.seed} --trace"


def told(world: World, failure: Failure | None, lines: int) -> str:
    """A trace's end, and how it failed."""
    text = "\n".join(world.clock.trace[-lines:])
    if failure is not None:
        text += f"\n{failure.at_s:9.3f} FAILED: {failure.what}\nagain: {repro(failure)}"
    return text
