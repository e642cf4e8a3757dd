"""A guard, the runner's twin: it ends all that its runner has started where a lease is over by its own look at the
clock, or the runner is gone; without network or disk, and whatever has become of the runner."""

from collections.abc import Callable
from dataclasses import dataclass

from protocol.timing import KILL_S
from tests.sim.kernel import Process
from tests.sim.workers import Crew

LOOK_S = 1.0
"""The longest time between two looks at the clock while there is a lease."""

AGAIN_S = 0.05
"""Between two kills, for as long as the lease is over."""


@dataclass
class Page:
    """The memory that a runner shares with its guard, and with the next one."""

    until_s: float | None = None  # when the lease is over, by the boot-time clock; None: there is none


class Guard(Process):
    """One guard of one runner."""

    def __init__(
        self, machine: Process, name: str, page: Page, crew: Crew, is_runner_alive: Callable[[], bool]
    ) -> None:
        super().__init__(machine.clock, f"guard-{name}", machine.boot)
        self._page = page
        self._crew = crew
        self._is_runner_alive = is_runner_alive
        self._looks_s: float | None = None  # when it looks next
        self.freeze(machine.thaws_s - machine.clock.now_s)
        self.poke()

    def poke(self) -> None:
        """There is a lease, or the runner is gone."""
        self.do(self._look)

    def _look(self) -> None:
        if not self._is_runner_alive():
            self.after(self.clock.rng.uniform(0.0, KILL_S), self._sweep)
            return
        until_s = self._page.until_s
        if until_s is None:
            self._looks_s = None
            return
        left_s = self.boot.true_s(until_s) - self.clock.now_s
        if left_s <= 0.0 and self._crew.kill_all():
            self.tell("ends what is left: the lease is over")
            self.clock.seen["guard: kills"] += 1
        self._look_at(self.clock.now_s + (min(left_s, LOOK_S) if left_s > 0.0 else AGAIN_S))

    def _look_at(self, when_s: float) -> None:
        if self._looks_s is None or not self.clock.now_s < self._looks_s <= when_s:
            self._looks_s = when_s
            self.after(when_s - self.clock.now_s, lambda: self._wake(when_s))

    def _wake(self, when_s: float) -> None:
        if self._looks_s == when_s:
            self._look()

    def _sweep(self) -> None:
        """Its runner is gone: it ends what is left, and then itself."""
        self._crew.sweep()
        self.kill()
