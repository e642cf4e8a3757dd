"""One row of the table of losses (docs/operations.md), played on real processes and real networks.

A stage has a fleet of nodes in network namespaces, of which a hosts, and a run of stamper.py on all of them that can do
without one. A row brings one trouble over them, for so many lease times, and looks whether what it promises has come.
"""

import contextlib
import enum
import json
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from supervisor.shell.clock import boot_s
from tests.e2e.lateness import LATE_S, Lateness
from tests.e2e.stamps import overlaps, spans
from tests.e2e.stepped_clock import SteppedClock
from tests.e2e.supd import alive, wait_for
from tests.e2e.threes import AT_ONCE
from tests.e2e.troubles import Trouble
from tests.netns import NamespaceFleet, hosts_in_namespaces

FAST = '[lease]\nrenew = "0.4s"\nalone = "0.8s"\nsuspect = "1.2s"\nfence = "1.5s"\nttl = "2s"\nword = "0.8s"\n'
"""The shortest times of the lease that hold (docs/protocol.md)."""

SHORT, LONG, LONGEST = 0.4, 2.0, 12.0
"""How long a trouble lasts, in lease times: one that nothing may come of; one that outlives the lease."""

TRIES = 3
"""Of a row, on a machine that is late."""


class Lease(enum.Enum):
    """The times of the lease that a fleet has."""

    FAST = FAST
    DEFAULTS = ""

    @property
    def ttl_s(self) -> float:
        """A lease time."""
        return 2.0 if self is Lease.FAST else 5.0


class Course(enum.Enum):
    """What becomes of a run."""

    UNTOUCHED = "nothing ends: the same processes go on"
    RESTARTS = "generation 1 is on all nodes, as soon as that can be"
    GOES_ON = "generation 1 is on the other nodes while the trouble lasts; then the node stands by"
    WAITS = "generation 0 ends, and the next one comes when the trouble is over"
    EITHER = "generation 0 goes on, or the next one comes"


GENERATIONS = {
    Course.UNTOUCHED: (0,),
    Course.RESTARTS: (1,),
    Course.GOES_ON: (1,),
    Course.WAITS: (1,),
    Course.EITHER: (0, 1),
}
"""Where the run is in the end."""


@dataclass(frozen=True)
class Row:
    """One row. `lasts` is in lease times."""

    name: str
    trouble: Trouble
    course: Course
    lasts: float = 0.0
    given_up: str = ""  # the nodes that are lost or fenced, one letter each
    late: str = ""  # the nodes whose ranks may outlive the lease: docs/operations.md, "Not promised"
    unreachable: str = ""  # the nodes that are told to be heard by way of others only
    is_daily: bool = True  # CI plays it, and not scripts/soak alone


