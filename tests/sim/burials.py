"""Ends of runners that a node goes on to tell of: what follows from them is not on the coordinator's disk yet.

It plays what supervisor/daemon/jobs.py does (`on_runner_gone`).
"""

from collections.abc import Callable

from protocol.coordinator import Coordinator
from protocol.coordinator_events import RunRecord
from protocol.messages.fleet import RunnerBuried
from tests.sim.kernel import Process

REMEMBER_S = 60.0
"""As supervisor/daemon/jobs.py has it."""


class Burials:
    """Of one coordinator; `settle(node, incarnation)` lets the node forget it."""

    def __init__(self, process: Process, settle: Callable[[str, str], None]) -> None:
        self._process = process
        self._settle = settle
        self._forgets_s = process.now_s + REMEMBER_S
        self._early: dict[str, list[tuple[str, RunnerBuried]]] = {}  # by a run that is not known yet
        self._waiting: dict[str, list[tuple[str, str]]] = {}  # by a run that is being taken over
        process.after(REMEMBER_S, self._give_up)

    def of_nobody(self, node: str, buried: RunnerBuried) -> None:
        """Its run is not known; for a while somebody may still tell of it."""
        if self._process.now_s >= self._forgets_s:
            self._settle(node, buried.incarnation)
        else:
            self._process.clock.seen["waits: end of a runner of a run that is not known"] += 1
            self._early.setdefault(buried.run, []).append((node, buried))

    def known(self, run: str, then: Callable[[str, RunnerBuried], None]) -> None:
        """This run is known now; `then` hears what was told of it before."""
        for node, buried in self._early.pop(run, []):
            then(node, buried)

    def taken_in(self, run: str, machine: Coordinator, node: str, incarnation: str) -> None:
        """The run's machine has heard of the end of this runner, and has written down what follows."""
        if machine.takeover is None:
            self._settle(node, incarnation)
        else:
            self._process.clock.seen["waits: end of a runner of a run that is being taken over"] += 1
            self._waiting.setdefault(run, []).append((node, incarnation))

    def written(self, run: str, record: RunRecord) -> None:
        """That is on disk of the run."""
        if self._process.is_alive and not record.is_taken_over:
            for node, incarnation in self._waiting.pop(run, []):
                self._settle(node, incarnation)

    def _give_up(self) -> None:
        for run in tuple(self._early):
            self.known(run, lambda node, buried: self._settle(node, buried.incarnation))
