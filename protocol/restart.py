"""Whether a run goes on after a failure, how soon, and at whose expense; says why it refuses (docs/restarts.md).

The rules stand in `decide`, in their order. Whoever brings about a restart without a failure, an operator or a planned
change, asks nobody here, but for `charge` where the job has `count_membership`.
"""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from protocol.dataclass import dataclass
from protocol.job import RestartTable

CAUSE_IN_A_ROW_MAX = 25
"""Failures of one cause, without progress between them, before a run is given up, whoever pays for them or does not."""

CAUSES_MAX = 100
"""Causes that are counted; the rarest is forgotten first."""

PORTS_IN_A_ROW_MAX = 3
"""Ports lost in a row for which nobody is charged; who loses more of them is not unlucky."""

MAX_RESTARTS, MAX_INFRA_RESTARTS = "max_restarts", "max_infra_restarts"
"""The two budgets."""

STAMPS_MAX = 10_000
"""Restarts that can be told apart within a window: a higher limit counts as this one there."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's failures have cost so far; persisted with the run."""

    used: int = 0  # restarts charged to `max_restarts`, since the start or the last resume
    infra_used: int = 0  # to `max_infra_restarts`
    stamps: tuple[float, ...] = ()  # the run's own time of those that are within the window, the oldest first
    infra_stamps: tuple[float, ...] = ()
    time_s: float = 0.0  # the run's own: for so long coordinators have had it, as was last noted
    streak: int = 0  # failures in a row without progress between them
    step: int | None = None  # the highest that was seen or saved by a failure
    saved_step: int | None = None  # the highest checkpoint
    causes: dict[str, int] = {}  # failures of each cause since the last progress
    last_cause: str = ""
    last_step: int | None = None  # that the last failure had come to; None: not known
    same: int = 0  # failures in a row, up to the last one, of its cause and at its step; 0: its step is not known
    ports: int = 0  # failures in a row by which rank 0 lost its port
    lost: int = 0  # lost runners in a row, in a record of before causes were counted


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of a generation, as far as the policy cares."""

    cause: str  # its signature: two failures that have the same one are alike
    is_infrastructure: bool = False  # nothing the program did: a loss of a node or runner, a node that cannot spawn
    lost_its_port: bool = False  # rank 0 could not bind the port that supd had found free
    ends_run: bool = False  # a hang, where the job wants none to be followed by a restart
    exit_code: int | None = None  # of the culprit, where it exited by itself
    has_ever_started: bool  # all ranks of some generation of this run have started
    had_started: bool  # all ranks of the generation that ended
    ran_s: float  # the longest life of a rank in this generation
    saved_step: int | None = None
    seen_step: int | None = None  # that its ranks had come to
    time_s: float = 0.0  # the run's own

    @property
    def step(self) -> int | None:
        """How far the run was; None: not known."""
        return max((step for step in (self.saved_step, self.seen_step) if step is not None), default=None)


@dataclass(frozen=True)
class Again:
    """Begin the next generation after `delay_s`."""

    delay_s: float
    budget: str  # that pays for it; "": none
    why: str

    @property
    def charged(self) -> bool:
        """Whether `max_restarts` pays."""
        return self.budget == MAX_RESTARTS


@dataclass(frozen=True)
class GiveUp:
    """The run has failed; with `is_held` it waits for an operator instead."""

    why: str
    made_no_progress: bool = False
    is_held: bool = False
    budget: str = ""  # that is spent; "": it is something else


class Budget(NamedTuple):
    """One of the two budgets as it stands."""

    key: str
    used: int  # within the window, if there is one
    limit: int  # -1: none

    @property
    def is_spent(self) -> bool:
        """Whether it pays for no further restart."""
        return 0 <= self.limit <= self.used

    def __str__(self) -> str:
        """`3 of 10`."""
        return f"{self.used}" if self.limit < 0 else f"{self.used} of {self.limit}"


def decide(table: RestartTable, ledger: Ledger, failure: Failure, jitter: float) -> tuple[Again | GiveUp, Ledger]:
    """What follows from one failure, and the ledger after it.

    There is no wait after a run's first failure, nor after the first one since progress was made (a higher step, or
    `stable_after` of running once all ranks had started; 0 s of it prove nothing); then the wait doubles.
    """
    ledger = _with_progress(table, ledger, failure)
    if why := _ruled_out(table, failure):
        return GiveUp(why), ledger
    if failure.lost_its_port and ledger.ports < PORTS_IN_A_ROW_MAX:
        why = "rank 0 lost its port to somebody else and gets another, which is not charged"
        return Again(0.0, "", why), replace(ledger, ports=ledger.ports + 1)
    is_wanted = failure.exit_code is not None and failure.exit_code in table.always_on_exit
    is_early = not failure.has_ever_started and not failure.is_infrastructure
    if is_early and not is_wanted and table.on_startup_failure == "fail":
        return GiveUp('it never started, and restart.on_startup_failure is "fail"'), ledger
    delay_s = backoff_s(ledger.streak, table.backoff_s, table.backoff_max_s, jitter)
    ledger = _with_failure(ledger, failure)
    if (end := _spent(table, ledger, failure, is_wanted=is_wanted)) is not None:
        return end, ledger
    if is_wanted:
        return Again(delay_s, "", f"exit code {failure.exit_code} is in restart.always_on_exit"), ledger
    budget = _payer(table, failure)
    ledger = _charged(table, ledger, budget, failure.time_s)
    told = _told(table, ledger, budget, failure.time_s)
    return Again(delay_s, budget, told), ledger


def backoff_s(restarts: int, base_s: float, cap_s: float, jitter: float) -> float:
    """Seconds to wait before restart number `restarts` (from 1): doubling, capped; none before number 0.

    `jitter` is a draw from [0, 1), so that a fleet does not return in step; the result lies between half
    of the doubled value and all of it.
    """
    if restarts == 0:
        return 0.0
    ceiling_s = min(cap_s, base_s * 2.0 ** min(restarts - 1, 60))
    return ceiling_s * (1 + jitter) / 2


# --- what ends a run ---------------------------------------------------------------------------------------------


def _ruled_out(table: RestartTable, failure: Failure) -> str:
    """Why the job wants no restart after such a failure, whatever is left of its budgets; "": it has said nothing."""
    if table.policy == "never":
        return 'restart.policy is "never"'
    if failure.ends_run:
        return 'hang.action is "fail"'
    if failure.exit_code is not None and failure.exit_code in table.never_on_exit:
        return f"exit code {failure.exit_code} is in restart.never_on_exit"
    return ""


def _spent(table: RestartTable, ledger: Ledger, failure: Failure, *, is_wanted: bool) -> GiveUp | None:
    """What the run has used up by this failure, which the ledger has; None: nothing. A failure after which the job
    wants a restart always only meets the ceiling, as a lost node does in what the program's steps say."""
    is_held = table.on_budget_spent == "hold"
    count = ledger.causes[failure.cause]
    if count > CAUSE_IN_A_ROW_MAX:
        why = f"{count} failures of one cause ({failure.cause}), without progress between them"
        return GiveUp(why, is_held=is_held)
    if is_wanted:
        return None
    if not failure.is_infrastructure and 0 < table.no_progress_limit <= ledger.same:
        why = (
            f"no progress: {ledger.same} failures in a row of one cause ({failure.cause}) at step {failure.step} "
            "(restart.no_progress_limit)"
        )
        return GiveUp(why, made_no_progress=True, is_held=is_held)
    budget = budget_of(table, ledger, _payer(table, failure), failure.time_s)
    if budget.is_spent:
        which = "restart" if budget.key == MAX_RESTARTS else "infrastructure restart"
        return GiveUp(f"{which} budget spent ({budget}{_within(table)})", is_held=is_held, budget=budget.key)
    return None


