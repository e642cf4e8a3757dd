"""Give your word on a node: `lost` says that nothing of any run is alive there any more.

A run that waits for proof of that goes on. Give it only once you are sure: the machine is off, or has been restarted,
or every process of the run there is gone. Where that is not so, two generations of a run can run at once. It asks
first; without a terminal it needs --yes. A node that answers is not given up: its own supd says what runs there.
Only for runs of which that one knows nothing, your word is asked all the same. Where it knows a runner that does not
answer, end that runner; what it is waited for says how.
"""

import argparse
from collections.abc import Sequence

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import DeclareLost, Done, GetNodes, Nodes, NodeStatus
from protocol.text import some_of
from supervisor.cli.arguments import node_word
from supervisor.cli.context import Context
from supervisor.cli.log_lines import safe
from supervisor.cli.node_text import ranks_text
from supervisor.cli.render import age, painted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl node`'s own arguments."""
    parser.add_argument("what", metavar="lost", choices=("lost",), help="nothing runs there any more")
    parser.add_argument("node", metavar="NODE", type=node_word, help="as `supctl nodes` names it")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Say what it means, ask, and tell supd."""
    screen = context.screen
    (node,) = context.client.ask(GetNodes(node=arguments.node), Nodes).nodes
    only: tuple[str, ...] | None = None
    if not arguments.yes:
        only = context.client.ask(DeclareLost(node=node.node, check_only=True), Done).runs or node.runs
        if not screen.can_ask:
            hint = f"make sure that nothing runs there, then: supctl node lost {node.node} --yes"
            raise Refused("C018", "without a terminal nobody can be asked", hint=hint, exit_code=ExitCode.USAGE)
        for line in _meaning(node, only, context):
            screen.complain(line)
        if not screen.ask(f"Give your word that nothing of {some_of(only) or 'any run'} is alive on {node.node}?"):
            screen.complain("nothing was done")
            screen.next_step(f"supctl describe node {node.node}")
            return ExitCode.FAILED
    runs = context.client.ask(DeclareLost(node=node.node, runs=only), Done).runs
    if not runs:
        screen.tell(f"no run waited for {node.node}")
    for name in runs:
        screen.tell(f"{screen.err.paint('✓', 'green')} {name} no longer waits for {node.node}")
        if screen.is_quiet:
            screen.print(name)
    return ExitCode.OK


def _meaning(node: NodeStatus, runs: Sequence[str], context: Context) -> list[str]:
    """What the word is about, which concerns these runs, and what comes of one that is not true."""
    heard = (
        "not heard since the host's supd began" if node.seen_s is None else f"its supd was heard {age(node.seen_s)} ago"
    )
    note = f"; {safe(node.note)}" if node.note else ""
    lines = [f"{node.node}  {painted(node.state, context.screen.err)}   {heard}{note}"]
    for name in runs:
        status = context.client.status(name, with_ranks=True)
        ranks = [rank.rank for rank in status.rank_list if rank.node == node.node]
        what = f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}"
        lines.append(f"  {name}   {what if ranks else 'a runner, of whose ranks nothing is known'}")
    return [
        *(lines if runs else [*lines, "  no active run has a runner there"]),
        "Your word says that none of their processes is alive there: the machine is off, say, or was restarted.",
        "If that is not true, two generations of a run can run at once, and write the same files.",
    ]
