"""A node's link to the coordinator where another supd hosts it. (Where this one does: `Nodes` has it at hand.)"""

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import cycle, islice

import structlog
from msgspec.structs import replace

from protocol.addresses import JoinEntry
from protocol.dataclass import dataclass, field
from protocol.errors import LocalProtocolError, Refused, RemoteProtocolError
from protocol.exit_code import ExitCode
from protocol.messages import encode
from protocol.messages.fleet import (
    Join,
    Joined,
    JoinRefused,
    KnownHost,
    NodeOrder,
    NodeReport,
    decode_to_node,
)
from protocol.text import host_port
from protocol.verdict import without_tails
from protocol.versions import VERSIONS
from supervisor.daemon.hosting import Hosting
from supervisor.daemon.node import Node
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s
from supervisor.shell.dial import KEY_HINT, Dialer, Unwelcome
from supervisor.shell.seldom import Seldom

log = structlog.get_logger()

RETRY_S = 0.5
"""Longest wait between two attempts; jittered, so that a fleet does not come back in step."""

JOIN_TIMEOUT_S = 10.0
"""How long the host may take to answer a Join; it dials back meanwhile."""

QUICK_S, QUICK_TRIES = 0.1, 10
"""The wait between the first attempts: of nodes that are started together the host listens a moment later than others
call it."""

PUBLISH_AGAIN_S = 1.0

ELSEWHERE = "F308"
"""The code of a supd that was asked and does not host: who does may still answer."""

SILENT_S = 10.0
"""A host answers each report (one a second): after so long without an order the connection is given up."""


@dataclass(frozen=True)
class _Why:
    """Why an entry was not the host, or did not take us in; a `hint` has whoever has answered, and did not."""

    text: str
    hint: str = ""
    code: str = ""  # of the refusal; "": it is none, or one of TLS


class FleetLink:
    """Keeps one connection to whoever hosts the coordinator: the first entry of `[fleet] join`, a further one, or whom
    they name. Nobody is obeyed whose epoch is below one that was heard.

    `join_from(own_side)` gives the node's Join, by the address from which the host was reached; `epoch` is the highest
    that this node has heard of before.
    """

    def __init__(
        self,
        entries: tuple[JoinEntry, ...],
        hosting: Hosting,
        dialer: Dialer,
        node: Node,
        join_from: Callable[[str], Join],
        epoch: int,
    ) -> None:
        self._entries = entries
        self._hosting = hosting
        self._dialer = dialer
        self._node = node
        self._join_from = join_from
        self._past = _Past(epoch)
        self._seldom = Seldom()
        self._found = ("", 0)  # where the host was reached last
        self._is_found_anew = asyncio.Event()
        self._known: KnownHost | None = None  # and who it is
        self._named: JoinEntry | None = None  # where it should be, and was not looked for yet
        self._whys: dict[JoinEntry, _Why] = {}  # of each, when it was asked last
        self.host: tuple[str, int] | None = None  # where it was reached, while the link is up

    def known(self, answered: tuple[int, float]) -> KnownHost | None:
        """The host that was found last. Runners of this node say that they were `answered` by one of that epoch, at
        that boot-time."""
        if self._known is None:
            return None
        epoch, heard_s = self._past.epoch, self._past.heard_s
        if answered[0] == epoch:
            heard_s = max(heard_s, answered[1])
        return replace(self._known, epoch=epoch, heard_s=max(0.0, boot_s() - heard_s))

    @property
    def why(self) -> str:
        """Why the link is not up."""
        return "; ".join(f"{entry.text}: {why.text}" for entry, why in self._whys.items()) or "it is being looked for"

    def turned_away(self) -> tuple[str, str, str] | None:
        """Why whoever was reached does not take this node in: code, reason, hint. The code is "" where the keys differ.
        None: nobody has said so."""
        return next(((why.code, why.text, why.hint) for why in self._whys.values() if why.hint), None)

    def refusal(self) -> Refused | None:
        """What supctl is told where the host has answered, and has not taken this node in."""
        refused = [(entry, why) for entry, why in self._whys.items() if why.hint]
        if not refused:
            return None
        entry, why = refused[0]
        message = f"this node is not in the fleet: {entry.text}: {why.text}"
        return Refused("F110", message, hint=why.hint, exit_code=ExitCode.UNAVAILABLE)

    async def run(self) -> None:
        """Connect, and reconnect, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish(), name="publish")
            group.create_task(self._keep_epoch(), name="keep-epoch")
            await self._connect()

    async def _connect(self) -> None:
        for number, entry in enumerate(self._turns()):
            try:
                await self._ask(entry)
            except OSError as exc:
                text = (exc.strerror or "").lower() or str(exc) or f"no answer within {JOIN_TIMEOUT_S:g} s"
                self._whys[entry] = _Why(text, KEY_HINT if isinstance(exc, Unwelcome) else "")
            refusal = self.refusal()
            await self._hosting.tell_nobody_hosts(self.why, refusal.hint if refusal else "")
            await asyncio.sleep((QUICK_S if number < QUICK_TRIES else RETRY_S) * (1 + random.random()) / 2)

    def _turns(self) -> Iterator[JoinEntry]:
        """The first entry again and again, each time with one of the others behind it; and in between whom one of
        them has named, or who has hosted until a moment ago."""
        others = cycle(self._entries[1:])
        while True:
            for entry in (self._entries[0], *islice(others, 1)):
                yield entry
                if self._named is not None:
                    named, self._named = self._named, None
                    yield named

    async def _ask(self, entry: JoinEntry) -> None:
        """Serve the coordinator there, if there is one, until the connection is gone. Raises OSError where nobody
        answers."""
        addresses = await self._hosting.addresses_of(entry)
        for address in addresses:
            talk = _Talk(self._join_from, self._node, self._past)
            try:
                await self._dialer.dial(talk.channel, address, entry.port)
                await self._talk(entry, talk, address)
                return
            except OSError:
                if address == addresses[-1]:
                    raise
            finally:
                talk.channel.abort("")

    async def _talk(self, entry: JoinEntry, talk: "_Talk", address: str) -> None:
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            await talk.answered.wait()
        if talk.joined is None:
            self._whys[entry] = talk.why or _Why(talk.channel.error or "it closed the connection")
            if talk.named is not None and talk.named.epoch >= self._past.epoch:
                self._name(talk.named.address, talk.named.port)
            return
        log.info("fleet_joined", host=talk.joined.host, address=address, port=entry.port, epoch=talk.joined.epoch)
        for warning in talk.joined.warnings:
            log.warning("fleet_join_flawed", text=warning)
        self.host = self._found = address, entry.port
        self._known = KnownHost(
            node=talk.joined.host,
            identity=talk.joined.identity,
            address=entry.host,
            port=entry.port,
            epoch=talk.joined.epoch,
        )
        self._is_found_anew.set()
        self._whys.clear()
        self._hosting.found()
        try:
            await talk.serve()
        finally:
            self.host = None
        self._name(entry.host, entry.port)
        self._whys[entry] = why = _Why(talk.channel.error or "the connection was lost")
        log.warning("fleet_host_lost", error=why.text)

    def _name(self, host: str, port: int) -> None:
        """Look for the host there next; if it is an entry, it has its turn all the same."""
        for entry in self._whys.keys() - set(self._entries):
            del self._whys[entry]  # an earlier one
        self._named = JoinEntry(host, port, host_port(host, port))

    async def _publish(self) -> None:
        """Tell this node's runners where the coordinator is, as soon as the disk takes it: the link waits for none."""
        while True:
            await self._is_found_anew.wait()
            self._is_found_anew.clear()
            try:
                await self._node.publish(*self._found)
            except OSError as exc:
                self._is_found_anew.set()
                if self._seldom.is_due("unpublished"):
                    hint = "runners here do not find the coordinator: see that the disk has room"
                    log.warning("coordinator_unpublished", error=str(exc), hint=hint)
                await asyncio.sleep(PUBLISH_AGAIN_S)

    async def _keep_epoch(self) -> None:
        """See that the highest epoch is on disk: by then the next supd here does not obey a lower one either."""
        while True:
            await self._past.is_raised.wait()
            self._past.is_raised.clear()
            await self._node.keep_epoch(self._past.epoch)


