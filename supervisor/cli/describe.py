"""Everything about one run, about one rank of its newest generation, or about one node.

Of a run: its file, times, command and every setting in effect, with who gave it. Of a rank: its process, its files,
and the variables that supd set; with --env all of them. The values of secret variables (`run.secret_env`) are shown
as `***`; they never leave supd.
"""

import argparse
from collections.abc import Sequence

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import Describe, Description, GetNodes, Nodes, RankStatus, RunStatus
from supervisor.cli.arguments import UsageError, add_json, job_word
from supervisor.cli.context import Context
from supervisor.cli.moments import date_and_clock
from supervisor.cli.render import (
    budget_of,
    exit_of,
    fact_lines,
    generation_of,
    logs_of,
    painted,
    ranks_of,
    span,
    table,
    wait_of,
)
from supervisor.cli.screen import Stream
from supervisor.shell.clock import wall_s

ORIGIN = 1
"""The column of a table that a narrow terminal has to do without."""
EXITS_MAX = 8
"""Other ranks of the generation whose end is shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl describe`'s own arguments."""
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="*",
        type=job_word,
        help="JOB, with the same default as elsewhere; or rank N [JOB], a rank of its newest generation; or node NODE",
    )
    parser.add_argument("--env", action="store_true", help="of a rank, all variables, not only those that supd set")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Ask supd, and print what it says."""
    if arguments.what[:1] == ["node"] and len(arguments.what) == 2:
        return _describe_node(arguments, context, arguments.what[1])
    rank, word = _thing(arguments.what)
    if arguments.env and rank is None:
        raise UsageError("--env is about a rank", "supctl describe rank 0 --env")
    try:
        name = context.client.resolve(word)
    except Refused as exc:
        forms = {"rank": "rank N [JOB]", "node": "node NODE"}
        if rank is not None or word not in forms or exc.exit_code != ExitCode.NOT_FOUND:
            raise
        what = f"describe which {word}? (there is no job `{word}`)"
        raise UsageError(what, f"supctl describe {forms[word]}") from None
    about = context.client.ask(Describe(run=name, rank=rank, with_env=arguments.env), Description)
    screen = context.screen
    if arguments.json:
        screen.print(_document(about, rank))
    elif screen.is_quiet:
        screen.print(name)
    elif rank is None:
        screen.print(*_run_lines(about, screen.out))
    else:
        screen.print(*_rank_lines(about, rank, screen.out))
    return ExitCode.OK


def _describe_node(arguments: argparse.Namespace, context: Context, name: str) -> int:
    """Ask for the node, and for the ranks that it has."""
    if arguments.env:
        raise UsageError("--env is about a rank", "supctl describe rank 0 --env")
    (node,) = context.client.ask(GetNodes(node=name), Nodes).nodes
    runs = [context.client.status(run, with_ranks=True) for run in node.runs]
    ranks = {run.run: [rank.rank for rank in run.rank_list if rank.node == name] for run in runs}
    screen = context.screen
    if arguments.json:
        from supervisor.cli import documents

        told = [{"run": run, "ranks": numbers} for run, numbers in ranks.items()]
        screen.print(documents.document("describe-node", {"node": node, "ranks": told}))
    elif screen.is_quiet:
        screen.print(name)
    else:
        from supervisor.cli.node_text import node_lines

        screen.print(*node_lines(node, ranks, screen.out))
    return ExitCode.OK


def _thing(words: Sequence[str]) -> tuple[int | None, str | None]:
    """The rank that is meant, None for a whole run, and the word for the run."""
    match words:
        case []:
            return None, None
        case [job]:
            return None, job
        case ["rank", number, *job] if len(job) <= 1 and number.isascii() and number.isdecimal() and len(number) < 8:
            return int(number), job[0] if job else None
        case _:
            raise UsageError(f"describe what? {' '.join(words)}", "supctl describe JOB, or rank N [JOB], or node NODE")


def _document(about: Description, number: int | None) -> str:
    from supervisor.cli import documents

    told = {name: getattr(about, name) for name in ("source", "settings", "command", "cwd", "limits", "files")}
    env = [{"name": name, "value": value, "origin": origin} for name, value, origin in about.env]
    rank = None if number is None else _rank_of(about.status, number)
    return documents.document("describe", {"run": about.status, "rank": rank, "env": env, **told})


def _rank_of(run: RunStatus, number: int) -> RankStatus:
    return next(rank for rank in run.rank_list if rank.rank == number)


def _run_lines(about: Description, stream: Stream) -> list[str]:
    run = about.status
    facts = [
        ("reason", run.reason),
        ("waiting", wait_of(run).removeprefix("waiting ")),
        ("user", run.user),
        ("started", _moment(run.submitted_wall_s)),
        ("ended", "" if run.ended_wall_s is None else _moment(run.ended_wall_s)),
        ("nodes", ", ".join(run.nodes)),
        ("budget", budget_of(run)),
        ("file", about.source),
        *_process_facts(about),
        ("logs", logs_of(run)),
    ]
    head = f"{run.run}  {painted(run.state, stream)}   {generation_of(run)}   {ranks_of(run)} ranks"
    rows = [["SETTING", "ORIGIN", "VALUE"], *([s.key, s.origin, s.value] for s in about.settings)]
    return [head, *fact_lines(facts), "", *table(rows, stream, spare=ORIGIN)]


def _rank_lines(about: Description, number: int, stream: Stream) -> list[str]:
    run = about.status
    rank = _rank_of(run, number)
    facts = [
        ("node", f"{rank.node} (local rank {rank.local_rank})"),
        ("pid", "" if rank.pid is None else str(rank.pid)),
        ("exit", _exit(rank)),
        ("step", "" if rank.step is None else f"{rank.step:,}"),
        ("phase", rank.phase),
        ("progress", "" if rank.silent_s is None else f"{span(rank.silent_s)} ago"),
        *_process_facts(about),
        *(("file", path) for path in about.files),
        *_other_exits(run, rank),
    ]
    head = f"rank {number} of {run.run}  {painted(rank.state, stream)}   {generation_of(run)}"
    rows = [["VARIABLE", "ORIGIN", "VALUE"], *([name, origin, value] for name, value, origin in about.env)]
    return [head, *fact_lines(facts), "", *table(rows, stream, spare=ORIGIN)]


def _process_facts(about: Description) -> list[tuple[str, str]]:
    import shlex

    limits = ", ".join(f"{name} {'unlimited' if n < 0 else n}" for name, n in sorted(about.limits.items()))
    return [("command", shlex.join(about.command)), ("in", about.cwd), ("limits", limits)]


def _other_exits(run: RunStatus, rank: RankStatus) -> list[tuple[str, str]]:
    """How other ranks of the generation ended."""
    ended = [r for r in run.rank_list if r.ended_wall_s is not None and r.rank != rank.rank]
    facts = [("ended", f"rank {r.rank}: {_exit(r)}") for r in ended[:EXITS_MAX]]
    more = len(ended) - EXITS_MAX
    return [*facts, ("", f"and {more} more: supctl ps {run.run}")] if more > 0 else facts


def _exit(rank: RankStatus) -> str:
    if rank.ended_wall_s is None:
        return ""
    ran = "" if rank.ran_s is None else f" after {span(rank.ran_s)}"
    note = f", {rank.note}" if rank.note else ""
    return f"{exit_of(rank)}{ran}{note}"


def _moment(at_s: float) -> str:
    return f"{date_and_clock(at_s)} ({span(max(wall_s() - at_s, 0.0))} ago)"
