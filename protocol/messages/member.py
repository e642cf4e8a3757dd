"""Runner <-> coordinator: renewals that carry the whole state, answers that carry the whole order; questions and
testimonies about runners that are silent; and both for a runner that only a witness reaches.

The link is level-triggered: a renewal says everything the runner knows of its part, an answer
everything it is to do. A lost, doubled or late message is mended by the next one; there is no
acknowledgement and no "already told" (docs/protocol.md, "Renewals and answers").
"""

import enum
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.ids import NO_GENERATION, Epoch, Incarnation
from protocol.job import MAX_NPROC_PER_NODE, Job
from protocol.messages import Message, decoder
from protocol.text import Line
from protocol.timing import DEFAULTS, Timing

RANK_MAX = 2**31 - 1
PHASE_MAX_CHARS = 100
STUCK_PIDS_MAX = 1000
"""More are not named."""

DIGESTS_MAX = 16
WITNESSES_MAX = 3
"""More words would have to be asked for before a lease goes on, and more cuts would end it."""

TAIL_LINES_MAX, TAIL_BYTES_MAX = 200, 2000

Versions = Annotated[tuple[int, ...], Meta(max_length=100)]
Tail = Annotated[tuple[Annotated[bytes, Meta(max_length=TAIL_BYTES_MAX)], ...], Meta(max_length=TAIL_LINES_MAX)]
Pids = Annotated[tuple[int, ...], Meta(max_length=STUCK_PIDS_MAX)]
Digests = Annotated[dict[Annotated[str, Meta(max_length=32)], Line], Meta(max_length=DIGESTS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=63)]
"""Of a node."""

Host = Annotated[str, Meta(pattern=r"^[!-~]{1,255}\Z")]
"""A name or an address: it becomes MASTER_ADDR."""


class Part(enum.StrEnum):
    """What a runner's part of its generation is doing."""

    IDLE = "idle"  # has launched nothing
    LAUNCHING = "launching"  # is spawning its ranks
    LAUNCHED = "launched"  # its ranks are spawned, not all have started
    RUNNING = "running"  # its ranks have started
    STOPPING = "stopping"  # ending them: ordered to, or because one of them failed
    STOPPED = "stopped"  # the whole tree was seen gone
    FINISHED = "finished"  # every rank ended with 0, and the whole tree was seen gone


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has said of its own end, in its error file (TORCHELASTIC_ERROR_FILE)."""

    message: Line  # the first line of it: "ValueError: no such shard"
    raised: Line = ""  # "ValueError at /job/train.py:31"; "": not known
    file: Line  # on its node
    ahead_s: Annotated[float, Meta(ge=0)] = 0.0  # so long before its end it was raised, at least


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """How the main process of a rank ended. Exactly one of `code` and `signal` is set."""

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    order: int  # 0, 1, 2 … in the order in which this runner saw its ranks end
    wall_s: float  # seconds since 1970, for people only
    ran_s: float
    ago_s: float = 0.0  # between that and this report
    stopped_by_us: bool  # it ended after we had begun to stop it: never a failure of its own
    oom: Line = ""  # what the kernel's memory controller says, where it says that this was its doing
    stderr_tail: Tail = ()  # its last lines: 20, or more where it wrote stacks
    error: RankError | None = None  # None: it has said nothing

    @property
    def failed(self) -> bool:
        """Whether this counts as a failure of the rank."""
        return not self.stopped_by_us and self.code != 0

    @property
    def failed_ago_s(self) -> float:
        """Between its failure, at the latest, and this report: an exception comes before the end that it brings."""
        return self.ago_s + (self.error.ahead_s if self.error is not None else 0.0)


class StallState(enum.StrEnum):
    """What the process of a rank does that shows no progress."""

    ALIVE = "alive"
    STOPPED = "stopped"  # T
    UNINTERRUPTIBLE = "uninterruptible"  # D
    GONE = "gone"  # the process that beat


class StallAction(enum.StrEnum):
    """What is done about a rank that shows no progress."""

    WARN = "warn"
    RESTART = "restart"
    FAIL = "fail"

    @property
    def is_fatal(self) -> bool:
        """Whether it ends the generation."""
        return self is not StallAction.WARN


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that has passed a limit of [hang] without a sign of progress."""

    state: StallState  # of its process
    silent_s: float  # how long the runner has watched it without seeing a change
    limit_s: float
    setting: Line  # whose limit that is: "hang.step_timeout", "hang.phases.eval"
    action: StallAction

    @property
    def is_fatal(self) -> bool:
        """Whether the generation must end for it."""
        return self.action.is_fatal


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the runner's part."""

    rank: int
    local_rank: int
    pid: int
    started: bool  # beat; or wrote to stdout, ended with 0, lived for `restart.start_after`
    exit: RankExit | None = None
    step: int | None = None  # the last one it has shown, by beat, log line or file
    total_steps: int | None = None  # by its log line or file
    loss: float | None = None
    phase: Annotated[str, Meta(max_length=PHASE_MAX_CHARS)] = ""  # that it has declared; "": the usual steps
    silent_s: float | None = None  # since the runner last saw it change; None: it never did
    stall: Stall | None = None
    remark: Line = ""  # why no more is known of its progress
    first_step: int | None = None  # that it has shown in this generation, at the first look that showed one
    has_answered: bool = False  # said `supd.done()` since it got the pre-signal


class SpawnFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that could not be spawned."""

    rank: int
    path: Line  # what could not be executed, opened or entered
    reason: Line
    is_nodes: bool = False  # a lack of memory, processes, descriptors: the node's fault, not the program's


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What this runner's node can give to the next generation."""

    slots: int  # ranks it would run, by `topology.nproc_per_node`; 0 with a `problem`
    address: Host  # where the other nodes reach it
    port: int  # `rendezvous.master_port`, or one that was free there a moment ago and is not the last generation's
    problem: Line = ""  # why it can run none
    waits_for: Line = ""  # why it can run none yet; `port` is 0 then
    note: Line = ""  # how the ranks were counted, where the job leaves that to the node or may not mean it
    digest: Digests = {}  # what it would run: "job", "script", "python", "torch"; {} where only one node can
    witness_port: Annotated[int, Meta(ge=0, le=65535)] = 0  # where its runner listens for others; 0: nowhere
    knows_devices: bool = False  # its ranks keep to the devices that they are assigned; an earlier version's do not


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """Another member of the generation, whose word a runner needs where it hears nothing of the coordinator."""

    node: Name
    incarnation: Incarnation  # of its runner
    address: Host
    port: Annotated[int, Meta(ge=1, le=65535)]
    node_rank: int
    first_rank: Annotated[int, Meta(ge=0, le=RANK_MAX)]
    nproc: Annotated[int, Meta(ge=1, le=MAX_NPROC_PER_NODE)]


Devices = Annotated[tuple[Annotated[str, Meta(max_length=100)], ...], Meta(max_length=MAX_NPROC_PER_NODE)]
"""Accelerators as CUDA_VISIBLE_DEVICES names them."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One node's own part of a generation; persisted before it is sent, sent again unchanged."""

    generation: int
    node_rank: int
    nnodes: int
    first_rank: Annotated[int, Meta(ge=0, le=RANK_MAX)]
    nproc: Annotated[int, Meta(ge=1, le=MAX_NPROC_PER_NODE)]
    world_size: int
    master_addr: Host
    master_port: Annotated[int, Meta(ge=1, le=65535)]
    restart_reason: Line = ""  # "" for generation 0; else for SUPD_RESTART_REASON
    timing: Timing = DEFAULTS
    witnesses: Annotated[tuple[Witness, ...], Meta(max_length=WITNESSES_MAX)] = ()  # (): its lease never ends
    resume_step: int | None = None  # the last one seen saved before it; for SUPD_RESUME_STEP
    devices: Devices | None = None  # that the ranks may use, those of this allotment; None: all that there are


class Renewal(Message, frozen=True):
    """A runner's numbered report of its whole state."""

    number: int  # counts up in one incarnation
    epoch: int = 0  # the highest that the runner had heard of when it said this
    generation: int = NO_GENERATION  # -1: none yet
    part: Part = Part.IDLE
    ranks: Annotated[tuple[RankReport, ...], Meta(max_length=MAX_NPROC_PER_NODE)] = ()
    spawn_failure: SpawnFailure | None = None
    stuck_pids: Pids = ()  # killed 5 s ago and still waiting for the kernel
    saved_step: int | None = None  # by `checkpoint.marker` or `checkpoint.log_pattern`
    saves: int = 0  # checkpoints that were seen since the ranks of this generation began
    notice: Line = ""  # why this node is about to be taken away, by a signal or the notice command; "": it is not
    revision: int = 0  # of the job that it serves
    offer: Offer | None = None  # None while it runs something, or the node is not looked at yet
    fenced_s: float | None = None  # it has ended its ranks because it had got no answer for so long; None: it has not
    unreached: Annotated[tuple[Name, ...], Meta(max_length=WITNESSES_MAX)] = ()  # witnesses, 15 s later
    assignment: Assignment | None = None  # of `generation`, where it was told to tell it


