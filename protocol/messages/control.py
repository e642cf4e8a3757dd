"""supctl <-> supd, on the unix socket: one request a connection, then the replies to it.

Both sides begin with a Greeting. A request is answered by frames of ControlReply; a Failure or an End is the last one.
"""

import enum
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.chooser import CHOOSER_MAX
from protocol.errors import Place
from protocol.ids import GenerationNumber
from protocol.messages import Message, decoder
from protocol.messages.member import RankError
from protocol.messages.upkeep import (
    GRACE_MAX_S,
    REASON_MAX,
    AskPolicy,
    DrainNodes,
    Policy,
    ResumeRun,
    ScaleRun,
    UndrainNodes,
)

PLACES_MAX = 100_000
"""Streams of which a follower that comes back says how far it is: as many as fit into a frame."""

MERGE_WINDOW_MAX_S = 60.0

ChooserText = Annotated[str, Meta(max_length=CHOOSER_MAX)]

CONTROL_VERSION = 1
"""Goes up when an old client could misread a new daemon, or the other way round."""


class Greeting(Message, frozen=True):
    """First frame of both sides. A version that differs ends the talk with one clear line (exit 69)."""

    control_version: int
    supd_version: str
    node: str = ""  # the daemon's


# --- what is shown -----------------------------------------------------------------------------------------------


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One failure with all that followed from it."""

    number: int  # 1, 2, 3 … in the run
    generation: int
    cause: str  # exit, signal, out-of-memory, hang, spawn, runner-lost, node-lost, fenced, finish-timeout
    summary: str  # one line: "rank 3 on gpu-01 killed by SIGKILL (pid 4711), sender unknown"
    node: str
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None  # SIGKILL, SIGSEGV, SIGRTMIN+3 …
    core_dumped: bool = False
    shell_code: int | None = None  # the code, or 128 + N for signal N
    wall_s: float = 0.0
    stderr_tail: tuple[bytes, ...] = ()
    evidence: str = ""  # what the kernel says of it
    error: RankError | None = None  # what the rank itself has said of it, in its error file
    cause_key: str = ""  # the same for two failures of one cause: "RuntimeError at train.py:31", "SIGSEGV"; "": unknown
    is_root: bool = True  # it is known that it began there; of several ranks that hang alike it is not


class EventRecord(Message, frozen=True):
    """One line of `supctl events` (types and their details: docs/events.md)."""

    id: int  # counts up over all runs of this supd; a follower resumes behind the last one it saw
    wall_s: float
    run: str
    generation: int | None
    kind: str  # noun.past
    text: str
    detail: dict[str, str | int | float | bool | None] = {}


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `supctl ps`."""

    rank: int
    node: str
    local_rank: int
    pid: int | None
    state: str  # one of RANK_STATES
    exit_code: int | None = None
    signal: str | None = None
    shell_code: int | None = None
    core_dumped: bool = False
    stopped_by_supervisor: bool = False
    ended_wall_s: float | None = None
    ran_s: float | None = None
    note: str = ""
    step: int | None = None
    phase: str = ""  # that it has declared
    silent_s: float | None = None  # since it was last seen to make progress


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run as it stands."""

    run: str
    job: str
    state: str  # one of RUN_STATES
    phase: str  # the machine's word
    is_final: bool
    generation: int | None  # None: none yet
    has_started: bool  # all ranks of generation 0 have started, ever
    ranks_running: int
    ranks: int | None  # None: not known before a node has offered itself
    nodes: tuple[str, ...]  # of the newest generation, by node_rank
    nnodes: tuple[int, int]  # least and most that it wants
    spares: tuple[str, ...]  # nodes that stand by
    user: str
    submitted_wall_s: float
    ended_wall_s: float | None
    reason: str  # why it is in this state, where there is more to say than the state
    waiting_for: str  # "" or what it waits for
    wait_left_s: float | None  # of a wait that ends by itself
    restarts_used: int
    max_restarts: int
    saved_step: int | None
    incident: Incident | None  # the last one
    rank_list: tuple[RankStatus, ...] = ()  # of the newest generation; only where asked for
    logs_dir: str = ""
    step: int | None = None  # that every rank which shows steps has reached
    total_steps: int | None = None
    rate: float | None = None  # steps a second, lately
    eta_s: float | None = None
    loss: float | None = None
    silent_s: float | None = None  # since the job's step last went up
    lacked_nodes: bool = False  # it failed because there were too few nodes (exit code 75)
    made_no_progress: bool = False  # it failed of `no_progress_limit` (exit code 7)
    preempted_code: int = 75  # `preemption.exit_code`
    plan: str = ""  # the planned change that is to come, and what it waits for; "": none
    plan_left_s: float | None = None  # after so long it comes without a checkpoint
    infra_used: int = 0
    max_infra_restarts: int = -1
    streak: int = 0  # failures in a row of one cause at one step
    no_progress_limit: int = 3
    excluded: tuple[str, ...] = ()  # nodes that the run does without for a while, each with why


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One effective key of a job."""

    key: str  # "stop.grace"
    value: str  # as it would stand in the file
    origin: str  # file, --set, --name, --, submitter, default


