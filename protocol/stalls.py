"""Ranks that have passed a limit of [hang], as people and programs are told of them. Pure functions."""

from collections.abc import Iterable

from protocol.health import LOOK_S
from protocol.messages.member import RankReport, StallState
from protocol.text import one_line


def fatal(reports: Iterable[RankReport]) -> list[RankReport]:
    """Those of ranks that hang so that their generation must end."""
    return [report for report in reports if report.stall is not None and report.stall.is_fatal]


def culprits(reports: Iterable[RankReport]) -> list[RankReport]:
    """Of the ranks that end their generation by a hang, those the others most likely wait for, by rank.

    A process that cannot run comes first, then who is furthest behind, then who has been silent for longest. Silences
    that differ by no more than the pause between two looks are the same: then there are several.
    """

    def key(report: RankReport) -> tuple[bool, int]:
        assert report.stall is not None
        return report.stall.state == StallState.ALIVE, -1 if report.step is None else report.step

    def silent_s(report: RankReport) -> float:
        assert report.stall is not None
        return report.stall.silent_s

    found = fatal(reports)
    first = min(map(key, found), default=None)
    alike = [report for report in found if key(report) == first]
    longest_s = max(map(silent_s, alike), default=0.0)
    return sorted((r for r in alike if not silent_s(r) < longest_s - LOOK_S), key=lambda report: report.rank)


def culprit(reports: Iterable[RankReport]) -> RankReport | None:
    """The one that is named: of several the one with the lowest rank; None where nobody ends the generation."""
    return next(iter(culprits(reports)), None)


_STATES = {
    StallState.STOPPED: ("stopped (T)", "; someone sent it SIGSTOP, or a debugger holds it"),
    StallState.UNINTERRUPTIBLE: (
        "in D state",
        "; it waits in the kernel, mostly for a disk, a network file system or a driver",
    ),
    StallState.GONE: ("gone", "; the process that beat has ended, the rank's main process has not"),
    StallState.ALIVE: ("alive", ""),
}
"""Of a process that hangs: how it is called, and what that tells."""


def how(report: RankReport) -> str:
    """`alive, no beat for 10.3 s, limit 10 s (hang.step_timeout), last step 40`: all that is known."""
    stall = report.stall
    if stall is None:
        return ""
    state, why = _STATES[stall.state]
    beat = "first beat" if stall.setting == "hang.init_timeout" else "beat"
    text = f"{state}, no {beat} for {stall.silent_s:g} s, limit {stall.limit_s:g} s ({one_line(stall.setting, 100)})"
    text += f", in phase {one_line(report.phase, 100)}" if report.phase else ""
    text += "" if report.step is None else f", last step {report.step}"
    return text + why


def describe(report: RankReport, node: str) -> str:
    """One line about a rank that hangs."""
    return f"rank {report.rank} on {node} (pid {report.pid}) hangs: {how(report)}"
