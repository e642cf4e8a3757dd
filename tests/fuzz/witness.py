"""Somebody with the fleet's key at the port where a runner listens for its fellows, saying anything to it, but for the
one lie that cannot be told from the truth: who holds the key may say that it is one of the fellows."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from functools import cache
from random import Random

from msgspec.structs import replace

from protocol.framing import HEADER_BYTES, MAX_FRAME_BYTES, encode_frame
from protocol.messages import encode
from protocol.messages.member import (
    TAIL_BYTES_MAX,
    TAIL_LINES_MAX,
    Hello,
    RankExit,
    RankReport,
    Renewal,
    RenewalOf,
    Testimony,
)
from protocol.messages.witness import PassOn, ToRunnerPeer
from protocol.versions import VERSIONS
from tests.fuzz.anything import anything
from tests.fuzz.mangle import mangled

FRAMES_A_LINE_MAX = 60
MANGLED = 0.1
TIMEOUT_S = 20.0
WORST = (
    b"\xff" * 4096,  # a frame of 4 GiB
    MAX_FRAME_BYTES.to_bytes(HEADER_BYTES, "big") + b"\0" * 100_000,  # one that never comes to its end
    b"GET / HTTP/1.1\r\n\r\n",
)

Say = Callable[[Random], object]

to_a_runner: Say = anything(ToRunnerPeer)
to_the_host: Say = anything(RenewalOf | Testimony)
any_hello: Callable[[Random], Hello] = anything(Hello)


async def bombard(host: str, port: int, tls: ssl.SSLContext, rng: Random, *, run: str, lines: int, say: Say) -> None:
    """So many connections, some at a time: of the run and of others, whole and mangled, with and without an end."""
    left = iter(range(lines))

    async def some() -> None:
        for _ in left:
            with contextlib.suppress(OSError):  # the runner has let go of it
                await _one(host, port, tls, rng, _said(rng, run, say))

    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(some())


async def _one(host: str, port: int, tls: ssl.SSLContext, rng: Random, said: bytes) -> None:
    has_key = rng.random() < 0.9
    reader, writer = await asyncio.open_connection(host, port, ssl=tls if has_key else None)
    try:
        writer.write(said if has_key else rng.choice(WORST))
        await writer.drain()
        if rng.random() < 0.5:
            async with asyncio.timeout(rng.random() * 0.2):
                while await reader.read(1 << 16):
                    pass
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()


def _said(rng: Random, run: str, say: Say) -> bytes:
    """All that one of them says."""
    if rng.random() < 0.1:
        return rng.choice(WORST)
    hello = replace(any_hello(rng), incarnation=f"stranger-{rng.randrange(1000)}")
    if rng.random() < 0.8:
        hello = replace(hello, versions=VERSIONS, fleet="default", run=run)
    messages = [say(rng) for _ in range(rng.randint(0, FRAMES_A_LINE_MAX))]
    frames = [encode_frame(encode(message)) for message in (hello, *messages)]
    if rng.random() < 0.05:
        frames.append(large())
    return b"".join(mangled(frame, rng) if rng.random() < MANGLED else frame for frame in frames)


@cache
def large() -> bytes:
    """A frame of nearly 8 MiB, to be passed on."""
    tail = (b"x" * TAIL_BYTES_MAX,) * TAIL_LINES_MAX
    exit = RankExit(code=1, order=0, wall_s=0.0, ran_s=0.0, stopped_by_us=False, stderr_tail=tail)
    count = MAX_FRAME_BYTES // (2 * TAIL_BYTES_MAX * TAIL_LINES_MAX) * 2
    ranks = (RankReport(rank=n, local_rank=n, pid=1, started=True, exit=exit) for n in range(count))
    return encode_frame(encode(PassOn(renewal=Renewal(number=1, ranks=tuple(ranks)))))
