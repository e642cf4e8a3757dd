"""supervisor/shell/driver.py: the loop around a machine, with machines of a few lines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from protocol.errors import Refused
from supervisor.shell.clock import boot_s
from supervisor.shell.driver import INBOX_MAX, Driver

TIMEOUT_S = 20.0
TICK = "tick"


class Echo:
    """Every event has two effects; a Tick is due at `deadline_s`, once."""

    def __init__(self, deadline_s: float | None = None) -> None:
        self.deadline_s = deadline_s
        self.ticked_at_s = 0.0

    def handle(self, event: str, now_s: float) -> list[str]:
        if event == TICK:
            self.deadline_s, self.ticked_at_s = None, now_s
        return [f"{event} 1", f"{event} 2"]


@asynccontextmanager
async def running(machine: Echo, perform: Callable[[str], Awaitable[None]]) -> AsyncIterator[Driver[str, str]]:
    """A driver that runs for the length of a block."""
    driver = Driver(machine, perform, TICK)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        task = group.create_task(driver.run())
        yield driver
        task.cancel()


async def test_all_effects_of_an_event_are_performed_before_the_next_event_is_taken() -> None:
    done: list[str] = []

    async def perform(effect: str) -> None:
        await asyncio.sleep(0)
        done.append(effect)

    async with running(Echo(), perform) as driver:
        driver.put("a")
        driver.put("b")
        await driver.ask("c")
    assert done == ["a 1", "a 2", "b 1", "b 2", "c 1", "c 2"]


async def test_what_is_due_comes_before_whatever_waits() -> None:
    done: list[str] = []

    async def perform(effect: str) -> None:
        done.append(effect)

    driver = Driver(Echo(deadline_s=boot_s()), perform, TICK)
    driver.put("flood")
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        task = group.create_task(driver.run())
        await driver.ask("last")
        task.cancel()
    assert done[0] == "tick 1"


async def test_a_tick_comes_when_it_is_due_and_not_before() -> None:
    machine = Echo(deadline_s=boot_s() + 0.05)
    due_s = machine.deadline_s
    ticked = asyncio.Event()

    async def perform(effect: str) -> None:
        ticked.set()

    async with running(machine, perform):
        await ticked.wait()
    assert due_s is not None
    assert machine.ticked_at_s >= due_s


async def test_who_asks_is_told_why_it_could_not_be_performed_and_the_driver_ends() -> None:
    async def perform(effect: str) -> None:
        raise Refused("F022", "the disk is full")

    driver = Driver(Echo(), perform, TICK)
    run = asyncio.get_running_loop().create_task(driver.run())
    with pytest.raises(Refused, match="full"):
        await driver.ask("a")
    with pytest.raises(Refused, match="full"):
        await run


async def test_a_machine_that_is_behind_says_so_before_its_inbox_is_full() -> None:
    async def perform(effect: str) -> None:
        raise AssertionError

    driver = Driver(Echo(), perform, TICK)
    for _ in range(INBOX_MAX // 2):
        assert not driver.is_behind
        driver.put("a")
    assert driver.is_behind
    for _ in range(INBOX_MAX // 2):
        driver.put("a")
    with pytest.raises(asyncio.QueueFull):
        driver.put("a")


async def test_a_jump_of_the_wall_clock_is_not_seen_by_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines, and the silence of ranks, are of the boot-time clock alone."""
    machine = Echo()
    ticked = asyncio.Event()

    async def perform(effect: str) -> None:
        ticked.set()

    begun_s = boot_s()
    monkeypatch.setattr("time.time", lambda: 0.0)
    machine.deadline_s = begun_s + 0.01
    async with running(machine, perform):
        await ticked.wait()
    assert begun_s < machine.ticked_at_s <= boot_s()
