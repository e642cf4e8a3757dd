"""Fleets that were drawn at random keep every rule, and so many of them meet everything there is to meet."""

import os
import subprocess
import sys
from pathlib import Path

from tests.sim import coverage
from tests.sim.simulate import Findings, repro, run_many

ROOT = Path(__file__).parents[2]
SEEDS = 500
CORES = min(os.cpu_count() or 1, 4)


def test_fleets_keep_every_rule_whatever_goes_wrong_and_come_to_rest_when_nothing_does() -> None:
    found = Findings()
    for _, some in run_many(range(SEEDS), CORES):
        found.add(some)
    told = "\n".join(f"{failure.what}\n    again: {repro(failure)}" for failure in found.failures[:5])
    assert not found.failures, f"{len(found.failures)} of {SEEDS} seeds broke a rule:\n{told}"
    assert coverage.never_met(found.seen) == [], "not met once: make it likelier in tests/sim/setup.py"
    assert coverage.unknown(found.seen) == [], "add it to tests/sim/coverage.py, if it may be"


def test_a_seed_is_the_same_fleet_in_every_process() -> None:
    """Nothing hangs on the order of sets, which differs from process to process, neither here nor in the machines."""
    traces = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "scripts/simulate.py", "--seed", "11", "--trace"]
        env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        shown = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
        traces.append(shown.stdout)
    assert traces[0].count("\n") > 20
    assert traces[0] == traces[1]
