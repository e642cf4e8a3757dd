"""The ranks of a run's newest generation: where they are, their pids, how they ended."""

import argparse

from supervisor.cli.arguments import add_job, add_json
from supervisor.cli.context import Context
from supervisor.cli.exit_code import ExitCode
from supervisor.cli.render import ranks_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl ps`'s own arguments."""
    add_job(parser)
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a line a rank; with --quiet, the pids of those that live."""
    screen = context.screen
    status = context.client.status(context.client.resolve(arguments.job), with_ranks=True)
    if arguments.json:
        from supervisor.cli import documents

        ranks = [documents.rank_of(rank) for rank in status.rank_list]
        data = {"run": status.run, "job": status.job, "generation": status.generation, "ranks": ranks}
        screen.print(documents.document("ps", data))
    elif screen.is_quiet:
        screen.print(
            *(str(rank.pid) for rank in status.rank_list if rank.pid is not None and rank.ended_wall_s is None)
        )
    elif status.rank_list:
        screen.print(*ranks_table(status.rank_list, screen.out))
    else:
        screen.tell(f"{status.run} has no ranks yet ({status.state})   → supctl status {status.run}")
    return ExitCode.OK
