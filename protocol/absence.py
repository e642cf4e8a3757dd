"""Who is silent, for people: what a node's part in a run is, and for whose proof the run waits. Pure."""

from protocol.coordinator_events import LIVE, Phase
from protocol.messages.control import NodeState
from protocol.run_state import RunState
from protocol.text import some_of

SILENT_S = 5.0
"""After so long without its report a runner itself is what is waited for, where it has no lease."""

PROOF = "the word of its supd that its ranks are gone, or yours: supctl node lost {}"


def node_state(run: RunState, node: str, now_s: float) -> tuple[str, str]:
    """The state of a node as the run sees it, a NodeState, and why; ("", ""): there is nothing to tell."""
    newest = run.roll.newest.get(node)
    if run.is_final:
        return "", ""
    if newest is not None and newest.fenced_s is not None:
        return NodeState.FENCED, f"its runner had no answer for {newest.fenced_s:.1f} s and has ended its ranks"
    if node in run.rendezvous.lapsed:
        return NodeState.LOST, "nothing was heard of it until its lease was over, nor since"
    if run.phase not in LIVE or node not in run.current.alive:
        return "", ""
    match run.current.leases.state(node, now_s):
        case "suspect":
            return NodeState.SUSPECT, f"its runner was heard {run.current.leases.silent_s(node, now_s):.1f} s ago"
        case "unreachable":
            return NodeState.UNREACHABLE, "its runner is heard by way of others only; its ranks go on"
        case _:
            return "", ""


def ended_by_hand(run: RunState, node: str) -> str:
    """How an operator ends a runner that does not answer on a node whose supd does: so that one proves it gone."""
    part = run.parts.get(node)
    alive = () if part is None else (rank.pid for rank in part.ranks if rank.exit is None)
    pid = next(iter(alive), None)  # of a rank, whose parent the runner is
    by_hand = "kill -9 its pid" if pid is None else f"kill -9 $(ps -o ppid= {pid})"
    return f"end its runner there, and its supd proves that: {by_hand} on {node}"


def is_heard(run: RunState, node: str, now_s: float) -> bool:
    """Whether a runner of the run is heard from that node, by any path; when the coordinator begins, all count so."""
    heard_s = run.roll.heard_s.get(node)
    if heard_s is not None and now_s <= heard_s + run.timing.suspect_s:
        return True
    is_seated = run.phase in LIVE and node in run.current.alive
    return is_seated and run.current.leases.state(node, now_s) != "suspect"


def waiting_for(run: RunState, now_s: float) -> str:
    """Which runners of this generation have not reported: yet, or for a while; "": all have, or nothing is live."""
    if run.takeover is not None:
        which = f"generation {run.takeover.generation}" if run.takeover.generation >= 0 else "it"
        return f"{run.takeover.missing()} ({which} is taken over from its runners)"
    if run.phase not in LIVE:
        return ""
    unproven: list[str] = []
    silent: list[str] = []
    for node in sorted(run.seats.keys() - run.current.gone):
        quiet_s = run.current.leases.silent_s(node, now_s)
        told = f"{node} (silent for {quiet_s:.0f} s)"
        if quiet_s > max(SILENT_S, run.seats[node].assignment.timing.ttl_s):
            unproven.append(told)
        elif node not in run.parts and run.phase is not Phase.LAUNCHING:
            silent.append(node)
    if unproven:
        first = unproven[0].split()[0]
        way = ended_by_hand(run, first) if run.rendezvous.is_up(first) else PROOF.format(first)
        return f"proof for {some_of(unproven)}: {way}"
    return f"the runner on {', '.join(silent)} to report" if silent else ""