class NodeState(enum.StrEnum):
    """How a node is; the gravest comes last."""

    READY = "ready"
    STANDBY = "standby"
    SUSPECT = "suspect"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    DRAINED = "drained"
    EXCLUDED = "excluded"
    FENCED = "fenced"
    LOST = "lost"


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the fleet."""

    node: str
    state: str  # one of NODE_STATES
    address: str  # by which peers reach it
    port: int
    is_host: bool = False  # its supd hosts the coordinator
    runs: tuple[str, ...] = ()  # that have ranks there
    spare_of: tuple[str, ...] = ()
    clock_off_s: float | None = None  # its clock against the coordinator's, as it joined
    seen_s: float | None = None  # since it was heard last; None: it is the host, or not since the host's supd started
    joined_wall_s: float = 0.0
    labels: dict[str, str] = {}
    note: str = ""  # what an operator should see
    host: str = ""
    boot_id: str = ""
    kernel: str = ""
    python: str = ""
    supd: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    devices: str = ""
    slots: int | None = None  # None: no limit
    free_slots: int | None = None
    max_jobs: int = 0
    drain_by: str = ""  # who wants it free
    drain_reason: str = ""
    is_drained: bool = False  # no run has ranks there any more


# --- requests ----------------------------------------------------------------------------------------------------


COLUMNS_MAX = 500  # of a snippet


class Start(Message, frozen=True):
    """Start a job. Repeating a `request_id` answers with the run that it made the first time."""

    request_id: Annotated[str, Meta(min_length=1, max_length=100)]
    job_file: bytes
    source: str
    folder: str
    python: str
    env: dict[bytes, bytes]
    limits: dict[str, Annotated[int, Meta(ge=-1)]]  # soft; of LIMITS; others are ignored
    umask: Annotated[int, Meta(ge=0, le=0o777)]
    check_only: bool = False  # validate on this node, start nothing
    settings: tuple[str, ...] = ()  # KEY=VALUE, in TOML's words; they win over the file
    name: str | None = None  # None: the file's
    args: tuple[str, ...] = ()  # appended to run.args
    replace: bool = False  # stop the job's active run first, and wait until it is gone
    columns: Annotated[int, Meta(ge=1, le=COLUMNS_MAX)] = 120  # of the terminal on which problems are shown
    is_ascii: bool = False  # it has no other characters
    allow_mixed: bool = False  # launch although nodes would not run the same


class StopRun(Message, frozen=True):
    """Stop a run gracefully (or every run, with `all_runs`)."""

    run: str = ""
    all_runs: bool = False
    grace_s: Annotated[float, Meta(ge=0, le=GRACE_MAX_S)] | None = None
    now: bool = False


class RestartRun(Message, frozen=True):
    """End the generation and begin the next one; not charged to the budget."""

    run: str
    reason: Annotated[str, Meta(max_length=REASON_MAX)]
    without: str = ""  # a node that the next generation leaves out
    job: Start | None = None  # another version of the job, from now on


class DeclareLost(Message, frozen=True):
    """An operator's word that nothing runs on a node any more; `Done.runs` are those that wait no longer for its proof.

    Where the node's supd answers, it is about those runs alone whose runner that one does not have. Refused: F112
    (exit 3) where the fleet has no such node, F115 where it answers, and has all that is waited for.
    """

    node: Annotated[str, Meta(min_length=1, max_length=63)]
    check_only: bool = False  # say whether it would be refused, and which runs it would be about
    runs: tuple[str, ...] | None = None  # it is about these alone; None: about all


class GetNodes(Message, frozen=True):
    """The nodes of the fleet: one, or with `node` empty all of them."""

    node: str = ""


class GetStatus(Message, frozen=True):
    """Runs as they stand: one (with its ranks where asked), or with `run` empty all of them."""

    run: str = ""
    with_ranks: bool = False


class LogSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which output is wanted."""

    chooser: ChooserText | None = None  # what `logs -r` has, but for its words; None: rank 0, and the errors of all
    streams: tuple[str, ...] = ("out", "err")
    generation: GenerationNumber | None = None  # None with `all_generations` False: the newest
    all_generations: bool = False
    tail_lines: int | None = 200  # a rank and stream; None: all
    since_wall_s: float | None = None  # lines whose end the runner read at that time or later
    until_wall_s: float | None = None  # … and before this one
    may_skip: bool = False  # a follower that is too slow is taken ahead, and told of it


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a stream is known already."""

    generation: GenerationNumber
    rank: int
    stream: str
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # of the first byte that is not


Places = Annotated[tuple[LogPlace, ...], Meta(max_length=PLACES_MAX)]


class Watch(Message, frozen=True):
    """A stream of what happens to a run: snapshots at each change, events, output."""

    run: str
    follow: bool
    events: bool = False
    after_event: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    snapshots: bool = False
    logs: LogSelection | None = None
    known: Places = ()  # it goes on behind these; other streams of no older generation begin at their start
    merge_window_s: Annotated[float, Meta(ge=0, le=MERGE_WINDOW_MAX_S)] = 0.0  # lines wait so long for earlier ones


class LogPaths(Message, frozen=True):
    """Where the output of a selection lies on this node."""

    run: str
    logs: LogSelection


class Describe(Message, frozen=True):
    """Everything about a run, or about one rank of its newest generation."""

    run: str
    rank: int | None = None
    with_env: bool = False


class Resolve(Message, frozen=True):
    """Which run a user's word means: NAME, NAME@HEX, or "" for the only active one, else the newest."""

    word: str


