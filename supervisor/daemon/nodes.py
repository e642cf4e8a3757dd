"""The host's side of the nodes: their connections, what they report, and what is wanted of them."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from functools import partial
from itertools import count

import structlog

from protocol import fleet_events as f
from protocol import node_orders as o
from protocol.absence import Unproven
from protocol.coordinator_events import Note
from protocol.errors import LocalProtocolError, Refused, RemoteProtocolError
from protocol.fleet import Fleet
from protocol.ids import may_be_epoch
from protocol.messages import encode
from protocol.messages.control import NodeStatus
from protocol.messages.fleet import Join, NodeReport, RunnerBuried, decode_report
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.node import Node
from supervisor.daemon.node_list import named
from supervisor.daemon.probe import Prober
from supervisor.shell.channel import Channel
from supervisor.shell.clock import boot_s, wall_s
from supervisor.shell.driver import Driver

log = structlog.get_logger()

HEED_S = 2.0
"""How long an operator who drains a node waits until every run has heard of it."""


class Nodes:
    """Takes in nodes as the fleet's machine says; hands what they report to the runs, and gives them their orders, as
    the machine of these says."""

    def __init__(self, jobs: Jobs, journal: Journal, host: Join, own: Node, prober: Prober) -> None:
        self._jobs = jobs
        self._journal = journal
        self._host = host
        self._own = own
        self._prober = prober
        self.fleet = Fleet(host, jobs.epoch, jobs.seated)
        self._orders = o.NodeOrders(jobs.epoch, jobs.is_forgotten)
        self._driver: Driver[f.Event, f.Effect] = Driver(self.fleet, self._perform, f.Tick())
        self._numbers = count(1)
        self._links: dict[Channel, int] = {}
        self._channels: dict[f.Link, Channel] = {}
        self._joins: dict[f.Link, Join] = {}  # of those that are not taken in yet
        self._in_use: frozenset[str] | None = None  # nodes with ranks, as the fleet's machine was told
        self._is_rising = False  # to an epoch above one that a node has heard of
        self._group: asyncio.TaskGroup | None = None

    async def run(self, known: list[f.NodeRecord]) -> None:
        """Look after the nodes until cancelled; `known` are those of the journal."""
        async with asyncio.TaskGroup() as self._group:
            self._driver.put(f.Opened(tuple(known), wall_s()))
            self.see_seats()
            self._group.create_task(self._driver.run(), name="fleet")
            self._manage(o.Admitted(self._host.node, (self._host.identity, self._host.incarnation)))
            self._own.link_up(self._on_own_report, self._host.address)
            await asyncio.Event().wait()

    def status(self) -> tuple[NodeStatus, ...]:
        """Every node of the fleet as it stands."""
        return self.fleet.status(boot_s())

    def runners(self) -> dict[str, tuple[str, ...] | None]:
        """Of each node that answers: the runners that may be alive there; None: it has not said yet."""
        return {node.name: self._orders.runners(node.name) for node in self.fleet.roster() if node.is_up}

    def record_of(self, node: str) -> f.NodeRecord | None:
        """What is known of one; None: no node has that name."""
        return self.fleet.record_of(node)

    def waiting_for_word_on(self, node: str) -> tuple[str, ...]:
        """The runs that nobody but an operator can tell that nothing of theirs is on a node any more. Raises Refused
        where there is no such node, and where all that may be there answers, or is known to the supd there."""
        is_up = self.fleet.is_up(node)
        found = self._jobs.unproven(node, partial(self._orders.lacks, node) if is_up else None)
        if found == Unproven():
            named(self.status(), node)
        if found.needs_word or not (is_up or found.heard):
            return found.needs_word
        if found.heard and not found.quiet:
            first = found.heard[0]
            hint = f"to go on without it: supctl restart {first} --without {node}"
            raise Refused("F115", f"{node} is not lost: the runner of {first} answers there", hint=hint)
        without = f"to go on without it: supctl restart JOB --without {node}"
        hint = self._jobs.way_out(found.quiet[0], node) if found.quiet else without
        raise Refused("F115", f"{node} is not lost: supd answers there", hint=hint)

    async def declare_lost(self, node: str, by: str, only: Collection[str] | None = None) -> tuple[str, ...]:
        """An operator's word that nothing runs on a node any more, or nothing of `only` these runs; returns those that
        have waited for it, each of which has it on disk. Raises Refused, also as `waiting_for_word_on`."""
        waiting = self.waiting_for_word_on(node)
        runs = tuple(run for run in waiting if only is None or run in only)
        await self._jobs.node_lost(node, runs, by)
        if not waiting:  # else each has told it
            told = f"{by} says that nothing runs on {node} any more"
            self._jobs.on_fleet_note(Note("operator.node_lost", told, None, {"node": node, "by": by}))
        if runs == waiting:
            await self._driver.ask(f.DeclaredLost(node))
        return runs

    async def drain(self, names: Collection[str], drain: f.Drain) -> None:
        """An operator wants nodes free; on disk when this returns. Raises Refused."""
        await self._upkeep([f.DrainRequested(name, drain, wall_s()) for name in self._checked(names)])

    async def undrain(self, names: Collection[str], by: str) -> None:
        """An operator wants them used again, whatever has spoken against it. Raises Refused."""
        await self._upkeep([f.UndrainRequested(name, by) for name in self._checked(names)])

    def _checked(self, names: Collection[str]) -> list[str]:
        known = self.status()
        return [named(known, name).node for name in dict.fromkeys(names)]

    async def _upkeep(self, events: Iterable[f.Event]) -> None:
        """Carry it out, and see it on disk; every run is told, unless that takes long."""
        for event in events:
            await self._driver.ask(event)
        await self._journal.settle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEED_S):
                await self._jobs.heed_roster()

    def blame(self, node: str) -> None:
        """The root of an incident of a run was there."""
        self._driver.put(f.Troubled(node, wall_s()))

    def see_seats(self) -> None:
        """Runs may have ranks on other nodes than before."""
        in_use = self._jobs.in_use()
        if in_use is not None and in_use != self._in_use:
            self._in_use = in_use
            self._driver.put(f.Seated(in_use))

    async def heed_own_signals(self) -> None:
        """This supd was sent a signal, and ends: see that the runs have heard of it."""
        await self._driver.ask(f.Tick())
        await self._jobs.heed_roster()

    def on_epoch(self, epoch: int) -> None:
        """The coordinator has begun another epoch."""
        self.fleet.epoch = self._orders.epoch = epoch

    # --- connections ---------------------------------------------------------------------------------------------

    def take(self, channel: Channel, join: Join) -> None:
        """A connection that began with `join`."""
        if self._driver.is_behind:
            channel.abort("too many join at once")
            return
        if not may_be_epoch(join.epoch, self._jobs.epoch):
            channel.abort(f"there is no epoch {join.epoch}")
            return
        link = next(self._numbers)
        self._links[channel], self._channels[link], self._joins[link] = link, channel, join
        channel.hand_over(self._on_frame, self._on_closed)
        if not self._is_ahead(join):
            self._driver.put(f.Asked(link, join, wall_s()))
        elif self._is_rising:
            channel.abort("the coordinator begins another epoch")
        else:
            assert self._group is not None
            self._is_rising = True
            self._group.create_task(self._rise_above(link, join), name=f"rise-above-{join.epoch}")

    def _is_ahead(self, join: Join) -> bool:
        """Whether the node has heard of a later coordinator, or of another one of the same epoch."""
        is_other = join.host not in ("", self._host.identity)
        return join.epoch > self._jobs.epoch or (join.epoch == self._jobs.epoch and is_other)

    async def _rise_above(self, link: f.Link, join: Join) -> None:
        await self._jobs.raise_epoch(join.epoch)
        self._is_rising = False
        if link in self._channels:
            self._driver.put(f.Asked(link, join, wall_s()))

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        report = decode_report(payload)
        link = self._links[channel]
        node = self.fleet.node_of(link)
        if node is None:
            raise RemoteProtocolError("a report of a node that was not taken in")
        if not self._driver.is_behind:  # of a flood some are left out: each says all of it
            self._driver.put(f.Heard(link))
            self._see_signals(link, node, report)
            self._manage(o.Reported(node, report))

    def _on_closed(self, channel: Channel) -> None:
        link = self._links.pop(channel)
        del self._channels[link]
        self._joins.pop(link, None)
        self._driver.put(f.Unlinked(link))

    async def _perform(self, effect: f.Effect) -> None:
        match effect:
            case f.Persist(node):
                self._journal.save_node(node)
            case f.Forget(name):
                self._manage(o.Forgotten(name))
                self._journal.remove_node(name)
            case f.Probe():
                assert self._group is not None
                self._group.create_task(self._probe(effect), name=f"probe-{effect.node}")
            case f.Admit(link, joined):
                self._on_admitted(link)
                self._send(link, joined)
            case f.Refuse(link, refused):
                channel = self._channels.get(link)
                if channel is not None:
                    channel.send(encode(refused))
                    channel.close()
            case f.Drop(link, why):
                if link in self._channels:
                    self._channels[link].abort(why)
            case f.RosterChanged():
                self._jobs.on_roster(self.fleet.roster)
            case Note():
                if effect.kind == "node.refused":
                    log.warning("node_refused", **effect.detail, why=effect.text)
                self._jobs.on_fleet_note(effect)

    async def _probe(self, probe: f.Probe) -> None:
        why = await self._prober.why_not(probe.address, probe.port, probe.node, probe.identity)
        self._driver.put(f.Probed(probe.link, ok=not why, why=why))

    def _on_admitted(self, link: f.Link) -> None:
        join = self._joins.pop(link, None)
        if join is not None:
            self._manage(o.Admitted(join.node, (join.identity, join.incarnation)))
            log.info("node_joined", node=join.node, address=join.address, port=join.port)

    def _send(self, link: f.Link, message: object) -> None:
        channel = self._channels.get(link)
        if channel is not None:
            channel.send(encode(message))

    # --- reports and orders --------------------------------------------------------------------------------------

    def want(self, run: str, nodes: frozenset[str]) -> None:
        """These nodes, and no other ones, are to have a runner for a run."""
        self._manage(o.Wanted(run, nodes))

    def _on_own_report(self, report: NodeReport) -> None:
        self._see_signals(None, self._host.node, report)
        self._manage(o.Reported(self._host.node, report))

    def _see_signals(self, link: f.Link | None, node: str, report: NodeReport) -> None:
        if report.signals != self.fleet.signals_of(node):
            self._driver.put(f.Signalled(link, report.signals))

    def _manage(self, event: o.Event) -> None:
        """Hand an event to the machine of the orders, and do what it says."""
        for effect in self._orders.handle(event):
            match effect:
                case o.Order(node):
                    self._order(node)
                case o.Gone(node, buried):
                    assert self._group is not None
                    self._group.create_task(self._settle(node, buried), name=f"settle-{buried.incarnation}")
                case o.Failed(node, run, reason):
                    self._jobs.on_runner_failed(node, run, reason)

    async def _settle(self, node: str, buried: RunnerBuried) -> None:
        """See that the end of a runner is on our disk; then the node may forget it."""
        await self._jobs.on_runner_gone(node, buried)
        self._manage(o.Settled(node, buried.incarnation))

    def _order(self, node: str) -> None:
        order = self._orders.order_for(node)
        if node == self._host.node:
            self._own.on_order(order)
        elif (link := self.fleet.link_of(node)) is not None:
            try:
                self._send(link, order)
            except LocalProtocolError as exc:
                log.error("order_too_large", node=node, error=str(exc))
