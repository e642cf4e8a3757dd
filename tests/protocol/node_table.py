"""A node table under test: who asks to join it, and short ways to look at what it does."""

from typing import Any

from protocol.coordinator_events import Note
from protocol.fleet import (
    Fleet,
)
from protocol.fleet_events import (
    Asked,
    Effect,
    NodeRecord,
    Opened,
    Probe,
    Probed,
    Refuse,
    Tick,
)
from protocol.messages.fleet import Join, Joined, JoinRefused

LIST = ("host:29410", "b:29410")
WALL_S = 1_800_000_000.0


def join(node: str = "b", state: str = "of-b-dir", start: int = 1, **changed: Any) -> Join:
    """A node's wish to join; `state` is the identity of its state folder, `start` its incarnation."""
    told: dict[str, Any] = {
        "versions": (1,),
        "fleet": "default",
        "node": node,
        "identity": state,
        "incarnation": start,
        "address": f"10.0.0.{ord(node[0]) - ord('a') + 1}",
        "port": 29410,
        "join": LIST,
        "wall_s": WALL_S,
    }
    return Join(**told | changed)


HOST = join("host", "of-host-dir", address="10.0.0.100")


def record(join: Join, joined: int, **changed: Any) -> NodeRecord:
    """What is kept of a node that joined so."""
    kept: dict[str, Any] = {
        "name": join.node,
        "identity": join.identity,
        "incarnation": join.incarnation,
        "address": join.address,
        "port": join.port,
        "joined": joined,
        "labels": join.labels,
        "facts": join.facts,
        "joined_wall_s": WALL_S,
    }
    return NodeRecord(**kept | changed)


def opened(*known: NodeRecord, host: Join = HOST, seats: dict[str, str] | None = None) -> Fleet:
    """A fleet whose host has just started; `seats` are nodes with an active run that has a seat there."""
    fleet = Fleet(host, 7, lambda node: (seats or {}).get(node, ""))
    fleet.handle(Opened((record(host, 0), *known)), 0.0)
    return fleet


def asked(link: int, wish: Join, now_s: float, fleet: Fleet) -> list[Effect]:
    """A node asks by a new connection."""
    return fleet.handle(Asked(link, wish, WALL_S), now_s)


def comes(link: int, wish: Join, now_s: float, fleet: Fleet) -> list[Effect]:
    """A node asks and is reached; what follows from the latter."""
    probe = Probe(link, wish.address, wish.port, wish.node, wish.identity)
    assert asked(link, wish, now_s, fleet) == [probe]
    return fleet.handle(Probed(link, ok=True), now_s)


def with_b(*known: NodeRecord, **more: Any) -> Fleet:
    """A fleet with node b, which joined at 10 s by link 1."""
    fleet = opened(*known, **more)
    comes(1, join(), 10.0, fleet)
    return fleet


def joined(*warnings: str) -> Joined:
    """What a node is told that is taken in."""
    return Joined(version=1, epoch=7, host="host", warnings=warnings, identity="of-host-dir")


def note(kind: str, text: str, node: str = "b", address: str = "10.0.0.2", **more: Any) -> Note:
    """What is told of a node."""
    return Note(kind, text, None, {"node": node, "address": address, "port": 29410, **more})


def refusal(effects: list[Effect]) -> JoinRefused:
    """The one refusal among them."""
    (refused,) = (effect.refused for effect in effects if isinstance(effect, Refuse))
    return refused


def wake(fleet: Fleet, until_s: float) -> list[tuple[float, Effect]]:
    """Every tick that is due up to then, and what followed from it, and when."""
    found: list[tuple[float, Effect]] = []
    last_s = -1.0
    while fleet.deadline_s is not None and fleet.deadline_s <= until_s:
        now_s = fleet.deadline_s
        assert now_s > last_s, "it would be woken again and again"
        found += ((now_s, effect) for effect in fleet.handle(Tick(), now_s))
        last_s = now_s
    return found


def shown(fleet: Fleet, name: str = "b") -> str:
    """How the runs see a node."""
    (node,) = (node for node in fleet.roster() if node.name == name)
    assert not (node.is_up and node.may_come)
    return "up" if node.is_up else "may come" if node.may_come else "away"
