"""Tells the runs of the nodes, and of what each may use there, as supervisor/daemon/jobs.py does.

Grants are made by the very functions that it calls.
"""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from protocol.coordinator_events import Roster, RosterNode
from protocol.grants import Sharer, are_limited, rosters
from tests.sim.kernel import Loop, Process

ROSTER_S = 0.05
ROSTER_AGAIN_S = 1.0
ALLOT_S = 5.0
"""As in supervisor/daemon/jobs.py."""


class Told(Sharer, Protocol):
    """A run that is told."""

    loop: Loop


class Sharing:
    """Of one coordinator; `runs` are in the order of acceptance, `nodes` gives the nodes as they stand. `on_first` is
    called once a run has heard of them for the first time."""

    def __init__(
        self,
        process: Process,
        runs: Mapping[str, Told],
        nodes: Callable[[], tuple[RosterNode, ...]],
        on_first: Callable[[], None],
    ) -> None:
        self._process = process
        self._runs = runs
        self._nodes = nodes
        self._on_first = on_first
        self._due_s = math.inf
        self._shared_s = -math.inf

    def share(self, apart_s: float = ROSTER_S) -> None:
        """Tell all runs of the nodes there are; many changes in a short time once."""
        due_s = max(self._shared_s + apart_s, self._process.now_s)
        if due_s < self._due_s:
            self._due_s = due_s
            self._process.after(due_s - self._process.now_s, lambda: self._share_if(due_s))

    def _share_if(self, due_s: float) -> None:
        if due_s != self._due_s:  # it was done earlier
            return
        self._due_s, self._shared_s = math.inf, self._process.now_s
        nodes = self._nodes()
        for name, roster in rosters(self._runs, nodes).items():
            if not self._runs[name].told.is_newest(roster):
                self._put(name, roster)
        active = [run.machine for run in self._runs.values() if not run.machine.is_final]
        if any(machine.rendezvous.lacks_slots for machine in active):
            self.share(ROSTER_AGAIN_S)
        elif active and are_limited(nodes):
            self.share(ALLOT_S)

    def tell(self, name: str) -> None:
        """Tell one run, which has just begun."""
        if nodes := self._nodes():
            self._put(name, rosters(self._runs, nodes)[name])

    def heed(self) -> None:
        """Tell all runs at once: an operator waits for it."""
        for name, roster in rosters(self._runs, self._nodes()).items():
            self._put(name, roster)

    def _put(self, name: str, roster: Roster) -> None:
        run = self._runs[name]
        run.told.add(roster)
        run.loop.put(roster, None if run.machine.rendezvous.seen else self._on_first)
