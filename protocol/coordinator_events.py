"""What the coordinator's machine takes in, gives out, and keeps (the machine itself: coordinator.py)."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from protocol.ids import NO_GENERATION
from protocol.messages.control import Incident
from protocol.messages.member import Answer, Assignment, Question, Renewal, Stop, Testimony
from protocol.restart import Ledger


class Phase(enum.StrEnum):
    """What the coordinator is doing with the run."""

    FORMING = "forming"
    LAUNCHING = "launching"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


FINAL = {Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED}
LIVE = {Phase.LAUNCHING, Phase.RUNNING, Phase.STOPPING}
"""Phases in which workers of the generation may be alive."""


# --- what is kept ------------------------------------------------------------------------------------------------


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place in a generation."""

    node: str
    incarnation: str  # of the runner it was given to
    assignment: Assignment


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything durable about a run but its job; persisted whole at each change."""

    version: int = 1
    phase: Phase = Phase.FORMING
    generation: int = NO_GENERATION
    seats: tuple[Seat, ...] = ()
    has_started: bool = False  # all ranks of some generation have started
    ledger: Ledger = Ledger()
    backoff_s: float = 0.0
    restart_reason: str = ""  # for the next generation
    stop: Stop | None = None  # an operator's, accepted
    restart: str | None = None  # an operator's reason, accepted, for the generation that is live
    incidents: int = 0
    incident: Incident | None = None  # the last one
    incident_is_open: bool = False
    lost: tuple[str, ...] = ()  # nodes of this generation whose runner is proven gone
    lapsed: tuple[str, ...] = ()  # nodes of this generation whose lease is over, so that nothing of it runs there
    slots: dict[str, int] = {}  # node -> its place in the order of ranks; it keeps it until another one inherits it
    without: str = ""  # a node that the next generation leaves out, as an operator wanted
    lacked_nodes: bool = False  # it failed because there were too few nodes
    stalled: tuple[int, ...] = ()  # ranks of the generation of which was told that they make no progress
    is_taken_over: bool = False  # its runners run something newer than `generation`, and have not told all of it
    newer: int = NO_GENERATION  # the number of that, as far as it was heard; what begins next is above it
    reason: str = ""  # of the final state
    last_parts: dict[str, Renewal] = {}  # node -> how its ranks ended (without what they said last), of `lost` nodes;
    # of a run that is over: of all


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """The run is accepted, or read back from the journal: begin, or go on."""


@dataclass(frozen=True)
class RosterNode:
    """A node of the fleet, as far as a run cares."""

    name: str
    is_up: bool  # its supd answers
    may_come: bool = False  # it does not answer, but it was there a moment ago and may come back
    joined: int = 0  # the order in which nodes came to the fleet: 0, 1, 2 …
    labels: Mapping[str, str] = field(default_factory=dict)
    other_runs: int = 0  # active runs other than this one that have ranks there


@dataclass(frozen=True)
class Roster:
    """The nodes of the fleet, all of them, as they stand now."""

    nodes: tuple[RosterNode, ...]


@dataclass(frozen=True)
class Heard:
    """A runner's renewal. Node and incarnation are those of its connection, or of the record it left; where a witness
    has passed it on (`via`: that one's incarnation) they are what the witness says."""

    node: str
    incarnation: str
    renewal: Renewal
    via: str = ""


@dataclass(frozen=True)
class Testified:
    """A witness, known by its connection, answers a question."""

    node: str
    incarnation: str
    testimony: Testimony


@dataclass(frozen=True)
class NodeLost:
    """An operator gives their word that nothing runs on a node any more."""

    node: str
    by: str


@dataclass(frozen=True)
class RunnerGone:
    """Proof: this runner and its guard are gone, and its tree was swept."""

    node: str
    incarnation: str


@dataclass(frozen=True)
class RunnerFailed:
    """A runner could not be started."""

    node: str
    reason: str


@dataclass(frozen=True)
class StopRequested:
    """The operator wants the run to end."""

    grace_s: float | None  # None: the job's
    now: bool
    by: str


@dataclass(frozen=True)
class RestartRequested:
    """The operator wants a new generation, perhaps without one of the nodes."""

    reason: str
    by: str
    without: str = ""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Opened | Roster | Heard | Testified | RunnerGone | RunnerFailed | NodeLost | StopRequested | RestartRequested | Tick
)

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Put the record into the journal; a barrier before any send."""

    record: RunRecord


@dataclass(frozen=True)
class Note:
    """Something users see in `supctl events` (types: docs/events.md)."""

    kind: str
    text: str
    generation: int | None
    detail: dict[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Want:
    """From now on these nodes, and no others, have to have a runner for the run; one that is there is fine."""

    nodes: frozenset[str]


@dataclass(frozen=True)
class Send:
    """Give a runner its whole order; `via` as in Heard."""

    node: str
    incarnation: str
    answer: Answer
    via: str = ""


@dataclass(frozen=True)
class Ask:
    """Ask a witness, on its own connection, about another runner."""

    incarnation: str  # of the witness
    question: Question


Effect = Persist | Note | Want | Send | Ask
