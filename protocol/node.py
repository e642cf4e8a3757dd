"""A node's side of its link to the coordinator: which runners it has, and which it is to have.

The link is level-triggered (docs/protocol.md, "The fleet"): a report is everything the node knows, an order everything
that is wanted of it. A lost, doubled or late one is mended by the next.

- The end of a runner is told, once it is proven, until an order says that it is settled: only then is it forgotten,
  and only then may the run have another runner here. So the coordinator knows what a runner knew last before it meets
  the next one.
- What is wanted and not there is started at once, but no run more often than once in START_AGAIN_S: what cannot even
  begin must not be started in a loop. Whether it is wanted any longer is the coordinator's to say: nothing is
  started while the link is down, nor by the orders of an earlier one.
- Nothing is ended here for not being wanted: runners hear that from the coordinator themselves.
- Files of an old run go once the coordinator has said that it does not know the run, and no runner of it is here.
"""

from collections.abc import Mapping

from protocol.dataclass import dataclass
from protocol.messages.fleet import (
    BURIED_A_REPORT_MAX,
    FAILURES_A_REPORT_MAX,
    OLD_A_REPORT_MAX,
    RUNNERS_A_REPORT_MAX,
    WORD_MAX,
    NodeOrder,
    NodeReport,
    RunnerBuried,
    StartFailure,
)
from protocol.messages.member import Renewal
from protocol.text import one_line

REPORT_S = 1.0
"""How often a node reports while nothing changes."""

START_AGAIN_S = 1.0


@dataclass(frozen=True)
class LinkUp:
    """The coordinator has taken the node in, on a new connection."""


@dataclass(frozen=True)
class LinkDown:
    """That connection is gone. This proves nothing."""


@dataclass(frozen=True)
class Ordered:
    """An order came in on the connection that is up."""

    order: NodeOrder


@dataclass(frozen=True)
class Given:
    """A runner was given the run that was to have one, and that is on disk."""

    run: str
    incarnation: str


@dataclass(frozen=True)
class StartFailed:
    """No runner could be started for the run that was to have one."""

    run: str
    reason: str


@dataclass(frozen=True)
class Buried:
    """Proof: this runner and its guard are gone, and its tree was swept."""

    run: str
    incarnation: str
    last: Renewal | None  # what it knew last, if that is known


@dataclass(frozen=True)
class Aged:
    """Files of these runs, all of them, are as old as they need to be here."""

    runs: tuple[str, ...]


@dataclass(frozen=True)
class Signalled:
    """This supd was sent a signal: how often it was sent each, since it was started."""

    signals: Mapping[str, int]


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = LinkUp | LinkDown | Ordered | Given | StartFailed | Buried | Aged | Signalled | Tick


@dataclass(frozen=True)
class Ensure:
    """Start a runner for a run. Exactly one of Given and StartFailed follows."""

    run: str


@dataclass(frozen=True)
class Report:
    """Send this on the connection that is up."""

    report: NodeReport


@dataclass(frozen=True)
class Forget:
    """The end of this runner is on the coordinator's disk: it need not be on ours any more."""

    incarnation: str


@dataclass(frozen=True)
class Clear:
    """Remove what lies here of runs that are forgotten."""

    runs: tuple[str, ...]


Effect = Ensure | Report | Forget | Clear


