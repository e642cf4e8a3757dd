"""What would become of a run: if a rank ended in some way now, and then again and again; and without some of its nodes.
Changes nothing."""

from collections.abc import Collection

from protocol import signature
from protocol.coordinator import Coordinator
from protocol.coordinator_events import Phase
from protocol.dataclass import replace
from protocol.effective import duration_text
from protocol.exit_code import ExitCode
from protocol.messages.upkeep import PolicyStep
from protocol.restart import Again, Failure, decide
from protocol.signals import signal_name
from protocol.text import some_of

SHELL_SIGNAL, SIGNAL_MAX = 128, 64
"""A shell shows signal N as 128 + N."""

LONGEST = 1.0
"""In place of the draw of a backoff: the longest wait that there may be."""


def steps(run: Coordinator, exit_code: int, times: int, now_s: float) -> tuple[PolicyStep, ...]:
    """The decisions about so many failures in a row, from where the run stands; fewer where one of them ends it.

    `exit_code` is as a shell shows it. The present generation counts with what it has come to; those that follow end
    at once, at the same step.
    """
    table, ledger = run.spec.restart, run.ledger
    failure = _failure(run, exit_code, now_s)
    found: list[PolicyStep] = []
    while len(found) < times:
        decision, ledger = decide(table, ledger, failure, LONGEST)
        number = len(found) + 1
        if not isinstance(decision, Again):
            action = "hold" if decision.is_held else "fail"
            return (*found, PolicyStep(number=number, action=action, delay_s=0.0, charged=False, why=decision.why))
        found.append(
            PolicyStep(
                number=number,
                action="restart",
                delay_s=decision.delay_s,
                charged=decision.charged,
                why=decision.why,
            )
        )
        failure = replace(failure, ran_s=0.0, time_s=failure.time_s + decision.delay_s)
    return tuple(found)


def without(name: str, run: Coordinator, nodes: Collection[str]) -> str:
    """What it leads to if the run `name` has to leave these nodes, come what may; "": it goes on."""
    used = [node for node in nodes if node in run.seats]
    if not used or run.is_final or run.stop is not None or run.phase is Phase.HELD:
        return ""
    why = run.rendezvous.missed_all(nodes)
    if not why:
        return ""
    told = f"{name} cannot go on without {some_of(used)}: {why}"
    if run.rendezvous.may_suffice(nodes):
        return f"{told}; it waits until other runs have left slots enough"
    waits = duration_text(run.spec.rendezvous.join_timeout_s)
    code = int(ExitCode.LACKED_NODES)
    return f"{told}; it waits for another node, and ends with exit code {code} after {waits} (rendezvous.join_timeout)"


def _failure(run: Coordinator, exit_code: int, now_s: float) -> Failure:
    number = exit_code - SHELL_SIGNAL
    is_signal = 1 <= number <= SIGNAL_MAX
    seen = run.current.reports.last_step
    return Failure(
        cause=signal_name(number) if is_signal else signature.of_code(exit_code),
        exit_code=None if is_signal else exit_code,
        has_ever_started=run.has_started,
        had_started=run.current.reports.all_started,
        ran_s=run.current.ran_s(run.run_s(now_s)),
        saved_step=run.saved_step,
        seen_step=None if seen is None else seen[0],
        time_s=run.run_s(now_s),
    )
