"""supervisor/runner/link.py: the line to the coordinator, and who is believed to be one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from protocol.ids import EPOCH_MAX
from protocol.messages import encode
from protocol.messages.member import (
    STUCK_PIDS_MAX,
    Answer,
    AnswerFor,
    Hello,
    JobTold,
    JobWanted,
    Question,
    Renewal,
    RenewalOf,
    Wait,
    Welcome,
    decode_to_coordinator,
)
from protocol.messages.member import Testimony as WordTold  # pytest takes what begins with Test for a test
from protocol.versions import VERSIONS
from supervisor.runner import link
from supervisor.runner.link import Link
from supervisor.shell import tls_server
from supervisor.shell.channel import SEND_QUEUE_MAX_BYTES, Channel
from supervisor.shell.make_credential import credential, write_once
from supervisor.shell.tls import client_context, server_context
from tests.protocol.build import job_spec, submitted

TIMEOUT_S = 20.0
JOB = submitted(job_spec())
HELLO = Hello(versions=VERSIONS, fleet="default", node="a", run="j@1", incarnation="aa")
VERSION = VERSIONS[-1]


class Coordinator:
    """What a runner's line leads to, and what both ends hear. It answers Hello as `greets` has it."""

    def __init__(self, greets: Callable[[], list[object]]) -> None:
        self._greets = greets
        self._channel: Channel | None = None
        self.heard: asyncio.Queue[object] = asyncio.Queue()  # by the coordinator
        self.happened: asyncio.Queue[object] = asyncio.Queue()  # at the runner
        self.line: Link

    def take(self) -> Channel:
        return Channel(lambda _: None, self._hear, lambda _: None)

    async def close(self) -> None:
        if self._channel is not None:
            self._channel.abort("")
            await self._channel.closed.wait()

    def _hear(self, channel: Channel, frame: bytes) -> None:
        message = decode_to_coordinator(frame)
        self.heard.put_nowait(message)
        if isinstance(message, Hello):
            self._channel = channel
            self.say(*self._greets())

    def say(self, *messages: object) -> None:
        assert self._channel is not None
        for message in messages:
            self._channel.send(encode(message))

    def hang_up(self) -> None:
        assert self._channel is not None
        self._channel.close()

    async def hears(self) -> object:
        """The next message from the runner."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.heard.get()

    async def happens(self) -> object:
        """The next that the runner is told of its line."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.happened.get()


def welcome(epoch: int) -> Welcome:
    return Welcome(version=VERSION, epoch=epoch, job=JOB)


def answer(epoch: int, number: int = 1) -> Answer:
    return Answer(epoch=epoch, number=number, order=Wait())


@contextlib.asynccontextmanager
async def linked(folder: Path, greets: Callable[[], list[object]]) -> AsyncIterator[Coordinator]:
    """A runner's line to a coordinator."""
    key, place = folder / "fleet.pem", folder / "coordinator"
    write_once(str(key), credential())
    coordinator = Coordinator(greets)
    happened = coordinator.happened
    listener = await tls_server.listen("127.0.0.1", 0, server_context(key), coordinator.take)
    place.write_text(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}\n")
    coordinator.line = Link(
        HELLO,
        place,
        client_context(key),
        on_welcome=lambda _: happened.put_nowait("welcome"),
        on_answer=happened.put_nowait,
        on_answer_for=happened.put_nowait,
        on_question=happened.put_nowait,
        on_lost=lambda: happened.put_nowait("lost"),
    )
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(coordinator.line.run())
            try:
                yield coordinator
            finally:
                running.cancel()
    finally:
        listener.close()
        await coordinator.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "RETRY_S", 0.01)


