"""One node's part in a run: what a runner does with the orders it gets and the exits it sees.

    IDLE ──run g──▶ LAUNCHING ──▶ LAUNCHED ──all started──▶ RUNNING
      ▲                │              │                        │
      │                └──spawn fails─┴──a rank fails, stop────┤
      │                                                        ▼                all ended with 0
      └─ (run g+1) ◀── STOPPED ◀──the whole tree is gone── STOPPING      RUNNING ──▶ (clearing) ──▶ FINISHED

A failure is acted on at once, without waiting for the coordinator's "stop": it would say nothing else
(R4), and so a runner whose coordinator is away does the right thing by itself. Orders only go up (R3).
Every report carries the whole state; what is to be told is on disk first (`Persist`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from protocol import lifecycle
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.messages.member import (
    Assignment,
    Offer,
    Order,
    Part,
    RankExit,
    RankReport,
    Release,
    Renewal,
    Run,
    SpawnFailure,
    Stop,
    Wait,
)
from protocol.signals import signal_number

RENEW_S = 1.0
"""How often the whole state is reported when nothing changes (architecture: renew)."""


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordered:
    """The coordinator's order, from an answer."""

    order: Order


@dataclass(frozen=True)
class Launched:
    """The spawn of a generation has ended: all ranks, or those before the one that could not be."""

    generation: int
    pids: tuple[int, ...]  # by local rank
    failure: SpawnFailure | None = None


@dataclass(frozen=True)
class Started:
    """A rank wrote its first byte."""

    generation: int
    rank: int


@dataclass(frozen=True)
class Exited:
    """The main process of a rank ended. `exit.order` and `stopped_by_us` are filled in here."""

    generation: int
    rank: int
    exit: RankExit


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
    assignment: Assignment | None


@dataclass(frozen=True)
class Renew:
    """Tell the coordinator, if there is one."""

    renewal: Renewal


@dataclass(frozen=True)
class End:
    """Nothing is left to do; the runner ends."""


Effect = Spawn | Signal | TermLeftovers | Clear | LookUpOffer | Persist | Renew | End


@dataclass(frozen=True)
class _Rank:
    """What is known of one rank."""

    local_rank: int
    pid: int
    spawned_s: float
    life: lifecycle.State = field(default_factory=lifecycle.Running)
    started: bool = False
    exit: RankExit | None = None