@dataclass(frozen=False)
class _Past:
    """The newest coordinator that was heard: one before it has nothing to say any more."""

    epoch: int
    identity: str = ""  # of its host; "": it was heard by an earlier supd
    heard_s: float = 0.0  # when it was heard last
    is_raised: asyncio.Event = field(default_factory=asyncio.Event)

    def see(self, epoch: int) -> None:
        """Heard just now. Raises RemoteProtocolError where it is past."""
        if epoch < self.epoch:
            raise RemoteProtocolError(f"its epoch is {epoch}, and {self.epoch} was heard: another node hosts")
        if epoch > self.epoch:
            self.is_raised.set()
        self.epoch, self.heard_s = epoch, boot_s()


class _Talk:
    """One connection to the host, from its Join on."""

    def __init__(self, join_from: Callable[[str], Join], node: Node, past: _Past) -> None:
        self._join_from = join_from
        self._node = node
        self._past = past
        self._address = ""
        self.channel = Channel(self._on_open, self._on_frame, self._on_closed)
        self.answered = asyncio.Event()
        self.joined: Joined | None = None
        self.why: _Why | None = None  # why we were refused
        self.named: KnownHost | None = None  # by whoever does not host

    async def serve(self) -> None:
        """Report and take orders until the connection is gone."""
        if not self.channel.is_open:
            return
        self._node.link_up(self._send, self._address)
        try:
            while not self.channel.closed.is_set():
                left_s = self._past.heard_s + SILENT_S - boot_s()
                if left_s <= 0:
                    self.channel.abort(f"it has answered nothing for {SILENT_S:g} s")
                    return
                await _wait(self.channel.closed, left_s)
        finally:
            self._node.link_down()

    def _send(self, report: NodeReport) -> None:
        try:
            self.channel.send(encode(report))
        except LocalProtocolError:  # last words that are too many for a frame
            brief = (replace(b, last=None if b.last is None else without_tails(b.last)) for b in report.buried)
            self.channel.send(encode(replace(report, buried=tuple(brief))))

    def _on_open(self, channel: Channel) -> None:
        join = self._join_from(channel.own_host())
        self._address = join.address
        channel.send(encode(replace(join, epoch=self._past.epoch, host=self._past.identity)))

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        match decode_to_node(payload):
            case Joined() as joined:
                if joined.version not in VERSIONS or self.joined is not None:
                    raise RemoteProtocolError(f"taken in again, or by version {joined.version}")
                self._past.see(joined.epoch)
                self._past.identity = joined.identity
                self.joined = joined
                self.answered.set()
            case JoinRefused(code=code, message=message, hint=hint, host=named):
                self.named = named
                is_host = code != ELSEWHERE
                text = f"[{code}] {message}" + ("" if is_host else f"; {hint}")
                self.why = _Why(text, hint, code) if is_host else _Why(text)
                self.answered.set()
                channel.close()
            case NodeOrder() as order:
                self._past.see(order.epoch)
                self._node.on_order(order)

    def _on_closed(self, channel: Channel) -> None:
        self.answered.set()


async def _wait(event: asyncio.Event, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass
