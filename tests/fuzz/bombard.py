"""Conversations of all kinds with a supd, in order and out of it, whole and mangled, a few at a time."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from msgspec.structs import replace

from protocol.errors import RemoteProtocolError
from protocol.framing import FrameDecoder, encode_frame
from protocol.job import JobSpec, Submitter
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    End,
    GetStatus,
    Greeting,
    Request,
    Statuses,
    StopRun,
    Watch,
    decode_reply,
)
from protocol.messages.fleet import (
    FetchLogs,
    FetchRank,
    FromPeer,
    Join,
    KnownHost,
    LogsNow,
    NodeReport,
    Probe,
    Probed,
    Visit,
    decode_first,
)
from protocol.messages.member import (
    Answer,
    Hello,
    JobTold,
    JobWanted,
    Order,
    Question,
    Renewal,
    RenewalOf,
    Testimony,
    Wait,
    Welcome,
    decode_to_runner,
)
from tests.fuzz.anything import anything
from tests.fuzz.host import JOIN, RUNS, UNKNOWN, Loop, Wire, elsewhere, serving_in_memory
from tests.fuzz.machines import NODES, plausible
from tests.fuzz.mangle import mangled

FRAMES_A_ROUND = 5000
"""Sent to one supd, before the next one begins with nothing but its runs."""

OPEN_MAX = 30
"""Conversations at a time."""

CHECK_EVERY = 250
"""Frames, between two looks whether supd still answers."""

TIMEOUT_S = 20.0
TURN = 0.3  # share of steps after which supd gets a turn of its loop
PATIENCE = 20
LATE = 2**63 - 1
"""Behind all events."""
MANGLED = 0.1
ASTRAY = 0.05
"""Shares of frames that are mangled, and that belong to another conversation."""

Say = Callable[[Random], object]

any_renewal: Say = anything(Renewal)
any_renewal_of: Say = anything(RenewalOf)
any_testimony: Callable[[Random], Testimony] = anything(Testimony)
any_spec: Callable[[Random], JobSpec] = anything(JobSpec)
any_submitter: Callable[[Random], Submitter] = anything(Submitter)
any_from_peer: Say = anything(FromPeer)
any_hello: Callable[[Random], Hello] = anything(Hello)
any_request: Callable[[Random], Request] = anything(Request)
any_join: Callable[[Random], Join] = anything(Join)


def _greeting(_rng: Random) -> Greeting:
    return Greeting(control_version=CONTROL_VERSION, supd_version="fuzz")


def _hello(rng: Random) -> Hello:
    hello = any_hello(rng)
    return hello if rng.random() < 0.2 else replace(hello, fleet="default", versions=(1,))


def _of_a_runner(rng: Random) -> object:
    """Mostly of itself; else of others, and what it may have been asked for."""
    dice = rng.random()
    if dice < 0.6:
        return any_renewal(rng)
    return any_renewal_of(rng) if dice < 0.8 else any_testimony(rng) if dice < 0.99 else _job_told(rng)


def _job_told(rng: Random) -> JobTold:
    """A job for other nodes, mostly of the run that supd does not know, now and then with a table of anything."""
    job = elsewhere(UNKNOWN if rng.random() < 0.9 else rng.choice(RUNS))
    dice = rng.random()
    if dice < 0.3:
        name = rng.choice([name for name in JobSpec.__struct_fields__ if name != "topology"])
        job = replace(job, spec=replace(job.spec, **{name: getattr(any_spec(rng), name)}))
    elif dice < 0.5:
        job = replace(job, submitter=any_submitter(rng))
    return JobTold(job=job)


def _join(rng: Random) -> Join:
    join = any_join(rng)
    return join if rng.random() < 0.2 else replace(join, fleet="default", versions=(1,), join=(JOIN,))


def a_request(rng: Random) -> Request:
    """Few of them end the runs: there would be little to talk about."""
    request = any_request(rng)
    return request if not isinstance(request, StopRun) or rng.random() < 0.02 else GetStatus()


CONVERSATIONS: dict[str, tuple[str, tuple[Say, ...], Say]] = {
    "runner": ("peers", (_hello,), _of_a_runner),
    "node": ("peers", (_join,), anything(NodeReport)),
    "client of another node": ("peers", (anything(Visit), _greeting), a_request),
    "client": ("control", (_greeting,), a_request),
    "probe": ("peers", (), anything(Probe)),
    "logs": ("peers", (anything(FetchLogs),), anything(LogsNow)),
    "rank": ("peers", (), anything(FetchRank)),
}
"""Where it takes place, its first messages, and what follows again and again."""

EVERYTHING = tuple(say for _, first, rest in CONVERSATIONS.values() for say in (*first, rest))


class Answers:
    """What nodes say where supd dials them: who they are, and whatever else comes to their minds."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.joined: dict[tuple[str, int], Join] = {}  # by address and port, the last one that said so

    def __call__(self, address: str, port: int, payload: bytes) -> bytes:
        rng = self._rng
        join = self.joined.get((address, port))
        if join is not None and rng.random() < 0.7 and isinstance(decode_first(payload), Probe):
            return encode_frame(encode(Probed(node=join.node, identity=join.identity)))
        # Who tells of a host in a later epoch would be believed, and this supd would host the fleet no more.
        said = [any_from_peer(rng) for _ in range(rng.randint(0, 4))]
        said = [message for message in said if not isinstance(getattr(message, "host", None), KnownHost)]
        frames = [encode_frame(encode(message)) for message in said]
        return b"".join(mangled(frame, rng) if rng.random() < MANGLED else frame for frame in frames)


