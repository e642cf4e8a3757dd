"""Virtual time, processes that live in it, and the loop around a machine: what the simulator stands on.

Nothing here knows of fleets. Time only passes from one act to the next; all chance comes from one `random.Random`.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Act = Callable[[], None]

ACTS_A_MOMENT_MAX = 10_000
"""More that happens without any time passing is a loop that never ends."""

TICKS_A_MOMENT_MAX = 1000

TRACE_MAX = 200_000
"""Lines of a trace; a run that has more of them is told up to there."""

_EPSILON_S = 1e-6  # sums of floating-point seconds fall short by less


class Clock:
    """What happens when, the source of all chance, and what was seen on the way."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.now_s = 0.0
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()  # what the run has met, by name (coverage.py)
        self.trace: list[str] = []
        self.is_traced = is_traced
        self._acts: list[tuple[float, int, Act]] = []
        self._number = 0

    def at(self, when_s: float, act: Act) -> None:
        """Let it happen then; acts of the same moment happen in the order in which they were handed in."""
        self._number += 1
        heapq.heappush(self._acts, (when_s, self._number, act))

    def after(self, wait_s: float, act: Act) -> None:
        """Let it happen in a while."""
        self.at(self.now_s + wait_s, act)

    def run_until(self, end_s: float, is_over: Callable[[], bool] | None = None) -> None:
        """Let time pass until then, or until it is over."""
        acts, at_once = self._acts, 0
        while acts and acts[0][0] <= end_s:
            if is_over is not None and is_over():
                return
            at_once = at_once + 1 if acts[0][0] == self.now_s else 0
            assert at_once < ACTS_A_MOMENT_MAX, "time stands still: things happen without end"
            self.now_s, _, act = heapq.heappop(acts)
            act()
        self.now_s = max(self.now_s, end_s)

    def chance(self, probability: float) -> bool:
        """True so often."""
        return probability > 0 and self.rng.random() < probability

    def tell(self, who: str, what: str, *args: object) -> None:
        """A line for the trace: `what` is formatted with `args` only if somebody reads it."""
        if self.is_traced and len(self.trace) < TRACE_MAX:
            self.trace.append(f"{self.now_s:9.3f} {who:<9} {what.format(*args)}")


@dataclass(frozen=True)
class BootClock:
    """The boot-time clock of a machine: it began at some time, and goes a little too fast or too slow."""

    offset_s: float = 0.0
    rate: float = 1.0

    def shows_s(self, true_s: float) -> float:
        """What it shows then."""
        return self.offset_s + true_s * self.rate

    def true_s(self, shown_s: float) -> float:
        """When it shows that."""
        return (shown_s - self.offset_s) / self.rate


@dataclass
class Write:
    """A write that takes a while; `commit` puts it on the disk."""

    takes_s: float
    commit: Act


class Process:
    """Something that runs, is slow for a while, and may die at any moment."""

    def __init__(self, clock: Clock, name: str, boot: BootClock | None = None) -> None:
        self.clock = clock
        self.name = name
        self.boot = boot or BootClock()  # of its machine
        self.is_alive = True
        self.thaws_s = 0.0  # it does nothing before
        self.writes: list[Write] = []  # on their way to the disk
        self._waiting: deque[Act] = deque()  # for its thaw

    @property
    def now_s(self) -> float:
        """What the boot-time clock of its machine shows."""
        return self.boot.shows_s(self.clock.now_s)

    @property
    def is_awake(self) -> bool:
        """Whether it is not frozen."""
        return self.clock.now_s >= self.thaws_s

    def after(self, wait_s: float, act: Act) -> None:
        """Do it in a while, if it still lives; later where it is frozen then."""
        self.clock.after(wait_s, lambda: self.do(act))

    def do(self, act: Act) -> None:
        """Do it now; once it thaws, if it is frozen, in the order in which it came; never, if it is dead."""
        if self.is_awake and not self._waiting:
            if self.is_alive:
                act()
            return
        if not self._waiting:
            self.clock.at(self.thaws_s, self._thaw)
        self._waiting.append(act)

    def _thaw(self) -> None:
        while self.is_alive and self._waiting and self.is_awake:
            self._waiting.popleft()()
        if self.is_alive and self._waiting:  # it was frozen again
            self.clock.at(self.thaws_s, self._thaw)

    def freeze(self, seconds: float) -> None:
        """Let it do nothing for so long."""
        self.thaws_s = max(self.thaws_s, self.clock.now_s + seconds)

    def kill(self) -> None:
        """End it at once. What it was writing has reached the disk, or it has not."""
        self.is_alive = False
        for write in self.writes:
            if self.clock.chance(0.5):
                write.commit()
        self.writes.clear()

    def tell(self, what: str, *args: object) -> None:
        """A line for the trace."""
        self.clock.tell(self.name, what, *args)


