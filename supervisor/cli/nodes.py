"""The nodes of the fleet: who answers, who stands by, what runs where, at which address peers find them.

`ready` answers and may have ranks, `standby` stands by for a run and has none. A runner that is not heard makes its
node `suspect`; `unreachable` is one whose supd does not answer, or whose runner is heard only by way of another node
(NOTE says which); `lost` is given up, by its lease or by an operator; `fenced` has ended its ranks for want of answers.
`draining` is to be free, and takes no new work; `drained` is free, until `supctl undrain`; `excluded` is one that a job
does without for a while, for its incidents. FREE is how many of its slots no job has (`[node] devices` in supd.toml).
CLOCK is how far a node's clock was off the coordinator's when it joined; SEEN is how long ago it was heard.
"""

import argparse

from protocol.exit_code import ExitCode
from protocol.messages.control import GetNodes, Nodes
from supervisor.cli.arguments import add_json
from supervisor.cli.context import Context
from supervisor.cli.node_text import nodes_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl nodes`' own arguments."""
    parser.add_argument("--wide", action="store_true", help="every column, however narrow the terminal is")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a line a node; with --quiet, their names."""
    nodes = context.client.ask(GetNodes(), Nodes).nodes
    screen = context.screen
    if arguments.json:
        from supervisor.cli import documents

        screen.print(documents.document("nodes", {"nodes": nodes}))
    elif screen.is_quiet:
        screen.print(*(node.node for node in nodes))
    else:
        screen.print(*nodes_table(nodes, screen.out, is_wide=arguments.wide))
    return ExitCode.OK
