"""The runner's lines to other runners of its run: to its witnesses, and to those whose witness it is.

A line serves both of its ends, whichever has opened it. Nothing is repeated here: who sends says everything again soon.
"""

import asyncio
import errno
import random
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from protocol.addresses import is_loopback
from protocol.dataclass import dataclass
from protocol.errors import Refused, RemoteProtocolError
from protocol.messages import encode
from protocol.messages.member import Answer, AnswerFor, Hello, Renewal, RenewalOf, Witness
from protocol.messages.runner import TakeOn
from protocol.messages.witness import PassedOn, PassOn, ToRunnerPeer, Word, WordWanted, decode_peer
from protocol.versions import agreed
from supervisor.runner.peer_line import Line
from supervisor.shell import tls_server
from supervisor.shell.channel import Channel
from supervisor.shell.dial import Dialer
from supervisor.shell.free_ports import free_port
from supervisor.shell.seldom import Seldom
from supervisor.shell.tls import server_context
from supervisor.shell.tls_server import TlsServer

log = structlog.get_logger()

SPREAD_S = 10.0
"""Lines to our witnesses are opened at some time in this span, so that a thousand nodes do not all do it at once."""

RETRY_S = 0.5
"""Longest wait between two attempts to open one; jittered."""

CONNECT_TIMEOUT_S = 2.0
"""Of one attempt: a runner has its fence less its time alone, 2.5 s by default, to reach a witness."""

HELLO_TIMEOUT_S = 10.0

UNRECEIVED_S = 5.0
"""As on the link to the coordinator."""

LINES_MAX = 64
"""A member has three witnesses and is one of three, or a few more where its rank was given out anew just now."""

HANDSHAKES_MAX = 256
"""At a time. Anybody can begin one, and each takes some hundred KiB and a descriptor, which ranks need more."""

ANY_TRIES = 10
"""A port that was free has been taken by somebody else: another one, but not for ever."""


@dataclass(frozen=True, kw_only=True)
class Ears:
    """Who hears what peers say, each known by its connection."""

    on_word_wanted: Callable[[str, str, WordWanted], None]  # by a node's incarnation
    on_word: Callable[[str, Word], None]  # of an incarnation
    on_renewal: Callable[[RenewalOf], None]  # to be passed on to the coordinator
    on_answer: Callable[[Answer], None]  # the coordinator's, passed on by a witness of ours
    on_reached: Callable[[frozenset[str]], None]  # incarnations of our witnesses to which there is a line now


