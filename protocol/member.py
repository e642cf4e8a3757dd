"""One node's part in a run: what a runner does with the orders it gets and the exits it sees.

    IDLE ──run g──▶ LAUNCHING ──▶ LAUNCHED ──all started──▶ RUNNING
      ▲                │              │                        │
      │                └──spawn fails─┴──a rank fails, stop────┤
      │                                                        ▼                all ended with 0
      └─ (run g+1) ◀── STOPPED ◀──the whole tree is gone── STOPPING      RUNNING ──▶ (clearing) ──▶ FINISHED

A failure, and a hang (health.py), is acted on at once, without waiting for the coordinator's "stop": it would say
nothing else (R4), and so a runner whose coordinator is away does the right thing by itself. Orders only go up (R3).
Every report carries the whole state; what is to be told is on disk first, unless the disk is slow (`Persist`). Before
anything else the clock is read: ranks whose lease is over (lease.py) are killed, whatever an event may say.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from protocol import lifecycle, stalls
from protocol.dataclass import replace
from protocol.health import Health
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec
from protocol.lease import Lease
from protocol.member_events import (
    SETTLED,
    Abort,
    Answered,
    Clear,
    Cleared,
    Dismissed,
    Effect,
    End,
    Event,
    Exited,
    Inspected,
    KeepStacks,
    KillAll,
    Launched,
    Linked,
    Looked,
    LookUpOffer,
    Noticed,
    Offered,
    Persist,
    Questioned,
    Reached,
    Renew,
    Sample,
    Saved,
    SeenDone,
    Signal,
    Spawn,
    TermLeftovers,
    Tick,
    WordAsked,
    WordHeard,
    Wrote,
)
from protocol.member_rank import Rank, Ranks
from protocol.messages.member import (
    STUCK_PIDS_MAX,
    Assignment,
    Offer,
    Part,
    Release,
    Renewal,
    Run,
    SpawnFailure,
    Stop,
    Tell,
    Wait,
)
from protocol.readiness import Readiness
from protocol.reports import lasting
from protocol.signals import signal_number
from protocol.standing import Standing
from protocol.stopping import Stopping


class Member:
    """State machine of one runner: no IO, no clock, no randomness of its own."""

    def __init__(
        self, spec: JobSpec, now_s: float, *, orphan_wait_s: float, linger_s: float, revision: int = 0
    ) -> None:
        """`revision` is the job's."""
        self.spec = spec
        self.revision = revision
        self.orphan_wait_s = orphan_wait_s
        self.linger_s = linger_s
        self.generation = NO_GENERATION
        self.part = Part.IDLE
        self.assignment: Assignment | None = None
        self.ranks = Ranks()
        self.spawn_failure: SpawnFailure | None = None
        self.stuck_pids: tuple[int, ...] = ()
        self.notice = ""  # why this node is about to be taken away
        self.offer: Offer | None = None
        self.health = Health(spec)
        self.readiness = Readiness(is_watched=spec.checkpoint.is_watched)
        self.stopping = Stopping(spec.stop)
        self.lease = Lease()
        self.standing = Standing(self.lease)
        self.is_ending = False  # released or dismissed: ends once nothing is left
        self._number = 0
        self._now_s = now_s  # of the event that is being handled
        self._renew_at_s = now_s + self.lease.timing.renew_s
        self._is_to_tell = False  # the coordinator wants to know our assignment
        self._alone_since_s: float | None = now_s
        self._is_spawning = False  # a Launched is still to come
        self._is_clearing = False  # a Cleared is still to come
        self._offer_is_old = True
        self._is_looking_up = False
        self._settled_since_s = now_s
        self._persisted = lasting(self.report())  # nothing yet that would be missed
        self._has_ended = False

    # --- the door ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order.

        `now_s` and `deadline_s` are boot-time seconds of this node.
        """
        if self._has_ended:
            return []
        self._now_s = now_s
        effects = [*(self._fence(now_s) if self.lease.is_over(now_s) else ()), *self._take(event, now_s)]
        effects += self._settle(now_s)
        effects += self._turn_to_witnesses(now_s)
        self._check()
        return [*self.standing.hold(is_settled=self._is_settled), *effects]

    def _take(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Answered():
                return self._on_answered(event, now_s)
            case Questioned() | WordAsked() | WordHeard() | Reached():
                return self.standing.take(event, now_s)
            case Launched():
                return self._on_launched(event, now_s)
            case Wrote(generation, rank, stream):
                return self._on_output(generation, rank, stream)
            case Looked(generation, samples):
                return self._on_looked(generation, samples, now_s)
            case Inspected(generation, states):
                is_old = generation != self.generation
                return [] if is_old else [*self.health.on_inspected(states, now_s)]
            case Exited():
                return self._on_exited(event, now_s)
            case Cleared():
                return self._on_cleared(event, now_s)
            case Offered(offer):
                return self._on_offered(offer)
            case Saved():
                return self._tell() if self.readiness.on_saved(event, self.ranks.live) else []
            case SeenDone():
                return self._tell() if self.readiness.on_done(event, self.ranks.warned) else []
            case Noticed(why):
                return self._on_noticed(why)
            case Linked(up):
                return self._on_linked(up, now_s)
            case Dismissed():
                return self._release(now_s)
            case Tick():
                return self._on_tick(now_s)

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None once it has ended."""
        if self._has_ended:
            return None
        due = [self._renew_at_s, self.lease.deadline_s]
        if (look_at_s := self.health.deadline_s) is not None:
            due.append(look_at_s)
        if (look_at_s := self.readiness.deadline_s(self.ranks.live, self.ranks.warned)) is not None:
            due.append(look_at_s)
        due += [d for r in self.ranks.values() if (d := lifecycle.deadline_s(r.life)) is not None]
        due += [self._starts_at_s(r) for n, r in self.ranks.items() if self._is_starting(n)]
        if (leave := self._leave_at_s) is not None:
            due.append(leave)
        return min(due)

    # --- orders --------------------------------------------------------------------------------------------------

    def _on_answered(self, event: Answered, now_s: float) -> list[Effect]:
        if not self.lease.hears(event.answer, now_s, is_direct=event.is_direct):
            return []
        self._is_to_tell = isinstance(event.answer.order, Tell)
        match event.answer.order:
            case Run(assignment, awaits_save):
                effects = self._on_run(assignment, now_s)
                self.readiness.expect(is_awaited=awaits_save and assignment.generation == self.generation)
                return effects
            case Stop() as stop:
                return self._on_stop(stop, now_s)
            case Release():
                return self._release(now_s)
            case Wait() | Tell():
                return []

    def _on_run(self, assignment: Assignment, now_s: float) -> list[Effect]:
        if assignment.generation <= self.generation or self.is_ending:
            return []  # the present, or the past
        if not self.lease.may_launch(assignment, now_s):
            return []  # L3; the answer to the next renewal will say what holds now
        if not self._is_settled:
            return self._begin_stop(Stop(generation=self.generation), now_s)  # R1: first what there is must go
        self._begin_generation(assignment.generation, assignment)
        self.part, self.offer, self._is_spawning = Part.LAUNCHING, None, True
        self._renew_at_s = min(self._renew_at_s, now_s + self.lease.timing.renew_s)
        # The coordinator has it on disk: no need to wait for ours.
        return [Spawn(assignment), *self._persist(self.report())]

    def _on_stop(self, stop: Stop, now_s: float) -> list[Effect]:
        if stop.generation < self.generation:
            return []
        if stop.generation > self.generation and self._is_settled:
            self._begin_generation(stop.generation, None)  # it never launched that one, and it never will
            self.part = Part.STOPPED
            return self._tell()
        return self._begin_stop(stop, now_s)

    def _release(self, now_s: float) -> list[Effect]:
        self.is_ending = True
        return self._begin_stop(Stop(generation=self.generation), now_s)

    def _begin_generation(self, generation: int, assignment: Assignment | None) -> None:
        self.generation, self.assignment = generation, assignment
        self.ranks, self.spawn_failure, self.stuck_pids = Ranks(), None, ()
        self.stopping.begin()
        self.readiness.begin(generation)
        self.standing.begin(generation, assignment)

    # --- the life of a generation --------------------------------------------------------------------------------

    def _on_launched(self, event: Launched, now_s: float) -> list[Effect]:
        assert event.generation == self.generation, "a spawn of another generation ended"
        assert self.assignment is not None, "spawned without an assignment"
        self._is_spawning = False
        first = self.assignment.first_rank
        self.ranks = Ranks((first + i, Rank(i, pid, now_s)) for i, pid in enumerate(event.pids))
        self.health.begin(self.assignment, self.ranks, now_s)
        self.spawn_failure = event.failure
        if self.part is Part.LAUNCHING:
            self.part = Part.LAUNCHED
        effects: list[Effect] = []
        if (stop := self.stopping.stop) is not None or event.failure is not None:
            self.stopping.begin()  # its time counts from here
            effects = self._begin_stop(stop or Stop(generation=self.generation), now_s)
        return [*effects, *self._tell()]

    def _on_output(self, generation: int, rank: int, stream: str) -> list[Effect]:
        if generation != self.generation or rank not in self.ranks:
            return []  # R5
        self.health.wrote()
        # A traceback of an import that failed is no start (docs/decisions/005): what counts is standard output.
        return [] if stream != "out" or rank in self.health.beaters else self._on_started([rank])

    def _on_started(self, ranks: Iterable[int]) -> list[Effect]:
        for rank in ranks:
            self.ranks[rank] = replace(self.ranks[rank], started=True)
        return self._tell() if self._runs_now() else []

    def _on_looked(self, generation: int, samples: Mapping[int, Sample], now_s: float) -> list[Effect]:
        if generation != self.generation:
            return []  # R5
        effects: list[Effect] = [*self.health.on_looked(samples, now_s)]
        effects += self._on_started([n for n, rank in self.ranks.items() if not rank.started and self._shows(n)])
        if self.health.fatal and not self._is_settled and self.part is not Part.STOPPING:
            effects += [*self._stop_hang(now_s), *self._tell()]
        return effects

    def _runs_now(self) -> bool:
        """Whether the last missing rank has just started."""
        if self.part is not Part.LAUNCHED or not self.ranks.all_started:
            return False
        self.part = Part.RUNNING
        return True

    def _on_exited(self, event: Exited, now_s: float) -> list[Effect]:
        assert event.generation == self.generation, "a rank of another generation ended after its tree was gone"
        self.ranks.step(event.rank, lifecycle.Reaped(), now_s)
        rank = self.ranks[event.rank]
        fenced_s = self.lease.until_s if self.lease.is_fenced else math.inf  # its guard may have been quicker than we
        stopped_by_us = event.ended_s >= min(fenced_s, math.inf if rank.asked_s is None else rank.asked_s)
        exit = msgspec.structs.replace(event.exit, stopped_by_us=stopped_by_us)
        self.health.ended(event.rank, event.sample)
        started = rank.started or exit.code == 0 or self._shows(event.rank)
        self.ranks[event.rank] = replace(rank, exit=exit, ended_s=event.ended_s, started=started)
        if self.part is Part.STOPPING:
            return [TermLeftovers()]  # its end is told with the next renewal: nobody waits for one of them alone
        if exit.failed:
            return [*self._begin_stop(Stop(generation=self.generation), now_s), *self._tell()]
        self._runs_now()
        return self._tell()

    def _on_cleared(self, event: Cleared, now_s: float) -> list[Effect]:
        assert event.generation == self.generation, "cleared a generation that is not there"
        assert self._is_clearing, "cleared without having been asked"
        self.part = Part.STOPPED if self.part is Part.STOPPING else Part.FINISHED
        self.stuck_pids = event.stuck_pids
        self._is_clearing = False
        self._settled_since_s, self._offer_is_old = now_s, True
        if self.part is Part.FINISHED:
            return self._tell()
        # It is told with the node's offer, which is looked up now: one word less on the way.
        return self._persist(self.report())

    # --- the lease -----------------------------------------------------------------------------------------------

    def _fence(self, now_s: float) -> list[Effect]:
        """The lease is over: the ranks end at once, and nothing makes this generation live again here (L1)."""
        self.lease.fence()
        if self._is_settled:
            return []
        if self.ranks.live or self._is_spawning:
            self.standing.fenced_s = round(now_s - self.lease.answered_s, 3)
        return [KillAll(self.generation), *self._begin_stop(Stop(generation=self.generation, now=True), now_s)]

    def _turn_to_witnesses(self, now_s: float) -> list[Effect]:
        """Where the coordinator is silent; they are looked for as soon as all ranks run."""
        if asks := self.standing.ask(now_s):
            return [*asks, *self._tell(by_witnesses=True)]
        return self.standing.meet(now_s) if self.part is Part.RUNNING else []

    # --- the node, the link, time --------------------------------------------------------------------------------

    def _on_offered(self, offer: Offer) -> list[Effect]:
        self._is_looking_up = False
        if not self._is_settled:
            return []
        was_missing = self.offer is None
        self.offer, self._offer_is_old = offer, False
        return self._tell() if was_missing else []  # a fresh port goes out with the next renewal

    def _on_noticed(self, why: str) -> list[Effect]:
        if why == self.notice:
            return []
        self.notice = why
        return self._tell()

    def _on_linked(self, up: bool, now_s: float) -> list[Effect]:
        if up:
            self._alone_since_s = None
            return self._tell()
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        return []

    def _on_tick(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for number, rank in list(self.ranks.items()):
            effects += self._signals(number, self.ranks.step(number, lifecycle.Tick(), now_s))
            if self._is_starting(number) and now_s >= self._starts_at_s(rank):
                effects += self._on_started([number])
        look_at_s = self.health.deadline_s
        if now_s >= self._renew_at_s or (look_at_s is not None and now_s >= look_at_s):
            effects += self.health.look(now_s)
        is_renewing = now_s >= self._renew_at_s
        effects += self.readiness.look(self.ranks.live, self.ranks.warned, now_s, is_renewing=is_renewing)
        if is_renewing:
            self._renew_at_s = now_s + self.lease.timing.renew_s
            self._offer_is_old = True
            effects += self._tell()
        if (leave := self._leave_at_s) is not None and now_s >= leave:
            effects += self._release(now_s)
        return effects

    # --- stopping ------------------------------------------------------------------------------------------------

    def _begin_stop(self, stop: Stop, now_s: float) -> list[Effect]:
        """Stop what there is; a second stop can only bring the end nearer."""
        if self._is_settled or (request := self.stopping.tighten(stop, now_s)) is None:
            return []
        if self._is_clearing:
            return [Clear(self.generation, self.stopping.ended(now_s))]
        self.part = Part.STOPPING
        self.health.stop_watching()
        if self._is_spawning:
            return []  # they get it once they are there
        return [*self.stopping.announce(self.generation), *self._stop_ranks(request, now_s)]

    def _stop_hang(self, now_s: float) -> list[Effect]:
        """Ranks that hang get SIGABRT first, to leave their stacks; the others the stop that everybody gets (W7)."""
        effects: list[Effect] = []
        first = stalls.culprit(self.report().ranks)
        if first is not None and self.spec.stop.abort_on_hang:
            effects = [KeepStacks(first.rank), Abort(self.health.fatal)]
            abort = lifecycle.AbortRequested(self.spec.stop.grace_s)
            for number in self.health.fatal:
                self.ranks.step(number, abort, now_s)
        return [*effects, *self._begin_stop(Stop(generation=self.generation), now_s)]

    def _stop_ranks(self, request: lifecycle.StopRequested, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for number in self.ranks:
            effects += self._signals(number, self.ranks.step(number, request, now_s))
        if len(self.ranks.live) < len(self.ranks):
            effects.append(TermLeftovers())
        return [*self.readiness.warn(), *effects] if self.ranks.warned else effects

    def _signals(self, rank: int, numbers: Iterable[int]) -> list[Effect]:
        # A pre-signal is for the program alone: its default action would kill helpers that know nothing of it.
        whole_tree = signal_number(self.spec.stop.signal) if self.spec.stop.scope == "tree" else None
        return [Signal(rank, n, tree=n == whole_tree) for n in numbers]

    # --- what follows from the state, whatever the event was -----------------------------------------------------

    def _settle(self, now_s: float) -> list[Effect]:
        if not self._is_settled:
            if self._is_spawning or self._is_clearing or self.ranks.live:
                return []
            self._is_clearing = True
            return [Clear(self.generation, self.stopping.ended(now_s))]
        if self.is_ending:
            self._has_ended = True
            return [End()]
        if self._offer_is_old and not self._is_looking_up:
            self._is_looking_up = True
            return [LookUpOffer(self.assignment.master_port if self.assignment else None)]
        return []

    @property
    def _is_settled(self) -> bool:
        """Whether nothing of any generation is here."""
        return self.part in SETTLED

    @property
    def _leave_at_s(self) -> float | None:
        """When a runner that nobody talks to ends: soon after success, else after a longer wait; never while
        its ranks run."""
        if self._alone_since_s is None or not self._is_settled:
            return None
        wait_s = self.linger_s if self.part is Part.FINISHED else self.orphan_wait_s
        return max(self._alone_since_s, self._settled_since_s) + wait_s

    def _shows(self, number: int) -> bool:
        """Whether a sign is its start. Where none can be seen any more, only what needs one starts without (W9)."""
        watched = self.health.ranks[number]
        return watched.has_shown and (not watched.sample.is_unseen or number in self.health.beaters)

    def _is_starting(self, number: int) -> bool:
        """Whether it can still start by living for long enough. Who has beaten before must beat again for that."""
        rank = self.ranks[number]
        must_beat = number in self.health.beaters
        return self.part is Part.LAUNCHED and not rank.started and rank.exit is None and not must_beat

    def _starts_at_s(self, rank: Rank) -> float:
        return rank.spawned_s + self.spec.restart.start_after_s

    # --- reports -------------------------------------------------------------------------------------------------

    def report(self) -> Renewal:
        """The whole state as it stands."""
        return Renewal(
            number=self._number,
            epoch=self.lease.epoch,
            generation=self.generation,
            part=self.part,
            ranks=self.ranks.reports(self.health.ranks, self.readiness.answered, self._now_s),
            spawn_failure=self.spawn_failure,
            stuck_pids=self.stuck_pids[:STUCK_PIDS_MAX],
            saved_step=self.readiness.saved_step,
            saves=self.readiness.saves,
            notice=self.notice,
            revision=self.revision,
            offer=self.offer,
            fenced_s=self.standing.fenced_s,
            unreached=self.standing.unreached(self._now_s),
            assignment=self.assignment if self._is_to_tell else None,
        )

    def _persist(self, report: Renewal) -> list[Effect]:
        kept = lasting(report)
        if kept == self._persisted:
            return []
        self._persisted = kept
        return [Persist(msgspec.structs.replace(report, assignment=self.assignment))]

    def _tell(self, *, by_witnesses: bool = False) -> list[Effect]:
        """Report the whole state; what has changed in it is on disk first (`Persist`)."""
        self._number += 1
        self.lease.sent(self._number, self._now_s)
        report = self.report()
        return [*self._persist(report), Renew(report, by_witnesses or self.lease.is_unheard(self._now_s))]

    def _check(self) -> None:
        if self._is_settled:
            assert not self.ranks.live, "settled with a live rank"
            assert not self._is_spawning, "settled while spawning"
            assert not self._is_clearing, "settled while clearing"
        else:
            assert self.offer is None, "an offer of a node that runs something"
        if self.part is Part.RUNNING:
            assert self.ranks.all_started, "running before every rank has started"
