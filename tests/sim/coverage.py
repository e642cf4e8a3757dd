"""What a run of many seeds must have met, each at least once: troubles, transitions of the machines, what they ignore.

A name that is counted and not listed here is as much of a fault as one that is listed and never met: a transition that
nobody has thought of, most likely. The names are counted where the thing happens; those of the machines here.
"""

from collections import Counter

from protocol.coordinator import Coordinator
from protocol.coordinator_events import Event, Heard, RestartRequested, RunnerFailed, RunnerGone, StopRequested
from protocol.member import Member
from protocol.member_events import SETTLED
from protocol.messages.member import Answer, Release, Run, Stop, Tell, Wait

Seen = Counter[str]

LISTED: dict[str, tuple[str, ...]] = {
    "asked": ("question",),
    "coordinator": (
        "backoff to forming",
        "backoff to launching",
        "backoff to stopped",
        "forming to failed",
        "forming to preempted",
        "forming to launching",
        "forming to stopped",
        "held to forming",
        "held to launching",
        "launching to backoff",
        "launching to failed",
        "launching to forming",
        "launching to held",
        "launching to running",
        "launching to stopping",
        "launching to succeeded",
        "running to backoff",
        "running to failed",
        "running to forming",
        "running to launching",
        "running to stopping",
        "running to succeeded",
        "stopping to backoff",
        "stopping to failed",
        "stopping to forming",
        "stopping to held",
        "stopping to launching",
        "stopping to preempted",
        "stopping to stopped",
        "stopping to succeeded",
    ),
    "fault": (
        "all supds killed",
        "clog",
        "connections broken",
        "cut that moves",
        "devices busy",
        "everything killed on a node",
        "group cut off",
        "guard frozen",
        "guard killed",
        "host killed",
        "host moved",
        "host moved while the old one lives",
        "host's connections broken",
        "host killed after a burial",
        "host killed as a link is cut",
        "host killed after a write",
        "host killed in a start",
        "host killed in a write",
        "host slow",
        "journal lost",
        "journal put back",
        "just after a phase has changed",
        "killed process outlives the patience",
        "killed process waits for the kernel",
        "link cut",
        "link cut one way",
        "machine off",
        "machine off, and its disk wiped",
        "machine slow",
        "message doubled",
        "message held back",
        "message held by a clog",
        "message lost",
        "message lost on a cut link",
        "node cut off",
        "node deaf or mute",
        "nodes are given notice at once",
        "notice is withdrawn",
        "operator drains",
        "operator drains at a time",
        "operator drains now",
        "operator gives a node for lost",
        "operator reloads",
        "operator restarts",
        "operator resumes",
        "operator scales",
        "operator restarts twice",
        "operator restarts without a node",
        "operator starts another run",
        "operator stops",
        "operator stops in a backoff",
        "operator stops now",
        "operator stops twice",
        "operator undrains",
        "rank could not be spawned",
        "rank does not answer the pre-signal",
        "rank dies of another's death",
        "rank fails as it starts",
        "rank ignores the stop signal",
        "runner and guard killed",
        "runner could not be started",
        "runner dismissed",
        "runner is given notice",
        "runner killed",
        "runner killed after it reports another part",
        "runner killed after its ranks have finished",
        "runner slow",
        "slow write",
        "stranger",
        "stranger speaks as a runner",
        "supd is sent a notice",
        "supd killed",
        "supd killed before it forgets a runner",
        "supd killed in a write",
        "supd slow",
        "the link cut",
        "two cuts",
        "ways cut here and there",
        "worker crash",
        "worker crash that is told late",
        "worker killed",
    ),
    "guard": ("kills",),
    "ignored": (
        "answer of a coordinator that was replaced",
        "failed start after the end of the run",
        "message of a connection that was given up",
        "order to a node that a newer one overtook",
        "order to a runner that ends",
        "proof that was known",
        "renewal after the end of the run",
        "renewal of a past generation",
        "renewal of a runner that is gone",
        "renewal of a second runner of a node",
        "renewal of a spare",
        "renewal that a newer one overtook",
        "report of a node that a newer one overtook",
        "report on a link that was given up",
        "restart of a run that ends",
        "run of a past generation",
        "runner gone after the end of the run",
        "stop after the end of the run",
        "stop of a past generation",
    ),
    "member": (
        "finished to launching",
        "finished to stopped",
        "idle to launching",
        "idle to stopped",
        "launched to running",
        "launched to stopping",
        "launching to launched",
        "launching to stopping",
        "running to finished",
        "running to stopping",
        "stopped to launching",
        "stopping to stopped",
    ),
    "passed on": ("answer",),
    "planned": ("drain", "grow", "nodes are taken away", "scale"),
    "refused": (
        "F301",
        "F302",
        "F303",
        "F304",
        "F305",
        "F306",
        "move while the old host lives, or may",
        "upkeep of a node that is not known",
        "restart without a node that the run needs",
        "word of a coordinator that was replaced",
    ),
    "run": (
        "failed",
        "preempted",
        "stopped",
        "succeeded",
    ),
    "shared": ("node",),
    "taken": (
        "epoch of another coordinator",
        "generation of a runner that was ahead",
        "last resort",
        "node that is excluded",
        "host that gives way",
        "node that is lost",
        "run that waits for slots",
        "run that was not known",
        "runner gone that was not heard",
        "second stop",
        "stop of a generation that was never launched here",
        "stranger",
        "stranger that is warned of",
    ),
    "word": ("given", "refused"),
}
"""By kind. Of the coordinator and of members these are all transitions there are."""

