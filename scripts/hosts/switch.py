"""The wire between the hosts of a local fleet: packets on their way, held up, lost, cut or refused as one wishes.

No IO and no clock: keeper.py reads packets from the hosts' interfaces, and writes them where this says.
"""

import enum
import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scripts.hosts.refusals import resets, unreachable

PACKETS_MAX = 100_000
"""That are on their way; more are lost, as in any switch."""

DELAY_MAX_MS = 60_000.0

Delivery = tuple[str, bytes]
"""The host that gets a packet, and the packet."""


class Fate(enum.StrEnum):
    """What becomes of the packets on a path."""

    PASS = "pass"
    DROP = "drop"  # silence
    RESET = "reset"  # handshakes pass; a TCP connection that carries anything is over, and both ends are told so
    REJECT = "reject"  # connects are refused; a connection that is open goes silent (IPv4; other packets are dropped)


class _Disturbed:
    """What links and paths have in common: how they are changed."""

    delay_ms: float
    loss_pct: float

    def change(self, wish: dict[str, object]) -> None:
        """Set what `wish` names; raises ValueError, and changes nothing, where that cannot be."""
        for name, value in wish.items():
            if not self._may_be(name, value):
                raise ValueError(
                    f"{name} = {value}: cut_in, cut_out are true or false, fate is one of {', '.join(Fate)}, "
                    f"delay_ms is 0 to {DELAY_MAX_MS:g}, loss_pct 0 to 100"
                )
        for name, value in wish.items():
            setattr(self, name, value)

    def _may_be(self, name: str, value: object) -> bool:
        limit = {"delay_ms": DELAY_MAX_MS, "loss_pct": 100.0}.get(name)
        return limit is not None and isinstance(value, float | int) and 0 <= value <= limit


@dataclass
class Link(_Disturbed):
    """One host's end of the wire. All of it holds for packets of both directions, but for the two cuts."""

    cut_in: bool = False  # nothing reaches the host
    cut_out: bool = False  # nothing of it reaches anybody
    delay_ms: float = 0.0  # each packet takes so much longer: both ends' delays add up
    loss_pct: float = 0.0  # of packets that are lost at random
    passed: int = 0  # packets from the host or to it
    lost: int = 0  # by `loss_pct`, a cut or a path

    def _may_be(self, name: str, value: object) -> bool:
        return (name in ("cut_in", "cut_out") and isinstance(value, bool)) or super()._may_be(name, value)


@dataclass
class Path(_Disturbed):
    """From one host to another, in this direction alone; what it does comes on top of both links."""

    fate: str = Fate.PASS  # one of them
    delay_ms: float = 0.0
    loss_pct: float = 0.0

    def _may_be(self, name: str, value: object) -> bool:
        return (name == "fate" and value in list(Fate)) or super()._may_be(name, value)


@dataclass(order=True)
class _UnderWay:
    due_s: float
    number: int
    source: str = field(compare=False)
    host: str = field(compare=False)
    packet: bytes = field(compare=False)


class Switch:
    """Takes in packets and hands them out when they are due, to the host that has their address."""

    def __init__(self, hosts: Iterable[str], draws: random.Random) -> None:
        self.links = {host: Link() for host in hosts}
        self.paths = {(one, other): Path() for one in self.links for other in self.links if one != other}
        self._draws = draws
        self._host_of: dict[bytes, str] = {}  # by address, as it stands in a packet
        self._under_way: list[_UnderWay] = []
        self._number = 0

    @property
    def deadline_s(self) -> float | None:
        """When the next packet is due; None: there is none."""
        return self._under_way[0].due_s if self._under_way else None

    def attach(self, host: str, *addresses: bytes) -> None:
        """Packets to these addresses (4 or 16 bytes) are for this host."""
        self._host_of |= dict.fromkeys(addresses, host)

    def take(self, source: str, packet: bytes, now_s: float) -> Sequence[Delivery]:
        """Take in one packet of a host; returns what is to be handed out at once: it, if it neither waits nor is lost,
        or what is said in its stead."""
        host = self._host_of.get(_destination(packet))
        if host is None or host == source:
            return ()  # multicast, and what nobody has
        a, b, path = self.links[source], self.links[host], self.paths[source, host]
        instead = self._instead(source, host, packet)
        is_full = len(self._under_way) >= PACKETS_MAX
        if instead is not None or is_full or any(self._is_lost(loss) for loss in (a, b, path)):
            a.lost += 1
            b.lost += 1
            return instead or ()
        a.passed += 1
        b.passed += 1
        delay_ms = a.delay_ms + b.delay_ms + path.delay_ms
        if not delay_ms:
            return ((host, packet),)
        self._number += 1
        heapq.heappush(self._under_way, _UnderWay(now_s + delay_ms / 1000, self._number, source, host, packet))
        return ()

    def due(self, now_s: float) -> list[Delivery]:
        """The packets that have arrived by now, and where. What was cut off meanwhile does not arrive."""
        arrived: list[Delivery] = []
        while self._under_way and self._under_way[0].due_s <= now_s:
            packet = heapq.heappop(self._under_way)
            is_cut = self.links[packet.host].cut_in or self.paths[packet.source, packet.host].fate == Fate.DROP
            if not is_cut:
                arrived.append((packet.host, packet.packet))
        return arrived

    def _instead(self, source: str, host: str, packet: bytes) -> Sequence[Delivery] | None:
        """What is handed out in place of a packet that cannot pass; None: it may pass."""
        if self.links[source].cut_out or self.links[host].cut_in:
            return ()
        fate = self.paths[source, host].fate
        if fate == Fate.RESET:
            told = resets(packet)
            return None if told is None else list(zip((source, host), told, strict=True))
        if fate == Fate.REJECT:
            refusal = unreachable(packet)
            return () if refusal is None else ((source, refusal),)
        return () if fate == Fate.DROP else None

    def _is_lost(self, where: Link | Path) -> bool:
        return where.loss_pct > 0 and self._draws.random() * 100 < where.loss_pct


def _destination(packet: bytes) -> bytes:
    """RFC 791 3.1, RFC 8200 3."""
    return packet[16:20] if packet[:1] < b"\x50" else packet[24:40]
