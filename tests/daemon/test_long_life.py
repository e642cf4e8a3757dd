"""A life of many runs and generations in short: what is left of it is bounded (the whole: scripts/bench/long_life)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOAD = ROOT / "scripts" / "bench" / "long_life_load.py"
LIMIT_S = 100.0


@pytest.fixture
def samples(tmp_path: Path) -> list[dict[str, Any]]:
    """What there was after nothing, after each tenth of 120 runs, and after each tenth of 100 generations of one."""
    done = subprocess.run(
        [sys.executable, str(LOAD), str(tmp_path), "120", "100"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_runs_and_generations_leave_no_more_than_what_is_kept(samples: list[dict[str, Any]]) -> None:
    runs = [sample for sample in samples if sample["what"] == "runs"]
    assert [sample["runs"] for sample in runs[4:]] == [50] * 6, "[state] keep_runs"
    assert len({sample["files"] for sample in runs[4:]}) == 1
    assert len({sample["events"] for sample in runs[4:]}) == 1
    generations = [sample for sample in samples if sample["what"] == "generations"]
    assert {sample["runs"] for sample in generations} == {51}
    files = [sample["files"] - runs[-1]["files"] for sample in generations]
    assert max(files) <= 3 + 20 + 1, "journal, output and a log for each of 20 runners, and the one that lives"
    assert generations[-1]["objects"] <= 1.05 * runs[5]["objects"]