class Member:
    """State machine of one runner: no IO, no clock, no randomness of its own."""

    def __init__(self, spec: JobSpec, now_s: float, *, orphan_wait_s: float, linger_s: float) -> None:
        self.spec = spec
        self.orphan_wait_s = orphan_wait_s
        self.linger_s = linger_s
        self.generation = NO_GENERATION
        self.part = Part.IDLE
        self.assignment: Assignment | None = None
        self.ranks: dict[int, _Rank] = {}
        self.spawn_failure: SpawnFailure | None = None
        self.stuck_pids: tuple[int, ...] = ()
        self.saved_step: int | None = None
        self.offer: Offer | None = None
        self.is_ending = False  # released or dismissed: ends once nothing is left
        self._number = 0
        self._renew_at_s = now_s
        self._alone_since_s: float | None = now_s
        self._stop: Stop | None = None  # the tightest stop of this generation so far
        self._kill_at_s: float | None = None  # when SIGKILL is due by that stop
        self._clearing_until_s: float | None = None  # a Clear is under way, with this `kill_at_s`
        self._offer_is_old = True
        self._looking_up = False
        self._settled_since_s = now_s
        self._ended = False

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order."""
        if self._ended:
            return []
        match event:
            case Ordered(order):
                effects = self._on_order(order, now_s)
            case Launched():
                effects = self._on_launched(event, now_s)
            case Started(generation, rank):
                effects = self._on_started(generation, rank)
            case Exited():
                effects = self._on_exited(event, now_s)
            case Cleared():
                effects = self._on_cleared(event, now_s)
            case Offered(offer):
                effects = self._on_offered(offer)
            case Saved(step):
                self.saved_step = step
                effects = []
            case Linked(up):
                effects = self._on_linked(up, now_s)
            case Dismissed():
                effects = self._release(now_s)
            case Tick():
                effects = self._on_tick(now_s)
        effects += self._settle(now_s)
        self._check()
        return effects

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None once it has ended."""
        if self._ended:
            return None
        due = [self._renew_at_s]
        due += [d for r in self.ranks.values() if (d := lifecycle.deadline_s(r.life)) is not None]
        due += [self._starts_at_s(r) for r in self.ranks.values() if self._is_starting(r)]
        if (leave := self._leave_at_s) is not None:
            due.append(leave)
        return min(due)

    # --- events --------------------------------------------------------------------------------------------------

    def _on_order(self, order: Order, now_s: float) -> list[Effect]:
        match order:
            case Run(assignment):
                return self._on_run(assignment, now_s)
            case Stop():
                return self._on_stop(order, now_s)
            case Release():
                return self._release(now_s)
            case Wait():
                return []

    def _on_run(self, assignment: Assignment, now_s: float) -> list[Effect]:
        if assignment.generation <= self.generation or self.is_ending:
            return []  # the present, or the past
        if not self._is_settled:
            return self._begin_stop(Stop(generation=self.generation), now_s)  # R1: first what there is must go
        self.generation, self.assignment, self.part = assignment.generation, assignment, Part.LAUNCHING
        self.ranks, self.spawn_failure, self.stuck_pids, self.offer = {}, None, (), None
        self._stop = self._kill_at_s = self._clearing_until_s = None
        self._offer_is_old = True
        return [self._persist(), Spawn(assignment)]

    def _on_stop(self, stop: Stop, now_s: float) -> list[Effect]:
        if stop.generation < self.generation:
            return []
        if stop.generation > self.generation and self._is_settled:
            # It never launched that one, and it never will.
            self.generation, self.part, self.assignment = stop.generation, Part.STOPPED, None
            self.ranks, self.spawn_failure, self.stuck_pids = {}, None, ()
            return [self._persist(), self._renew()]
        return self._begin_stop(stop, now_s)

    def _on_launched(self, event: Launched, now_s: float) -> list[Effect]:
        assert event.generation == self.generation, "a spawn of another generation ended"
        assert self.assignment is not None, "spawned without an assignment"
        first = self.assignment.first_rank
        self.ranks = {first + i: _Rank(i, pid, now_s) for i, pid in enumerate(event.pids)}
        self.spawn_failure = event.failure
        if self.part is Part.LAUNCHING:
            self.part = Part.LAUNCHED
        if self.part is Part.STOPPING:  # told to stop while it spawned
            return [*self._stop_ranks(now_s), self._persist(), self._renew()]
        if event.failure is not None:
            return [*self._begin_stop(Stop(generation=self.generation), now_s), self._persist(), self._renew()]
        return [self._renew()]

    def _on_started(self, generation: int, rank: int) -> list[Effect]:
        if generation != self.generation or rank not in self.ranks:
            return []  # R5
        self.ranks[rank] = replace(self.ranks[rank], started=True)
        return [self._persist(), self._renew()] if self._runs_now() else []

    def _runs_now(self) -> bool:
        """Whether the last missing rank has just started."""
        if self.part is not Part.LAUNCHED or not all(r.started for r in self.ranks.values()):
            return False
        self.part = Part.RUNNING
        return True

    def _on_exited(self, event: Exited, now_s: float) -> list[Effect]:
        assert event.generation == self.generation, "a rank of another generation ended after its tree was gone"
        rank = self.ranks[event.rank]
        life, _ = lifecycle.step(rank.life, lifecycle.Reaped(), now_s)
        order = sum(1 for r in self.ranks.values() if r.exit is not None)
        exit = _with(event.exit, order, stopped_by_us=self._was_asked_to_end(rank))
        self.ranks[event.rank] = replace(rank, life=life, exit=exit, started=rank.started or exit.code == 0)
        if self.part is Part.STOPPING:
            return [TermLeftovers()]
        if exit.failed:
            return [*self._begin_stop(Stop(generation=self.generation), now_s), self._persist(), self._renew()]
        self._runs_now()
        return [self._persist(), self._renew()]

    def _was_asked_to_end(self, rank: _Rank) -> bool:
        """Whether the rank's end follows from our stop: it has got a signal of ours."""
        return not isinstance(rank.life, lifecycle.Running)

    def _on_cleared(self, event: Cleared, now_s: float) -> list[Effect]:
        assert event.generation == self.generation, "cleared a generation that is not there"
        self.part = Part.STOPPED if self.part is Part.STOPPING else Part.FINISHED
        self.stuck_pids = event.stuck_pids
        self._clearing_until_s = None
        self._settled_since_s = now_s
        return [self._persist(), self._renew()]

    def _on_offered(self, offer: Offer) -> list[Effect]:
        self._looking_up = False
        if not self._is_settled:
            return []
        was_new = self.offer is None
        self.offer, self._offer_is_old = offer, False
        return [self._renew()] if was_new else []  # a fresh port goes out with the next renewal

    def _on_linked(self, up: bool, now_s: float) -> list[Effect]:
        if up:
            self._alone_since_s = None
            return [self._renew()]
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        return []

    def _on_tick(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for number, rank in list(self.ranks.items()):
            life, signals = lifecycle.step(rank.life, lifecycle.Tick(), now_s)
            self.ranks[number] = replace(rank, life=life)
            effects += self._signals(number, signals)
            if self._is_starting(rank) and now_s >= self._starts_at_s(rank):
                effects += self._on_started(self.generation, number)
        if now_s >= self._renew_at_s:
            self._renew_at_s = now_s + RENEW_S
            effects.append(self._renew())
            self._offer_is_old = True
        if (leave := self._leave_at_s) is not None and now_s >= leave:
            effects += self._release(now_s)
        return effects

    # --- stopping ------------------------------------------------------------------------------------------------

    def _release(self, now_s: float) -> list[Effect]:
        self.is_ending = True
        return self._begin_stop(Stop(generation=self.generation), now_s)

    def _begin_stop(self, stop: Stop, now_s: float) -> list[Effect]:
        """Stop what there is; a second stop can only bring the end nearer."""
        if self._is_settled:
            return []
        request = self._stop_request(stop)
        kill_at_s = now_s if request.now else now_s + request.grace_s
        if self._kill_at_s is None:
            kill_at_s += request.pre_wait_s if request.pre_signal and not request.now else 0.0
        elif kill_at_s >= self._kill_at_s:
            return []  # says nothing new
        self._stop, self._kill_at_s = stop, kill_at_s
        if self._clearing_until_s is not None:
            return self._clear(now_s)
        was_spawning = self._is_spawning
        self.part = Part.STOPPING
        return [] if was_spawning else self._stop_ranks(now_s)  # what is being spawned gets it once it is there

    def _stop_ranks(self, now_s: float) -> list[Effect]:
        assert self._stop is not None
        request = self._stop_request(self._stop)
        effects: list[Effect] = []
        for number, rank in self.ranks.items():
            life, signals = lifecycle.step(rank.life, request, now_s)
            self.ranks[number] = replace(rank, life=life)
            effects += self._signals(number, signals)
        if any(r.exit is not None for r in self.ranks.values()):
            effects.append(TermLeftovers())
        return effects

    def _stop_request(self, stop: Stop) -> lifecycle.StopRequested:
        table = self.spec.stop
        grace_s = table.grace_s if stop.grace_s is None else stop.grace_s
        return lifecycle.stop_request(table.pre_signal, table.pre_wait_s, table.signal, grace_s, now=stop.now)

    def _signals(self, rank: int, numbers: Iterable[int]) -> list[Effect]:
        # A pre-signal is for the program alone: its default action would kill helpers that know nothing of it.
        whole_tree = signal_number(self.spec.stop.signal) if self.spec.stop.scope == "tree" else None
        return [Signal(rank, n, tree=n == whole_tree) for n in numbers]

    def _clear(self, now_s: float) -> list[Effect]:
        kill_at_s = now_s + self.spec.stop.grace_s if self._kill_at_s is None else self._kill_at_s
        self._clearing_until_s = kill_at_s
        return [Clear(self.generation, kill_at_s)]

    # --- what follows from the state, whatever the event was -----------------------------------------------------

    def _settle(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        active = self.part in (Part.LAUNCHED, Part.RUNNING, Part.STOPPING)
        if active and self._all_ended and self._clearing_until_s is None and not self._is_spawning:
            effects += self._clear(now_s)
        if self._is_settled and self.is_ending:
            self._ended = True
            return [*effects, End()]
        if self.part in (Part.IDLE, Part.STOPPED) and self._offer_is_old and not self._looking_up:
            self._looking_up = True
            effects.append(LookUpOffer(self.assignment.master_port if self.assignment else None))
        return effects

    @property
    def _is_settled(self) -> bool:
        """Whether nothing of any generation is here."""
        return self.part in (Part.IDLE, Part.STOPPED, Part.FINISHED)

    @property
    def _is_spawning(self) -> bool:
        """Whether the Launched of this generation is still to come."""
        return self.part in (Part.LAUNCHING, Part.STOPPING) and not self.ranks and self.spawn_failure is None

    @property
    def _all_ended(self) -> bool:
        return all(r.exit is not None for r in self.ranks.values())

    @property
    def _leave_at_s(self) -> float | None:
        """When a runner that nobody talks to ends: soon after success, else after a longer wait; never while
        its ranks run."""
        if self._alone_since_s is None:
            return None
        if not self._is_settled:
            return None
        wait_s = self.linger_s if self.part is Part.FINISHED else self.orphan_wait_s
        return max(self._alone_since_s, self._settled_since_s) + wait_s

    def _is_starting(self, rank: _Rank) -> bool:
        return self.part is Part.LAUNCHED and not rank.started and rank.exit is None

    def _starts_at_s(self, rank: _Rank) -> float:
        return rank.spawned_s + self.spec.restart.start_after_s

    # --- reports -------------------------------------------------------------------------------------------------

    def report(self) -> Renewal:
        """The whole state as it stands."""
        return Renewal(
            number=self._number,
            generation=self.generation,
            part=self.part,
            ranks=tuple(
                RankReport(rank=n, local_rank=r.local_rank, pid=r.pid, started=r.started, exit=r.exit)
                for n, r in sorted(self.ranks.items())
            ),
            spawn_failure=self.spawn_failure,
            stuck_pids=self.stuck_pids,
            saved_step=self.saved_step,
            offer=self.offer,
        )

    def _persist(self) -> Persist:
        return Persist(self.report(), self.assignment)

    def _renew(self) -> Renew:
        self._number += 1
        return Renew(self.report())

    def _check(self) -> None:
        if self.part in (Part.STOPPED, Part.FINISHED):
            assert self._all_ended, "stopped with a live rank"
        if self.part is Part.RUNNING:
            assert all(r.started for r in self.ranks.values()), "running before every rank has started"


def _with(exit: RankExit, order: int, *, stopped_by_us: bool) -> RankExit:
    return RankExit(
        code=exit.code,
        signal=exit.signal,
        core_dumped=exit.core_dumped,
        order=order,
        wall_s=exit.wall_s,
        ran_s=exit.ran_s,
        stopped_by_us=stopped_by_us,
        oom=exit.oom,
        stderr_tail=exit.stderr_tail,
    )
