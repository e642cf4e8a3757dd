"""This supd as a node of its fleet: its runners, its journal of them, and its link to the coordinator."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TypeVar

import structlog

from protocol import node as n
from protocol.errors import Refused
from protocol.messages.fleet import NodeOrder, NodeReport
from protocol.messages.runner import Record
from supervisor.daemon import slow_disk
from supervisor.daemon.journal import Journal, StoredRunner
from supervisor.daemon.old_files import OldFiles
from supervisor.daemon.runners import Runners
from supervisor.shell.clock import wall_s
from supervisor.shell.config import Config
from supervisor.shell.driver import Driver
from supervisor.shell.files import read_small, write_whole

log = structlog.get_logger()

A = TypeVar("A")
T = TypeVar("T")

LOOK_EVERY_S = 60.0
"""Between two looks at what may go."""

Send = Callable[[NodeReport], None]


class Node:
    """The node's side of whichever link there is: a connection to the host (`FleetLink`), or the coordinator in this
    very process (`Nodes`). One link at a time."""

    def __init__(self, config: Config, journal: Journal, given: list[StoredRunner]) -> None:
        """`given` are the runners of the journal."""
        self._journal = journal
        self._logs_dir = config.logs_dir
        self._coordinator_file = config.state_dir / "coordinator"
        self._machine = n.Node({runner.incarnation: runner.run for runner in given})
        self._driver: Driver[n.Event, n.Effect] = Driver(self._machine, self._perform, n.Tick())
        self._group: asyncio.TaskGroup | None = None
        self._send: Send | None = None
        self._ordered = asyncio.Event()
        self.answered = (0, -math.inf)  # which epoch has answered a runner that came here in vain, and when
        self.runners = Runners(
            config,
            journal,
            self._coordinator_file,
            given,
            on_given=lambda run, incarnation: self._put(n.Given(run, incarnation)),
            on_gone=self._on_gone,
            on_failed=lambda run, reason: self._put(n.StartFailed(run, reason)),
        )
        self._old_files = OldFiles(config, self.runners.serves)

    async def run(self) -> None:
        """Look after the runners until cancelled; they live on."""
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._driver.run(), name="node")
            self._group.create_task(self.runners.run(), name="runners")
            self._group.create_task(self._look_after_files(), name="old-files")

    def active_runs(self) -> int:
        """How many runs have a runner here."""
        return len(set(self._machine.runners.values()))

    @property
    def is_settled(self) -> bool:
        """Whether no runner is here, and the coordinator knows of the end of each."""
        return not self._machine.runners and not self._machine.buried

    def has_runner(self, incarnation: str) -> bool:
        """Whether it is one of this supd's that may be alive."""
        return incarnation in self._machine.runners

    # --- the link ------------------------------------------------------------------------------------------------

    async def publish(self, host: str, port: int) -> None:
        """Tell runners where the coordinator is: they look there at every attempt to connect. Raises OSError."""
        await asyncio.to_thread(_write_where_it_differs, self._coordinator_file, f"{host}:{port}\n".encode())

    async def publish_as_host(self, host: str, port: int) -> None:
        """The same of this supd itself. Raises Refused."""
        try:
            await self.publish(host, port)
        except OSError as exc:
            what = f"cannot tell runners where the coordinator is: {exc}"
            raise Refused("F035", what, hint="see that its disk has room") from exc

    async def keep_epoch(self, epoch: int) -> None:
        """The coordinator is in this epoch: never again is a lower one obeyed here, or begun."""
        await self._journal.raise_to(epoch)

    def link_up(self, send: Send, address: str) -> None:
        """The coordinator has taken this node in: reports go to `send`. Peers reach the node at `address`."""
        self._send, self.runners.address = send, address
        self._put(n.LinkUp())

    def link_down(self) -> None:
        """That link is gone."""
        self._send = None
        self._put(n.LinkDown())

    def on_order(self, order: NodeOrder) -> None:
        """An order came in by the link."""
        if not self._driver.is_behind:  # of a flood some are left out: each says all of it
            self._put(n.Ordered(order))
            self._ordered.set()

    # --- signals -------------------------------------------------------------------------------------------------

    def on_signalled(self, signals: Mapping[str, int]) -> None:
        """This supd was sent a signal; `signals` says how often it was sent each."""
        self._put(n.Signalled(dict(signals)))

    async def told(self) -> None:
        """Return once the coordinator knows of every signal, or there is no link to it. It may not come to that."""
        await self._driver.ask(n.Tick())  # what was put in before is taken in
        while not self._machine.may_end:
            self._ordered.clear()
            await self._ordered.wait()
            await self._driver.ask(n.Tick())

    # --- the machine ---------------------------------------------------------------------------------------------

    def _put(self, event: n.Event) -> None:
        self._driver.put(event)

    def _on_gone(self, run: str, incarnation: str, record: Record | None) -> None:
        self._put(n.Buried(run, incarnation, None if record is None else record.renewal))

    async def _perform(self, effect: n.Effect) -> None:
        match effect:
            case n.Ensure(run):
                self.runners.start(run)
            case n.Report(report):
                if self._send is not None:
                    self._send(report)
            case n.Forget(incarnation):
                self._begin(self._forget_runner(incarnation), f"forget-{incarnation}")
            case n.Clear(runs):
                self._begin(self._clear(runs), f"clear-{runs[0]}")

    def _begin(self, task: Coroutine[None, None, object], name: str) -> None:
        """A disk that has no room must not keep reports waiting."""
        assert self._group is not None
        self._group.create_task(task, name=name)

    # --- old files -----------------------------------------------------------------------------------------------

    async def _look_after_files(self) -> None:
        while True:
            runs = await self._tidy(self._old_files.look, wall_s())
            self._put(n.Aged(tuple(runs or ())))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _forget_runner(self, incarnation: str) -> None:
        await self._journal.remove_runner(incarnation)
        await self._tidy(self._old_files.forget_runner, incarnation)

    async def _clear(self, runs: tuple[str, ...]) -> None:
        for run in runs:
            await self._tidy(self._old_files.remove_run, run)

    async def _tidy(self, work: Callable[[A], T], about: A) -> T | None:
        """What the disk does not let go is looked at again later."""
        try:
            return await slow_disk.ask(self._logs_dir, work, about)
        except (OSError, Refused) as exc:
            log.warning("old_files_left", about=about, error=str(exc))
            return None


def _write_where_it_differs(path: Path, content: bytes) -> None:
    """A disk that is full keeps nobody from what is there already."""
    if read_small(path, len(content) + 1) != content:
        write_whole(path, content)
