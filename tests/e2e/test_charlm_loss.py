"""The elastic training of the quickstart, three ranks that meet at every step over gloo, when a node falls silent."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.supd import BIN, alive, wait_for
from tests.field.watching import everything, stopped

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="could not import 'torch'"),
    pytest.mark.timeout(300),  # three times torch is imported by all ranks at once
]

JOB_FILE = Path(__file__).parents[2] / "conf/jobs/charlm-elastic.toml"
RESUMED = re.compile(r"resuming from step (\d+) \(generation (\d+), ")
SPLIT = re.compile(r"split among (\d) ranks")


class Training:
    """A run of charlm-elastic."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.out = fleet, fleet.folder / "training"
        env = {"CHARLM_OUT": str(self.out), "VIRTUAL_ENV": str(BIN.parent), "GLOO_SOCKET_IFNAME": "lo"}
        self.run = fleet.host.supctl("start", str(JOB_FILE), "--detach", "--quiet", env=env).stdout.strip()

    def saved_step(self) -> int:
        """Of the newest checkpoint; 0 before the first."""
        marker = self.out / "latest_step.txt"
        return int(marker.read_text()) if marker.exists() else 0

    def saves_after(self, step: int) -> int:
        """Wait for a checkpoint after this one; returns its step."""
        wait_for(f"a checkpoint after step {step}", lambda: self.saved_step() > step)
        return self.saved_step()

    def at(self, generation: int, nodes: str) -> Any:
        """Wait until this generation runs; returns the run's status."""
        status = self.fleet.wait_generation(self.run, generation)
        assert status["nodes"] == list(nodes), status
        return status

    def printed(self) -> str:
        """By rank 0, in all generations."""
        return self.fleet.host.supctl("logs", self.run, "--gen", "all", "-r", "0", "--no-prefix").stdout


def test_a_training_whose_node_falls_silent_goes_on_from_its_checkpoint_and_takes_the_node_in_again(
    fleet: Fleet,
) -> None:
    training = Training(fleet)
    training.at(0, "abc")
    first = training.saves_after(0)
    (old,) = (rank["pid"] for rank in fleet.ranks(training.run) if rank["node"] == "c")
    with stopped(everything(fleet, "c")):
        status = training.at(1, "ab")
        assert (status["incident"]["cause"], status["incident"]["node"]) == ("node-lost", "c")
        second = training.saves_after(training.saved_step())
    fleet.wait_joined("c")
    wait_for("what c had to be gone", lambda: not alive(old))
    fleet.host.supctl("restart", training.run)
    assert training.at(2, "abc")["restarts_used"] == 0
    training.saves_after(second)
    resumed = [(int(step), generation) for step, generation in RESUMED.findall(training.printed())]
    assert [generation for _, generation in resumed] == ["1", "2"]
    assert first <= resumed[0][0] < second <= resumed[1][0]
    assert SPLIT.findall(training.printed()) == ["3", "2", "3"]
