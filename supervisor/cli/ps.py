"""The ranks of a run's newest generation: where they are, their pids, their progress, how they ended.

Where no job is named and several are active, those of all of them, with their jobs. Where there are more than 16 ranks,
neighbours that are alike are one line; --all, -r and --sort show every rank.
"""

import argparse
from collections.abc import Sequence

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import GetStatus, RankStatus, RunStatus, Statuses
from supervisor.cli.arguments import RANKS_FORM, add_job, add_json
from supervisor.cli.context import Context
from supervisor.cli.rank_text import FOLDED_ABOVE, SORTS, jobs_table, ranks_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl ps`'s own arguments."""
    add_job(parser)
    parser.add_argument("-r", "--ranks", metavar="RANKS", help=f"only these, {RANKS_FORM}")
    parser.add_argument("--all", action="store_true", help="a line a rank, however many there are")
    parser.add_argument("--sort", choices=SORTS, help="the lowest step or the oldest beat first")
    parser.add_argument("--wide", action="store_true", help="every column, however narrow the terminal is")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a line a rank; with --quiet, the pids of those that live; as JSON, a line a run."""
    runs = _runs(arguments, context)
    chosen = [_ranks(arguments, context, run) for run in runs]
    if arguments.json:
        from supervisor.cli import documents

        for run, ranks in zip(runs, chosen, strict=True):
            data = {"run": run.run, "generation": run.generation, "ranks": ranks}
            context.screen.print(documents.document("ps", data))
    elif context.screen.is_quiet:
        alive = (rank for ranks in chosen for rank in ranks if rank.pid is not None and rank.ended_wall_s is None)
        context.screen.print(*(str(rank.pid) for rank in alive))
    else:
        _show(arguments, context, runs, chosen)
    return ExitCode.OK


def _runs(arguments: argparse.Namespace, context: Context) -> list[RunStatus]:
    """The run that is meant, or all active ones, with their ranks."""
    client = context.client
    try:
        return [client.status(client.resolve(arguments.job), with_ranks=True)]
    except Refused as exc:
        if exc.code != "F103" or arguments.ranks is not None:  # -r is for the ranks of one
            raise
    active = [run for run in client.ask(GetStatus(), Statuses).runs if not run.is_final]
    return [client.status(run.run, with_ranks=True) for run in active]


def _ranks(arguments: argparse.Namespace, context: Context, run: RunStatus) -> list[RankStatus]:
    ranks = list(run.rank_list)
    if arguments.ranks is not None:
        from supervisor.cli.ranks import chosen  # only where ranks are chosen

        ranks = chosen(arguments.ranks, run, context.client)
    if arguments.sort is not None:
        ranks.sort(key=SORTS[arguments.sort])
    return ranks


def _show(
    arguments: argparse.Namespace, context: Context, runs: Sequence[RunStatus], chosen: Sequence[list[RankStatus]]
) -> None:
    screen = context.screen
    is_each_shown = arguments.all or arguments.ranks is not None or arguments.sort is not None
    is_folded = sum(map(len, chosen)) > FOLDED_ABOVE and not is_each_shown
    if len(runs) == 1 and chosen[0]:
        screen.print(*ranks_table(chosen[0], screen.out, is_folded=is_folded, is_wide=arguments.wide))
    elif any(chosen):
        from supervisor.cli.run_text import short_names

        jobs = dict(zip(short_names(runs), chosen, strict=True))
        screen.print(*jobs_table(jobs, screen.out, is_folded=is_folded, is_wide=arguments.wide))
    for run, ranks in zip(runs, chosen, strict=True):
        if not ranks:
            screen.tell(f"{run.run} has no ranks yet ({run.state})   → supctl status {run.run}")
