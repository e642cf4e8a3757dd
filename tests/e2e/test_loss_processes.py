"""Processes of a node are killed and paused, its own or all of them, and its clock is stepped."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.shell.clock import boot_s, wall_s
from tests.e2e.loss_rows import HOUR_S, THREE, of_processes
from tests.e2e.losses import Row, Stage
from tests.e2e.stepped_clock import SteppedClock
from tests.netns import needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.timeout(400)]  # for up to three tries on a slow machine

ROWS = [row for row in of_processes() if row.is_daily]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One for all rows: each leaves it whole (Stage)."""
    with Stage(len(THREE)) as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_process_that_dies_or_pauses_costs_what_it_must_and_nothing_runs_twice(stage: Stage, row: Row) -> None:
    stage.play(row)


def test_a_clock_is_stepped_for_the_programs_of_a_node_while_they_run_and_for_nobody_else(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    look = "print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)"
    program = f"import time\nfor line in open(0): {look}"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env={**os.environ, **clock.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        for seconds in (0, HOUR_S, -HOUR_S):
            clock.step(seconds)
            running.stdin.write("\n")
            running.stdin.flush()
            wall, boot = map(float, running.stdout.readline().split())
            assert abs(wall - wall_s() - seconds) < HOUR_S / 2
            assert abs(boot - boot_s()) < HOUR_S / 2
        running.stdin.close()