Request = (
    Start
    | StopRun
    | RestartRun
    | DeclareLost
    | DrainNodes
    | UndrainNodes
    | ScaleRun
    | ResumeRun
    | AskPolicy
    | GetStatus
    | GetNodes
    | Watch
    | LogPaths
    | Describe
    | Resolve
)

# --- replies -----------------------------------------------------------------------------------------------------


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a job file."""

    code: str
    key: str
    value: str
    message: str
    hint: str
    place: Place | None


class Failure(Message, frozen=True):
    """The request failed; the last frame."""

    code: str
    message: str
    hint: str = ""
    exit_code: int = 1
    problems: tuple[FileProblem, ...] = ()  # what `message` tells of a file, one by one


class Done(Message, frozen=True):
    """The request was accepted or carried out; the last frame of a request without other data."""

    run: str = ""
    runs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what is worth telling: the interpreter, the folder
    file_warnings: tuple[str, ...] = ()  # what may not be meant in the job file, which the client can find as well
    warnings: tuple[str, ...] = ()  # what of it may not go well on this node


class Statuses(Message, frozen=True):
    """The answer to GetStatus; also one snapshot of a Watch."""

    runs: tuple[RunStatus, ...]


class Nodes(Message, frozen=True):
    """The answer to GetNodes."""

    nodes: tuple[NodeStatus, ...]


class LogChunk(Message, frozen=True):
    """Bytes of one rank's stream, as written. Whole lines, but for the last bytes of a stream that ended
    (or waits) in the middle of one, and for a line over 64 KiB, which comes in pieces. To a follower, a stream of which
    not all is sent begins with an empty one, which says from where on."""

    generation: int
    node: str
    rank: int
    stream: str  # out, err
    data: bytes
    times: tuple[
        tuple[int, float], ...
    ] = ()  # (offset in `data`, when the lines from there on were read; 0: not known)
    offset: int = 0  # of `data` in its stream, whatever files that lies in
    skipped_lines: int = 0  # that stand before `data` and are not sent, to a follower that was too slow
    removed_bytes: int = 0  # that stood before `data` and are not kept any more
    local_rank: int = -1  # its number on the node; -1: not known


class Notice(Message, frozen=True):
    """What whoever watches should know: that a node's output is missing."""

    text: str


class Paths(Message, frozen=True):
    """The answer to LogPaths."""

    paths: tuple[str, ...]


class Description(Message, frozen=True):
    """The answer to Describe. Values of secret variables are masked by supd, they never leave it."""

    status: RunStatus  # with its ranks where one was asked for
    source: str  # the job file
    settings: tuple[Setting, ...]
    command: tuple[str, ...] = ()
    cwd: str = ""
    limits: dict[str, int] = {}  # soft ones; -1: unlimited
    env: tuple[tuple[str, str, str], ...] = ()  # name, value or "***", origin: supd, env_file, job, inherited
    files: tuple[str, ...] = ()  # a rank's output


class End(Message, frozen=True):
    """A Watch is over: everything selected has been sent (and, following, the run has ended)."""


ControlReply = Failure | Done | Policy | Statuses | Nodes | EventRecord | LogChunk | Notice | Paths | Description | End


class Outcome(enum.StrEnum):
    """The final states of a run."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "preempted"


RUN_STATES = ("pending", "starting", "running", "stalled", "restarting", "stopping", "held", *Outcome)
RANK_STATES = ("spawning", "initializing", "running", "stalled", "exited", "killed", "lost")
NODE_STATES = tuple(NodeState)
"""The words for how a run, a rank and a node are. A later version may have more."""


decode_greeting: Callable[[bytes], Greeting] = decoder(Greeting)
decode_request: Callable[[bytes], Request] = decoder(Request)
decode_reply: Callable[[bytes], ControlReply] = decoder(ControlReply)
