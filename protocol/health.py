"""Who makes progress: what the ranks of a generation show, judged by change and by the time it was watched.

    look ──▶ looked ──a limit has passed──▶ inspect ──▶ inspected ──▶ look ──▶ looked ──nothing moved──▶ stall
      ▲         │                                                                │
      └─────────┴───────────────── a rank moved, or is within its limit ─────────┘

A rank's silence is the sum of what passed from the answer of one look to the asking of the next. A gap that is too
long to have been a pause between two looks adds nothing: then the runner was stopped, frozen or suspended, and its
ranks perhaps with it. No clock but the machine's is used. The rules W1 to W9: docs/protocol.md, "Hangs".
"""

from collections.abc import Collection, Iterable, Mapping

from protocol.dataclass import dataclass
from protocol.ids import NO_GENERATION
from protocol.job import JobSpec, ProgressTable
from protocol.member_events import NOTHING, Inspect, Look, Sample
from protocol.messages.member import Assignment, Stall, StallAction, StallState
from protocol.signs import file_ranks, log_ranks
from protocol.tables import key_text

LOOK_S = 0.5
"""The longest pause between two looks while a limit can pass; else they come with the renewals, once a second."""

WATCHED_GAP_MAX_S = 1.5
"""A longer pause between two looks was none of ours: nothing of it counts."""

NEAR_S = 1.0
"""Ranks that are so close to their limit when another passes its own are in the same hang."""

LEFT_S = 5.0
"""After a gap that was none of ours a rank has at least so much of its limit left: it may have to wake up, too."""

UNARMED_S = 1800.0
"""Without an `init_timeout`: after so long without any sign, ranks say that a limit waits for their first."""

_TINY_S = 1e-6  # sums of floating-point seconds fall short by less


@dataclass(frozen=False)
class Watched:
    """One rank of the generation."""

    sample: Sample = NOTHING
    has_moved: bool = False  # has given a sign that was more than a phase
    silent_s: float = 0.0  # watched, since its last sign or its spawn
    held_s: float = 0.0  # of that: what does not count for a limit, since another rank may have kept it waiting
    state: StallState | None = None  # of its process, looked up when a limit had passed; None: not since its last sign
    stall: Stall | None = None
    note: str = ""  # why a limit does not hold for it
    first_step: int | None = None  # at the first look that showed one

    @property
    def has_shown(self) -> bool:
        """Whether it has given a sign of progress."""
        return self.sample.count > 0 or self.sample.phase != ""

    @property
    def remark(self) -> str:
        """Why no more is known of its progress."""
        return self.sample.remark or self.note

    @property
    def counted_s(self) -> float:
        """How much of its silence counts for its limit."""
        return self.silent_s - self.held_s

    def saw(self, sample: Sample) -> None:
        """It has given a sign."""
        self.has_moved |= sample.step is not None or sample.phase == self.sample.phase
        self.shows(sample)
        self.silent_s = self.held_s = 0.0
        self.state, self.stall, self.note = None, None, ""

    def shows(self, sample: Sample) -> None:
        """This is what it shows now."""
        self.sample = sample
        if self.first_step is None:
            self.first_step = sample.step

    def cut(self, counted_s: float) -> None:
        """No more of its silence counts than this."""
        if counted_s < self.counted_s:
            self.held_s, self.state = self.silent_s - counted_s, None


@dataclass(frozen=True)
class Limit:
    """How long a rank may be silent now, and which key of the job says so."""

    setting: str
    limit_s: float

    @classmethod
    def of(cls, setting: str, limit_s: float | None) -> "Limit | None":
        """None where the setting is "off"."""
        return None if limit_s is None else cls(setting, limit_s)


