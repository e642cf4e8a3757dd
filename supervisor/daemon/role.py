"""What this supd is in its fleet: host of the coordinator, a node that has joined another one's, or not known yet."""

import asyncio
import os
from typing import TYPE_CHECKING, NoReturn

from protocol.addresses import JoinEntry
from protocol.errors import Refused
from protocol.messages import encode
from protocol.messages.fleet import Join, JoinRefused, KnownHost, NodeFacts, Probe
from protocol.messages.member import Hello
from protocol.versions import VERSIONS
from supervisor.daemon.door import Door
from supervisor.daemon.facts import node_facts
from supervisor.daemon.hosting import Hosting, Hosts, Joins
from supervisor.daemon.leadership import Leadership
from supervisor.daemon.links import ELSEWHERE, FleetLink
from supervisor.daemon.node import Node
from supervisor.daemon.probe import Answerer
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.config import Config
from supervisor.shell.devices import node_slots
from supervisor.shell.dial import Dialer

if TYPE_CHECKING:
    from supervisor.daemon.hosted import Hosted


class Deposed(Exception):
    """This supd has hosted the coordinator, and another one does so since."""


class Role:
    """Takes the part that supd.toml, or the operator, gives this node, once that can be told."""

    def __init__(
        self,
        config: Config,
        leadership: Leadership,
        node: Node,
        hosting: Hosting,
        door: Door,
        dialer: Dialer,
        start: tuple[str, int],
    ) -> None:
        """`start` are identity and incarnation of this supd."""
        self._config = config
        self._leadership = leadership
        self._journal = leadership.journal
        self._node = node
        self._hosting = hosting
        self._door = door
        self._dialer = dialer
        self._identity, self._incarnation = start
        self._facts = NodeFacts()
        self._slots = node_slots(config.devices, os.environ)
        self._port = 0  # at which peers find us
        self._link: FleetLink | None = None
        self.hosted: Hosted | None = None  # None: this supd does not host, or that is not known yet
        self.is_taken = asyncio.Event()
        door.handlers[Probe] = Answerer(config.node, self._identity, self._known_host).take
        door.handlers[Hello] = self._refuse_runner
        door.handlers[Join] = self._refuse_node

    @property
    def node(self) -> Node:
        """This supd's runners."""
        return self._node

    def where(self) -> tuple[str, int] | Refused | str:
        """Where the supd that hosts was reached; or why there is no link to it, as what it has said where it has."""
        if self._link is None and not self._config.join:
            return "it has only just begun"
        if self._link is None:
            first = self._config.join[0].host
            return f"it is not known yet which node hosts: {first} is looked up, and the others are asked"
        return self._link.host or self._link.refusal() or self._link.why

    def turned_away(self) -> tuple[str, str, str] | None:
        """As `FleetLink.turned_away`."""
        return None if self._link is None else self._link.turned_away()

    def active_runs(self) -> int:
        """How many runs go on without this supd."""
        return self._node.active_runs() if self.hosted is None else len(self.hosted.jobs.active())

    async def heed_signals(self) -> None:
        """Return once the coordinator knows of the signals that this supd was sent; where it is here, its runs too."""
        await self._node.told()
        if self.hosted is not None:
            await self.hosted.nodes.heed_own_signals()

    async def run(self, host: str, port: int) -> None:
        """Take the part, and play it until cancelled. Peers are listened for at `port`, and `host` is an address by
        which those of this machine come to it."""
        self._port = port
        self._facts = await asyncio.to_thread(node_facts)
        while True:
            match await self._leadership.settled((host, port)):
                case Hosts(own_address):
                    await self._host(own_address, host)
                case Joins(entries):
                    await self._join_until_it_hosts(entries)

    async def _join_until_it_hosts(self, entries: tuple[JoinEntry, ...]) -> None:
        epoch = await self._journal.epoch()
        self._link = FleetLink(entries, self._hosting, self._dialer, self._node, self._join, epoch)
        self.is_taken.set()
        async with asyncio.TaskGroup() as group:
            linked = group.create_task(self._link.run(), name="link")
            await self._hosting.comes_to_host()
            linked.cancel()
        self._link = None

    async def _host(self, own_address: str, host: str) -> NoReturn:
        """Raises Deposed once another node hosts."""
        from supervisor.daemon.hosted import make_hosted  # only here

        hosted = make_hosted(
            self._config,
            self._journal,
            self._door,
            self._dialer,
            self._node,
            self._join(own_address=own_address),
            host,
            epoch=await self._leadership.begin(),
            on_unlinked=self._on_runner_unlinked,
            before_epoch=self._yield_to_another,
        )
        stored, known = await self._journal.runs(), await self._journal.nodes()
        async with asyncio.TaskGroup() as group:
            group.create_task(hosted.jobs.run(stored), name="jobs")
            group.create_task(hosted.nodes.run(known), name="nodes")
            group.create_task(hosted.members.run(), name="members")
            await asyncio.sleep(0)  # every run is known before the first runner is heard
            self._door.handlers[Hello] = hosted.members.take
            self._door.handlers[Join] = hosted.nodes.take
            await self._node.publish_as_host(host, self._port)
            self.hosted = hosted
            self.is_taken.set()
            await self._leadership.ended(lambda: hosted.jobs.epoch)
            raise Deposed

    async def _yield_to_another(self, epoch: int) -> None:
        """Who has heard of another coordinator may have heard one that leads. Raises Deposed."""
        if await self._leadership.is_over(epoch):
            raise Deposed

    def _on_runner_unlinked(self, node: str) -> None:
        """Where its runner was of this node, it may have ended."""
        if node == self._config.node:
            self._node.runners.look_soon()

    def _join(self, link_side: str = "", own_address: str = "") -> Join:
        """What this node says of itself, by what it sees of its own address."""
        return Join(
            versions=VERSIONS,
            fleet=self._config.fleet,
            node=self._config.node,
            identity=self._identity,
            incarnation=self._incarnation,
            address=self._hosting.node_address(own_address, link_side),
            port=self._port,
            join=tuple(entry.text for entry in self._config.join),
            labels=dict(self._config.labels),
            facts=self._facts,
            wall_s=wall_s(),
            slots=self._slots,
            max_jobs=self._config.max_jobs,
            launch={} if self._config.embedded is None else dict(self._config.embedded.launch),
        )

    # --- before it is known, and where another one hosts -------------------------------------------------------------

    def _known_host(self) -> KnownHost | None:
        """Who hosts, as this node knows it."""
        if self.hosted is None:
            return None if self._link is None else self._link.known(self._node.answered)
        address, port = self.hosted.place
        return KnownHost(
            node=self._config.node,
            identity=self._identity,
            address=address,
            port=port,
            epoch=self.hosted.jobs.epoch,
        )

    def _refuse_runner(self, channel: Channel, hello: Hello) -> None:
        if hello.answered_s is not None:
            self._node.answered = max(self._node.answered, (hello.epoch, boot_s() - hello.answered_s))
        self._door.reject(channel, f"{self._config.node} does not host the coordinator")

    def _refuse_node(self, channel: Channel, _join: Join) -> None:
        known = self._known_host()
        first = self._config.join[0].text if self._config.join else "nothing"
        message = f'{self._config.node} does not host the coordinator: its `[fleet] join` begins with "{first}"'
        hint = "it is the same on every node" if known is None else f"{known.node} does, as far as it knows"
        channel.send(encode(JoinRefused(code=ELSEWHERE, message=message, hint=hint, host=known)))
        channel.close()