class Stage:
    """A fleet and its run, for one row after the other.

    A row that comes after one that has kept its promise finds the fleet whole: that one has waited for that, and for no
    process to be left of an ended generation. The run is the same as long as it is in generation 0, with all of its
    first processes; else it is over, and another one is started. After a row that failed, all of it is made anew.
    """

    def __init__(self, nodes: int, lease: Lease = Lease.FAST) -> None:
        self.nodes, self.lease = "abcdefgh"[:nodes], lease
        self.clocks: dict[str, SteppedClock] = {}
        self._fleet: NamespaceFleet | None = None
        self._open = contextlib.ExitStack()
        self._runs = 0
        self._told = 0  # events of the run that were there before the row
        self.run = ""
        self.stamps = Path()
        self.excused: list[str] = []  # what was wrong in the tries of the newest row that do not count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all of it; the next row has another one."""
        self._fleet, self.run = None, ""
        self._open.close()

    @property
    def fleet(self) -> NamespaceFleet:
        """Made where there is none."""
        if self._fleet is None:
            with contextlib.ExitStack() as made:
                folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
                made.callback(shutil.rmtree, folder, ignore_errors=True)
                hosts = made.enter_context(hosts_in_namespaces(folder, len(self.nodes)))
                fleet = NamespaceFleet(folder, hosts, config=self.lease.value)
                made.callback(fleet.close)
                for name, supd in fleet.nodes.items():
                    self.clocks[name] = SteppedClock(supd.folder)
                    supd.env |= self.clocks[name].env
                fleet.start()
                self._open = made.pop_all()
                self._fleet = fleet
        return self._fleet

    # --- a row ---------------------------------------------------------------------------------------------------

    def play(self, row: Row) -> int:
        """Returns the generation in which the run is then; raises AssertionError where a promise is not kept.

        A row whose promise is broken on a machine that was late itself (lateness.py) is played again.
        """
        self.excused = []
        while True:
            with Lateness() as lateness:
                try:
                    return self._play(row)
                except BaseException as exc:
                    self._end(exc)
                    late = f"processes of this machine ran up to {lateness.worst_s:.2f} s late"
                    exc.add_note(late)
                    is_last = len(self.excused) == TRIES - 1
                    if not isinstance(exc, AssertionError) or lateness.worst_s < LATE_S or is_last:
                        raise
                    self.excused.append(f"{exc}; {late}")

    def _end(self, why: BaseException) -> None:
        """What a broken promise has left may not end as it should; that is no reason to hide which one was broken."""
        try:
            if self.run:
                why.add_note(self.fleet.host.supctl("events", self.run, check=False).stdout)
        except subprocess.TimeoutExpired as exc:
            why.add_note(f"and its fleet tells nothing of it: {exc}")
        try:
            self.close()
        except Exception as exc:
            why.add_note(f"and its fleet did not end well: {exc!r}")

    def _play(self, row: Row) -> int:
        if not self.run:
            self._start()
        with row.trouble(self):
            _passes(row.lasts * self.lease.ttl_s)
            self._meanwhile(row)
        generation = self._afterwards(row)
        if generation:
            self.fleet.host.supctl("stop", self.run, "--now")
            self.run = ""
        return generation

    def _start(self) -> None:
        """A run in generation 0 on all nodes."""
        self._runs += 1
        self._told = 0
        self.stamps = self.fleet.folder / f"stamps{self._runs}"
        self.stamps.mkdir()
        size = f'"{len(self.nodes) - 1}:{len(self.nodes)}"'
        tables = f'nnodes = {size}\nextra_nodes = "grow"\n{AT_ONCE}'
        job = self.fleet.host.job(f"run{self._runs}", "stamper.py", str(self.stamps), nproc=1, tables=tables)
        self.run = self.fleet.host.start_job(job)
        self._wait_running(0, list(self.nodes))

    def _meanwhile(self, row: Row) -> None:
        """What the trouble has brought before it ends."""
        if row.course is Course.GOES_ON:
            self._wait_running(1, [node for node in self.nodes if node not in row.given_up])
            self._wait_over([node for node in self.nodes if node not in row.late])
        elif row.course is Course.WAITS:
            wait_for(f"{self.run} to wait for {row.given_up}", lambda: self._waits_for(row.given_up))
            self._wait_over(self.nodes)
            assert {span.generation for span in spans(self.stamps)} == {0}

    def _waits_for(self, nodes: str) -> bool:
        """Whether the operator sees that, by name: `b, c (unreachable) (2 of 3 nodes, …)`."""
        named = (self.status()["waiting_for"] or "").partition("(")[0]
        return all(node in named.replace(",", " ").split() for node in nodes)

    def _afterwards(self, row: Row) -> int:
        """What there is in the end, when all is whole again; returns the generation."""
        status = self._wait_whole(*GENERATIONS[row.course])
        generation: int = status["generation"]
        found = spans(self.stamps)
        assert overlaps(found, without=row.late) == [], status
        assert len(found) == len({(span.generation, span.rank) for span in found}), found
        told = self._newly_told()
        assert set(row.unreachable) <= told["node.unreachable"]
        if generation:
            self._wait_over(self.nodes)
        if row.course in (Course.UNTOUCHED, Course.GOES_ON, Course.WAITS):
            assert told["node.lost"] | told["node.fenced"] == set(row.given_up)
        if row.course is Course.UNTOUCHED:
            assert all(alive(span.pid) for span in found), found
            assert (len(found), status["restarts_used"], status["incident"]) == (len(self.nodes), 0, None), status
        return generation

    def _newly_told(self) -> dict[str, set[str]]:
        """The nodes that events were about since the row before: by kind."""
        lines = self.fleet.host.supctl("events", self.run, "--json").stdout.splitlines()
        events = [json.loads(line) for line in lines[self._told :]]
        self._told = len(lines)
        told: dict[str, set[str]] = defaultdict(set)
        for event in events:
            told[event["kind"]].add(event["detail"].get("node"))
        return told

    def _wait_over(self, nodes: Collection[str]) -> None:
        """Wait until no process of generation 0 is left on these nodes."""
        old = [span for span in spans(self.stamps) if span.generation == 0 and span.node in nodes]
        wait_for(f"generation 0 to be over on {' '.join(nodes)}", lambda: not any(alive(span.pid) for span in old))

    # --- the run -------------------------------------------------------------------------------------------------

    def status(self) -> Any:
        """Of the run, as the host's supd tells it."""
        return self.fleet.host.status(self.run)

    def ranks(self, node: str) -> list[int]:
        """The pids of a node's ranks."""
        return [span.pid for span in spans(self.stamps) if span.node == node]

    def launch_the_dead(self) -> None:
        """Start every supd that has ended."""
        for supd in self.fleet.nodes.values():
            if supd.process is None or supd.process.poll() is not None:
                supd.launch()
        self.fleet.host.wait_until_ready()

    def _wait_running(self, generation: int, nodes: list[str]) -> None:
        """Wait until all ranks of a generation run on these nodes, and each has stamped."""

        def look() -> bool:
            stamped = [span for span in spans(self.stamps) if span.generation == generation]
            if len(stamped) < len(nodes):
                return False
            status = self.status()
            is_there = (status["state"], status["generation"], status["nodes"]) == ("running", generation, nodes)
            return is_there and status["ranks_running"] == len(nodes)

        wait_for(f"{self.run} to run in generation {generation} on {' '.join(nodes)}", look)

    def _wait_whole(self, *generations: int) -> Any:
        """Wait until it runs in one of these, every node takes part or stands by, and nothing is waited for."""
        flaws: list[str] = []

        def look() -> Any:
            status = self.status()
            flaws[:] = self._flaws(status, generations)
            return None if flaws else status

        try:
            return wait_for("the run to be whole", look)
        except AssertionError as exc:
            raise AssertionError(f"{exc}: {', '.join(flaws)}") from None

    def _flaws(self, status: Any, generations: Collection[int]) -> list[str]:
        """What is not as it should be, of the run or else of the nodes."""
        here = sorted([*status["nodes"], *status["spares"]])
        found = {
            f"it is {status['state']}": status["state"] != "running",
            f"it is in generation {status['generation']}": status["generation"] not in generations,
            f"it waits for {status['waiting_for']}": bool(status["waiting_for"]),
            f"it has {here}": here != list(self.nodes),
            f"{status['ranks_running']} ranks run": status["ranks_running"] != status["ranks"],
        }
        flaws = [flaw for flaw, is_there in found.items() if is_there]
        if not flaws:
            shown = {node["node"]: node["state"] for node in self.fleet.host.json("nodes")["nodes"]}
            flaws = [f"{node} is {state}" for node, state in shown.items() if state not in ("ready", "standby")]
        return flaws


def _passes(seconds: float) -> None:
    """The length of a trouble is what a row is about: nothing to wait for else."""
    until_s = boot_s() + seconds
    wait_for("time to pass", lambda: boot_s() >= until_s, timeout_s=seconds + 60)
