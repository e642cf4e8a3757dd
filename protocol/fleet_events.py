"""What the node table's machine takes in, gives out, and keeps (the machine itself: fleet.py)."""

from collections.abc import Mapping

import msgspec

from protocol.coordinator_events import Note
from protocol.dataclass import dataclass
from protocol.messages.fleet import Join, Joined, JoinRefused, NodeFacts
from protocol.messages.member import Devices

Link = int
"""A connection, by what the shell calls it; never used again for another one."""


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's wish that a node be free: it takes no new work, and runs leave it."""

    by: str
    reason: str = ""
    at_checkpoint: bool = True  # runs leave at their next checkpoint, if they have somewhere to go; else at `go_wall_s`
    go_wall_s: float  # when they leave without one: of a checkpoint that does not come, or as the operator said
    is_free: bool = False  # no run has ranks there; that was told


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
    slots: Devices | None = None  # as in Join
    max_jobs: int = 0
    drain: Drain | None = None  # an operator wants it free
    troubles: tuple[float, ...] = ()  # wall-clock times of incidents, of any run, whose root was there; oldest first
    undrained: int = 0  # how often an operator has had it used again, in this incarnation …
    forgiven: dict[str, int] = {}  # … and how often that supd had been sent each signal by then
    signals: dict[str, int] = {}  # how often it was sent each, as it has said last: what an operator forgives


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """The first event, once: these are the nodes in the journal."""

    known: tuple[NodeRecord, ...]
    wall_s: float = 0.0  # our clock, by which what was kept of times is turned into boot-time seconds


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
class DrainRequested:
    """An operator wants a node free; `wall_s` is our clock. A second wish stands for the first."""

    node: str
    drain: Drain
    wall_s: float


@dataclass(frozen=True)
class UndrainRequested:
    """An operator wants it used again: its drain, its troubles and its notices are forgotten."""

    node: str
    by: str


@dataclass(frozen=True)
class Troubled:
    """The root of an incident of a run was on this node."""

    node: str
    wall_s: float


@dataclass(frozen=True)
class Signalled:
    """The supd of a node reports how often it was sent each signal, since it was started."""

    link: Link | None  # None: the host's own
    signals: Mapping[str, int]


@dataclass(frozen=True)
class Seated:
    """These are all the nodes on which runs have ranks."""

    nodes: frozenset[str]


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Opened
    | Asked
    | Probed
    | Heard
    | Unlinked
    | DeclaredLost
    | DrainRequested
    | UndrainRequested
    | Troubled
    | Signalled
    | Seated
    | Tick
)

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