async def test_a_connection_that_is_not_answered_is_given_up_for_a_new_one(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENT_S", 0.3)
    async with linked(short_dir, lambda: [welcome(1)]) as coordinator:
        assert [await coordinator.happens() for _ in range(4)] == ["welcome", "lost", "welcome", "lost"]


async def test_a_runner_says_which_epoch_it_has_heard_of_and_how_long_ago_it_was_answered_in_it(
    short_dir: Path,
) -> None:
    epochs = iter([3, 3, 4])
    async with linked(short_dir, lambda: [welcome(next(epochs))]) as coordinator:
        assert await coordinator.hears() == HELLO, "it has heard of none"
        coordinator.say(answer(3))
        assert [await coordinator.happens() for _ in range(2)] == ["welcome", answer(3)]
        coordinator.hang_up()
        said = await coordinator.hears()
        assert isinstance(said, Hello)
        assert said.epoch == 3
        assert said.answered_s is not None
        assert 0 <= said.answered_s < TIMEOUT_S
        coordinator.hang_up()
        await coordinator.hears()  # welcome of epoch 4 follows
        assert [await coordinator.happens() for _ in range(4)] == ["lost", "welcome", "lost", "welcome"]
        coordinator.hang_up()
        said = await coordinator.hears()
        assert isinstance(said, Hello)
        assert (said.epoch, said.answered_s) == (4, None), "nobody has answered it in that one"


async def test_a_coordinator_that_was_replaced_is_heard_by_no_path(short_dir: Path) -> None:
    epochs = iter([3, 2, 3])
    async with linked(short_dir, lambda: [welcome(next(epochs))]) as coordinator:
        assert await coordinator.happens() == "welcome"
        coordinator.hang_up()
        # The second one is believed to be none, and loses the connection.
        assert [await coordinator.happens() for _ in range(3)] == ["lost", "lost", "welcome"]
        assert not coordinator.line.heed(answer(2))
        assert not coordinator.line.heed(answer(EPOCH_MAX)), "no coordinator has begun so often"
        assert coordinator.line.heed(answer(5)), "a witness knows more"
        coordinator.say(answer(3))
        assert await coordinator.happens() == "lost"


async def test_a_coordinator_that_lacks_the_job_is_told_it_by_a_runner_that_has_it(short_dir: Path) -> None:
    greetings: Iterator[list[object]] = iter([[welcome(1)], [JobWanted(version=VERSION, epoch=2)]])
    async with linked(short_dir, lambda: next(greetings)) as coordinator:
        await coordinator.hears()
        assert await coordinator.happens() == "welcome"
        coordinator.hang_up()
        assert isinstance(await coordinator.hears(), Hello)
        assert await coordinator.hears() == JobTold(job=JOB)
        coordinator.line.send(Renewal(number=1))  # which nobody is ready for
        coordinator.say(welcome(2))
        assert [await coordinator.happens() for _ in range(2)] == ["lost", "welcome"]
        coordinator.line.send(Renewal(number=2))
        assert await coordinator.hears() == Renewal(number=2)


async def test_what_concerns_other_runners_goes_both_ways(short_dir: Path) -> None:
    async with linked(short_dir, lambda: [welcome(1)]) as coordinator:
        await coordinator.hears()
        assert await coordinator.happens() == "welcome"
        question = Question(number=1, epoch=1, node="b", incarnation="bb")
        passed = AnswerFor(node="b", incarnation="bb", answer=answer(1))
        coordinator.say(question, passed)
        assert [await coordinator.happens() for _ in range(2)] == [question, passed]
        testimony = WordTold(number=1, node="b", incarnation="bb", word_s=None)
        renewal = RenewalOf(node="b", incarnation="bb", renewal=Renewal(number=1))
        coordinator.line.send(testimony)
        coordinator.line.send(renewal)
        assert [await coordinator.hears() for _ in range(2)] == [testimony, renewal]


async def test_what_is_to_be_passed_on_does_not_pile_up_before_what_the_runner_says_itself(short_dir: Path) -> None:
    """A fellow that says much must not make our own renewals late, nor cost us the connection."""
    async with linked(short_dir, lambda: [welcome(1)]) as coordinator:
        await coordinator.hears()
        assert await coordinator.happens() == "welcome"
        passed = RenewalOf(node="b", incarnation="bb", renewal=Renewal(number=1, stuck_pids=(2**40,) * STUCK_PIDS_MAX))
        for _ in range(2 * SEND_QUEUE_MAX_BYTES // len(encode(passed))):
            coordinator.line.send(passed)
        coordinator.line.send(Renewal(number=2))
        count = 0
        while await coordinator.hears() != Renewal(number=2):
            count += 1
        assert count < 1000, "of 15,000"
        assert coordinator.happened.empty()
