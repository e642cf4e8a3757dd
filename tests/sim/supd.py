"""A supd: the real machine of a node in a process that may die, and the journal that outlives it.

What supervisor/daemon/runners.py does around that machine is played here: runners are started, their locks are tried,
and what dead ones left is swept before that is told. The host's supd holds the coordinator too (host.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from protocol.messages.fleet import Joined, JoinRefused, NodeOrder
from protocol.node import (
    Buried,
    Clear,
    Effect,
    Ensure,
    Forget,
    Given,
    LinkDown,
    LinkUp,
    Node,
    Ordered,
    Report,
    Signalled,
    StartFailed,
    Tick,
)
from tests.sim.kernel import Act, Loop, Process, Write
from tests.sim.network import Line, Network, Server
from tests.sim.runner import Machine
from tests.sim.setup import Setup

POLL_S = 0.25
"""Between two looks at the locks."""


@dataclass
class NodeDisk:
    """What a node's state folder holds."""

    identity: str
    starts: int = 0  # how often its supd has been started
    given: dict[str, str] = field(default_factory=dict)  # incarnation -> run
    made: int = 0  # runners, ever: the real ones have random names


class Supd(Process):
    """One start of a node's supd."""

    def __init__(
        self,
        machine: Machine,
        disk: NodeDisk,
        network: Network,
        find: Callable[["Supd"], tuple[Server, str] | None],
        hello: Callable[["Supd"], object],
        start_runner: Callable[[str, str], None],
        start_fails: Callable[[], bool],
        write: Callable[[Act], Write],
        write_s: Callable[[], float],
        setup: Setup,
        on_buried: Callable[[], None],
    ) -> None:
        super().__init__(machine.clock, f"supd-{machine.place}", machine.boot)
        disk.starts += 1
        self.machine = machine
        self.disk = disk
        self.node = Node(disk.given)
        self._network = network
        self._start_runner = start_runner
        self._start_fails = start_fails
        self._write = write
        self._write_s = write_s
        self._setup = setup
        self._on_buried = on_buried
        self.epoch = 0  # the highest that it has heard of
        self.heard_s: float | None = None  # when it has heard the host, by the world's clock
        self.signals: dict[str, int] = {}  # that it was sent
        self._being_buried: set[str] = set()
        self._held: set[str] = set()  # locks of runners that have not been given their run yet
        self._loop = Loop(self, self.node, self._perform, Tick())
        self.tell("starts")
        self.line = Line(
            self,
            network,
            machine.name,
            lambda: find(self),
            lambda: hello(self),
            self._on_message,
            lambda: self._loop.put(LinkDown()),
            is_strict=True,
        )
        self._look()

    def signal(self, name: str) -> None:
        """It is sent a signal, and tells of it."""
        self.tell("is sent {}", name)
        self.signals[name] = self.signals.get(name, 0) + 1
        self.do(lambda: self._loop.put(Signalled(dict(self.signals))))

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_alive:
            self.tell("is killed")
            super().kill()
            self._network.end_of(self)

    def meet_another_host(self) -> None:
        """The host has another state folder from now on, which counts its epochs anew."""
        self.epoch = 0

    # --- the link ------------------------------------------------------------------------------------------------

    def _on_message(self, message: object) -> None:
        match message:
            case Joined(epoch=epoch, host=host):
                if epoch < self.epoch:
                    self.clock.seen["refused: host that was replaced"] += 1
                    self.line.drop()
                    return
                self.epoch, self.heard_s, self.machine.follows = epoch, self.clock.now_s, host
                self._loop.put(LinkUp())
            case JoinRefused():
                self.tell("is refused: {}", message.message)
                self.clock.seen[f"refused: {message.code}"] += 1
                self.line.drop()
            case NodeOrder(epoch=epoch):
                if epoch < self.epoch:
                    self.clock.seen["refused: order of a coordinator that was replaced"] += 1
                    return
                self.epoch, self.heard_s = epoch, self.clock.now_s
                if message.number < self.node._order:
                    self.clock.seen["ignored: order to a node that a newer one overtook"] += 1
                self._loop.put(Ordered(message))
            case _:
                raise AssertionError(f"to a node: {message}")

    # --- runners -------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Write | None:
        match effect:
            case Ensure(run):
                self.after(self.clock.rng.uniform(*self._setup.gives_s), lambda: self._give(run))
            case Report(report):
                self.line.send(report)
            case Forget(incarnation):
                return self._write(lambda: self._forget(incarnation))
            case Clear():
                raise AssertionError("nothing is forgotten here")
        return None

    def _give(self, run: str) -> None:
        """Start a runner for a run: it is written down first, which takes a while."""
        if self._start_fails():
            self.clock.seen["fault: runner could not be started"] += 1
            self._loop.put(StartFailed(run, "no room"))
            return
        self.disk.made += 1
        incarnation = f"{self.machine.place}{self.disk.made}"
        self.disk.given[incarnation] = run
        self.after(self._write_s(), lambda: self._given(run, incarnation))

    def _given(self, run: str, incarnation: str) -> None:
        """It is on disk: the node's machine knows, and then the runner is given its run."""
        self._held.add(incarnation)
        self._loop.put(Given(run, incarnation))
        self.after(self.clock.rng.uniform(0.0, 0.01), lambda: self._hand_over(run, incarnation))

    def _hand_over(self, run: str, incarnation: str) -> None:
        self._held.discard(incarnation)
        self.tell("gives {} to {}", run, incarnation)
        self._start_runner(run, incarnation)

    def _forget(self, incarnation: str) -> None:
        self.disk.given.pop(incarnation, None)
        self.machine.records.pop(incarnation, None)

    def _look(self) -> None:
        for incarnation in list(self.node.runners):
            runner = self.machine.runners.get(incarnation)
            is_held = incarnation in self._held or (runner is not None and runner.lock_is_held)
            if is_held or incarnation in self._being_buried:
                continue
            self._being_buried.add(incarnation)
            self.after(self.clock.rng.uniform(*self._setup.sweep_s), partial(self._bury, incarnation))
        self.after(self.clock.rng.uniform(0.5, 1.0) * POLL_S, self._look)

    def _bury(self, incarnation: str) -> None:
        runner = self.machine.runners.pop(incarnation, None)
        if runner is not None:
            runner.crew.sweep()
        last = self.machine.records.get(incarnation)
        if last is not None:
            last = msgspec.structs.replace(last, offer=None)
        self.tell("buries {}: {}", incarnation, last.part if last else "never heard of")
        self._loop.put(Buried(self.disk.given[incarnation], incarnation, last))
        self._on_buried()