class Health:
    """The eye of a runner's machine: public fields are for reading. All times are boot-time seconds."""

    def __init__(self, spec: JobSpec) -> None:
        self.ranks: dict[int, Watched] = {}
        self.beaters: set[int] = set()  # ranks that gave signs in an earlier generation: all that outlives one (R5)
        self._spec = spec
        self._generation = NO_GENERATION
        self._declared: frozenset[int] = frozenset()  # ranks that will give signs, by what the job says
        self._has_output = False  # one of the ranks has written something
        self._live: set[int] = set()
        self._answered_s = 0.0  # when the last look was answered
        self._asked_s: float | None = None  # when the one that is to be answered was asked for
        self._suspects: set[int] = set()  # whose processes are being inspected

    # --- the generation ------------------------------------------------------------------------------------------

    def begin(self, assignment: Assignment, ranks: Iterable[int], now_s: float) -> None:
        """These ranks have just been spawned; nothing but `beaters` is left of those before them."""
        self.beaters |= {rank for rank, w in self.ranks.items() if w.has_shown and not w.sample.is_unseen}
        self.ranks = {rank: Watched() for rank in ranks}
        self._generation = assignment.generation
        self._declared = declared_ranks(self._spec.progress, self.ranks, assignment.world_size)
        self._has_output = False
        self._live = set(self.ranks)
        self._answered_s, self._asked_s = now_s, None
        self._suspects = set()

    def wrote(self) -> None:
        """One of the ranks has written something."""
        self._has_output = True

    def ended(self, rank: int, sample: Sample | None) -> None:
        """This rank has ended; `sample` is what it had shown by then, where that is known.

        Of a rank that was stopped for its hang, what it had shown when that was judged stays: the culprit hangs on it.
        """
        self._live.discard(rank)
        stall = self.ranks[rank].stall
        if sample is not None and (stall is None or not stall.is_fatal):
            self.ranks[rank].shows(sample)

    def stop_watching(self) -> None:
        """The ranks are being stopped."""
        self._live.clear()

    # --- looking -------------------------------------------------------------------------------------------------

    @property
    def deadline_s(self) -> float | None:
        """When to look again; None: not before the next renewal, or not before an answer."""
        if not self._can_look:
            return None
        left = [limit.limit_s - self.ranks[rank].counted_s for rank, limit in self._limits().items()]
        if not left and self._spec.hang.step_timeout_s is None:
            return None  # else a first sign is to be seen soon, since a limit counts from it
        return self._answered_s + max(0.0, min([LOOK_S, *left]))

    def look(self, now_s: float) -> list[Look]:
        """Ask for samples, unless that has been done already, or nobody is to be watched."""
        if not self._can_look:
            return []
        self._asked_s = now_s
        return [Look(self._generation)]

    @property
    def _can_look(self) -> bool:
        is_wanted = self._spec.progress.source != "none"
        return is_wanted and bool(self._live) and self._asked_s is None and not self._suspects

    def on_looked(self, samples: Mapping[int, Sample], now_s: float) -> list[Inspect]:
        """Take in what the ranks show; those without a sample have ended. May change `fatal` and the stalls."""
        if self._asked_s is None:
            return []
        gap_s = self._asked_s - self._answered_s
        self._answered_s, self._asked_s = now_s, None
        self._live &= samples.keys()
        held = self._held()
        silent = [rank for rank in self._live if samples[rank] == self.ranks[rank].sample]
        for rank in self._live.difference(silent):
            self.ranks[rank].saw(samples[rank])
        for rank in silent:
            self.ranks[rank].sample = samples[rank]  # a remark is no sign
        held |= self._held()
        if gap_s <= WATCHED_GAP_MAX_S:
            for rank in silent:
                self.ranks[rank].silent_s += gap_s
                self.ranks[rank].held_s += gap_s if rank in held else 0.0
        limits = self._limits()
        if gap_s > WATCHED_GAP_MAX_S:
            for rank, limit in limits.items():
                self.ranks[rank].cut(limit.limit_s - min(limit.limit_s, LEFT_S))
        self._note_unarmed()
        return self._judge(limits)

    def on_inspected(self, states: Mapping[int, StallState], now_s: float) -> list[Look]:
        """Take in what the suspects are doing, and look once more: who has moved by now does not hang."""
        self._live -= self._suspects - states.keys()
        for rank in self._suspects & states.keys():
            self.ranks[rank].state = states[rank]
        self._suspects = set()
        return self.look(now_s)

    # --- judging -------------------------------------------------------------------------------------------------

    @property
    def fatal(self) -> tuple[int, ...]:
        """Ranks that hang so that the generation must end."""
        return tuple(rank for rank, w in self.ranks.items() if w.stall is not None and w.stall.is_fatal)

    def _judge(self, limits: Mapping[int, Limit]) -> list[Inspect]:
        left = {rank: limit.limit_s - self.ranks[rank].counted_s for rank, limit in limits.items()}
        over = {rank for rank, left_s in left.items() if left_s <= _TINY_S}
        near = {rank for rank, left_s in left.items() if left_s <= NEAR_S}
        if any(self.ranks[rank].state is None for rank in over):
            self._suspects = near
            return [Inspect(self._generation, tuple(sorted(near)))]
        is_fatal = any(self._action(limits[rank]).is_fatal for rank in over)
        for rank in near:
            watched, action = self.ranks[rank], self._action(limits[rank])
            if watched.state is not None and (rank in over or (is_fatal and action.is_fatal)):
                watched.stall = Stall(
                    state=watched.state,
                    silent_s=round(watched.silent_s, 2),
                    limit_s=limits[rank].limit_s,
                    setting=limits[rank].setting,
                    action=action,
                )
        return []

    def _action(self, limit: Limit) -> StallAction:
        if self._spec.hang.action != "auto":
            return StallAction(self._spec.hang.action)
        return StallAction.RESTART if self._spec.is_written(limit.setting) else StallAction.WARN

    def _limits(self) -> dict[int, Limit]:
        """The limits that can pass now, by rank. A rank that stalls already has none: only a sign gives it one."""
        awaited = self._awaited()
        found = {rank: self._limit(rank, awaited) for rank in self._live if self.ranks[rank].stall is None}
        return {rank: limit for rank, limit in found.items() if limit is not None}

    def _limit(self, rank: int, awaited: Collection[int]) -> Limit | None:
        """`awaited`: ranks that must give a first sign."""
        hang, watched = self._spec.hang, self.ranks[rank]
        phase = watched.sample.phase
        init = Limit.of("hang.init_timeout", hang.init_timeout_s)
        step = Limit.of("hang.step_timeout", hang.step_timeout_s)
        if watched.sample.is_done:
            return None
        if not watched.has_shown:
            return init if rank in awaited else None
        if phase in hang.phases:
            return Limit.of(f"hang.phases.{key_text(phase)}", hang.phases[phase])
        if not watched.has_moved:
            return None if step is None or init is None else max(step, init, key=lambda limit: limit.limit_s)
        return step

    def _held(self) -> set[int]:
        """Ranks that may wait for another one: for one in a phase, or one that has still to give its first sign.

        That one has a limit of its own. When it passes that, it is the one that hangs.
        """
        awaited = self._awaited()
        keeps = any(
            self.ranks[rank].sample.phase or (rank in awaited and not self.ranks[rank].has_shown) for rank in self._live
        )
        return {r for r in self._live if self.ranks[r].has_shown and not self.ranks[r].sample.phase} if keeps else set()

    def _awaited(self) -> frozenset[int]:
        """Ranks of which a first sign must come, if they have given none (W4).

        Many programs beat, and write, on rank 0 alone: where any rank has shown or written something, the silence of
        one of which nothing is known proves nothing.
        """
        if self._spec.is_written("hang.init_timeout") and not self._has_output and not self._anybody_shows:
            return frozenset(self.ranks)
        return self._declared | self.beaters

    @property
    def _anybody_shows(self) -> bool:
        return any(watched.has_shown for watched in self.ranks.values())

    def _note_unarmed(self) -> None:
        """Say so where a limit that the job writes has long been waiting for a first sign that nobody must give."""
        hang, is_written = self._spec.hang, self._spec.is_written
        after_s = UNARMED_S if hang.init_timeout_s is None else hang.init_timeout_s
        if hang.step_timeout_s is not None and is_written("hang.step_timeout"):
            text = "hang.step_timeout waits for a first beat; nobody has beaten"
        elif hang.init_timeout_s is not None and is_written("hang.init_timeout"):
            text = "hang.init_timeout holds no more: there was output, and nobody has beaten"
        else:
            return
        if self._awaited() or self._anybody_shows:
            return
        for rank in self._live:
            if self.ranks[rank].silent_s >= after_s:
                self.ranks[rank].note = text


def declared_ranks(table: ProgressTable, ranks: Iterable[int], world_size: int) -> frozenset[int]:
    """Those of `ranks` that give signs, by what the job says of its progress; where it leaves that open: none."""
    own = frozenset(ranks)
    return own if table.source == "client" else (own & log_ranks(table, world_size)) | file_ranks(table, own)
