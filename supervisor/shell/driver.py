"""Runs one pure machine: events in, effects out, in order; the only loop there is around the logic."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from protocol.errors import SupdError
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
        self._inbox: deque[tuple[Event, asyncio.Future[None] | None]] = deque()
        self._wake = asyncio.Event()

    @property
    def is_behind(self) -> bool:
        """Whether so much is waiting that what says itself again later is better left out."""
        return len(self._inbox) >= INBOX_MAX // 2

    def put(self, event: Event) -> None:
        """Hand in an event from inside the loop; raises asyncio.QueueFull when the machine is hopelessly behind."""
        self._put(event, None)

    async def ask(self, event: Event) -> None:
        """Hand in an event and wait until all that follows from it has been performed, `Persist` included."""
        performed = asyncio.get_running_loop().create_future()
        self._put(event, performed)
        await performed

    def _put(self, event: Event, performed: asyncio.Future[None] | None) -> None:
        if len(self._inbox) >= INBOX_MAX:
            raise asyncio.QueueFull
        self._inbox.append((event, performed))
        self._wake.set()

    async def run(self) -> None:
        """Feed events and ticks until cancelled."""
        while True:
            event, performed = await self._next()
            try:
                for effect in self.machine.handle(event, boot_s()):
                    await self._perform(effect)
            except SupdError as exc:
                if performed is not None and not performed.done():
                    performed.set_exception(exc)  # who asked is told why, before everything ends
                raise
            if performed is not None and not performed.done():
                performed.set_result(None)

    async def _next(self) -> tuple[Event, asyncio.Future[None] | None]:
        """The next event. What is due comes first: a flood of events must not hold up a deadline."""
        while True:
            deadline_s = self.machine.deadline_s
            left_s = None if deadline_s is None else deadline_s - boot_s()
            if left_s is not None and left_s <= 0:
                return self._tick, None
            if self._inbox:
                return self._inbox.popleft()
            await self._wait(left_s)  # a timer of the loop may fire a hair early: look again

    async def _wait(self, timeout_s: float | None) -> None:
        """Until something is put in, or time is up. (asyncio.timeout would cancel a task at every tick.)"""
        self._wake.clear()
        timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