NEVER = frozenset(
    {
        "coordinator: backoff to preempted",
        "coordinator: held to stopped",
        "coordinator: running to held",
        "ignored: failed start where a runner is",
        "refused: host that was replaced",
        "refused: order of a coordinator that was replaced",
        "refused: restart of what nobody knows yet",
        "refused: word on a node that answers",
        "taken: generation that nobody can name",
        "taken: number of a generation of which nothing is known",
        "taken: number of a generation that was lost with the journal",
        "waits: end of a runner of a run that is being taken over",
        "waits: end of a runner of a run that is not known",
    }
)
"""What is counted, and cannot be asked for. A node tells of a failed start until it has a runner for that run, and it
starts none while it has one whose end is not settled: only a report that was on its way for very long may show it. A
host gives way, or begins a higher epoch, before it answers who has heard of a higher one: a word of a lower epoch needs
one that was held back while, on the same connection, a runner raised the epoch (once in 500 seeds; a story of
test_losses.py has both). A run that is held is seldom stopped before it is let go on; it is held at once, of what
a runner that ran all of it took with it, once in 2,000 seeds. That nodes are taken away in a backoff, and too few are
left, was met once in 12,000. An operator's word is mostly given of nodes that are off. The others need a journal that
is lost, and most runners lost as well."""

EXPECTED = tuple(f"{kind}: {name}" for kind, names in LISTED.items() for name in names)


def of_answer(seen: Seen, member: Member, answer: Answer) -> None:
    """Count an answer whose order changes nothing for a runner, before it is handed in."""
    if answer.epoch < member.lease.epoch:
        seen["ignored: answer of a coordinator that was replaced"] += 1
        return
    match answer.order:
        case Run(assignment) if assignment.generation < member.generation:
            seen["ignored: run of a past generation"] += 1
        case Run(assignment) if assignment.generation > member.generation and member.part not in SETTLED:
            seen["deferred: run, before the last generation is gone"] += 1
        case Stop(generation) if generation < member.generation:
            seen["ignored: stop of a past generation"] += 1
        case Stop(generation) if generation > member.generation and member.part in SETTLED:
            seen["taken: stop of a generation that was never launched here"] += 1
        case Run() | Stop() | Release() | Wait() | Tell():
            if member.is_ending:
                seen["ignored: order to a runner that ends"] += 1


def of_event(seen: Seen, machine: Coordinator, event: Event) -> None:
    """Count an event that changes nothing for a coordinator, before it is handed in."""
    match event:
        case Heard(node, incarnation, renewal):
            if machine.is_final:
                seen["ignored: renewal after the end of the run"] += 1
            elif machine.roll.is_past(incarnation):
                seen["ignored: renewal of a runner that is gone"] += 1
            elif node in machine.roll.runners and not machine.roll.has(node, incarnation):
                seen["ignored: renewal of a second runner of a node"] += 1
            elif (known := machine.roll.newest.get(node)) is not None and renewal.number < known.number:
                seen["ignored: renewal that a newer one overtook"] += 1
            elif renewal.generation < machine.generation and machine.phase not in ("forming", "backoff"):
                seen["ignored: renewal of a past generation"] += 1
            elif node not in machine.seats and machine.seats:
                seen["ignored: renewal of a spare"] += 1
        case RunnerGone(node, incarnation):
            if machine.roll.is_past(incarnation):
                seen["ignored: proof that was known"] += 1
            elif machine.is_final:
                seen["ignored: runner gone after the end of the run"] += 1
            elif not machine.roll.has(node, incarnation):
                seen["taken: runner gone that was not heard"] += 1
        case RunnerFailed(node):
            if machine.is_final:
                seen["ignored: failed start after the end of the run"] += 1
            elif node in machine.roll.runners:
                seen["ignored: failed start where a runner is"] += 1
        case StopRequested():
            if machine.is_final:
                seen["ignored: stop after the end of the run"] += 1
            elif machine.stop is not None:
                seen["taken: second stop"] += 1
        case RestartRequested():
            if machine.is_final or machine.stop is not None:
                seen["ignored: restart of a run that ends"] += 1
        case _:
            pass


def never_met(seen: Seen) -> list[str]:
    """What is listed and was not met."""
    return [name for name in EXPECTED if not seen[name]]


def unknown(seen: Seen) -> list[str]:
    """What was met and is not listed."""
    return sorted(name for name in seen if seen[name] and name not in NEVER and name not in EXPECTED)