class Node:
    """State machine of one node's runners; `given` are those the journal knows: incarnation -> run.

    Of these it is not known yet whether they are alive: each is, or is found buried.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.runners = dict(given)  # incarnation -> run; not proven gone
        self.buried: dict[str, RunnerBuried] = {}  # by incarnation, not settled; who was told of last is last
        self.failures: dict[str, StartFailure] = {}  # by run
        self.wanted: tuple[str, ...] = ()
        self.starting: set[str] = set()  # runs
        self.old: tuple[str, ...] = ()  # runs whose files could go
        self.signals: Mapping[str, int] = {}  # that this supd was sent
        self.is_up = False
        self._number = 0  # of the newest report on this connection
        self._order = 0  # number of the newest order on it
        self._tells: int | None = None  # number of the first report on it that has all signals
        self._failed = 0  # starts, ever
        self._report_at_s: float | None = None  # None: the link is down
        self._may_start_s: dict[str, float] = {}  # run -> when, where one was started a moment ago

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what must be done about it, in that order. Boot-time seconds of this node."""
        effects: list[Effect] = []
        match event:
            case LinkUp():
                self.is_up, self._number, self._order, self._report_at_s, self._tells = True, 0, 0, now_s, None
                self.wanted = ()  # what was wanted an hour ago may be over
            case LinkDown():
                self.is_up, self._report_at_s = False, None
            case Ordered(order):
                effects += self._on_ordered(order, now_s)
            case Given(run, incarnation):
                self.starting.discard(run)
                self.failures.pop(run, None)
                self.runners[incarnation] = run
            case StartFailed(run, reason):
                self.starting.discard(run)
                self._failed += 1
                self.failures[run] = StartFailure(run=run, number=self._failed, reason=one_line(reason, WORD_MAX))
                self._report_soon(now_s)
            case Buried(run, incarnation, last):
                self.runners.pop(incarnation, None)
                self.buried[incarnation] = RunnerBuried(run=run, incarnation=incarnation, last=last)
                self._report_soon(now_s)
            case Aged(runs):
                self.old = runs
            case Signalled(signals):
                self.signals, self._tells = signals, None
                self._report_soon(now_s)
            case Tick():
                pass
        effects += self._start(now_s)
        if self._report_at_s is not None and now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_S
            effects.append(Report(self._report()))
        return effects

    @property
    def may_end(self) -> bool:
        """Whether the coordinator knows of every signal that this supd was sent, or cannot be told."""
        return not self.is_up or not self.signals or (self._tells is not None and self._order >= self._tells)

    @property
    def deadline_s(self) -> float | None:
        """When a Tick is due; None: never."""
        due = [self._may_start_s[run] for run in self._lacking() if run in self._may_start_s]
        if self._report_at_s is not None:
            due.append(self._report_at_s)
        return min(due, default=None)

    def _on_ordered(self, order: NodeOrder, now_s: float) -> list[Effect]:
        if not self.is_up or order.number < self._order:
            return []  # it was overtaken by a newer one
        self._order = order.number
        self.wanted = order.wanted
        self.failures = {run: failure for run, failure in self.failures.items() if run in order.wanted}
        settled = [incarnation for incarnation in order.settled if self.buried.pop(incarnation, None) is not None]
        if settled and self.buried:
            self._report_soon(now_s)  # there was no room for all of them
        return [*(Forget(incarnation) for incarnation in settled), *self._clear(order)]

    def _clear(self, order: NodeOrder) -> list[Effect]:
        here = self._here.union(order.wanted)
        gone = tuple(run for run in self.old if run in order.forgotten and run not in here)
        self.old = tuple(run for run in self.old if run not in gone)
        return [Clear(gone)] if gone else []

    @property
    def _here(self) -> set[str]:
        """Runs that have a runner here, one being started, or one whose end is not settled."""
        return self.starting.union(self.runners.values(), (one.run for one in self.buried.values()))

    def _start(self, now_s: float) -> list[Effect]:
        """Start what is wanted and not there, where it is time for it."""
        self._may_start_s = {run: at_s for run, at_s in self._may_start_s.items() if at_s > now_s}
        due = [run for run in self._lacking() if run not in self._may_start_s]
        self.starting.update(due)
        self._may_start_s |= dict.fromkeys(due, now_s + START_AGAIN_S)
        return [Ensure(run) for run in due]

    def _lacking(self) -> list[str]:
        """Wanted runs that have no runner here, none being started, and none whose end is not settled."""
        if not self.is_up or not self.wanted:
            return []
        busy = self._here
        return [run for run in dict.fromkeys(self.wanted) if run not in busy]

    def _report_soon(self, now_s: float) -> None:
        if self.is_up:
            self._report_at_s = now_s

    def _report(self) -> NodeReport:
        self._number += 1
        if self._tells is None:
            self._tells = self._number
        buried = tuple(self.buried.values())[:BURIED_A_REPORT_MAX]
        for one in buried:  # the next report begins with others: some are settled late, and nobody waits for these
            self.buried[one.incarnation] = self.buried.pop(one.incarnation)
        return NodeReport(
            number=self._number,
            buried=buried,
            failures=tuple(self.failures.values())[:FAILURES_A_REPORT_MAX],
            runners=tuple(self.runners) if len(self.runners) <= RUNNERS_A_REPORT_MAX else None,
            old=self.old[:OLD_A_REPORT_MAX],
            signals=dict(self.signals),
        )
