"""Have nodes free: they take no new work, and the runs that use them go on elsewhere.

By default a run leaves a node at its next checkpoint, where a spare stands by or enough other nodes are left; without
such a node it stays, and says so. `--at now` and a TIME do not wait for that: a run that then lacks nodes waits for
other ones, without ranks, and ends with 75 after rendezvous.join_timeout. drain says so at once of whom it concerns. It
returns once no run has ranks there. Ctrl-C, and --no-wait, leave the drain on; until `supctl undrain` a node that was
drained is not used again. A second drain of a node stands for the first.
"""

import argparse
import time
from collections.abc import Sequence

from protocol.errors import SupdError
from protocol.exit_code import ExitCode
from protocol.messages.control import Done, GetNodes, Nodes, NodeStatus, RunStatus
from protocol.messages.upkeep import REASON_MAX, DrainNodes
from supervisor.cli.arguments import add_deadline, node_word, reason_word
from supervisor.cli.context import Context, Detached
from supervisor.cli.follow import NUMBER
from supervisor.cli.log_lines import safe
from supervisor.cli.node_text import ranks_text
from supervisor.cli.render import span
from supervisor.cli.watching import MAY_COME_BACK
from supervisor.shell.clock import boot_s, wall_s

LOOK_S, LOOK_LATER_S = 0.2, 1.0
"""Between two looks; the latter once it has taken a while."""

LATER_S = 10.0

