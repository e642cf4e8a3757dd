"""What the member's machine takes in and gives out (the machine itself: member.py)."""

import dataclasses
from collections.abc import Mapping

from protocol.dataclass import dataclass
from protocol.messages.member import (
    Answer,
    Assignment,
    Offer,
    Part,
    Question,
    RankExit,
    Renewal,
    SpawnFailure,
    StallState,
    Testimony,
    Witness,
)
from protocol.messages.witness import Word, WordWanted

SETTLED = {Part.IDLE, Part.STOPPED, Part.FINISHED}
"""Parts in which nothing of any generation is alive on the node; only then can it offer itself (R1)."""

# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    """The coordinator's answer, on our connection to it, or (not `is_direct`) by way of a witness."""

    answer: Answer
    is_direct: bool = True


@dataclass(frozen=True)
class Questioned:
    """The coordinator wants to know of our word to another runner."""

    question: Question


@dataclass(frozen=True)
class WordAsked:
    """A runner, known by its connection, asks for our word."""

    node: str
    incarnation: str
    wanted: WordWanted


@dataclass(frozen=True)
class WordHeard:
    """A witness, known by its connection, answers WordWanted."""

    incarnation: str
    word: Word


@dataclass(frozen=True)
class Reached:
    """Which of our witnesses have a connection to us now; told when that changes."""

    incarnations: frozenset[str]


@dataclass(frozen=True)
class Launched:
    """The spawn of a generation has ended: all ranks, or those before the one that could not be.

    What its ranks do (Wrote, Exited) is told after it.
    """

    generation: int
    pids: tuple[int, ...]  # by local rank
    failure: SpawnFailure | None = None


@dataclass(frozen=True)
class Wrote:
    """A rank wrote its first byte to one of its streams."""

    generation: int
    rank: int
    stream: str = "out"  # or "err"


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a rank has shown of its progress so far; anything new in it is a sign of life."""

    count: int = 0  # beats, matched lines, changes of the file: goes up; 0: never
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    phase: str = ""
    is_done: bool = False  # it has said that no more beats come
    remark: str = dataclasses.field(default="", compare=False)  # why no more is known of it; that is no sign

    @property
    def is_unseen(self) -> bool:
        """Whether nothing can be seen of it any more, so that nothing is expected of it."""
        return self.is_done and self.remark != ""


NOTHING = Sample()
"""Of a rank that has shown nothing yet."""


@dataclass(frozen=True)
class Looked:
    """The answer to Look: a sample of every rank that is alive."""

    generation: int
    samples: dict[int, Sample]


@dataclass(frozen=True)
class Inspected:
    """The answer to Inspect: what its process is doing, for every rank asked for that has not been reaped."""

    generation: int
    states: dict[int, StallState]


@dataclass(frozen=True)
class Exited:
    """The main process of a rank ended. `exit.order` and `exit.stopped_by_us` are filled in by the machine."""

    generation: int
    rank: int
    exit: RankExit
    ended_s: float  # when that was seen; the event itself may be late, since its last output is read first
    sample: Sample | None = None  # what it had shown by then


@dataclass(frozen=True)
class Cleared:
    """Nothing of the generation is alive any more (but `stuck_pids`), and its output is on disk."""

    generation: int
    stuck_pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Offered:
    """What the node can give to the next generation, looked up anew."""

    offer: Offer


@dataclass(frozen=True)
class Saved:
    """The checkpoint marker, or the output of a rank, shows this step."""

    generation: int  # whose ranks lived when that was looked at
    step: int
    is_new: bool  # it was seen to come; else it was there when the ranks were spawned


@dataclass(frozen=True)
class SeenDone:
    """The answer to LookForDone: for every rank that is alive its count of beats, where it has said that it is done."""

    generation: int
    counts: Mapping[int, int | None]


@dataclass(frozen=True)
class Noticed:
    """This node is about to be taken away, and why; "": it is not, or not any more."""

    why: str


@dataclass(frozen=True)
class Linked:
    """The coordinator can be reached, or cannot any more."""

    up: bool


@dataclass(frozen=True)
class Dismissed:
    """Somebody other than the coordinator wants this runner to end (SIGTERM, or its run is unknown)."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Answered
    | Questioned
    | WordAsked
    | WordHeard
    | Reached
    | Launched
    | Wrote
    | Looked
    | Inspected
    | Exited
    | Cleared
    | Offered
    | Saved
    | SeenDone
    | Noticed
    | Linked
    | Dismissed
    | Tick
)

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spawn:
    """Spawn the ranks of this assignment; ends in one Launched."""

    assignment: Assignment


