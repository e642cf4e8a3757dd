"""What must hold while a run waits: it says for what, not for nobody, and asks for all the runners that it can use."""

from protocol.coordinator import Coordinator
from protocol.coordinator_events import LIVE, Phase
from protocol.member_events import SETTLED
from protocol.messages.control import RunStatus
from protocol.pool import ATTEMPTS_MAX, FRESH_S
from protocol.timing import DRIFT
from tests.sim.truth import Facts, Truth

PATIENCE_S = 6.0
"""Who is silent for so much longer than a lease is missed."""

LOOKS_MAX = 4
"""What is decided, or asked for, comes with the next renewals; somebody looks once a second."""


class WaitingRules:
    """Looks at the runs once a second, and at each launch."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def on_looked(self, run: str, machine: Coordinator, status: RunStatus) -> None:
        """Somebody has looked at a run."""
        truth = self._facts.runs[run]
        table = self._facts.spec_of(run, truth.before).topology
        is_mute = not status.waiting_for and machine.phase in (Phase.FORMING, Phase.BACKOFF, Phase.STOPPING)
        self._see(truth, f"{run} is {machine.phase}, and does not say what it waits for", is_mute)
        assert status.reason or not status.is_final, f"{run} is over without a reason"
        left_out = {machine.without, truth.without, truth.before.without, *self._facts.spared(truth.before)}
        fit = [node for node in self._facts.could if node not in left_out and truth.failed_starts[node] < ATTEMPTS_MAX]
        usable = min((truth.before.nnodes or table.nnodes)[1], len(fit))  # also where fewer would do (P5)
        is_active = not machine.is_final and machine.stop is None and self._facts.is_fair
        has_seats = machine.phase in LIVE
        gone = {*truth.before.lost, *truth.before.lapsed}
        alive = {s.node for s in truth.before.seats if s.node not in gone} if has_seats else set()
        is_short = len(truth.wanted | alive) < usable
        self._see(truth, f"{run} has too few runners, and does not ask for more", is_active and is_short)
        ready = [node for node in fit if self._is_ready(run, node)]
        are_all = len(ready) >= usable >= table.nnodes[0]
        is_idle = is_active and machine.phase is Phase.FORMING and self._may_mix
        is_idle &= machine.takeover is None  # else it may be waiting for an operator, who comes now and then
        is_idle &= not any(self._has_last_port(run, node) for node in truth.wanted)  # the best of them may be rank 0's
        is_idle &= all(self._is_ready(run, node) for node in truth.wanted - {*fit})  # else it may wait for those too
        self._see(truth, f"{run} has all its nodes, and does not begin", is_idle and are_all)

    def on_silence(self, run: str, machine: Coordinator, status: RunStatus, now_s: float) -> None:
        """R7: who waits for a proof says for whose."""
        if machine.phase not in LIVE or machine.takeover is not None:
            return
        leases, timing = machine.current.leases, self._facts.setup.timing
        open_nodes = machine.seats.keys() - machine.current.gone
        silent = [node for node in open_nodes if leases.silent_s(node, now_s) > timing.ttl_s + PATIENCE_S]
        is_mute = bool(silent) and not any(node in status.waiting_for for node in silent)
        self._see(self._facts.runs[run], f"{run} does not say for whose proof it waits", is_mute)

    @staticmethod
    def _see(truth: Truth, what: str, is_so: bool) -> None:
        truth.looks[what] = truth.looks[what] + 1 if is_so else 0
        assert truth.looks[what] < LOOKS_MAX, what

    @property
    def _may_mix(self) -> bool:
        return self._facts.setup.allow_mixed or not self._facts.setup.digests

    def _is_ready(self, run: str, node: str) -> bool:
        """Whether a node has a runner that has nothing to do."""
        runner = self._facts.runners.get((node, run))
        return (
            runner is not None
            and runner.is_alive
            and runner.member is not None
            and runner.member.part in SETTLED
            and not runner.member.is_ending
            and runner.incarnation in self._facts.runs[run].offered
            and not self._has_last_port(run, node)
        )

    def _has_last_port(self, run: str, node: str) -> bool:
        """Whether its runner offers the port that rank 0 had (there are few of them here)."""
        truth, runner = self._facts.runs[run], self._facts.runners.get((node, run))
        last = truth.before.seats[0].assignment.master_port if truth.before.seats else None
        return runner is not None and truth.offered.get(runner.incarnation, (0.0, 0))[1] == last

    def on_launched(self, run: str, machine: Coordinator) -> None:
        """Every node of a generation has just been heard to offer itself; not where it was taken over from runners."""
        if machine.current.launched_s is None:
            return
        truth, now_s = self._facts.runs[run], self._facts.clock.now_s
        for seat in machine.seats.values():
            assert seat.incarnation in truth.offered, f"{seat.incarnation} has ranks, and has offered none"
            silent_s = now_s - truth.offered[seat.incarnation][0]
            assert silent_s <= FRESH_S / (1 - DRIFT) + 1e-6, (
                f"{seat.incarnation} has ranks, and was silent for {silent_s:.1f} s"
            )