class Machine(Protocol):
    """What a loop needs of a machine of `protocol/`."""

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Take in one event; return its effects in order."""

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due."""


class Loop:
    """Feeds a machine, as supervisor/shell/driver.py does: effects of one event in order, all before the next event.

    `perform` returns a Write where an effect is a barrier: what follows it waits until it is on disk.
    """

    def __init__(
        self, process: Process, machine: Machine, perform: Callable[[Any], Write | None], tick: object
    ) -> None:
        self.process = process
        self.machine = machine
        self._perform = perform
        self._tick = tick
        self._inbox: deque[tuple[object, Act | None]] = deque()
        self._effects: deque[object] = deque()  # of the event that is being handled
        self._then: Act | None = None
        self._is_busy = False
        self._wakes_s: float | None = None
        self._last_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether what is handed in now is handled at once."""
        is_awake = self.process.is_alive and self.process.is_awake
        return is_awake and not (self._is_busy or self._inbox or self._effects)

    def put(self, event: object, then: Act | None = None) -> None:
        """Hand in an event; `then` is done once all that follows from it has been performed."""
        self._inbox.append((event, then))
        self._go_on()

    def _go_on(self) -> None:
        ticks = 0
        while not self._is_busy and self.process.is_alive:
            if self._effects:
                self._perform_one()
            elif self._then is not None:
                then, self._then = self._then, None
                then()
            elif self._is_due(due_s := self.machine.deadline_s):
                ticks += 1
                assert ticks < TICKS_A_MOMENT_MAX, f"{self.process.name}: a deadline that no tick moves"
                self._handle(self._tick)
            elif self._inbox:
                event, self._then = self._inbox.popleft()
                self._handle(event)
            else:
                return self._sleep(due_s)

    def _handle(self, event: object) -> None:
        self._last_s = max(self._last_s, self.process.now_s)
        if event is self._tick and (due_s := self.machine.deadline_s) is not None:
            self._last_s = max(self._last_s, due_s)  # a timer may fire a hair early
        self._effects.extend(self.machine.handle(event, self._last_s))

    def _perform_one(self) -> None:
        write = self._perform(self._effects.popleft())
        if write is None:
            return
        if write.takes_s <= 0:
            write.commit()
            return
        self._is_busy = True
        self.process.writes.append(write)
        self.process.after(write.takes_s, lambda: self._written(write))

    def _written(self, write: Write) -> None:
        write.commit()
        self.process.writes.remove(write)
        self._is_busy = False
        self._go_on()

    def _is_due(self, due_s: float | None) -> bool:
        return due_s is not None and due_s <= max(self.process.now_s, self._last_s) + _EPSILON_S

    def _sleep(self, due_s: float | None) -> None:
        if due_s is None:
            return
        wakes_s = max(self.process.boot.true_s(due_s), self.process.clock.now_s)
        if self._wakes_s is None or wakes_s < self._wakes_s - _EPSILON_S:
            self._wakes_s = wakes_s
            self.process.clock.at(wakes_s, lambda: self._wake(wakes_s))

    def _wake(self, wakes_s: float) -> None:
        if self._wakes_s == wakes_s:  # else an earlier alarm has been set since
            self.process.do(self._woken)

    def _woken(self) -> None:
        self._wakes_s = None
        self._go_on()
