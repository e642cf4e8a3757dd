"""Scripts that were written for torchrun, with torch: they run as they are."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.e2e.suprun import Launches, worker

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="could not import 'torch'"),
    pytest.mark.timeout(300),
]

RECORDED = worker("recorded")


def line_of(text: str) -> int:
    """The line of the worker that has it."""
    lines = Path(RECORDED).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_what_a_recorded_rank_raises_is_told_and_kept(suprun: Launches) -> None:
    words = ("--standalone", "--nproc-per-node=2", "--log-dir=logs")
    launch = suprun(*words, RECORDED, "fail", env={"PYTHON_EXEC": sys.executable})
    assert launch.end() == 1
    assert "ValueError: rank 1 has had enough" in launch.text
    (error,) = launch.folder.glob("logs/*/attempt_0/1/error.json")
    assert "rank 1 has had enough" in error.read_text()
    told = [line for line in launch.text.splitlines() if line.startswith("suprun: ")]
    assert told[0].endswith("exited with code 1: ValueError: rank 1 has had enough")
    assert told[-2:] == [
        f"suprun: rank 1 raised ValueError at {RECORDED}:{line_of('raise ValueError')}",
        f"suprun: {error} has its call stack",
    ]


def test_a_gloo_job_comes_back_with_default_flags(suprun: Launches) -> None:
    """Where torchrun's own defaults have the next attempt meet the store of the last one: 0 of 4 came back."""
    words = ("--standalone", "--nproc-per-node=4", "--max-restarts=3")
    launch = suprun(*words, RECORDED, "gloo", "die", "once", env={"PYTHON_EXEC": sys.executable})
    assert launch.process.wait(230) == 0, launch.text
    assert launch.text.count("sum 6 of 4") == 8
    assert "killed by SIGKILL" in launch.text