# --- what is counted ---------------------------------------------------------------------------------------------


def _with_progress(table: RestartTable, ledger: Ledger, failure: Failure) -> Ledger:
    """The ledger once it is known how far the generation had come: progress makes up for what was before it."""
    highest = ledger.saved_step if ledger.step is None else ledger.step
    rose = failure.step is not None and (highest is None or failure.step > highest)
    was_stable = failure.had_started and failure.ran_s >= table.stable_after_s > 0
    ports = ledger.ports if failure.lost_its_port else 0
    saved_step = max((s for s in (ledger.saved_step, failure.saved_step) if s is not None), default=None)
    step = failure.step if rose else highest
    ledger = replace(ledger, ports=ports, saved_step=saved_step, step=step)
    return replace(ledger, streak=0, causes={}, lost=0) if rose or was_stable else ledger


def _with_failure(ledger: Ledger, failure: Failure) -> Ledger:
    """The ledger with this failure. Where it is not known how far the run was, nothing is said about progress."""
    known = ledger.lost if failure.is_infrastructure else 0  # by an earlier version, which knew no causes
    others = {cause: count for cause, count in ledger.causes.items() if cause != failure.cause}
    while len(others) >= CAUSES_MAX:
        del others[min(others, key=others.__getitem__)]
    is_same = (
        failure.cause == ledger.last_cause
        and failure.step is not None
        and ledger.last_step is not None
        and failure.step <= ledger.last_step
    )
    return replace(
        ledger,
        streak=ledger.streak + 1,
        causes={**others, failure.cause: ledger.causes.get(failure.cause, known) + 1},
        last_cause=failure.cause,
        last_step=failure.step,
        same=0 if failure.step is None else ledger.same + 1 if is_same else 1,
        ports=ledger.ports + 1 if failure.lost_its_port else 0,
        lost=0,
    )


