"""Runs one pure machine: events in, effects out, in order; the only loop there is around the logic."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from supervisor.shell.clock import boot_s

E = TypeVar("E", contravariant=True)
F = TypeVar("F")
Event = TypeVar("Event")
Effect = TypeVar("Effect")

INBOX_MAX = 10_000
"""Events a machine may be behind; more means that something runs away, and ends the process (crash-only)."""


class Machine(Protocol[E, F]):
    """What a driver needs of a machine."""

    def handle(self, event: E, now_s: float) -> list[F]:
        """Take in one event; return its effects in order."""

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due, in boot-time seconds."""


class Driver(Generic[Event, Effect]):
    """Feeds a machine events and ticks and performs its effects in order.

    `perform` must not wait for the inbox. Effects of one event are all performed before the next event is
    taken, so a `Persist` that awaits the disk is a barrier before the sends behind it.
    """

    def __init__(
        self, machine: Machine[Event, Effect], perform: Callable[[Effect], Awaitable[None]], tick: Event
    ) -> None:
        self.machine = machine
        self._perform = perform
        self._tick = tick
        self._inbox: asyncio.Queue[tuple[Event, asyncio.Future[None] | None]] = asyncio.Queue(maxsize=INBOX_MAX)

    def put(self, event: Event) -> None:
        """Hand in an event from inside the loop; raises asyncio.QueueFull when the machine is hopelessly behind."""
        self._inbox.put_nowait((event, None))

    async def ask(self, event: Event) -> None:
        """Hand in an event and wait until all that follows from it has been performed, `Persist` included."""
        performed = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((event, performed))
        await performed

    async def run(self) -> None:
        """Feed events and ticks until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            deadline_s = self.machine.deadline_s
            wait_s = None if deadline_s is None else max(0.0, deadline_s - boot_s())
            performed = None
            try:
                async with asyncio.timeout_at(None if wait_s is None else loop.time() + wait_s):
                    event, performed = await self._inbox.get()
            except TimeoutError:
                if deadline_s is None or boot_s() < deadline_s:
                    continue  # loop timers may fire a hair early
                event = self._tick
            for effect in self.machine.handle(event, boot_s()):
                await self._perform(effect)
            if performed is not None and not performed.done():
                performed.set_result(None)
