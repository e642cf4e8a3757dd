"""supd <-> the supd that hosts the coordinator, and supd <-> supd: nodes of one fleet.

A connection says in its first frame what it is for: `Hello` (a runner, member.py), `Join` (a node), `Visit` (a client
of another node), `Probe` (is it you?), `FetchLogs` and `FetchRank` (what lies on that node alone).

The link of a node is level-triggered like that of a runner: a `NodeReport` says all that the coordinator has to know
of the node's runners, a `NodeOrder` all that it wants of them. A lost, doubled or late one is mended by the next.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.ids import Epoch, GenerationNumber, Incarnation, RunName
from protocol.job import LABEL_MAX_CHARS, LABELS_MAX, MAX_NNODES, Job
from protocol.messages import Message, decoder
from protocol.messages.control import Greeting, LogChunk, LogSelection, Notice, Places
from protocol.messages.member import Assignment, Devices, Hello, Host, Renewal, Versions
from protocol.text import Line

NODES_MAX = MAX_NNODES
"""Of a fleet, as of a job; more are refused."""

BURIED_A_REPORT_MAX = 4
"""Each may have last words, and a report has to fit into a frame."""

FAILURES_A_REPORT_MAX = 1000
RUNNERS_A_REPORT_MAX = 1000
OLD_A_REPORT_MAX = 100
SIGNALS_MAX = 64

GENERATIONS_MAX = 100_000
"""As many are told of a run, in a frame."""

WORD_MAX = 300

LAUNCH_MAX = 16
"""Things that suprun is told."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]
Word = Annotated[str, Meta(max_length=WORD_MAX)]
Label = Annotated[str, Meta(max_length=LABEL_MAX_CHARS)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Runners = Annotated[tuple[Incarnation, ...], Meta(max_length=RUNNERS_A_REPORT_MAX)]
SignalName = Annotated[str, Meta(pattern=r"^SIG[A-Z0-9]{1,12}\Z")]
Signals = Annotated[dict[SignalName, Annotated[int, Meta(ge=1)]], Meta(max_length=SIGNALS_MAX)]


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of its machine, for people."""

    host: Word = ""  # the machine's own name
    boot_id: Word = ""
    kernel: Word = ""
    python: Word = ""
    supd: Word = ""  # version
    cpus: int = 0
    memory_bytes: int = 0
    devices: Word = ""  # "8 NVIDIA H100 80GB HBM3", "none"


class Join(Message, frozen=True):
    """A node's first message. What it says here is its identity for as long as the connection lives."""

    versions: Versions
    fleet: Word
    node: Name
    identity: Annotated[str, Meta(min_length=8, max_length=64)]  # random; made once for a state folder
    incarnation: Annotated[int, Meta(ge=1)]  # start count of that state folder
    address: Host  # by which peers reach it
    port: Port  # on which it listens for them
    join: Annotated[tuple[Word, ...], Meta(max_length=16)]  # [fleet] join, as written
    labels: Annotated[dict[Label, Label], Meta(max_length=LABELS_MAX)] = {}
    facts: NodeFacts = NodeFacts()
    wall_s: float = 0.0  # its clock, as it sends this
    epoch: Epoch = 0  # the highest that it has heard of
    host: Annotated[str, Meta(max_length=64)] = ""  # identity of the host that it has heard it of
    slots: Devices | None = None  # one a rank: the device of each, "" where it has none; None: no limit
    max_jobs: Annotated[int, Meta(ge=0)] = 0  # runs at once; 0: as many as its slots allow
    launch: Annotated[dict[Word, Line], Meta(max_length=LAUNCH_MAX)] = {}  # what its suprun was told; {}: it is none


class Joined(Message, frozen=True):
    """The coordinator's first message to a node it takes in."""

    version: int
    epoch: Epoch
    host: Name  # the node that hosts the coordinator
    warnings: tuple[Line, ...] = ()  # what is told on both sides: a clock that is far off, a join list that differs
    identity: Annotated[str, Meta(max_length=64)] = ""  # of the host's state folder


class KnownHost(msgspec.Struct, frozen=True, kw_only=True):
    """Who hosts the coordinator, as a node knows it."""

    node: Name
    identity: Annotated[str, Meta(max_length=64)]  # of its state folder
    address: Host
    port: Port
    epoch: Epoch
    heard_s: Annotated[float, Meta(ge=0)] = 0.0  # since that node, or a runner of it, has heard the host; 0: it is it


class JoinRefused(Message, frozen=True):
    """The coordinator's only message to a node it does not take in; the node tries again. Or one of a node that does
    not host, and says who does as far as it knows."""

    code: Word
    message: Line
    hint: Line = ""
    host: KnownHost | None = None


class RunnerBuried(msgspec.Struct, frozen=True, kw_only=True):
    """Proof: this runner and its guard are gone, and its tree was swept. Told until an order names it as settled."""

    run: RunName
    incarnation: Incarnation
    last: Renewal | None = None  # what it knew last, if that is known


class StartFailure(msgspec.Struct, frozen=True, kw_only=True):
    """No runner could be started for a run."""

    run: RunName
    number: int  # counts up on this node: the same number is the same failure
    reason: Word


class NodeReport(Message, frozen=True):
    """Everything the coordinator has to know of a node's runners."""

    number: int  # counts up in one connection
    buried: Annotated[tuple[RunnerBuried, ...], Meta(max_length=BURIED_A_REPORT_MAX)] = ()  # more are told later
    failures: Annotated[tuple[StartFailure, ...], Meta(max_length=FAILURES_A_REPORT_MAX)] = ()  # newest of each run
    runners: Runners | None = None  # that may be alive there: all; null: that is not told
    signals: Signals = {}  # that this supd was sent: how often each
    old: Annotated[tuple[RunName, ...], Meta(max_length=OLD_A_REPORT_MAX)] = ()  # runs whose files could go there


class NodeOrder(Message, frozen=True):
    """Everything the coordinator wants of a node."""

    number: int  # of the newest report heard; an order may be pushed before the next one
    epoch: Epoch
    wanted: tuple[RunName, ...] = ()  # runs that have to have a runner there
    settled: tuple[Incarnation, ...] = ()  # incarnations of the report's `buried` that are on the coordinator's disk
    forgotten: tuple[RunName, ...] = ()  # runs of the report's `old` that the coordinator does not know


# --- other connections -------------------------------------------------------------------------------------------


class Visit(Message, frozen=True):
    """A client of another node: a control Greeting and one request follow, and are answered as if it were here."""

    versions: Versions
    fleet: Word
    node: Name  # where the client is
    user: Word


class Probe(Message, frozen=True):
    """Is it you that peers reach at this address, and who hosts the coordinator?"""

    fleet: Word


class Probed(Message, frozen=True):
    """The answer to Probe."""

    node: Name
    identity: Annotated[str, Meta(max_length=64)]
    host: KnownHost | None = None  # None: it does not know, or not yet


class LogsNow(Message, frozen=True):
    """How far the run is: generations below this one are at their end, and so is all where it is over."""

    generation: GenerationNumber
    is_over: bool
    look: int = 0  # counts up: a LogsSeen that has it is of a look at the files that began after this was heard


class FetchLogs(Message, frozen=True):
    """The output that lies on this node: LogChunks, LogsSeen, Notices of streams that cannot be read, and at last a
    LogsEnd. A LogsNow may follow."""

    fleet: Word
    run: RunName
    selection: LogSelection
    now: LogsNow
    first: GenerationNumber = 0  # generations below this one are left out, unless the selection names one
    follow: bool = False
    known: Places = ()  # as in Watch


class LogsSeen(Message, frozen=True):
    """All that was there at a look at the files has been sent."""

    before: int  # nothing more comes of generations below this one
    seen: int  # generations below this one have been looked at
    look: int  # of the newest LogsNow that was heard before the look began


class LogsEnd(Message, frozen=True):
    """Everything selected has been sent."""

    error: Line = ""  # why it could not be
    generations: Annotated[tuple[GenerationNumber, ...], Meta(max_length=GENERATIONS_MAX)] | None = None  # that had
    # output here at first; None: it is not known


class FetchRank(Message, frozen=True):
    """What a rank of this node was started with; answered by RankFacts, or by LogsEnd where that fails."""

    fleet: Word
    job: Job
    assignment: Assignment
    rank: int
    incarnation: Incarnation
    with_env: bool
    pid: int | None = None  # of its process, where that lives


class RankFacts(Message, frozen=True):
    """What a rank was started with, as in a Description. Values of secret variables are masked."""

    command: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str, str], ...]
    files: tuple[str, ...]


FirstMessage = Hello | Join | Visit | Probe | FetchLogs | FetchRank
"""What a supd hears first on a connection of its peers' port."""

ToNode = Joined | JoinRefused | NodeOrder
FromPeer = Probed | LogChunk | LogsSeen | Notice | LogsEnd | RankFacts | JoinRefused
ToVisitor = Greeting | JoinRefused
"""What the host says first to a client of another node."""

decode_first: Callable[[bytes], FirstMessage] = decoder(FirstMessage)
decode_to_node: Callable[[bytes], ToNode] = decoder(ToNode)
decode_report: Callable[[bytes], NodeReport] = decoder(NodeReport)
decode_logs_now: Callable[[bytes], LogsNow] = decoder(LogsNow)
decode_to_visitor: Callable[[bytes], ToVisitor] = decoder(ToVisitor)
decode_from_peer: Callable[[bytes], FromPeer] = decoder(FromPeer)
