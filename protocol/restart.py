"""Whether a run goes on after a failure, how soon, and at whose expense; says why it refuses."""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from protocol.job import RestartTable


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's failures have cost so far; persisted with the run."""

    used: int = 0  # restarts charged to `max_restarts`
    streak: int = 0  # failures in a row without progress between them
    lost: int = 0  # of these, runners that were lost, up to the last one
    saved_step: int | None = None  # the highest checkpoint seen at a failure
    ports: int = 0  # failures in a row by which rank 0 lost its port


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of a generation, as far as the policy cares."""

    is_infrastructure: bool = False  # a runner was lost: nothing the program did
    lost_its_port: bool = False  # rank 0 could not bind the port that supd had found free
    ends_run: bool = False  # a hang, where the job wants none to be followed by a restart
    exit_code: int | None = None  # of the culprit, where it exited by itself
    has_ever_started: bool  # all ranks of some generation of this run have started
    had_started: bool  # all ranks of the generation that ended
    ran_s: float  # the longest life of a rank in this generation
    saved_step: int | None = None


LOST_IN_A_ROW_MAX = 25
"""Runners lost in a row, without progress, before a run is given up: a cause that nobody pays for must end, too."""

PORTS_IN_A_ROW_MAX = 3
"""Ports lost in a row for which nobody is charged; who loses more of them is not unlucky."""


@dataclass(frozen=True)
class Again:
    """Begin the next generation after `delay_s`."""

    delay_s: float
    charged: bool
    why: str


@dataclass(frozen=True)
class GiveUp:
    """The run has failed."""

    why: str


def backoff_s(restarts: int, base_s: float, cap_s: float, jitter: float) -> float:
    """Seconds to wait before restart number `restarts` (from 1): doubling, capped.

    `jitter` is a draw from [0, 1), so that a fleet does not return in step; the result lies between half
    of the doubled value and all of it.
    """
    ceiling_s = min(cap_s, base_s * 2.0 ** min(restarts - 1, 60))
    return ceiling_s * (1 + jitter) / 2


def decide(table: RestartTable, ledger: Ledger, failure: Failure, jitter: float) -> tuple[Again | GiveUp, Ledger]:
    """What follows from one failure, and the ledger after it (docs/job-file.md, [restart]).

    There is no wait after a run's first failure, nor after the first one since progress was made (a higher
    checkpoint, or `stable_after` of running once all ranks had started; 0 s of it prove nothing); then the wait
    doubles. A lost runner is not charged, but what only ever loses its runner is given up. Nor is a port that was
    free when it was given out, and then was not: the next generation has another, at once.
    """
    known = -1 if ledger.saved_step is None else ledger.saved_step
    rose = failure.saved_step is not None and failure.saved_step > known
    was_stable = failure.had_started and failure.ran_s >= table.stable_after_s > 0
    streak = 0 if rose or was_stable else ledger.streak
    saved_step = failure.saved_step if rose else ledger.saved_step
    lost = (ledger.lost if streak else 0) + 1 if failure.is_infrastructure else 0
    ports = ledger.ports + 1 if failure.lost_its_port else 0
    after = Ledger(used=ledger.used, streak=streak + 1, lost=lost, saved_step=saved_step, ports=ports)
    delay_s = 0.0 if streak == 0 else backoff_s(streak, table.backoff_s, table.backoff_max_s, jitter)

    if table.policy == "never":
        return GiveUp('restart.policy is "never"'), after
    if failure.ends_run:
        return GiveUp('hang.action is "fail"'), after
    if lost > LOST_IN_A_ROW_MAX:
        return GiveUp(f"{lost} runners were lost in a row, without progress between them"), after
    if failure.is_infrastructure:
        return Again(delay_s, False, "a lost runner is not charged"), after
    if failure.exit_code is not None and failure.exit_code in table.never_on_exit:
        return GiveUp(f"exit code {failure.exit_code} is in restart.never_on_exit"), after
    if 0 < ports <= PORTS_IN_A_ROW_MAX:
        why = "rank 0 lost its port to somebody else and gets another, which is not charged"
        return Again(0.0, False, why), replace(after, streak=streak)
    if failure.exit_code is not None and failure.exit_code in table.always_on_exit:
        return Again(delay_s, False, f"exit code {failure.exit_code} is in restart.always_on_exit"), after
    if not failure.has_ever_started and table.on_startup_failure == "fail":
        return GiveUp('it never started, and restart.on_startup_failure is "fail"'), after
    if table.max_restarts >= 0 and ledger.used >= table.max_restarts:
        return GiveUp(f"restart budget spent ({ledger.used} of {table.max_restarts})"), after
    of = "" if table.max_restarts < 0 else f" of {table.max_restarts}"
    charged = replace(after, used=ledger.used + 1)
    return Again(delay_s, True, f"restart {charged.used}{of}"), charged
