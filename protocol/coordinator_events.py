"""What the coordinator's machine takes in, gives out, and keeps (the machine itself: coordinator.py)."""

import enum
from collections.abc import Mapping

import msgspec

from protocol.dataclass import dataclass, field
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
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
    HELD = "held"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "preempted"


FINAL = {Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.PREEMPTED}
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
    known_s: float | None = None  # the run's own time when that was launched, or taken over; None: not known
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
    reason: str = ""  # of the final state, or why it is held
    made_no_progress: bool = False  # it failed of `no_progress_limit`
    nnodes: tuple[int, int] | None = None  # least and most, as an operator has scaled it; None: the job's
    nnodes_replaced: tuple[int, int] | None = None  # the job's, at that time
    nnodes_before: tuple[int, int] | None = None  # what does until a generation of so many nodes has begun
    scale_left_s: float | None = None  # of an operator's scale that is to come: after so long without a checkpoint
    preempted: dict[str, str] = {}  # node -> the start of its supd in which it was given notice: it is not used in that
    noticed: dict[str, str] = {}  # node -> its runner that has told so; what that one tells again is no other notice
    revision: int = 0  # of the job
    awaited: tuple[str, ...] = ()  # nodes that had ranks before that: their next runner may come later than a spare's
    planned: str = ""  # why the generation that ends was ended as planned; "": it was not
    last_parts: dict[str, Renewal] = {}  # node -> how its ranks ended (without what they said last), of `lost` nodes;
    # of a run that is over: of all


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """The run is accepted, or read back from the journal: begin, or go on."""


@dataclass(frozen=True)
class Draining:
    """A node is to be free. Times are boot-time seconds of the coordinator's node."""

    at_checkpoint: bool  # a run leaves it at its next checkpoint, if it can go on without it
    go_s: float  # then without one: where `at_checkpoint`, if it can go on without it; else whatever comes of it
    by: str
    reason: str


@dataclass(frozen=True)
class Grant:
    """What a run may use of a node."""

    devices: tuple[str, ...] | None = None  # of its slots; None: there is no limit there


@dataclass(frozen=True)
class RosterNode:
    """A node of the fleet, as far as a run cares."""

    name: str
    is_up: bool  # its supd answers
    may_come: bool = False  # it does not answer, but it was there a moment ago and may come back
    joined: int = 0  # the order in which nodes came to the fleet: 0, 1, 2 …
    labels: Mapping[str, str] = field(default_factory=dict)
    other_runs: int = 0  # active runs other than this one that have ranks there
    start: str = ""  # which start of its supd that is
    drain: Draining | None = None
    signals: frozenset[str] = frozenset()  # that its supd was sent
    troubles: tuple[float, ...] = ()  # boot-time seconds of incidents of any run whose root was there; oldest first
    slots: tuple[str, ...] | None = None  # of the node; None: no limit
    max_jobs: int = 0  # runs at once; 0: no limit
    grant: Grant | None = field(default_factory=Grant)  # None: the run may use nothing there yet
    lack: str = ""  # why there is no grant: "its 8 slots are llama-7b@9f2c's"; "": it could have one


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
    is_record: bool = False  # that it has left: its spans are as old as that is


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
class ScaleRequested:
    """The operator wants other numbers of nodes, at the next checkpoint, after `deadline_s` without one."""

    nnodes: tuple[int, int]
    deadline_s: float
    by: str


@dataclass(frozen=True)
class Reloaded:
    """The operator wants a new generation of another revision of the job, which is on disk."""

    spec: JobSpec
    revision: int
    by: str
    reason: str = ""


@dataclass(frozen=True)
class ResumeRequested:
    """The operator wants a run that is held to go on, with its budgets as at its start."""

    by: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Opened
    | Roster
    | Heard
    | Testified
    | RunnerGone
    | RunnerFailed
    | NodeLost
    | StopRequested
    | RestartRequested
    | ScaleRequested
    | Reloaded
    | ResumeRequested
    | Tick
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


@dataclass(frozen=True)
class Blame:
    """The root of an incident that is closed was on this node."""

    node: str


Effect = Persist | Note | Want | Send | Ask | Blame
