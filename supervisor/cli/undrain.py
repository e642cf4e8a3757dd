"""Have nodes used again: drains, exclusions and notices of preemption are lifted.

What runs remember of incidents there is forgotten. A run that could grow, or waits for nodes, may use it at once.
"""

import argparse

from protocol.exit_code import ExitCode
from protocol.messages.control import Done
from protocol.messages.upkeep import UndrainNodes
from supervisor.cli.arguments import node_word
from supervisor.cli.context import Context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl undrain`'s own arguments."""
    parser.add_argument("nodes", metavar="NODE", nargs="+", type=node_word, help="as `supctl nodes` names it")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Lift it, and say so."""
    screen = context.screen
    names = tuple(dict.fromkeys(arguments.nodes))
    context.client.ask(UndrainNodes(nodes=names), Done)
    screen.tell(f"{screen.err.paint('✓', 'green')} {', '.join(names)} may be used again")
    if screen.is_quiet:
        screen.print(*names)
    return ExitCode.OK
