"""A fleet of three and its processes, and a run on it that finds out by itself whether anything runs twice."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from tests.e2e.fleet import Fleet
from tests.e2e.supd import Supd, wait_for

AT_ONCE = '[restart]\nbackoff = "0s"\nbackoff_max = "0s"\nexclude_node_after = 0\n'
"""What tests do to nodes, again and again, is held against none."""

SIZES = {
    "fixed": "nnodes = 3\n",
    "standby": 'nnodes = "2:3"\n',
    "grow": 'nnodes = "2:3"\nextra_nodes = "grow"\n',
}
"""Of [topology]."""


def launch_the_dead(fleet: Fleet) -> None:
    """Start every supd that has ended."""
    for supd in fleet.nodes.values():
        if supd.process is None or supd.process.poll() is not None:
            supd.launch()


def survivors(fleet: Fleet) -> list[int]:
    """Processes of jobs, anywhere."""
    return [pid for supd in fleet.nodes.values() for pid in supd.survivors()]


def ranks_on(fleet: Fleet, supd: Supd) -> list[int]:
    """Those of them on one node: processes whose parent is a runner or a guard there. (They carry the mark of whose
    supctl has started their run.)"""
    parents = {*supd.runner_pids(), *supd.guard_pids()}
    found = []
    for pid in survivors(fleet):
        with contextlib.suppress(OSError):
            if parent_of(pid) in parents:
                found.append(pid)
    return found


def parent_of(pid: int) -> int:
    """By /proc."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Copies:
    """A run of copies.py, which finds out by itself whether anything of it runs twice (R1)."""

    def __init__(self, fleet: Fleet, name: str, size: str, *, nproc: int = 1, tables: str = AT_ONCE) -> None:
        """Starts it, and waits until all of its ranks run; `size` is one of SIZES."""
        self.fleet = fleet
        self.shared = fleet.folder / f"{name}.shared"
        self.shared.mkdir()
        job = fleet.host.job(name, "copies.py", str(self.shared), nproc=nproc, tables=SIZES[size] + tables)
        self.run = fleet.host.start_job(job)
        self.at(0, spares=1 if size == "standby" else 0)

    def at(self, generation: int, *, spares: int | None = None) -> Any:
        """Wait until every rank of this generation runs; returns the run's status."""

        def look() -> Any:
            status = self.fleet.host.status(self.run)
            assert not status["is_final"], status
            is_there = (status["state"], status["generation"]) == ("running", generation)
            are_all = status["ranks_running"] == status["ranks"] and spares in (None, len(status["spares"]))
            return status if is_there and are_all else None

        return wait_for(f"{self.run} to run at generation {generation}", look)

    def ranks(self, node: str) -> list[int]:
        """The pids of a node's ranks."""
        return [rank["pid"] for rank in self.fleet.ranks(self.run) if rank["node"] == node]

    def pids(self) -> list[int]:
        """The pids of all ranks."""
        return [rank["pid"] for rank in self.fleet.ranks(self.run)]

    def runner(self, node: str) -> int:
        """The runner of a node that has ranks."""
        return parent_of(self.ranks(node)[0])

    def starts(self, generation: int) -> int:
        """How many ranks have been started in a generation."""
        return [line.split()[2::2] for line in self.notes()].count([str(generation), "start"])

    def notes(self) -> list[str]:
        """What the ranks have noted, of which nothing may be `twice`."""
        lines = (self.shared / "notes").read_text().splitlines()
        assert not [line for line in lines if line.endswith(" twice")], lines
        return lines

    def finish(self) -> Any:
        """Let it end well; returns its status."""
        self.notes()
        (self.shared / "finish").touch()
        status = self.fleet.host.wait_state(self.run, "succeeded", "failed", "stopped")
        assert status["state"] == "succeeded", status["reason"]
        return status


def kill(*pids: int) -> None:
    """At once, all of them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
