"""Who is silent, for people: what a node's part in a run is, and for whose proof the run waits. Pure."""

from collections.abc import Mapping

from protocol.coordinator_events import LIVE, Phase
from protocol.messages.control import NodeState
from protocol.run_state import RunState
from protocol.takeover import Takeover
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
    if node in run.preempted:
        has_ranks = run.phase in LIVE and node in run.current.alive
        state = NodeState.DRAINING if has_ranks else NodeState.DRAINED
        return state, f"it was given notice; supctl undrain {node} has it used again"
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
    part = run.parts.get(node) or run.roll.newest.get(node)
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
    """Which runners have not reported: yet, or for a while, so that an operator has to help; "": there are none."""
    if run.takeover is not None:
        return f"{_untold(run, run.takeover)}{_way_past(run, now_s)}"
    if run.phase is Phase.FORMING:  # a runner was ahead of a coordinator that had lost its memory
        return _proof_of(run, {node: now_s - run.roll.heard_s[node] for node in sorted(run.roll.busy)})
    if run.phase not in LIVE:
        return ""
    quiet_s = {node: run.current.leases.silent_s(node, now_s) for node in sorted(run.seats.keys() - run.current.gone)}
    if proof := _proof_of(run, quiet_s):
        return proof
    silent = [node for node in quiet_s if node not in run.parts and run.phase is not Phase.LAUNCHING]
    return f"the runner on {', '.join(silent)} to report" if silent else ""


def _proof_of(run: RunState, quiet_s: Mapping[str, float]) -> str:
    """What is waited for of these nodes, whose ranks are not known to have ended; "": none is silent for long."""
    limit_s = {node: max(SILENT_S, seat.assignment.timing.ttl_s) for node, seat in run.seats.items()}
    unproven = [node for node, silent_s in quiet_s.items() if silent_s > limit_s.get(node, SILENT_S)]
    if not unproven:
        return ""
    first, told = unproven[0], [f"{node} (silent for {quiet_s[node]:.0f} s)" for node in unproven]
    way = PROOF.format(first)
    if run.rendezvous.is_up(first):
        way = f"{ended_by_hand(run, first)}; where its supd knows of none: supctl node lost {first}"
    return f"proof for {some_of(told)}: {way}"


def _untold(run: RunState, takeover: Takeover) -> str:
    which = f"generation {takeover.generation}" if takeover.generation >= 0 else "it"
    return f"{takeover.missing()} ({which} is taken over from its runners)"


def _way_past(run: RunState, now_s: float) -> str:
    """How an operator ends the wait for what is taken over, where that is not refused."""
    if run.stop is not None:
        return "; supctl stop --now waits for nobody"
    if not run.refuses_restart:
        return "; or for your word that nobody runs it: supctl restart"
    silent = next((node for node in run.busy_ahead if not is_heard(run, node, now_s)), "")
    return f"; or for your word that nothing runs on {silent}: supctl node lost {silent}" if silent else ""
