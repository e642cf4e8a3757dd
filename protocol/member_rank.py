"""What a member knows of one of its ranks, and how it reports that. Pure."""

from dataclasses import dataclass, field

import msgspec

from protocol import lifecycle
from protocol.health import Watched
from protocol.messages.member import RankExit, RankReport


@dataclass(frozen=True)
class Rank:
    """One rank of the generation; boot-time seconds of its node."""

    local_rank: int
    pid: int
    spawned_s: float
    life: lifecycle.State = field(default_factory=lifecycle.Running)
    started: bool = False
    asked_s: float | None = None  # when it got the first signal of a stop
    ended_s: float = 0.0
    exit: RankExit | None = None

    def report(self, number: int, watched: Watched, order: int, now_s: float) -> RankReport:
        """It is rank `number`, was the `order`-th to end, and `watched` says what it has shown."""
        ago_s = round(max(0.0, now_s - self.ended_s), 4)
        return RankReport(
            rank=number,
            local_rank=self.local_rank,
            pid=self.pid,
            started=self.started,
            exit=self.exit and msgspec.structs.replace(self.exit, order=order, ago_s=ago_s),
            step=watched.sample.step,
            total_steps=watched.sample.total_steps,
            loss=watched.sample.loss,
            phase=watched.sample.phase,
            silent_s=round(watched.silent_s, 1) if watched.has_shown else None,
            stall=watched.stall,
            remark=watched.remark,
        )