def resumed(ledger: Ledger) -> Ledger:
    """The ledger of a run that an operator lets go on: as at its start, but for how far it was."""
    return Ledger(time_s=ledger.time_s, step=ledger.step, saved_step=ledger.saved_step)


# --- budgets -----------------------------------------------------------------------------------------------------


def _payer(table: RestartTable, failure: Failure) -> str:
    """The budget that pays for a restart after this failure."""
    return MAX_INFRA_RESTARTS if failure.is_infrastructure and not table.count_membership else MAX_RESTARTS


def budget_of(table: RestartTable, ledger: Ledger, key: str, time_s: float) -> Budget:
    """A budget as it stands at this moment of the run's own time."""
    is_infra = key == MAX_INFRA_RESTARTS
    limit = table.max_infra_restarts if is_infra else table.max_restarts
    if not _has_window(table, limit):
        return Budget(key, ledger.infra_used if is_infra else ledger.used, limit)
    stamps = ledger.infra_stamps if is_infra else ledger.stamps
    used = sum(1 for stamp_s in stamps if time_s - stamp_s < table.restart_window_s)
    return Budget(key, used, min(limit, STAMPS_MAX))


def charge(table: RestartTable, ledger: Ledger, time_s: float) -> Ledger:
    """The ledger once `max_restarts` has paid for a change of membership (`count_membership`)."""
    return _charged(table, ledger, MAX_RESTARTS, time_s)


def _charged(table: RestartTable, ledger: Ledger, key: str, time_s: float) -> Ledger:
    """The ledger once this budget has paid for one restart more. Stamps are kept for as long as they count."""
    is_infra = key == MAX_INFRA_RESTARTS
    limit = table.max_infra_restarts if is_infra else table.max_restarts
    stamps: tuple[float, ...] = ()
    if _has_window(table, limit):
        before = ledger.infra_stamps if is_infra else ledger.stamps
        counted = (stamp_s for stamp_s in before if time_s - stamp_s < table.restart_window_s)
        stamps = (*counted, time_s)[-STAMPS_MAX:]
    if is_infra:
        return replace(ledger, infra_used=ledger.infra_used + 1, infra_stamps=stamps)
    return replace(ledger, used=ledger.used + 1, stamps=stamps)


def _has_window(table: RestartTable, limit: int) -> bool:
    return table.restart_window_s > 0 and limit >= 0


def _told(table: RestartTable, ledger: Ledger, key: str, time_s: float) -> str:
    """Which restart that is, for people."""
    budget = budget_of(table, ledger, key, time_s)
    within = _within(table) if budget.limit >= 0 else ""
    if key == MAX_RESTARTS:
        return f"restart {budget}{within}"
    if budget.limit < 0:
        return "no failure of the program, so it is not charged"
    return f"infrastructure restart {budget}{within}"


def _within(table: RestartTable) -> str:
    return f" within {table.restart_window_s:g} s" if table.restart_window_s > 0 else ""
