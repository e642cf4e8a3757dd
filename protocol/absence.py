"""Who is silent, for people: what a node's part in a run is, and for whose proof the run waits. Pure."""

from collections.abc import Callable, Mapping

from protocol.coordinator_events import LIVE, Phase
from protocol.dataclass import dataclass
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


@dataclass(frozen=True)
class Unproven:
    """The runs that may have a runner on a node."""

    needs_word: tuple[str, ...] = ()  # nobody but an operator can tell that it is gone
    quiet: tuple[str, ...] = ()  # it does not answer, and the supd there has it
    heard: tuple[str, ...] = ()  # it answers


def unproven(node: str, runs: Mapping[str, RunState], lacks: Callable[[str], bool] | None, now_s: float) -> Unproven:
    """Of these runs, by name. `lacks` says of a runner that the supd there does not have it; None: no supd answers.

    A disk that was lost, or an old journal, is why a supd may know nothing of a runner. Where none answers and a runner
    does, the machine is on: nobody is given up there.
    """
    runners = {name: on for name, run in runs.items() if (on := runners_on(node, run))}
    heard = tuple(name for name in runners if is_heard(runs[name], node, now_s))
    silent = [name for name in runners if name not in heard]
    if lacks is None:
        return Unproven(() if heard else tuple(silent), (), heard)
    needs_word = tuple(name for name in silent if all(map(lacks, runners[name])))
    return Unproven(needs_word, tuple(name for name in silent if name not in needs_word), heard)


def runners_on(node: str, run: RunState) -> frozenset[str]:
    """The runners of the run whose end is not proven, by incarnation: the one with ranks on the node, and the one that
    was heard there last; if that is another, and has no ranks, nobody has to prove anything of it."""
    if run.is_final:
        return frozenset()
    has_seat = run.phase in LIVE and node in run.current.alive
    runners = {run.seats[node].incarnation} if has_seat else set[str]()
    if node in run.roll.busy or (not has_seat and node in run.roll.runners):
        runners.add(run.roll.runners[node])
    return frozenset(runners)


def is_heard(run: RunState, node: str, now_s: float) -> bool:
    """Whether a runner of the run whose end is not proven is heard from that node, by any path; when the coordinator
    begins, all count so."""
    heard_s = run.roll.heard_s.get(node)
    is_recent = heard_s is not None and now_s <= heard_s + run.timing.suspect_s
    if is_recent and run.roll.runners[node] in runners_on(node, run):
        return True
    is_seated = run.phase in LIVE and node in run.current.alive
    return is_seated and run.current.leases.state(node, now_s) != "suspect"


def waiting_for(run: RunState, now_s: float) -> str:
    """Which runners have not reported: yet, or for a while, so that an operator has to help; "": there are none."""
    if run.takeover is not None:
        return f"{_untold(run, run.takeover)}{_way_past(run, now_s)}"
    if run.phase is Phase.FORMING:  # a runner was ahead of a coordinator that had lost its memory
        return _proof_of(run, {node: now_s - run.roll.heard_s[node] for node in sorted(run.busy)})
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
