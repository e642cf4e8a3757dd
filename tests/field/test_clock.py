"""Case H89 of the field reports: the time of day jumps by a year, and nothing waits for it.

Each node has a time of day of its own, which the test steps (stepped_clock.py); the machine's stays as it is.
"""

import os
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.stepped_clock import SteppedClock
from tests.e2e.supd import wait_for
from tests.field.watching import LEASE_S, PATIENT, pids, runs_at, stays

YEAR_S = 365 * 86400
MOST = timedelta(seconds=1.9 * YEAR_S)
"""Of two years."""

BACKOFF = '[restart]\nbackoff = "3s"\nbackoff_max = "3s"\n'


@pytest.fixture
def clocks() -> dict[str, SteppedClock]:
    """Of each node, its time of day."""
    return {}


@pytest.fixture
def fleet(short_dir: Path, clocks: dict[str, SteppedClock]) -> Iterator[Fleet]:
    """Two nodes, which have not been started."""
    made = Fleet(short_dir, config=PATIENT)
    for name, supd in made.nodes.items():
        clocks[name] = SteppedClock(supd.folder)
        supd.env |= clocks[name].env
    try:
        yield made
    finally:
        made.close()


def test_a_jump_of_a_year_changes_nothing_but_what_is_shown(fleet: Fleet, clocks: dict[str, SteppedClock]) -> None:
    """H89: in a rendezvous, at the start of a node, while a run is running, and while it waits for its restart."""
    fleet.host.start()
    run = fleet.host.start_job(fleet.job("train", "sleeper.py", tables=BACKOFF))
    wait_for("the run to wait for b", lambda: "1 of 2 nodes" in fleet.host.status(run)["waiting_for"])
    for step_s in (YEAR_S, -YEAR_S):
        clocks["a"].step(step_s)
        stays("it waits", lambda: not fleet.host.status(run)["is_final"])
    clocks["b"].step(YEAR_S)
    fleet["b"].launch()
    runs_at(fleet.host, run, 0)
    before = pids(fleet.host, run)
    for there_s, here_s in ((-YEAR_S, YEAR_S), (YEAR_S, -YEAR_S)):
        clocks["a"].step(there_s)
        clocks["b"].step(here_s)
        stays("it runs", lambda: fleet.host.status(run)["state"] == "running", window_s=LEASE_S)
    assert (pids(fleet.host, run), fleet.host.status(run)["restarts_used"]) == (before, 0)
    os.kill(before[1], signal.SIGKILL)
    runs_at(fleet.host, run, 1)  # at once: a first failure waits for nothing
    for generation, step_s in ((2, -YEAR_S), (3, YEAR_S)):
        os.kill(pids(fleet.host, run)[1], signal.SIGKILL)
        wait_for("it to wait", partial(backs_off, fleet, run, generation))
        for clock in clocks.values():
            clock.step(step_s)
        runs_at(fleet.host, run, generation)
    told = [datetime.fromisoformat(event["time"]) for event in fleet.events(run, "generation.ready")]
    assert [told[1] - told[0] > MOST, told[1] - told[2] > MOST, told[3] - told[2] > MOST] == [True] * 3


def backs_off(fleet: Fleet, run: str, generation: int) -> bool:
    """Whether it waits before this generation."""
    status = fleet.host.status(run)
    return (status["phase"], status["generation"]) == ("backoff", generation - 1)
