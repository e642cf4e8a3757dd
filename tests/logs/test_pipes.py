"""supervisor/logs/pipes.py: real pipes in a real loop."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from supervisor.logs.pipes import PACE_S, READ_BYTES, TURN_BYTES, Pipe, Pipes
from supervisor.shell.clock import boot_s


class Taken:
    """What was read of one pipe."""

    def __init__(self, pipes: Pipes) -> None:
        self.pieces: list[bytes] = []
        self.came = asyncio.Event()
        read_end, self.fd = os.pipe()
        os.set_blocking(self.fd, False)
        self.pipe: Pipe = pipes.add(read_end, self._take)

    def _take(self, data: bytes) -> None:
        self.pieces.append(data)
        self.came.set()

    async def until(self, count: int) -> None:
        """Wait until so many bytes were read."""
        async with asyncio.timeout(20):
            while sum(map(len, self.pieces)) < count:
                self.came.clear()
                await self.came.wait()

    def end(self) -> None:
        """Close the write end."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@pytest.fixture
async def two() -> AsyncIterator[tuple[Pipes, Taken, Taken]]:
    """A reader with two pipes."""
    pipes = Pipes()
    taken = Taken(pipes), Taken(pipes)
    yield pipes, *taken
    for one in taken:
        one.end()
        pipes.close(one.pipe)


async def test_a_quiet_pipe_is_read_soon_and_one_that_goes_on_at_its_pace(two: tuple[Pipes, Taken, Taken]) -> None:
    _, busy, quiet = two
    begun_s = boot_s()
    for number in range(2000):
        os.write(busy.fd, b"%04d\n" % number)
        await asyncio.sleep(0)
    os.write(quiet.fd, b"hello\n")
    await quiet.until(6)
    await busy.until(2000 * 5)
    rounds = (boot_s() - begun_s) / PACE_S + 1
    assert b"".join(busy.pieces) == b"".join(b"%04d\n" % number for number in range(2000))
    assert len(busy.pieces) <= 2 * rounds + 1  # one that is found empty is watched, and read when something comes


async def test_a_flood_is_read_in_pieces_between_which_the_loop_has_its_turn(two: tuple[Pipes, Taken, Taken]) -> None:
    _, flooding, quiet = two
    steps = 0
    output = bytes(range(256)) * (8 * TURN_BYTES // 256)

    async def count_steps() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    def write() -> None:
        os.set_blocking(flooding.fd, True)
        view = memoryview(output)
        while view:
            view = view[os.write(flooding.fd, view) :]

    counting = asyncio.get_running_loop().create_task(count_steps())
    writing = asyncio.get_running_loop().run_in_executor(None, write)
    os.write(quiet.fd, b"hello\n")
    await quiet.until(6)
    await flooding.until(len(output))
    await writing
    counting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await counting
    assert b"".join(flooding.pieces) == output
    assert max(map(len, flooding.pieces)) <= READ_BYTES
    assert steps >= len(output) // (TURN_BYTES + READ_BYTES)


async def test_while_paused_nothing_is_read_but_on_demand_and_then_all_of_it(two: tuple[Pipes, Taken, Taken]) -> None:
    pipes, one, other = two
    os.write(one.fd, b"before\n")
    await one.until(7)
    pipes.pause()
    late = Taken(pipes)
    for taken in (one, other, late):
        os.write(taken.fd, b"meanwhile\n")
    await asyncio.sleep(3 * PACE_S)
    assert (one.pieces, other.pieces, late.pieces) == ([b"before\n"], [], [])
    assert pipes.read(one.pipe) == 10
    pipes.resume()
    for taken in (other, late):
        await taken.until(10)
    os.write(one.fd, b"after\n")
    await one.until(23)
    assert b"".join(one.pieces) == b"before\nmeanwhile\nafter\n"
    late.end()
    pipes.close(late.pipe)


async def test_a_pause_in_the_middle_of_a_round_holds_for_the_pipes_behind(two: tuple[Pipes, Taken, Taken]) -> None:
    pipes, one, other = two
    for taken in (one, other):
        os.write(taken.fd, b"first\n")
        await taken.until(6)
    paused = asyncio.Event()

    def take(data: bytes) -> None:
        one.pieces.append(data)
        pipes.pause()
        paused.set()

    one.pipe.take = other.pipe.take = take
    for taken in (one, other):
        os.write(taken.fd, b"second\n")
    async with asyncio.timeout(20):
        await paused.wait()
    await asyncio.sleep(3 * PACE_S)
    assert one.pieces == [b"first\n", b"second\n"]


async def test_a_pipe_at_its_end_is_closed_and_holds_nobody_up(two: tuple[Pipes, Taken, Taken]) -> None:
    pipes, ending, other = two
    os.write(ending.fd, b"last words")
    ending.end()
    await ending.until(10)
    os.write(other.fd, b"alive\n")
    await other.until(6)
    assert pipes.read(ending.pipe) == 0
    assert ending.pipe.fd == -1
    assert ending.pipe.unread_bytes() == 0
    os.write(other.fd, b"still alive\n")
    await other.until(18)
