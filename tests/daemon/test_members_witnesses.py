"""supervisor/daemon/members.py and jobs.py: what a runner says for another one, and what it is asked about it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from protocol.messages.control import Done
from protocol.messages.fleet import Joined, decode_to_node
from protocol.messages.member import (
    Answer,
    AnswerFor,
    Assignment,
    Offer,
    Part,
    Question,
    RankReport,
    Renewal,
    RenewalOf,
    Run,
    Stop,
    ToRunner,
    Welcome,
)
from protocol.messages.member import Testimony as Told  # pytest takes what begins with Test for a test
from protocol.timing import Timing
from supervisor.shell.config import Config
from tests.daemon.peers import answering, free_port, join_of, node_config
from tests.daemon.peers import calling as calling_as_node
from tests.daemon.serving import TIMEOUT_S, ask, serving
from tests.daemon.test_control import start
from tests.daemon.test_members import Caller, calling, hello

FAST = Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8)
ADDRESSES = {"b": "127.0.0.2", "c": "127.0.0.3"}


@dataclass
class Member:
    """A runner of the run that says it does at once whatever it is told."""

    node: str
    caller: Caller
    config: Config
    run: str
    assignment: Assignment | None = None
    number: int = 0

    @property
    def incarnation(self) -> str:
        return self.node * 16

    def renewal(self) -> Renewal:
        """Everything, once more."""
        self.number += 1
        given = self.assignment
        if given is None:
            address = ADDRESSES[self.node]
            return Renewal(number=self.number, offer=Offer(slots=1, address=address, port=4000, witness_port=4001))
        ranks = (RankReport(rank=given.first_rank, local_rank=0, pid=1, started=True),)
        return Renewal(number=self.number, generation=given.generation, part=Part.RUNNING, ranks=ranks)

    async def hears(self) -> ToRunner:
        """The next message; an order to run is obeyed."""
        message = await self.caller.hear()
        assert message is not None, "the connection has ended"
        if isinstance(message, Answer) and isinstance(message.order, Run):
            self.assignment = message.order.assignment
        return message


@contextlib.asynccontextmanager
async def node(config: Config, name: str) -> AsyncIterator[None]:
    """A node that was taken in, and says nothing more."""
    identity = name * 16
    async with answering(config, ADDRESSES[name], name, identity) as port, calling_as_node(config) as peer:
        peer.say(join_of(config, ADDRESSES[name], port, node=name, identity=identity))
        frame = await peer.frame()
        assert frame is not None
        assert isinstance(decode_to_node(frame), Joined)
        yield


@contextlib.asynccontextmanager
async def member(config: Config, run: str, name: str) -> AsyncIterator[Member]:
    """A runner that is welcome, and has offered its node."""
    async with calling(config) as caller:
        self = Member(name, caller, config, run)
        caller.say(hello(config, run, node=name, incarnation=self.incarnation))
        assert isinstance(await self.hears(), Welcome)
        caller.say(self.renewal())
        yield self


@contextlib.asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Member, Member]]:
    """Runners of b and c, in the first generation of their run, each the other's witness."""
    config = replace(node_config(folder, "a", "127.0.0.1", free_port("127.0.0.1")), timing=FAST)
    settings = ("topology.nnodes=2", 'topology.exclude=["a"]')
    async with serving(config), node(config, "b"), node(config, "c"):
        started = await ask(config.control, msgspec.structs.replace(start("1"), settings=settings))
        assert isinstance(started, Done), started
        async with member(config, started.run, "b") as b, member(config, started.run, "c") as c:
            async with asyncio.timeout(TIMEOUT_S):
                for one in (b, c):
                    while one.assignment is None:
                        await one.hears()
                    one.caller.say(one.renewal())
            yield b, c


async def heard(member: Member, kind: type[Any]) -> Any:
    """The next message of a kind."""
    async with asyncio.timeout(TIMEOUT_S):
        while not isinstance(message := await member.hears(), kind):
            pass
    return message


async def test_what_a_witness_passes_on_is_answered_by_way_of_it(short_dir: Path) -> None:
    async with two(short_dir) as (b, c):
        passed_on = c.renewal()
        b.caller.say(RenewalOf(node="c", incarnation=c.incarnation, renewal=passed_on))
        answer = await heard(b, AnswerFor)
        assert (answer.node, answer.incarnation, answer.answer.number) == ("c", c.incarnation, passed_on.number)
        assert isinstance(answer.answer.order, Run)
        assert answer.answer.order.assignment == c.assignment, "the order is that of the other one"


async def test_a_witness_says_nothing_for_a_runner_that_has_no_place_in_the_run(short_dir: Path) -> None:
    async with two(short_dir) as (b, _):
        b.caller.say(RenewalOf(node="d", incarnation="d" * 16, renewal=Renewal(number=9)))
        stranger = await heard(b, AnswerFor)
        assert not isinstance(stranger.answer.order, Run)
        b.caller.say(b.renewal())
        assert isinstance((await heard(b, Answer)).order, Run), "nothing has changed"


async def test_a_runner_that_was_answered_by_way_of_its_witness_has_our_epoch_from_us(short_dir: Path) -> None:
    """Else each one that was cut off while we began anew would cost an epoch when it is back."""
    async with two(short_dir) as (b, _):
        for name, epoch in (("d", 1), ("e", 2)):
            if name == "d":
                b.caller.say(RenewalOf(node="d", incarnation="d" * 16, renewal=Renewal(number=9)))
                await heard(b, AnswerFor)
            async with calling(b.config) as caller:
                caller.say(hello(b.config, b.run, node=name, incarnation=name * 16, epoch=1))
                welcome = await caller.hear()
                assert isinstance(welcome, Welcome)
                assert welcome.epoch == epoch


async def goes_on(member: Member) -> None:
    """It renews, until cancelled."""
    while True:
        await asyncio.sleep(FAST.renew_s)
        member.caller.say(member.renewal())


async def test_a_runner_that_is_silent_is_lost_once_its_witness_has_testified_and_not_before(short_dir: Path) -> None:
    async with two(short_dir) as (b, c), asyncio.TaskGroup() as group:
        renewing = group.create_task(goes_on(b))
        for number in range(8):  # a silence longer than the lease is no proof
            question = await heard(b, Question)
            assert (question.node, question.incarnation) == ("c", c.incarnation), number
            assert isinstance((await heard(b, Answer)).order, Run), number
        while True:
            match await b.hears():
                case Question(number=number):
                    b.caller.say(Told(number=number, node="c", incarnation=c.incarnation, word_s=None))
                case Answer(order=Stop()):
                    break
                case _:
                    pass  # it is told to go on
        renewing.cancel()
