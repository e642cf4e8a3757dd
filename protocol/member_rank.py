"""What a member knows of the ranks of its generation, and how it reports that. Pure."""

from collections.abc import Collection, Mapping

import msgspec

from protocol import lifecycle
from protocol.dataclass import dataclass, field, replace
from protocol.health import Watched
from protocol.messages.member import RankExit, RankReport


@dataclass(frozen=True)
class Rank:
    """One rank; boot-time seconds of its node."""

    local_rank: int
    pid: int
    spawned_s: float
    life: lifecycle.State = field(default_factory=lifecycle.Running)
    started: bool = False
    asked_s: float | None = None  # when it got the first signal of a stop
    ended_s: float = 0.0
    exit: RankExit | None = None


class Ranks(dict[int, Rank]):
    """Those of one generation, by number."""

    @property
    def live(self) -> list[int]:
        """Ranks that have not ended."""
        return [number for number, rank in self.items() if rank.exit is None]

    @property
    def warned(self) -> list[int]:
        """Ranks that have got the pre-signal, and not yet the next one."""
        return [number for number, rank in self.items() if isinstance(rank.life, lifecycle.Warned)]

    @property
    def all_started(self) -> bool:
        """Whether nobody is still starting."""
        return all(rank.started for rank in self.values())

    def step(self, number: int, event: lifecycle.Event, now_s: float) -> list[int]:
        """Advance the life of one; returns the signals to send to it, in order."""
        rank = self[number]
        life, signals = lifecycle.step(rank.life, event, now_s)
        asked_s = now_s if signals and rank.asked_s is None else rank.asked_s
        self[number] = replace(rank, life=life, asked_s=asked_s)
        return signals

    def reports(
        self, watched: Mapping[int, Watched], answered: Collection[int], now_s: float
    ) -> tuple[RankReport, ...]:
        """What is told of each; `watched` says what it has shown, `answered` who has answered the pre-signal."""
        ended = sorted((n for n, rank in self.items() if rank.exit is not None), key=lambda n: self[n].ended_s)
        order = {number: place for place, number in enumerate(ended)}
        return tuple(
            self._report(number, watched[number], order.get(number, 0), number in answered, now_s)
            for number in sorted(self)
        )

    def _report(self, number: int, watched: Watched, order: int, has_answered: bool, now_s: float) -> RankReport:
        rank = self[number]
        ago_s = round(max(0.0, now_s - rank.ended_s), 4)
        return RankReport(
            rank=number,
            local_rank=rank.local_rank,
            pid=rank.pid,
            started=rank.started,
            exit=rank.exit and msgspec.structs.replace(rank.exit, order=order, ago_s=ago_s),
            step=watched.sample.step,
            total_steps=watched.sample.total_steps,
            loss=watched.sample.loss,
            phase=watched.sample.phase,
            silent_s=round(watched.silent_s, 1) if watched.has_shown else None,
            stall=watched.stall,
            remark=watched.remark,
            first_step=watched.first_step,
            has_answered=has_answered,
        )
