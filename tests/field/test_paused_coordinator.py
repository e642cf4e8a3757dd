"""Case H60 of the field reports, for a fleet: a coordinator that was paused, or waited for its disk, blames nobody.

On one node, and for the runner: test_hangs.py. The times of the lease are short.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import TIMEOUT_S, alive, wait_for
from tests.e2e.threes import Copies
from tests.field.watching import LEASE_S, PATIENT, stays, stopped

BLAME = ("node.lost", "node.fenced", "runner.lost", "incident.opened")


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """Three nodes, of which a hosts."""
    with running_fleet(short_dir, 3, config=PATIENT) as nodes:
        yield nodes


def blame(fleet: Fleet, run: Copies) -> list[object]:
    """All that was told of nodes or runners which were given up."""
    return [event for kind in BLAME for event in fleet.events(run.run, kind)]


def test_a_coordinator_that_was_paused_for_three_leases_gives_nobody_up(fleet: Fleet) -> None:
    """H60. The ranks go on meanwhile: their runners have each other's word."""
    run = Copies(fleet, "train", "fixed")
    before = run.pids()
    assert fleet.host.process is not None
    with stopped([fleet.host.process.pid]):
        stays("all ranks are alive", lambda: all(map(alive, before)), window_s=3 * LEASE_S)
    stays("no generation ends", lambda: run.at(0)["restarts_used"] == 0, window_s=1.5 * LEASE_S)
    assert (run.pids(), blame(fleet, run)) == (before, [])
    run.finish()


@contextlib.contextmanager
def blocked(journal: Path) -> Iterator[None]:
    """Nothing can be written to it: somebody else is about to."""
    with contextlib.closing(sqlite3.connect(journal, isolation_level=None, timeout=TIMEOUT_S)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def test_a_coordinator_that_waits_for_its_disk_for_longer_than_a_lease_gives_nobody_up(fleet: Fleet) -> None:
    """H60, its second part. What it waits to write is a restart, which comes then, once, and for everybody.

    (A lock stands in for a disk that hangs. SQLite waits 5 s for it: less is left than a lease lasts.)
    """
    run = Copies(fleet, "train", "fixed")
    before = run.pids()
    with blocked(fleet.host.state / "journal.db"):
        client = fleet.host.popen("restart", run.run)
        try:
            stays("all ranks are alive", lambda: all(map(alive, before)), window_s=1.1 * LEASE_S)
            assert client.poll() is None
        except BaseException:
            client.kill()
            raise
    out, error = client.communicate(timeout=TIMEOUT_S)
    assert client.returncode == 0, f"{out}{error}"
    run.at(1)
    wait_for("the ranks to be others", lambda: not set(before) & set(run.pids()))
    stays("no generation ends", lambda: run.at(1)["restarts_used"] == 0, window_s=1.5 * LEASE_S)
    assert blame(fleet, run) == []
    assert run.finish()["nodes"] == ["a", "b", "c"]
