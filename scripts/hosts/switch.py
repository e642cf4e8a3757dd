"""The wire between the hosts of a local fleet: packets from one to another, held up, lost or cut as one wishes.

No IO and no clock: keeper.py reads packets from the hosts' interfaces, and writes them where this says.
"""

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

PACKETS_MAX = 100_000
"""That are on their way; more are lost, as in any switch."""

DELAY_MAX_MS = 60_000.0


@dataclass
class Link:
    """One host's end of the wire. All of it holds for packets of both directions, but for the two cuts."""

    cut_in: bool = False  # nothing reaches the host
    cut_out: bool = False  # nothing of it reaches anybody
    delay_ms: float = 0.0  # each packet takes so much longer: both ends' delays add up
    loss_pct: float = 0.0  # of packets that are lost at random
    passed: int = 0  # packets from the host or to it
    lost: int = 0  # by `loss_pct` or a cut

    def change(self, wish: dict[str, object]) -> None:
        """Set what `wish` names; raises ValueError, and changes nothing, where that is not a link's to be."""
        for name, value in wish.items():
            match name, value:
                case "cut_in" | "cut_out", bool():
                    pass
                case "delay_ms", float() | int() if 0 <= value <= DELAY_MAX_MS:
                    pass
                case "loss_pct", float() | int() if 0 <= value <= 100:
                    pass
                case _:
                    raise ValueError(
                        f"{name} = {value}: cut_in, cut_out are true or false, delay_ms is 0 to {DELAY_MAX_MS:g}, "
                        "loss_pct 0 to 100"
                    )
        for name, value in wish.items():
            setattr(self, name, value)


@dataclass(order=True)
class _UnderWay:
    due_s: float
    number: int
    host: str = field(compare=False)
    packet: bytes = field(compare=False)


class Switch:
    """Takes in packets and hands them out when they are due, to the host that has their address."""

    def __init__(self, hosts: Iterable[str], draws: random.Random) -> None:
        self.links = {host: Link() for host in hosts}
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

    def take(self, source: str, packet: bytes, now_s: float) -> str | None:
        """Take in one packet of a host; returns whom to give it at once, and None where it waits or is gone."""
        host = self._host_of.get(_destination(packet))
        if host is None:
            return None  # multicast, and what nobody has
        a, b = self.links[source], self.links[host]
        if a.cut_out or b.cut_in or self._is_lost(a) or self._is_lost(b) or len(self._under_way) >= PACKETS_MAX:
            a.lost += 1
            b.lost += 1
            return None
        a.passed += 1
        b.passed += 1
        delay_ms = a.delay_ms + b.delay_ms
        if not delay_ms:
            return host
        self._number += 1
        heapq.heappush(self._under_way, _UnderWay(now_s + delay_ms / 1000, self._number, host, packet))
        return None

    def due(self, now_s: float) -> list[tuple[str, bytes]]:
        """The packets that have arrived by now, and where. A host that was cut off meanwhile does not get them."""
        arrived = []
        while self._under_way and self._under_way[0].due_s <= now_s:
            packet = heapq.heappop(self._under_way)
            if not self.links[packet.host].cut_in:
                arrived.append((packet.host, packet.packet))
        return arrived

    def _is_lost(self, link: Link) -> bool:
        return link.loss_pct > 0 and self._draws.random() * 100 < link.loss_pct


def _destination(packet: bytes) -> bytes:
    """RFC 791 3.1, RFC 8200 3."""
    return packet[16:20] if packet[:1] < b"\x50" else packet[24:40]
