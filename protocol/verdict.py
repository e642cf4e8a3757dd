"""From the exits of one generation to its incident: who was first, how it ended, what speaks for it."""

from collections.abc import Iterable

from msgspec.structs import replace

from protocol import signature, stalls
from protocol.messages.control import Incident
from protocol.messages.member import RankExit, RankReport, Renewal
from protocol.signals import SIGKILL, shell_code, signal_name
from protocol.text import one_line

SAID_MAX_CHARS = 200
"""Of what a rank has said of its end, in a line with more."""


def how(exit: RankExit) -> str:
    """`killed by SIGKILL, sender unknown`, `exited with code 3: ValueError: no such shard` …: what is known, no
    guess."""
    said = f": {one_line(exit.error.message, SAID_MAX_CHARS)}" if exit.error is not None else ""
    if exit.oom:
        return f"killed by SIGKILL, out of memory ({exit.oom})"
    if exit.signal is None:
        return f"exited with code {exit.code}{said}"
    if exit.stopped_by_us:
        return f"ended with the others{said}"
    core = " (core dumped)" if exit.core_dumped else ""
    sender = ", sender unknown" if exit.signal == SIGKILL else ""
    return f"killed by {signal_name(exit.signal)}{core}{sender}{said}"


def first_failure(renewal: Renewal) -> RankReport | None:
    """The rank of this runner that failed first, in the order in which the runner saw them end; but one that had raised
    an exception before that, by its error file, was earlier, also where it ended so late that it was stopped."""
    ended = [(report, report.exit) for report in renewal.ranks if report.exit is not None]
    failed = [(report, exit) for report, exit in ended if exit.failed]
    if not failed:
        return None
    first, its_exit = min(failed, key=lambda pair: pair[1].order)
    raised = [(r, e) for r, e in ended if e.code != 0 and e.error is not None and e.error.ahead_s > 0]
    earlier = [(r, e) for r, e in raised if e.failed_ago_s > its_exit.failed_ago_s]
    return max(earlier, key=lambda pair: pair[1].failed_ago_s, default=(first, its_exit))[0]


def killed_while_stopping(renewals: Iterable[Renewal]) -> tuple[int, ...]:
    """Ranks that were asked to end and then ended by SIGKILL: they had outlived the grace, or got none."""
    ends = ((report.rank, report.exit) for renewal in renewals for report in renewal.ranks)
    return tuple(rank for rank, exit in ends if exit is not None and exit.stopped_by_us and exit.signal == SIGKILL)


def incident(number: int, node: str, renewal: Renewal) -> Incident | None:
    """The incident a runner's report holds; None where nothing in it has failed.

    A rank that could not be spawned comes before any exit, and a rank that failed by itself before any that hangs:
    peers that waited for it are its victims.
    """
    failure = renewal.spawn_failure
    if failure is not None:
        return Incident(
            number=number,
            generation=renewal.generation,
            cause="spawn",
            summary=f"rank {failure.rank} on {node} could not be spawned: {failure.path}: {failure.reason}",
            node=node,
            rank=failure.rank,
            cause_key=signature.of_spawn(failure),
        )
    report = first_failure(renewal)
    if report is not None and report.exit is not None:
        exit = report.exit
        is_killed_by_us = exit.stopped_by_us and exit.signal is not None
        cause = "out-of-memory" if exit.oom else "exit" if exit.signal is None or is_killed_by_us else "signal"
        text = f"rank {report.rank} on {node} (pid {report.pid}) {how(exit)}"
        found = _of_rank(number, node, renewal, report, cause, text, signature.of_exit(exit))
        return replace(found, signal=None, core_dumped=False, shell_code=None) if is_killed_by_us else found
    first = stalls.culprits(renewal.ranks)
    if not first:
        return None if renewal.fenced_s is None else fenced(number, node, renewal.generation, renewal.fenced_s)
    text = stalls.describe(first[0], node)
    others = tuple(r.rank for r in stalls.fatal(renewal.ranks) if r not in first)
    if len(first) > 1:
        where = "" if first[0].step is None else " at the same step"
        text += f"; {rank_list(tuple(r.rank for r in first))} hang{where}, which was first is not known"
    text += f"; {rank_list(others)} hang{'' if len(others) > 1 else 's'} too" if others else ""
    mute = tuple(r.rank for r in renewal.ranks if r.silent_s is None)
    if mute and first[0].rank not in mute:  # perhaps they never beat, perhaps all wait for one of them
        text += f"; {rank_list(mute)} {'have' if len(mute) > 1 else 'has'} given no beat yet"
    hang = _of_rank(number, node, renewal, first[0], "hang", text, signature.of_stalls(first))
    return replace(hang, is_root=len(first) == 1)


