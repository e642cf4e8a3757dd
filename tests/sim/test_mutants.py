"""A simulator that finds nothing may be blind: each of these planted bugs must be found, nearly all by random seeds."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutant import SEEDS_MAX
from tests.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    command = [sys.executable, "-m", "tests.sim.mutants", name, str(SEEDS_MAX)]
    hunted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert hunted.returncode == 0, f"{hunted.stdout}{hunted.stderr}"
    assert hunted.stdout.startswith(("seed ", "story ")), hunted.stdout


def test_at_most_two_planted_bugs_need_a_story() -> None:
    assert sum(bool(mutant.story) for mutant in MUTANTS.values()) <= 2
