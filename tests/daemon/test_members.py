"""supervisor/daemon/members.py: the coordinator's door, with callers that are no runners."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.framing import MAX_FRAME_BYTES, FrameDecoder, encode_frame
from protocol.ids import EPOCH_MAX
from protocol.messages import encode
from protocol.messages.control import Done, GetStatus, Statuses
from protocol.messages.member import (
    Hello,
    Offer,
    Part,
    RankExit,
    RankReport,
    Rejected,
    Renewal,
    RenewalOf,
    SpawnFailure,
    ToRunner,
    Welcome,
    decode_to_runner,
)
from protocol.messages.member import Testimony as Told  # pytest takes what begins with Test for a test
from protocol.versions import VERSIONS
from supervisor.daemon import door
from supervisor.shell.config import Config
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import client_context
from tests.daemon.serving import ask, config_in, serving
from tests.daemon.test_control import start


class Caller:
    """One TLS connection to the coordinator."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[bytes] = []

    def say(self, *messages: object) -> None:
        for message in messages:
            self.writer.write(encode_frame(encode(message)))

    async def hear(self) -> ToRunner | None:
        """The next message; None once the connection has ended."""
        while not self._frames:
            data = b""
            with contextlib.suppress(ConnectionError):
                data = await self.reader.read(1 << 16)
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return decode_to_runner(self._frames.pop(0))


@contextlib.asynccontextmanager
async def calling(config: Config, credential: Path | None = None, *, tls: bool = True) -> AsyncIterator[Caller]:
    """A connection with the fleet's credential, or another, or as plain TCP."""
    host, _, port = (config.state_dir / "coordinator").read_text().strip().rpartition(":")
    context = client_context(credential or config.credential) if tls else None
    caller = Caller(*await asyncio.open_connection(host, int(port), ssl=context))
    try:
        yield caller
    finally:
        caller.writer.transport.abort()
        with contextlib.suppress(OSError):
            await caller.writer.wait_closed()


async def answers(config: Config) -> bool:
    """Whether supd is still as it was."""
    return isinstance(await ask(config.control, GetStatus()), Statuses)


def hello(config: Config, run: str, /, **changed: Any) -> Hello:
    usual = {"versions": VERSIONS, "fleet": config.fleet, "node": config.node, "incarnation": "0" * 16}
    return Hello(**{**usual, "run": run, **changed})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"versions": (98, 99)}, "this supd speaks versions (1,), the runner (98, 99)"),
        ({"fleet": "other"}, "a is of fleet default, not of other"),
        ({"epoch": 2**63}, "there is no epoch 9223372036854775808"),
        ({"epoch": 2**62}, "there is no epoch 4611686018427387904"),
        ({"epoch": EPOCH_MAX}, "there is no epoch 1000000000000000"),
    ],
)
async def test_a_runner_that_does_not_fit_is_told_why_and_left_alone(
    short_dir: Path, changed: dict[str, Any], reason: str
) -> None:
    config = config_in(short_dir, node="a")
    async with serving(config):
        started = await ask(config.control, start("one"))
        assert isinstance(started, Done)
        async with calling(config) as caller:
            caller.say(hello(config, started.run, **changed))
            assert await caller.hear() == Rejected(reason=reason)  # R6: it goes on
            assert await caller.hear() is None


async def test_a_runner_that_fits_is_welcomed_with_its_job_and_the_newest_version_of_both(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        started = await ask(config.control, start("one"))
        assert isinstance(started, Done)
        async with calling(config) as caller:
            caller.say(hello(config, started.run, versions=(0, *VERSIONS, 99)))
            welcome = await caller.hear()
    assert isinstance(welcome, Welcome)
    assert (welcome.version, welcome.epoch, welcome.job.run) == (max(VERSIONS), 1, started.run)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        encode_frame(b"\xc1"),
        encode_frame(encode({"type": "Unknown"})),
        encode_frame(encode(Renewal(number=1))),
        encode_frame(b"\x91" * 100_000),
    ],
)
async def test_nonsense_costs_a_caller_its_connection(short_dir: Path, nonsense: bytes) -> None:
    config = config_in(short_dir)
    async with serving(config):
        async with calling(config) as caller:
            caller.writer.write(nonsense)
            assert await caller.hear() is None
        assert await answers(config)


