"""How a transcript says what runners and their coordinator do: one line each."""

import re

from protocol import member_events as m
from protocol.ids import NO_GENERATION
from protocol.messages.member import Assignment, Order, Release, Renewal, Run, Stop, Tell, Testimony, Wait
from protocol.signals import signal_name
from protocol.verdict import rank_list

_COUNTED = re.compile(
    r"(?<=renewal )\d+|(?<=answer )\d+|(?<=port )\d+|[\d.]+(?= s (ago|from now))|(?<=at )[\d.]+(?= s\b)"
)
"""What is another one each time, though the same is said."""


def gist(line: str) -> str:
    """What a line says, but for numbers and times that go up by themselves."""
    return _COUNTED.sub("", line)


def order(told: Order) -> str:
    """What a runner is to do."""
    match told:
        case Run(assignment, awaits_save):
            return f"run {assignment.generation}{', and tell of a checkpoint at once' if awaits_save else ''}"
        case Stop(generation, grace_s, now):
            how = " now" if now else "" if grace_s is None else f" with {grace_s:g} s grace"
            how += "" if told.pre_wait_s is None else f", {told.pre_wait_s:g} s to answer"
            why = f", {told.reason}" if told.reason else ""
            return f"stop {generation}{how}{', all have answered' if told.is_answered else ''}{why}"
        case Wait():
            return "wait"
        case Tell():
            return "go on, and tell your assignment"
        case Release():
            return "release"


def report(renewal: Renewal) -> str:
    """The whole state of a runner."""
    words = [renewal.part.value]
    if renewal.generation != NO_GENERATION:
        words.append(f"generation {renewal.generation}")
    if renewal.fenced_s is not None:
        words.append(f"fenced after {renewal.fenced_s:g} s without an answer")
    for r in renewal.ranks:
        state = "started" if r.started else "spawned"
        if r.exit is not None:
            end = signal_name(r.exit.signal) if r.exit.signal is not None else f"code {r.exit.code}"
            state = f"ended by {end}" + (" after our stop" if r.exit.stopped_by_us else "")
        state += f", step {r.step}" if r.step is not None else ""
        state += ", has answered" if r.has_answered and r.exit is None else ""
        state += " and hangs" if r.stall is not None and r.exit is None else ""
        words.append(f"rank {r.rank} {state}")
    if renewal.spawn_failure is not None:
        words.append(f"rank {renewal.spawn_failure.rank} cannot be spawned")
    if renewal.saves:
        count = f"{renewal.saves} checkpoint{'s' if renewal.saves > 1 else ''}"
        words.append(f"{count}, the last of step {renewal.saved_step}")
    if renewal.notice:
        words.append(f"will be taken away ({renewal.notice})")
    if renewal.offer is not None:
        words.append(f"offers {renewal.offer.slots} ranks and port {renewal.offer.port}")
    return ", ".join(words)


def spawning(assignment: Assignment) -> str:
    """What a runner is about to start."""
    last = assignment.first_rank + assignment.nproc - 1
    return f"spawns ranks {assignment.first_rank}-{last}, master port {assignment.master_port}"


def hold(effect: m.Hold) -> str:
    """What a guard is told."""
    return "tells its guard to kill " + ("nothing" if effect.until_s is None else f"at {effect.until_s:g} s")


def testimony(told: Testimony) -> str:
    """What a witness says of a runner."""
    if told.word_s is None:
        return f"to supd: has given {told.incarnation} no word"
    return f"to supd: has given {told.incarnation} its word {told.word_s:g} s ago"


def of_ranks(effect: m.Signal | m.Abort | m.KeepStacks | m.TermLeftovers | m.Clear | m.KillAll, now_s: float) -> str:
    """What is done to processes."""
    match effect:
        case m.Signal(rank, number, tree):
            return f"sends {signal_name(number)} to rank {rank}{' and its tree' if tree else ''}"
        case m.Abort(ranks):
            return f"sends SIGABRT and SIGCONT to what beats of {rank_list(ranks)}"
        case m.KeepStacks(rank):
            return f"keeps what rank {rank} writes to stderr from now on"
        case m.TermLeftovers():
            return "sends SIGTERM to what belongs to no live rank"
        case m.Clear(generation, kill_at_s):
            return f"clears generation {generation} away, SIGKILL {kill_at_s - now_s:g} s from now"
        case m.KillAll(generation):
            return f"sends SIGKILL to everything of generation {generation}"
