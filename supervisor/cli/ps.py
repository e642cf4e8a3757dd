"""The ranks of a run's newest generation: where they are, their pids, their progress, how they ended.

Where a run has more than 16 ranks, neighbours that are alike are one line; --all, -r and --sort show every rank.
"""

import argparse

from protocol.exit_code import ExitCode
from supervisor.cli.arguments import RANKS_FORM, add_job, add_json
from supervisor.cli.context import Context
from supervisor.cli.rank_text import FOLDED_ABOVE, SORTS, ranks_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl ps`'s own arguments."""
    add_job(parser)
    parser.add_argument("-r", "--ranks", metavar="RANKS", help=f"only these, {RANKS_FORM}")
    parser.add_argument("--all", action="store_true", help="a line a rank, however many there are")
    parser.add_argument("--sort", choices=SORTS, help="the lowest step or the oldest beat first")
    parser.add_argument("--wide", action="store_true", help="every column, however narrow the terminal is")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a line a rank; with --quiet, the pids of those that live."""
    screen = context.screen
    status = context.client.status(context.client.resolve(arguments.job), with_ranks=True)
    ranks = list(status.rank_list)
    if arguments.ranks is not None:
        from supervisor.cli.ranks import chosen  # only where ranks are chosen

        ranks = chosen(arguments.ranks, status, context.client)
    if arguments.sort is not None:
        ranks.sort(key=SORTS[arguments.sort])
    if arguments.json:
        from supervisor.cli import documents

        data = {"run": status.run, "generation": status.generation, "ranks": ranks}
        screen.print(documents.document("ps", data))
    elif screen.is_quiet:
        screen.print(*(str(rank.pid) for rank in ranks if rank.pid is not None and rank.ended_wall_s is None))
    elif status.rank_list:
        is_each_shown = arguments.all or arguments.ranks is not None or arguments.sort is not None
        is_folded = len(ranks) > FOLDED_ABOVE and not is_each_shown
        screen.print(*ranks_table(ranks, screen.out, is_folded=is_folded, is_wide=arguments.wide))
    else:
        screen.tell(f"{status.run} has no ranks yet ({status.state})   → supctl status {status.run}")
    return ExitCode.OK