async def test_who_has_no_credential_is_not_heard(short_dir: Path) -> None:
    config = config_in(short_dir)
    stolen = short_dir / "other.pem"
    write_once(str(stolen), credential())
    rng = random.Random(3)
    async with serving(config):
        with contextlib.suppress(OSError):
            async with calling(config, stolen) as caller:
                caller.say(hello(config, "job@123456"))
                assert await caller.hear() is None
        for _ in range(200):
            async with calling(config, tls=False) as caller:
                caller.writer.write(rng.randbytes(rng.randrange(300)))
                with contextlib.suppress(OSError):
                    caller.writer.write_eof()
                    await caller.reader.read()  # until supd has had enough
        async with calling(config, tls=False) as caller:
            caller.writer.write(b"no TLS at all" * 10)
            assert await caller.reader.read() in (b"", b"\x15\x03\x03\x00\x02\x02\x46", b"\x15\x03\x01\x00\x02\x02\x46")
        assert await answers(config)


async def test_callers_that_say_nothing_are_let_go_and_keep_nobody_waiting(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HELLO_TIMEOUT_S", 0.2)
    config = config_in(short_dir)
    async with serving(config):
        async with calling(config, tls=False) as deaf, calling(config) as silent, calling(config) as half:
            half.writer.write(encode_frame(encode(hello(config, "job@123456")))[:-1])
            assert await answers(config)
            assert await deaf.reader.read() == b""
            assert await silent.hear() is None
            assert await half.hear() is None
        assert await answers(config)


def random_renewal(rng: random.Random) -> Renewal:
    """Whatever the types allow, with a liking for the edges."""

    def number() -> int:
        return rng.choice([-(2**63), -2, -1, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1])

    def seconds() -> float:
        return rng.choice([0.0, -1.0, 1.5, 1e308, float("inf"), float("nan")])

    def exit() -> RankExit:
        return RankExit(
            code=rng.choice([None, 0, 1, number()]),
            signal=rng.choice([None, 9, 11, number()]),
            order=number(),
            wall_s=seconds(),
            ran_s=seconds(),
            stopped_by_us=rng.random() < 0.5,
            oom=rng.choice(["", "memory.max"]),
            stderr_tail=(rng.randbytes(9),) * rng.randrange(3),
        )

    def report() -> RankReport:
        ended = rng.choice([None, exit()])
        return RankReport(rank=number(), local_rank=number(), pid=number(), started=rng.random() < 0.5, exit=ended)

    return Renewal(
        number=number(),
        generation=number(),
        part=rng.choice(list(Part)),
        ranks=tuple(report() for _ in range(rng.randrange(4))),
        spawn_failure=rng.choice([None, None, SpawnFailure(rank=number(), path="/", reason="")]),
        stuck_pids=(number(),) * rng.randrange(2),
        saved_step=rng.choice([None, number()]),
        offer=rng.choice([None, Offer(slots=number(), address="", port=number(), problem=rng.choice(["", "no"]))]),
    )


def random_message(rng: random.Random) -> Renewal | RenewalOf | Told:
    """What a runner says of itself, or of another one."""
    renewal, node, incarnation = random_renewal(rng), rng.choice(["stranger", "x"]), f"{rng.randrange(3):016x}"
    match rng.randrange(4):
        case 0:
            return RenewalOf(node=node, incarnation=incarnation, renewal=renewal)
        case 1:
            number, word_s = rng.randrange(3), rng.choice([None, -1.0, 1e308, float("nan")])
            return Told(number=number, node=node, incarnation=incarnation, word_s=word_s)
        case _:
            return renewal


async def test_a_runner_that_lies_ends_its_run_at_worst_and_never_supd(short_dir: Path) -> None:
    config, rng = config_in(short_dir), random.Random(7)
    async with serving(config):
        for number in range(4):
            started = await ask(config.control, start(f"request-{number}", f"job{number}"))
            assert isinstance(started, Done)
            for _ in range(10):
                async with calling(config) as caller:
                    node = config.node if rng.random() < 0.9 else "stranger"
                    caller.say(hello(config, started.run, incarnation=f"{rng.randrange(3):016x}", node=node))
                    caller.say(*(random_message(rng) for _ in range(15)))
                    await caller.hear()
        assert await answers(config)
    async with serving(config):  # and the next supd can read what this one has kept
        assert await answers(config)


async def test_a_flood_of_renewals_keeps_nobody_else_waiting(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        started = await ask(config.control, start("one"))
        assert isinstance(started, Done)
        async with calling(config) as caller:
            caller.say(hello(config, started.run, node="stranger"))
            caller.say(*(Renewal(number=number) for number in range(30_000)))
            assert await answers(config)
            while not isinstance(heard := await caller.hear(), Welcome):
                assert heard is not None
        assert await answers(config)
