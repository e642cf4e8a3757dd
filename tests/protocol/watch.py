"""A runner's machine and ranks that show what a test says, in a time of their own; and ways to let it pass."""

import math
from collections import deque

from protocol.job import HangTable, ProgressTable, RestartTable, StopTable
from protocol.member import Member
from protocol.member_events import (
    Abort,
    Effect,
    Event,
    Inspect,
    Inspected,
    KeepStacks,
    Launched,
    Linked,
    Look,
    Looked,
    Offered,
    Persist,
    Renew,
    Sample,
    Signal,
    Tick,
)
from protocol.messages.member import RankReport, Renewal, Run, Stall, StallState
from tests.protocol.build import answered, assignment, job_spec, offer

Beats = dict[int, float]
"""When a rank beats next; it then does so at an interval of its own."""


class Watch:
    """Ranks 0 and 1 of a generation, spawned at 1.0. Looks and inspections are answered at once."""

    def __init__(
        self,
        hang: HangTable | None = None,
        *,
        written: tuple[str, ...] = ("hang.step_timeout",),
        progress: ProgressTable | None = None,
        stop: StopTable | None = None,
    ) -> None:
        spec = job_spec(
            stop=stop or StopTable(grace_s=30.0),
            restart=RestartTable(start_after_s=10.0),
            hang=hang or HangTable(step_timeout_s=10.0),
            progress=progress or ProgressTable(),
            origins=dict.fromkeys(written, "file"),
        )
        self.member = Member(spec, 0.0, orphan_wait_s=3600.0, linger_s=60.0)
        self.now_s = 1.0
        self.shown: dict[int, Sample] = {}
        self.states: dict[int, str] = {}
        self.moves_when_inspected: tuple[int, ...] = ()
        self.done: list[Effect] = []  # everything so far
        self.looks: list[float] = []  # when it looked
        self.report = Renewal(number=0)  # the newest one
        self.give(Linked(up=True))
        self.give(Offered(offer()))
        self.launch(0)

    def launch(self, generation: int) -> None:
        """Spawn both ranks of a generation."""
        self.give(answered(Run(assignment=assignment(generation))))
        self.shown = {0: Sample(), 1: Sample()}
        self.states = {}
        self.give(Launched(generation, (100, 101)))

    def give(self, event: Event) -> list[Effect]:
        """Hand it an event, and the answers to what it asks; returns all effects."""
        effects: list[Effect] = []
        events = deque([event])
        while events:
            for effect in self.member.handle(events.popleft(), self.now_s):
                effects.append(effect)
                match effect:
                    case Look(generation):
                        self.looks.append(self.now_s)
                        events.append(Looked(generation, dict(self.shown)))
                    case Inspect(generation, ranks):
                        self.beat(*self.moves_when_inspected)
                        states = {
                            rank: StallState(self.states.get(rank, "alive")) for rank in ranks if rank in self.shown
                        }
                        events.append(Inspected(generation, states))
                    case Renew(renewal):
                        self.report = renewal
                    case _:
                        pass
        self.done += effects
        return effects

    def beat(self, *ranks: int, phase: str = "", is_done: bool = False) -> None:
        """These ranks reach their next step."""
        for rank in ranks:
            count = self.shown[rank].count + 1
            self.shown[rank] = Sample(count=count, step=count, phase=phase, is_done=is_done)

    def run_for(self, seconds: float, beats: Beats | None = None, every_s: Beats | None = None) -> None:
        """Let time pass with the machine awake; ranks beat at their times, if they have any."""
        self._pass(seconds, beats or {}, every_s or {}, is_awake=True)

    def pause_for(self, seconds: float, beats: Beats | None = None, every_s: Beats | None = None) -> None:
        """Let time pass while the runner is stopped."""
        self._pass(seconds, beats or {}, every_s or {}, is_awake=False)

    def _pass(self, seconds: float, beats: Beats, every_s: Beats, *, is_awake: bool) -> None:
        end_s = self.now_s + seconds
        while True:
            rank = min(beats, key=lambda r: beats[r], default=None)
            beat_s = math.inf if rank is None else beats[rank]
            tick_s = self.member.deadline_s if is_awake else None
            due_s = min(beat_s, math.inf if tick_s is None else tick_s)
            if due_s > end_s:
                break
            self.now_s = max(self.now_s, due_s)
            if rank is not None and beat_s == due_s:  # what comes just in time is in time
                self.beat(rank)
                beats[rank] += every_s[rank]
            else:
                self.give(Tick())
        self.now_s = end_s

    # --- looking at it -------------------------------------------------------------------------------------------

    def stall(self, rank: int = 0) -> Stall | None:
        """Of the newest report that the machine would make."""
        return self.reported(rank).stall

    def reported(self, rank: int = 0) -> RankReport:
        """One rank as it would be reported now."""
        return next(r for r in self.member.report().ranks if r.rank == rank)

    @property
    def signals(self) -> list[Effect]:
        """What it has done to its ranks."""
        return [effect for effect in self.done if isinstance(effect, Signal | Abort | KeepStacks)]

    @property
    def persists(self) -> int:
        """How often it has put its state on disk."""
        return sum(isinstance(effect, Persist) for effect in self.done)
