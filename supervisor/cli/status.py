"""Runs as they stand: all of them, or one with its progress and its last incident."""

import argparse
import time
from collections.abc import Sequence
from typing import NamedTuple

from protocol.exit_code import ExitCode
from protocol.messages.control import GetNodes, GetStatus, Nodes, Outcome, RunStatus, Statuses
from supervisor.cli.arguments import add_json, job_word
from supervisor.cli.context import Context, Detached
from supervisor.cli.node_text import run_nodes_table
from supervisor.cli.run_text import finding_line, findings, run_block, run_line, runs_table, short_names
from supervisor.shell.clock import boot_s, wall_s

WATCH_S = 1.0
"""Between two looks of --watch."""

STEP_EVERY_S = 10.0
"""Where --watch writes lines, a step that has moved is told this long after the last line."""


class _Told(NamedTuple):
    """What was said last of a run, and when."""

    seen: tuple[object, ...]
    step: int | None
    at_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl status`'s own arguments."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        type=job_word,
        help="job or run (NAME@HEX); default: $SUPCTL_JOB, else all runs, oldest first",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--watch",
        action="store_true",
        help="go on: in place on a terminal, active runs first, then the newest; else a line a change, the step every "
        "10 s; until JOB is over",
    )
    mode.add_argument(
        "--check",
        action="store_true",
        help="exit 6 unless each job's newest run is starting, running or succeeded; says what is not",
    )
    parser.add_argument("--wide", action="store_true", help="every column, however narrow the terminal is")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print a table of all runs, or a block for one."""
    name = context.client.resolve(arguments.job) if arguments.job or context.client.default_job else ""
    if arguments.watch:
        return _watch(arguments, context, name)
    runs = _look(context, name)
    _show(arguments, context, name, runs)
    found = findings(runs) if arguments.check else []
    for one in found:
        context.screen.complain(f"{context.screen.err.paint('✗', 'red')} {finding_line(one)}")
    if found:
        worst = min(found, key=lambda run: run.state in (Outcome.STOPPED, Outcome.PREEMPTED))
        context.screen.next_step(f"supctl status {worst.run}")
    return ExitCode.FINDINGS if found else ExitCode.OK


def _look(context: Context, name: str) -> tuple[RunStatus, ...]:
    """One run with its ranks, or with `name` empty all runs."""
    if name:
        return (context.client.status(name, with_ranks=True),)
    return context.client.ask(GetStatus(), Statuses).runs


def _show(arguments: argparse.Namespace, context: Context, name: str, runs: Sequence[RunStatus]) -> None:
    screen = context.screen
    if arguments.json:
        screen.print(_document(runs))
    elif screen.is_quiet:
        screen.print(*(run.run for run in runs))
    elif runs:
        screen.print(*_text(arguments, context, name, runs))
    else:
        screen.tell("no runs yet   → supctl start FILE")


def _text(arguments: argparse.Namespace, context: Context, name: str, runs: Sequence[RunStatus]) -> list[str]:
    """A block for the run of this name, or with `name` empty a table."""
    out = context.screen.out
    if name:
        lines = run_block(runs[0], wall_s(), out)
        if runs[0].nnodes[1] == 1 or not (runs[0].nodes or runs[0].spares):
            return lines
        nodes = {node.node: node for node in context.client.ask(GetNodes(), Nodes).nodes}
        return [*lines, "", *run_nodes_table(runs[0], nodes, out, is_wide=arguments.wide)]
    return runs_table(runs, wall_s(), out, is_wide=arguments.wide)


def _document(runs: Sequence[RunStatus]) -> str:
    from supervisor.cli import documents

    return documents.document("status", {"runs": runs})


# --- --watch -----------------------------------------------------------------------------------------------------


def _watch(arguments: argparse.Namespace, context: Context, name: str) -> int:
    """Show runs again and again, until the one that was asked for is over."""
    is_frame = context.screen.out.is_tty and not arguments.json and not context.screen.is_quiet
    told: dict[str, _Told] = {}
    try:
        while True:
            runs = _look(context, name)
            if is_frame:
                context.screen.draw(_frame(arguments, context, name, runs))
            else:
                _tell_changes(arguments, context, runs, told)
            if name and runs[0].is_final:
                return ExitCode.OK
            time.sleep(WATCH_S)  # noqa: TID251  # there is nothing to wait on: ranks report once a second
    except KeyboardInterrupt:
        raise Detached("stopped watching; nothing is touched") from None


def _frame(arguments: argparse.Namespace, context: Context, name: str, runs: Sequence[RunStatus]) -> list[str]:
    """What --watch draws: of all runs those that fit, and a last line that counts the others."""
    if not runs:
        return ["no runs yet"]
    if name:
        return _text(arguments, context, name, runs)
    room = context.screen.frame_lines
    chosen = sorted(runs, key=lambda run: (run.is_final, -run.submitted_wall_s))
    shown = min(len(chosen), room)
    while True:
        lines, more = _text(arguments, context, name, chosen[:shown]), len(chosen) - shown
        if len(lines) + bool(more) <= room or shown <= 1:  # a remark may be a line of its own
            return [*lines, f"{more} more: supctl status"] if more else lines
        shown -= 1


def _tell_changes(
    arguments: argparse.Namespace, context: Context, runs: Sequence[RunStatus], told: dict[str, _Told]
) -> None:
    """A line for each run that is not as it was `told`; of the step alone, now and then."""
    now_s = boot_s()
    for run, name in zip(runs, short_names(runs), strict=True):
        seen = (run.state, run.phase, run.generation, run.ranks_running, run.ranks, run.reason)
        last = told.get(run.run)
        has_moved = last is not None and last.step != run.step and now_s - last.at_s >= STEP_EVERY_S
        if last is None or last.seen != seen or has_moved:
            told[run.run] = _Told(seen, run.step, now_s)
            context.screen.print(_document([run]) if arguments.json else run_line(run, name))
