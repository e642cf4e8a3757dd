"""What the member's machine takes in and gives out (the machine itself: member.py)."""

from dataclasses import dataclass

from protocol.messages.member import Assignment, Offer, Order, Part, RankExit, Renewal, SpawnFailure

SETTLED = {Part.IDLE, Part.STOPPED, Part.FINISHED}
"""Parts in which nothing of any generation is alive on the node; only then can it offer itself (R1)."""

# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordered:
    """The coordinator's order, from an answer."""

    order: Order


@dataclass(frozen=True)
class Launched:
    """The spawn of a generation has ended: all ranks, or those before the one that could not be.

    What its ranks do (Started, Exited) is told after it.
    """

    generation: int
    pids: tuple[int, ...]  # by local rank
    failure: SpawnFailure | None = None


@dataclass(frozen=True)
class Started:
    """A rank wrote its first byte to standard output."""

    generation: int
    rank: int


@dataclass(frozen=True)
class Exited:
    """The main process of a rank ended. `exit.order` and `exit.stopped_by_us` are filled in by the machine."""

    generation: int
    rank: int
    exit: RankExit
    ended_s: float  # when that was seen; the event itself may be late, since its last output is read first


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
    """The checkpoint marker shows this step."""

    step: int


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


Event = Ordered | Launched | Started | Exited | Cleared | Offered | Saved | Linked | Dismissed | Tick

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spawn:
    """Spawn the ranks of this assignment; ends in one Launched."""

    assignment: Assignment


@dataclass(frozen=True)
class Signal:
    """Send a signal to a rank's main process (or, with `tree`, to everything below it too)."""

    rank: int
    number: int
    tree: bool


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
    """Put the state on disk; a barrier."""

    renewal: Renewal


@dataclass(frozen=True)
class Renew:
    """Tell the coordinator, if there is one."""

    renewal: Renewal


@dataclass(frozen=True)
class End:
    """Nothing is left to do; the runner ends."""


Effect = Spawn | Signal | TermLeftovers | Clear | LookUpOffer | Persist | Renew | End
