"""What the node table's machine takes in, gives out, and keeps (the machine itself: fleet.py)."""

from dataclasses import dataclass

import msgspec

from protocol.coordinator_events import Note
from protocol.messages.fleet import Join, Joined, JoinRefused, NodeFacts

Link = int
"""A connection, by what the shell calls it; never used again for another one."""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything durable about a node; persisted whole at each change but one of its clock alone."""

    version: int = 1
    name: str
    identity: str
    incarnation: int
    address: str
    port: int
    joined: int  # the order in which names came to the fleet: 0, 1, 2 …
    labels: dict[str, str] = {}
    facts: NodeFacts = NodeFacts()
    clock_off_s: float = 0.0  # its clock against the coordinator's, as it joined
    joined_wall_s: float = 0.0  # when this incarnation did
    is_away: bool = False  # it was told that it does not answer, and not that it does again


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """The first event, once: these are the nodes in the journal."""

    known: tuple[NodeRecord, ...]


@dataclass(frozen=True)
class Asked:
    """A node wants to join; `wall_s` is our own clock, as its `Join` was read."""

    link: Link
    join: Join
    wall_s: float


@dataclass(frozen=True)
class Probed:
    """The answer to Probe: whether that very node answers at its address; else why not (`connection refused`)."""

    link: Link
    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Heard:
    """A node has reported."""

    link: Link


@dataclass(frozen=True)
class Unlinked:
    """A connection has ended."""

    link: Link


@dataclass(frozen=True)
class DeclaredLost:
    """An operator gives their word that nothing runs on a node any more: it is not waited for."""

    node: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Opened | Asked | Probed | Heard | Unlinked | DeclaredLost | Tick

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Put the record into the journal. It may be written behind: what rests on it comes with a later barrier."""

    node: NodeRecord


@dataclass(frozen=True)
class Forget:
    """Take the record of this node out of the journal."""

    node: str


@dataclass(frozen=True)
class Probe:
    """See whether this node, with this identity, answers at its address; exactly one Probed follows."""

    link: Link
    address: str
    port: int
    node: str
    identity: str


@dataclass(frozen=True)
class Admit:
    """It belongs to the fleet: answer its Join, and go on listening."""

    link: Link
    joined: Joined


@dataclass(frozen=True)
class Refuse:
    """Answer its Join, and close the connection."""

    link: Link
    refused: JoinRefused


@dataclass(frozen=True)
class Drop:
    """Close the connection: another one has taken its place."""

    link: Link
    why: str


@dataclass(frozen=True)
class RosterChanged:
    """What `roster()` gives is not what it was."""


Effect = Persist | Forget | Probe | Admit | Refuse | Drop | RosterChanged | Note