class _Tie:
    """A witness of ours."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.is_due = asyncio.Event()  # it is time to open a line, if there is none
        self.unsent: dict[type[ToRunnerPeer], ToRunnerPeer] = {}  # newest of each kind; for the next line
        self.keeper: asyncio.Task[None] | None = None


class Peers:
    """Listens for other runners, once asked to, and keeps a line to each of our witnesses; one for each pair."""

    def __init__(self, hello: Hello, task: TakeOn, tls: ssl.SSLContext, tasks: asyncio.TaskGroup, ears: Ears) -> None:
        """`hello` is what we say of ourselves, `tls` for lines that we open; `tasks` is entered when there is something
        to do."""
        self._hello = hello
        self._task = task
        self._dialer = Dialer(tls, lambda _: None)
        self._tasks = tasks
        self._ears = ears
        self._seldom = Seldom()
        self._server: TlsServer | None = None
        self._server_tls: ssl.SSLContext | None = None
        self._lines: dict[Channel, Line] = {}  # in the order in which they were opened
        self._timers: dict[Channel, asyncio.TimerHandle] = {}  # of those that have not said who they are
        self._ties: dict[str, _Tie] = {}  # by incarnation
        self._told: frozenset[str] = frozenset()  # of our witnesses, those that are reached

    # --- listening -----------------------------------------------------------------------------------------------

    async def listen(self) -> int:
        """Listen, if we do not yet; returns the port. Raises Refused where there is none for us."""
        if self._server is None:
            self._server = await self._listen()
        return int(self._server.sockets[0].getsockname()[1])

    async def _listen(self) -> TlsServer:
        host = self._task.address if is_loopback(self._task.address) else ""
        if self._server_tls is None:
            self._server_tls = await asyncio.to_thread(server_context, Path(self._task.credential))
        tls, error = self._server_tls, ""
        for port in self._ports():
            try:
                # One number for all families; left to the kernel, each would get its own.
                return await tls_server.listen(
                    host, port or free_port(host, None), tls, self._accept, handshakes_max=HANDSHAKES_MAX
                )
            except OSError as exc:
                error = (exc.strerror or str(exc)).lower()
                if exc.errno != errno.EADDRINUSE:
                    break
        ports = self._task.witness_ports
        where = "[listen] runners = {}-{}".format(*ports) if ports else "any port"
        message = f"its runner cannot listen for those of other nodes on {where}: {error}"
        raise Refused("F210", message, hint="name other ports, or more, in that node's supd.toml")

    def _ports(self) -> Iterable[int]:
        """Those to be tried, in turn; 0 is any that is free."""
        if self._task.witness_ports is None:
            return (0,) * ANY_TRIES
        first, last = self._task.witness_ports
        return range(first, last + 1)

    def close(self) -> None:
        """Listen no more, and let go of everybody."""
        if self._server is not None:
            self._server.close()
        for channel in list(self._lines):
            channel.abort("")

    # --- what is said --------------------------------------------------------------------------------------------

    def meet(self, witnesses: Iterable[Witness]) -> None:
        """These are our witnesses now."""
        wanted = {witness.incarnation: witness for witness in witnesses}
        for incarnation in self._ties.keys() - wanted.keys():
            self._untie(self._ties.pop(incarnation))
        for incarnation, witness in wanted.items():
            if incarnation not in self._ties:
                self._tie(witness)
        self._tell_reached(is_new=True)

    def ask_words(self, wanted: WordWanted) -> None:
        """Ask all our witnesses for their word."""
        self._ask_all(wanted)

    def pass_on(self, renewal: Renewal) -> None:
        """Have all our witnesses tell the coordinator."""
        self._ask_all(PassOn(renewal=renewal))

    def give_word(self, incarnation: str, word: Word) -> None:
        """Answer a runner that has asked for our word."""
        self._send(incarnation, word)

    def answer_for(self, passed: AnswerFor) -> None:
        """Pass an answer of the coordinator on."""
        self._send(passed.incarnation, PassedOn(answer=passed.answer))

    def _send(self, incarnation: str, message: ToRunnerPeer) -> None:
        line = self._line_to(incarnation)
        if line is not None:
            line.send(message)

    def _ask_all(self, message: ToRunnerPeer) -> None:
        for incarnation, tie in self._ties.items():
            line = self._line_to(incarnation)
            if line is not None:
                line.send(message)
            if line is None or line.is_silent:
                tie.unsent[type(message)] = message
                tie.is_due.set()

    # --- lines to our witnesses ----------------------------------------------------------------------------------

    def _tie(self, witness: Witness) -> None:
        tie = self._ties[witness.incarnation] = _Tie(witness)
        tie.keeper = self._tasks.create_task(self._keep(tie), name=f"witness-{witness.node}")

    def _untie(self, tie: _Tie) -> None:
        assert tie.keeper is not None
        tie.keeper.cancel()
        for line in self._lines.values():
            if line.expected == tie.witness.incarnation:  # one that it has opened itself, it may still want
                line.channel.close()

    async def _keep(self, tie: _Tie) -> None:
        """Have a line to a witness: from some time on, or from when something is to be sent, until cancelled."""
        spread = asyncio.get_running_loop().call_later(SPREAD_S * random.random(), tie.is_due.set)
        try:
            while True:
                await tie.is_due.wait()
                tie.is_due.clear()
                if self._lacks_line(tie.witness):
                    await self._open(tie)
                    await asyncio.sleep(RETRY_S * (1 + random.random()) / 2)
        finally:
            spread.cancel()

    async def _open(self, tie: _Tie) -> None:
        witness = tie.witness
        channel = Channel(lambda channel: self._on_open(channel, witness), self._on_frame, self._on_closed)
        try:
            await self._dialer.dial(channel, witness.address, witness.port, CONNECT_TIMEOUT_S)
        except OSError as exc:
            log.debug("witness_missed", witness=witness.node, error=str(exc))
            tie.is_due.set()

    def _lacks_line(self, witness: Witness) -> bool:
        """Whether one is to be opened: there is none that will do, nor one of ours on which we wait for the Hello."""
        line = self._line_to(witness.incarnation)
        if line is not None and not line.is_silent:
            return False
        opened = [line for line in self._lines.values() if line.expected == witness.incarnation]
        return not any(line.channel.is_open and not line.is_up for line in opened)

    def _line_to(self, incarnation: str) -> Line | None:
        """The newest one to this runner."""
        lines = reversed(self._lines.values())
        return next((line for line in lines if line.incarnation == incarnation and line.is_up), None)

    def _tell_reached(self, *, is_new: bool = False) -> None:
        """Tell to which witnesses there is a line, if that has changed, or the witnesses have."""
        reached = frozenset(incarnation for incarnation in self._ties if self._line_to(incarnation) is not None)
        if is_new or reached != self._told:
            self._told = reached
            log.info("witnesses_reached", nodes=sorted(self._ties[key].witness.node for key in reached))
            self._ears.on_reached(reached)

    # --- lines of all kinds --------------------------------------------------------------------------------------

    def _accept(self) -> Channel:
        return Channel(self._on_open, self._on_frame, self._on_closed)

    def _on_open(self, channel: Channel, witness: Witness | None = None) -> None:
        if witness is None and len(self._lines) >= LINES_MAX:
            channel.abort("")
            return
        self._lines[channel] = Line(channel, witness)
        self._timers[channel] = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, channel.abort, "it says nothing")
        channel.keep_alive()
        channel.expect_receipt_within(UNRECEIVED_S)
        channel.send(encode(self._hello))

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        line = self._lines[channel]
        if not line.admits(len(payload)):
            return
        message: ToRunnerPeer = decode_peer(payload)
        if line.incarnation == "":
            self._on_hello(line, message)
            return
        match message:
            case Hello():
                raise RemoteProtocolError("a second hello")
            case WordWanted():
                self._ears.on_word_wanted(line.node, line.incarnation, message)
            case Word():
                line.on_answer()
                self._ears.on_word(line.incarnation, message)
            case PassOn(renewal=renewal):
                self._ears.on_renewal(RenewalOf(node=line.node, incarnation=line.incarnation, renewal=renewal))
            case PassedOn(answer=answer):
                if line.incarnation in self._ties:
                    self._ears.on_answer(answer)

    def _on_hello(self, line: Line, message: ToRunnerPeer) -> None:
        if not isinstance(message, Hello):
            raise RemoteProtocolError("it does not say who it is")
        self._check(line, message)
        self._timers.pop(line.channel).cancel()
        line.node, line.incarnation = message.node, message.incarnation
        self._keep_one(line)
        tie, best = self._ties.get(line.incarnation), self._line_to(line.incarnation)
        if tie is not None and best is not None:
            for unsent in tie.unsent.values():
                best.send(unsent)
            tie.unsent.clear()
            self._tell_reached()

    def _check(self, line: Line, hello: Hello) -> None:
        """Raise RemoteProtocolError where it is nobody that we talk to."""
        ours, wanted = self._hello, line.witness
        if agreed(hello.versions, ours.versions) is None:
            raise RemoteProtocolError(
                f"it speaks versions {hello.versions} of the protocol, this runner {ours.versions}"
            )
        if (hello.fleet, hello.run) != (ours.fleet, ours.run):
            raise RemoteProtocolError(f"it serves run {hello.run} of fleet {hello.fleet}")
        if hello.incarnation == ours.incarnation:
            raise RemoteProtocolError("it is this runner itself")
        if wanted is not None and (hello.node, hello.incarnation) != (wanted.node, wanted.incarnation):
            raise RemoteProtocolError(
                f"it is a runner of {hello.node}, and not the one of {wanted.node} that was meant"
            )

    def _keep_one(self, new: Line) -> None:
        """Of several lines to one runner, keep one. Both sides come to the same: where each has opened one, that of the
        lower incarnation stays, and the other one is ended by who has opened it."""
        for old in [line for line in self._lines.values() if line.incarnation == new.incarnation and line.is_up]:
            if old is new:
                continue
            if old.is_ours == new.is_ours or old.is_silent:
                old.channel.abort("")
            elif new.incarnation < self._hello.incarnation:
                (new if new.is_ours else old).channel.close()

    def _on_closed(self, channel: Channel) -> None:
        line = self._lines.pop(channel, None)
        if line is None:
            return
        timer = self._timers.pop(channel, None)
        if timer is not None:
            timer.cancel()
        if channel.error and self._seldom.is_due((channel.peer()[0], channel.error)):
            log.warning("peer_refused", peer=channel.peer_address(), error=channel.error)
        tie = self._ties.get(line.incarnation or line.expected)
        if tie is not None and self._lacks_line(tie.witness):
            tie.is_due.set()
        self._tell_reached()