@dataclass(frozen=True)
class Look:
    """See what the ranks show of their progress; quick, ends in one Looked."""

    generation: int


@dataclass(frozen=True)
class Inspect:
    """See what the processes of ranks are doing that have passed a limit; ends in one Inspected."""

    generation: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class LookForSave:
    """See whether there is a new checkpoint; one Saved follows if so. A look is left out while another one still waits
    for its disk. Where it `settles`, it is a barrier of at most 0.1 s, as Persist is, and what it finds is not new."""

    generation: int
    settles: bool = False


@dataclass(frozen=True)
class LookForDone:
    """See which ranks have said that they are done; quick, ends in one SeenDone."""

    generation: int


@dataclass(frozen=True)
class Announce:
    """Tell the ranks of a planned stop, in the file that SUPD_STOP_FILE names: why, and when its signals are due. Again
    where they come earlier; a barrier, as Persist is."""

    generation: int
    reason: str
    signal_at_s: float  # when `stop.signal` is due
    kill_at_s: float


@dataclass(frozen=True)
class Signal:
    """Send a signal to a rank's main process (or, with `tree`, to everything below it too)."""

    rank: int
    number: int
    tree: bool


@dataclass(frozen=True)
class Abort:
    """Send SIGABRT and SIGCONT to the processes of these ranks that beat, else to their main processes."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class KeepStacks:
    """What this rank writes to standard error from now on is to be kept at length: the stacks of a hang."""

    rank: int


@dataclass(frozen=True)
class TermLeftovers:
    """Send TERM to what belongs to no live rank any more."""


@dataclass(frozen=True)
class Clear:
    """See that nothing of the generation is left: TERM, from `kill_at_s` on KILL; ends in one Cleared.

    A second Clear of the same generation only brings `kill_at_s` nearer.
    """

    generation: int
    kill_at_s: float


@dataclass(frozen=True)
class LookUpOffer:
    """Find out what the node can give, and a port other than this one; ends in one Offered."""

    not_port: int | None


@dataclass(frozen=True)
class Persist:
    """Put the state on disk; a barrier, but for no longer than 0.1 s: a disk that hangs must cost no lease."""

    renewal: Renewal


@dataclass(frozen=True)
class Renew:
    """Tell the coordinator, if there is one; `by_witnesses` also by way of all our witnesses."""

    renewal: Renewal
    by_witnesses: bool = False


@dataclass(frozen=True)
class Meet:
    """These are our witnesses now: have a connection to each, within 10 s, so that a thousand nodes do not all connect
    at once; at once to those that something is to be sent to."""

    witnesses: tuple[Witness, ...]


@dataclass(frozen=True)
class AskWords:
    """Ask all our witnesses for their word."""

    wanted: WordWanted


@dataclass(frozen=True)
class GiveWord:
    """Answer a runner that has asked for our word."""

    incarnation: str
    word: Word


@dataclass(frozen=True)
class Testify:
    """Answer the coordinator's question."""

    testimony: Testimony


@dataclass(frozen=True)
class Hold:
    """The lease of what runs here ends then, by the boot-time clock; None: nothing has one. For the guard, which kills
    at that time whatever has become of us."""

    until_s: float | None


@dataclass(frozen=True)
class KillAll:
    """The lease is over: send SIGKILL to every process of the generation, at once."""

    generation: int


@dataclass(frozen=True)
class End:
    """Nothing is left to do; the runner ends."""


Effect = (
    Spawn
    | Look
    | Inspect
    | LookForSave
    | LookForDone
    | Announce
    | Signal
    | Abort
    | KeepStacks
    | TermLeftovers
    | Clear
    | KillAll
    | LookUpOffer
    | Persist
    | Renew
    | Meet
    | AskWords
    | GiveWord
    | Testify
    | Hold
    | End
)