LAUNCH_S = 10.0
"""How long the next generation of a run that has left is waited for, unless that one waits for something itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl drain`'s own arguments."""
    parser.add_argument("nodes", metavar="NODE", nargs="+", type=node_word, help="as `supctl nodes` names it")
    parser.add_argument(
        "--at",
        metavar="WHEN",
        type=_when,
        default=("next-checkpoint", 0.0),
        help="next-checkpoint (default), now, or a TIME like 02:30, 2026-12-01T02:30 or +3h",
    )
    add_deadline(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", type=reason_word(REASON_MAX), default="", help="shown in nodes and events"
    )
    parser.add_argument("--no-wait", action="store_true", help="return at once; it goes on")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Drain, then look on until the nodes are free."""
    names = tuple(dict.fromkeys(arguments.nodes))
    at, after_s = arguments.at
    request = DrainNodes(nodes=names, at=at, after_s=after_s, deadline_s=arguments.deadline, reason=arguments.reason)
    done = context.client.ask(request, Done)
    leave = _Leave(context, names)
    try:
        leave.begin()
        for note in done.notes:
            context.screen.tell(f"{context.screen.err.paint('!', 'yellow')} {safe(note)}")
        if not arguments.no_wait and not leave.wait():
            return ExitCode.FAILED
    except KeyboardInterrupt:
        stay = "stays" if len(names) == 1 else "stay"
        raise Detached(f"detached; {', '.join(names)} {stay} draining   → supctl nodes") from None
    if context.screen.is_quiet:
        context.screen.print(*names)
    return ExitCode.OK


class _Leave:
    """Runs leave nodes: what they wait for is told, a line a change, and at last that the nodes are free."""

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        self._context = context
        self._screen = context.screen
        self._names = names
        self._began_s = boot_s()
        self._told: dict[str, str] = {}  # node or run -> what was told of it last
        self._before: dict[str, RunStatus] = {}  # runs that use the nodes, as they were seen first
        self._is_away = self._is_lifted = False

    def begin(self) -> None:
        """Tell who uses the nodes, and what these runs wait for."""
        for node in self._nodes():
            uses = [self._use(name, node) for name in node.runs]
            self._screen.tell(f"{node.node} takes no new work. {' '.join(uses) or 'No run uses it.'}")
            self._see_node(node)
        self._settled_runs()

    def wait(self) -> bool:
        """Until every node is free, and runs go on; returns whether all are, since somebody may have lifted it."""
        while self._draining():
            self._settled_runs()
            self._pause()
        until_s = boot_s() + LAUNCH_S
        while not self._is_lifted and self._settled_runs() < len(self._before) and boot_s() < until_s:
            self._pause()
        return not self._is_lifted

    def _draining(self) -> int:
        """How many nodes are not free yet."""
        return sum(not self._see_node(node) for node in self._nodes())

    def _settled_runs(self) -> int:
        """How many runs go on elsewhere, or wait for something."""
        return sum(self._see_run(name) for name in self._before)

    def _pause(self) -> None:
        is_late = boot_s() - self._began_s > LATER_S
        time.sleep(LOOK_LATER_S if is_late else LOOK_S)  # noqa: TID251  # nobody tells of nodes and runs at once

    def _nodes(self) -> list[NodeStatus]:
        """As they are; while supd is away, once it is back."""
        asked = self._names[0] if len(self._names) == 1 else ""
        while True:
            try:
                nodes = self._context.client.ask(GetNodes(node=asked), Nodes).nodes
            except SupdError as exc:
                if exc.code not in MAY_COME_BACK:
                    raise
                if not self._is_away:
                    self._is_away = True
                    self._screen.tell(f"… waiting for supd to be back: {exc}")
                self._pause()
            else:
                self._is_away = False
                return [node for node in nodes if node.node in self._names]

    def _use(self, name: str, node: NodeStatus) -> str:
        status = self._context.client.status(name, with_ranks=True)
        self._before[name] = status
        ranks = [rank.rank for rank in status.rank_list if rank.node == node.node]
        spares = [spare for spare in status.spares if spare not in self._names]
        ready = "no spare stands by yet"
        if spares:
            ready = f"spare{'s' * (len(spares) > 1)} {', '.join(spares)} {'is' if len(spares) == 1 else 'are'} ready"
        return f"{name} uses it ({'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}); {ready}."

    def _see_node(self, node: NodeStatus) -> bool:
        """Whether it is not waited for any more."""
        if not node.drain_by:
            self._is_lifted = True
            self._tell(node.node, f"{node.node} was undrained meanwhile")
        elif node.is_drained:
            mark, took = self._screen.err.paint("✓", "green"), span(boot_s() - self._began_s)
            if node.node not in self._told:
                self._tell(node.node, f"{mark} {node.node} drained   {took}")
        return node.is_drained or not node.drain_by

    def _see_run(self, name: str) -> bool:
        """Whether it has left, and goes on elsewhere, or waits for something."""
        try:
            status = self._context.client.status(name)
        except SupdError:
            return False  # who is asked for the nodes tells of it
        before = self._before[name]
        is_next = status.generation is not None and status.generation > (before.generation or 0)
        if status.is_final:
            self._tell(name, f"{name} is over ({status.state})")
        elif is_next:
            mark = self._screen.err.paint("✓", "green")
            self._tell(name, f"{mark} generation {status.generation} of {name} on {', '.join(status.nodes)}")
        elif status.plan:
            left = "" if status.plan_left_s is None else f", {span(status.plan_left_s)} left"
            self._wait_line(name, f"… {name}: {safe(status.plan)}", left)
        elif status.waiting_for:
            left = "" if status.wait_left_s is None else f", {span(status.wait_left_s)} left"
            self._wait_line(name, f"… {name} waits for {safe(status.waiting_for)}", left)
        else:
            step = status.saved_step
            saved = f", checkpoint of step {step}" if step is not None and step != before.saved_step else ""
            self._tell(name, f"… {name} {status.state}{saved}")
        return status.is_final or is_next or (status.phase == "forming" and bool(status.waiting_for))

    def _wait_line(self, name: str, text: str, left: str) -> None:
        """In place on a terminal; elsewhere a line a change of more than its numbers."""
        if self._screen.err.is_tty:
            took = span(boot_s() - self._began_s)
            self._screen.redraw(f"{text}{left} ({took})   Ctrl-C leaves the drain on")
        elif NUMBER.sub("#", text) != self._told.get(name):
            self._told[name] = NUMBER.sub("#", text)
            self._screen.tell(f"{text}{left}")

    def _tell(self, name: str, text: str) -> None:
        if self._told.get(name) != text:
            self._told[name] = text
            self._screen.tell(text)


def _when(text: str) -> tuple[str, float]:
    """What --at means: the word of the request, and how long from now."""
    if text in ("next-checkpoint", "now"):
        return text, 0.0
    from supervisor.cli.moments import later_s

    now_s = wall_s()
    return "time", later_s("--at", text, now_s) - now_s