class Run(Message, frozen=True):
    """Order: run this generation (or go on with it)."""

    assignment: Assignment
    awaits_save: bool = False  # a planned change waits for the next checkpoint: look often, and tell at once


class Stop(Message, frozen=True):
    """Order: end everything up to `generation`; also the answer to a past generation."""

    generation: int
    grace_s: Annotated[float, Meta(ge=0)] | None = None  # None: the job's
    now: bool = False  # no pre-signal, no grace
    pre_wait_s: Annotated[float, Meta(ge=0)] | None = None  # None: the job's
    is_answered: bool = False  # every rank of the generation has answered the pre-signal: the pre-wait is over
    reason: Line = ""  # of a planned one; for the file that SUPD_STOP_FILE names


class Wait(Message, frozen=True):
    """Order: nothing to do yet."""


class Tell(Message, frozen=True):
    """Order: go on, and tell your assignment: the coordinator has none of this generation."""


class Release(Message, frozen=True):
    """Order: the run is over; stop whatever there is, and end."""


Order = Run | Stop | Wait | Tell | Release


class Answer(Message, frozen=True):
    """The coordinator's whole order for one runner."""

    number: int  # of the newest renewal heard from it; an answer may be pushed before the next one
    epoch: Epoch
    order: Order


class Question(Message, frozen=True):
    """The coordinator to a witness: when have you last given this runner your word? For a while it gets none then."""

    number: int  # of the question; the answer repeats it
    epoch: Epoch
    node: Name
    incarnation: Incarnation


class AnswerFor(Message, frozen=True):
    """The coordinator to a witness: pass this on to a runner whose renewal you have passed on."""

    node: Name
    incarnation: Incarnation
    answer: Answer


class Welcome(Message, frozen=True):
    """The coordinator's first message to a runner: which version they speak, and the job itself."""

    version: int
    epoch: Epoch
    job: Job


class JobWanted(Message, frozen=True):
    """The coordinator's first message to a runner whose run it does not know: it has lost its memory, or has moved."""

    version: int
    epoch: Epoch


class Rejected(Message, frozen=True):
    """The coordinator's only message to a runner it will not talk to."""

    reason: Line


class Hello(Message, frozen=True):
    """A runner's first message. What it says here is its identity for as long as the connection lives."""

    versions: Versions  # that it speaks
    fleet: Annotated[str, Meta(max_length=300)]
    node: Name  # where it is
    run: Annotated[str, Meta(max_length=100)]  # that it serves
    incarnation: Incarnation  # this runner, and no other one ever
    epoch: int = 0  # the highest that it has heard of
    answered_s: Annotated[float, Meta(ge=0)] | None = None  # since one of that epoch has answered it; None: none has


class JobTold(Message, frozen=True):
    """A runner to a coordinator that has asked for it: the job as it was submitted. Welcome follows."""

    job: Job


class Testimony(Message, frozen=True):
    """A witness to the coordinator: how long ago it has last given a runner its word. It gives none for a while."""

    number: int  # of the question
    node: Name
    incarnation: Incarnation
    word_s: Annotated[float, Meta(ge=0)] | None  # since its last word to that runner; None: it has given none
    epoch: int | None = None  # of the question; None: from an earlier version


class RenewalOf(Message, frozen=True):
    """A witness to the coordinator: a renewal that it passes on. Only here identity is not the connection's (R3)."""

    node: Name
    incarnation: Incarnation
    renewal: Renewal


ToCoordinator = Hello | JobTold | Renewal | RenewalOf | Testimony
ToRunner = Welcome | JobWanted | Rejected | Answer | AnswerFor | Question

decode_to_coordinator: Callable[[bytes], ToCoordinator] = decoder(ToCoordinator)
decode_to_runner: Callable[[bytes], ToRunner] = decoder(ToRunner)