class Talk:
    """One conversation."""

    def __init__(self, loop: Loop, answers: "Answers", rng: Random) -> None:
        self.kind = rng.choice(list(CONVERSATIONS))
        door, self._first, self._rest = CONVERSATIONS[self.kind]
        self._answers = answers
        self._said = 0
        self._patience = PATIENCE if rng.random() < 0.8 else 0  # turns that it waits for the answer to its first words
        self._order: Order = Wait()  # that a runner heard last
        self._asked: Question | JobWanted | None = None  # that it was asked last, and has not answered
        self._heard = FrameDecoder()
        self.wire = loop.wire(door, self._on_write)

    def waits(self) -> bool:
        """Whether it says nothing for now."""
        self._patience -= self._said > 0
        return self._said > 0 and self._patience > 0

    def say(self, rng: Random) -> str:
        """One more frame; returns what became of it."""
        say = self._first[self._said] if self._said < len(self._first) else self._rest
        self._said += 1
        is_astray = rng.random() < ASTRAY
        message = (rng.choice(EVERYTHING) if is_astray else say)(rng)
        if isinstance(message, Renewal | RenewalOf) and rng.random() < 0.7:
            message = self._plausible(rng, message)
        if isinstance(message, Join):
            self._answers.joined[message.address, message.port] = message
        data = encode_frame(encode(message))
        is_mangled = rng.random() < MANGLED and not isinstance(message, JobTold)  # it must not become one for this node
        if is_mangled:
            data = mangled(data, rng)
        cut = rng.randrange(len(data) + 1)
        self.wire.say(data[:cut])
        self.wire.say(data[cut:])
        how = "mangled" if is_mangled else "astray" if is_astray else "in order"
        return f"{self.kind}: {how}, {'ended' if self.wire.is_closing() else 'read'}"

    def _plausible(self, rng: Random, message: Renewal | RenewalOf) -> object:
        """What fits what was heard."""
        asked, self._asked = self._asked, None
        match asked:
            case JobWanted():
                return _job_told(rng)
            case Question(number=number, node=node, incarnation=incarnation):
                return replace(any_testimony(rng), number=number, node=node, incarnation=incarnation)
            case None:
                said = plausible(rng, self._order, rng.choice(NODES), ahead=rng.randint(1, 3))
                return said if isinstance(message, Renewal) else replace(message, renewal=said)

    def _on_write(self, wire: Wire, data: bytes) -> None:
        self._patience = 0
        for payload in self._heard.feed(data):
            with contextlib.suppress(RemoteProtocolError):  # it is no runner, or has lied about that
                message = decode_to_runner(payload)
                self._order = message.order if isinstance(message, Answer) else self._order
                self._asked = message if isinstance(message, Question | JobWanted) else self._asked


async def bombard(loop: Loop, rng: Random, frames: int) -> Counter[str]:
    """Send so many frames; raises where supd raises, or does not answer any more."""
    counts: Counter[str] = Counter()
    talks: list[Talk] = []
    answers = Answers(rng)
    loop.answer = answers
    while counts.total() < frames:
        if len(talks) < OPEN_MAX:
            talks.append(Talk(loop, answers, rng))
        talk = rng.choice(talks)
        if rng.random() < TURN:
            await asyncio.sleep(0)
        if not talk.waits():
            counts[talk.say(rng)] += 1
            if counts.total() % CHECK_EVERY == 0:
                await check(loop)
        if talk.wire.is_closing() or rng.random() < 0.05:
            talk.wire.close()
            talks.remove(talk)
    return counts


async def check(loop: Loop) -> None:
    """See that supd has met nothing that it did not expect, that it answers a client that behaves, from its memory and
    from its disk, and that a runner which behaves is welcome."""
    statuses = await ask(loop, GetStatus(), 1)
    assert [type(reply) for reply in statuses] == [Statuses]
    assert {status.run for reply in statuses if isinstance(reply, Statuses) for status in reply.runs} >= {*RUNS}
    assert [
        type(reply) for reply in await ask(loop, Watch(run=RUNS[0], follow=False, events=True, after_event=LATE), 1)
    ] == [End]
    hello = Hello(versions=(1,), fleet="default", node="c", run=RUNS[0], incarnation="of c", epoch=loop.epoch)
    welcome = decode_to_runner((await _hear(loop, "peers", (hello,), 1))[0])
    assert isinstance(welcome, Welcome)
    loop.epoch = welcome.epoch
    assert loop.errors == []


async def ask(loop: Loop, request: Request, replies: int) -> list[ControlReply]:
    """What supd answers to a request; so many replies are awaited."""
    frames = await _hear(loop, "control", (_greeting(Random(0)), request), replies + 1)
    return [decode_reply(frame) for frame in frames[1:]]


async def _hear(loop: Loop, door: str, said: Iterable[object], count: int) -> list[bytes]:
    """The first so many frames, or more, that come back where this is said."""
    frames, has_come = list[bytes](), asyncio.Event()
    decoder = FrameDecoder()

    def on_write(wire: Wire, data: bytes) -> None:
        frames.extend(decoder.feed(data))
        if len(frames) >= count:
            has_come.set()

    wire = loop.wire(door, on_write)
    for message in said:
        wire.say(encode_frame(encode(message)))
    async with asyncio.timeout(TIMEOUT_S):
        await has_come.wait()
    wire.close()
    return frames


def play_round(folder: Path, seed: str, frames: int) -> Counter[str]:
    """So many frames to one supd below `folder`; returns what became of them."""

    async def play() -> Counter[str]:
        async with serving_in_memory(folder) as loop:
            return await bombard(loop, Random(seed), frames)

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(play())