def _of_rank(
    number: int, node: str, renewal: Renewal, report: RankReport, cause: str, summary: str, cause_key: str
) -> Incident:
    """An incident with what is known of the end of its rank, if that has come."""
    incident = Incident(
        number=number,
        generation=renewal.generation,
        cause=cause,
        summary=summary,
        node=node,
        rank=report.rank,
        local_rank=report.local_rank,
        pid=report.pid,
        cause_key=cause_key,
    )
    exit = report.exit
    if exit is None:
        return incident
    return replace(
        incident,
        exit_code=exit.code,
        signal=None if exit.signal is None else signal_name(exit.signal),
        core_dumped=exit.core_dumped,
        shell_code=shell_code(exit.code, exit.signal),
        wall_s=exit.wall_s,
        stderr_tail=exit.stderr_tail,
        evidence=exit.oom,
        error=exit.error,
    )


def runner_lost(number: int, generation: int, node: str, why: str) -> Incident:
    """The incident of a runner that went away with its ranks."""
    return _of_node(number, generation, "runner-lost", f"the runner on {node} {why}", node)


def node_lost(number: int, generation: int, node: str, why: str) -> Incident:
    """The incident of a node whose lease is over."""
    return _of_node(number, generation, "node-lost", f"{node} {why}", node)


def fenced(number: int, node: str, generation: int, silent_s: float) -> Incident:
    """The incident of a runner that was cut off from everybody."""
    summary = f"{node} was cut off: its runner had no answer for {silent_s:.1f} s and ended its ranks (lease.fence)"
    return _of_node(number, generation, "fenced", summary, node)


def _of_node(number: int, generation: int, cause: str, summary: str, node: str) -> Incident:
    return Incident(
        number=number, generation=generation, cause=cause, summary=summary, node=node, cause_key=cause.replace("-", " ")
    )


def without_tails(renewal: Renewal) -> Renewal:
    """The report without what its ranks said last, which may be large."""
    ranks = (
        report if report.exit is None else replace(report, exit=replace(report.exit, stderr_tail=()))
        for report in renewal.ranks
    )
    return replace(renewal, ranks=tuple(ranks), offer=None)


def unfinished(number: int, generation: int, node: str, ranks: tuple[int, ...], limit_s: float) -> Incident:
    """The incident of ranks that did not finish when others had."""
    return Incident(
        number=number,
        generation=generation,
        cause="finish-timeout",
        summary=f"{rank_list(ranks)} had not ended {limit_s:g} s after the first rank had (stop.finish_timeout)",
        node=node,
        rank=ranks[0] if ranks else None,
        cause_key="not finished within stop.finish_timeout",
        is_root=False,
    )


def rank_list(ranks: tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0-2, 5`: consecutive numbers as ranges, at most eight pieces."""
    pieces: list[list[int]] = []
    for rank in sorted(ranks):
        if pieces and rank == pieces[-1][1] + 1:
            pieces[-1][1] = rank
        else:
            pieces.append([rank, rank])
    text = ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in pieces[:8])
    more = f" and {len(pieces) - 8} more" if len(pieces) > 8 else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {text}{more}"
