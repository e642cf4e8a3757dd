"""What earlier versions of supd left in their state folders is taken up. (How it was recorded: record_state.py.)"""

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.daemon.own_folder import INODE_BITS
from tests.e2e.supd import Supd, wait_for

STATES = Path(__file__).parent / "states"
RECORDED = sorted(path.name for path in STATES.iterdir())
WITH_A_FLEET = [name for name in RECORDED if "'n2'" in (STATES / name / "journal.sql").read_text()]


def put_back(recorded: Path, state: Path) -> dict[str, str]:
    """Make the state folder anew, as if its supd had just been replaced; returns its runs, by their job."""
    shutil.copytree(recorded, state, ignore=shutil.ignore_patterns("journal.sql"))
    state.chmod(0o700)
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as db:
        db.executescript((recorded / "journal.sql").read_text())
        inode = os.stat(state).st_ino & ((1 << INODE_BITS) - 1)
        db.execute("UPDATE meta SET value = ? WHERE key = 'folder'", (inode,))
        db.commit()
        return {run.partition("@")[0]: run for (run,) in db.execute("SELECT run FROM runs")}


@pytest.fixture
def old(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[tuple[Supd, dict[str, str]]]:
    """The present supd on what an earlier version left; the runs it finds there."""
    supd = Supd(short_dir, config='[node]\nname = "n1"\n')
    kept = "[state]\nkeep_days = 3650\n"  # whenever this is run
    supd.config.write_text(supd.config.read_text().replace("[state]\n", kept))
    runs = put_back(STATES / request.param, supd.state)
    try:
        supd.start()
        yield supd, runs
    finally:
        supd.close()


def events(supd: Supd, run: str) -> list[Any]:
    return [json.loads(line) for line in supd.supctl("events", run, "--json").stdout.splitlines()]


@pytest.mark.parametrize("old", RECORDED, indirect=True)
def test_the_runs_of_an_earlier_version_are_told_of_truly_and_those_that_were_active_go_on(
    old: tuple[Supd, dict[str, str]],
) -> None:
    supd, runs = old
    assert sorted(runs) == ["active", "broken", "done"]

    done = supd.status(runs["done"])
    assert (done["state"], done["generation"]) == ("succeeded", 0)

    broken = supd.status(runs["broken"])
    assert (broken["state"], broken["generation"]) == ("failed", 1)
    assert "exited with code 3" in broken["reason"]
    assert "1 of 1" in broken["reason"], "its budget was spent"
    assert "out of luck" in supd.supctl("status", runs["broken"]).stdout
    told = [event["kind"] for event in events(supd, runs["broken"])]
    assert told[0] == "job.accepted"
    assert told.count("generation.launched") == 2
    assert told[-1] == "job.failed"

    def next_generation() -> Any:
        status = supd.status(runs["active"])
        return status if status["generation"] == 1 else None

    active = wait_for("the runner that was killed to be missed", next_generation)
    assert active["state"] in ("restarting", "running")
    assert active["restarts_used"] == 0, "nobody pays for that"
    numbers = [int(event["id"]) for event in events(supd, runs["active"])]
    assert numbers == sorted(set(numbers)), "what is told now stands behind what was told then"


@pytest.mark.parametrize("old", WITH_A_FLEET, indirect=True)
def test_a_node_that_an_earlier_version_knew_is_still_known(old: tuple[Supd, dict[str, str]]) -> None:
    supd, _ = old
    nodes = {node["node"]: node["state"] for node in supd.json("nodes")["nodes"]}
    assert nodes == {"n1": "ready", "n2": "unreachable"}
