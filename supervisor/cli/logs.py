"""Output of a run's ranks: rank 0 and the errors of all, with what the supervisor did in between.

`0 │ text` is stdout, `0 ┃ text` is stderr; on more than one node the rank is written NODE:RANK. Errors are tracebacks,
lines of level error or worse, fatal signals and warnings of NCCL on stderr. Following goes on over restarts, of ranks
and of supd, and ends with the run.
"""

import argparse
import math
import re
from collections.abc import Callable

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import (
    MERGE_WINDOW_MAX_S,
    EventRecord,
    LogPaths,
    LogSelection,
    Paths,
    RunStatus,
    Watch,
)
from protocol.text import some_of
from supervisor.cli.arguments import RANKS_FORM, UsageError, add_job, add_json, duration_s
from supervisor.cli.context import Context, Detached
from supervisor.cli.dedupe import Dedupe
from supervisor.cli.follow import follow, output_code
from supervisor.cli.grep import Grep
from supervisor.cli.log_lines import safe
from supervisor.cli.log_output import JsonLines, Lines, Raw, Show
from supervisor.cli.moments import FORM, moment_s, period
from supervisor.cli.prefix import FIELDS, Prefix
from supervisor.cli.ranks import needs_ranks, resolve, wanted
from supervisor.cli.story import DEFAULT_VIEW, Story, play
from supervisor.shell.clock import wall_s

TAIL_LINES = 200
AROUND_S = 10.0
OPENING_KINDS = ("job.accepted", "generation.launched", "generation.ready")
"""In the past these are said by the rule above the output."""

Period = tuple[float | None, float | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl logs`' own arguments."""
    add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("-r", "--ranks", metavar="RANKS", help=f"all output of these ranks, {RANKS_FORM}")
    parser.add_argument("--gen", metavar="GEN", type=_generation, help="a generation, -1: the one before, or all")
    parser.add_argument(
        "-n",
        "--tail",
        metavar="N",
        type=_lines,
        help=f"last N lines a stream, or all (default {TAIL_LINES}; with --since, --around, --grep and --raw: all)",
    )
    parser.add_argument("--stream", choices=("out", "err"), help="only stdout, or only stderr")
    parser.add_argument("--since", metavar="TIME", help=f"lines of that time or later, of all generations: {FORM}")
    parser.add_argument("--until", metavar="TIME", help="lines before that time")
    parser.add_argument(
        "--around", metavar="TIME", help=f"lines from {AROUND_S:.0f} s before to {AROUND_S:.0f} s after that time"
    )
    parser.add_argument(
        "--grep",
        metavar="RE",
        help="lines that hold this regular expression, of the whole run and all ranks, and no `sup` lines; with -n the "
        "last N of those. With -f: of the lines that -f shows",
    )
    parser.add_argument("--exclude", metavar="RE", help="lines that don't hold this one")
    parser.add_argument(
        "--dedupe",
        action="store_true",
        help="show a line once that several ranks write within 2 s, and then which others have written it",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--timestamps", action="store_true", help="when each line was read")
    how.add_argument(
        "--prefix", metavar="TPL", help=f"like '{{time}} {{node}}:{{rank}} '; also {', '.join(FIELDS[3:])}"
    )
    how.add_argument("--no-prefix", action="store_true", help="lines as they were written, and nothing else")
    add_json(how, "one JSON object a line (docs/logs.md)")
    parser.add_argument(
        "--raw", action="store_true", help="bytes as they were written and nothing else, also on a terminal"
    )
    parser.add_argument("--utc", action="store_true", help="times in UTC, with their date")
    parser.add_argument(
        "--merge-window",
        metavar="DUR",
        type=_merge_window_s,
        default=0.0,
        help="with -f: hold lines back for so long, to put those of several nodes in order, like 500ms",
    )
    parser.add_argument(
        "--exit-status",
        action="store_true",
        help="where the run is over, end with its outcome, as `supctl wait` does; but with preemption.exit_code "
        "where it was preempted",
    )
    parser.add_argument(
        "--path", action="store_true", help="where the files lie on this node, instead of what is in them"
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print output, or where it lies."""
    times = _period(arguments)
    _check_combination(arguments)
    prefix = Prefix(arguments.prefix, has_time=arguments.timestamps, is_utc=arguments.utc)
    is_grep = arguments.grep is not None and not arguments.follow
    grep = Grep(arguments.grep, arguments.exclude, arguments.tail if is_grep and arguments.tail != "all" else None)
    name = context.client.resolve(arguments.job)
    has_ranks = arguments.prefix is not None or arguments.ranks is not None
    status = context.client.status(name, with_ranks=has_ranks)
    selection = _selection(arguments, context, status, times)
    if arguments.path:
        return _print_paths(arguments, context, status, selection)
    is_past = selection.generation is not None and selection.generation != status.generation
    is_following = arguments.follow and not status.is_final and not is_past
    show = _show(arguments, context, status, selection, prefix=prefix, grep=grep, is_following=is_following)
    # Without a prefix nothing of ours is shown; else it is events that tell of how many ranks a generation was.
    has_prefix = not (arguments.no_prefix or arguments.raw or arguments.json)
    request = Watch(
        run=name,
        follow=is_following,
        events=has_prefix,
        snapshots=True,
        logs=selection,
        merge_window_s=arguments.merge_window,
    )
    try:
        play(context, show, request)
    except KeyboardInterrupt:
        raise Detached(f"detached; {name} is not touched") from None
    is_newest = _generation_shown(selection, status) == status.generation
    if isinstance(show, Story) and has_prefix and arguments.grep is None and show.run.is_final and is_newest:
        reason = f": {safe(show.run.reason)}" if show.run.reason else ""
        show.rule(f"{name} {show.run.state}{reason}")
    if not show.has_shown and (nothing := _nothing(arguments)):
        context.screen.tell(nothing)
    return output_code(show.run) if arguments.exit_status and show.run.is_final else ExitCode.OK


def _print_paths(
    arguments: argparse.Namespace, context: Context, status: RunStatus, selection: LogSelection
) -> ExitCode:
    paths = context.client.ask(LogPaths(run=status.run, logs=selection), Paths).paths
    if arguments.json:
        from supervisor.cli import documents

        context.screen.print(documents.document("log-paths", {"run": status.run, "paths": paths}))
        return ExitCode.OK
    context.screen.print(*paths)
    is_newest = _generation_shown(selection, status) == status.generation
    there = wanted(selection.chooser, status) if is_newest and selection.chooser is not None else []
    if there and not paths:
        context.screen.tell(f"nothing of that lies on this node: look on {some_of({rank.node: 0 for rank in there})}")
    elif len(status.nodes) > 1:
        context.screen.tell(f"of {some_of(status.nodes)} each has its own: these {len(paths)} files lie on this node")
    elif not paths:
        context.screen.tell("nothing of that lies on this node")
    return ExitCode.OK


def _show(
    arguments: argparse.Namespace,
    context: Context,
    status: RunStatus,
    selection: LogSelection,
    *,
    prefix: Prefix,
    grep: Grep,
    is_following: bool,
) -> Show:
    """What is made of the output."""
    screen = context.screen
    if arguments.raw:
        return Raw(screen, status)
    if arguments.json:
        return JsonLines(screen, status, grep)
    if arguments.no_prefix and grep.is_idle and not screen.out.is_terminal:
        return Lines(screen, status)
    begin_s = wall_s()
    has_events = arguments.grep is None and not arguments.no_prefix
    return Story(
        screen,
        status,
        _events_wanted(selection, status, begin_s if is_following else math.inf)
        if has_events
        else lambda _event: False,
        showing=_showing(arguments),
        in_full_from_s=begin_s if is_following else math.inf,
        prefix=prefix,
        grep=grep,
        dedupe=Dedupe() if arguments.dedupe else None,
        has_prefix=not arguments.no_prefix,
    )


def _events_wanted(selection: LogSelection, status: RunStatus, new_from_s: float) -> Callable[[EventRecord], bool]:
    """What of the supervisor's doings is told: of the output's time and generation, and of a follower's time all."""

    def wants(event: EventRecord) -> bool:
        if event.wall_s >= new_from_s:
            return True
        if new_from_s == math.inf and event.kind in OPENING_KINDS:
            return False
        if selection.since_wall_s is not None and event.wall_s < selection.since_wall_s:
            return False
        if selection.until_wall_s is not None and event.wall_s >= selection.until_wall_s:
            return False
        return selection.all_generations or event.generation == _generation_shown(selection, status)

    return wants


def _showing(arguments: argparse.Namespace) -> str:
    """What the default view is, said once; "": it was chosen."""
    if arguments.ranks is not None or (arguments.grep is not None and not arguments.follow):
        return ""
    what = "stdout of rank 0" if arguments.stream == "out" else DEFAULT_VIEW
    events = ", events" if arguments.grep is None else ""
    return f"{what}{events} (all: -r all)"


def _period(arguments: argparse.Namespace) -> Period:
    """What --since, --until and --around say. Raises UsageError where they make no sense."""
    if arguments.around is None:
        return period(arguments)
    if arguments.since is not None or arguments.until is not None or arguments.follow:
        raise UsageError("--around says which time is meant, so --since, --until and -f have no use", "")
    middle_s = moment_s("--around", arguments.around, wall_s())
    return middle_s - AROUND_S, middle_s + AROUND_S


def _check_combination(arguments: argparse.Namespace) -> None:
    """Of what argparse does not check. Raises UsageError."""
    forms = ("--timestamps", "--prefix", "--no-prefix", "--json", "--grep", "--exclude")
    given = [option for option in forms if getattr(arguments, option[2:].replace("-", "_")) not in (None, False)]
    if arguments.raw and (given or arguments.dedupe):
        raise UsageError(f"--raw adds and leaves out nothing, so it does not go with {[*given, '--dedupe'][0]}", "")
    other = [name for name in ("follow", "raw", "merge_window") if getattr(arguments, name)]
    if arguments.path and other:
        raise UsageError(f"--path says where files lie, so it does not go with --{other[0].replace('_', '-')}", "")
    if arguments.merge_window and not arguments.follow:
        raise UsageError("--merge-window is for -f: without it lines are in order anyway", "")
    if arguments.dedupe and (arguments.no_prefix or arguments.json):
        raise UsageError("--dedupe tells which ranks write alike, so it needs the view with prefixes", "")


def _selection(arguments: argparse.Namespace, context: Context, status: RunStatus, times: Period) -> LogSelection:
    is_whole_run = arguments.gen is None and (times != (None, None) or (arguments.grep and not arguments.follow))
    is_all = is_whole_run or arguments.gen == "all"
    if arguments.ranks is not None and arguments.follow and status.ranks is None and not status.is_final:
        status = _with_ranks(arguments.ranks, context, status)
    newest = -1 if status.generation is None else status.generation
    is_before = arguments.gen == -1
    generation = None if is_all else newest - 1 if is_before else arguments.gen
    if generation is not None and not 0 <= generation <= newest:
        which = "before the newest" if is_before else str(generation)
        raise Refused(
            "C012",
            f"no generation {which} in {status.run}" + ("" if newest < 0 else f": the newest is {newest}"),
            hint=f"supctl status {status.run}",
            exit_code=ExitCode.NOT_FOUND,
        )
    chooser = None
    if arguments.ranks is not None:
        is_newest = generation in (None, newest) and not is_all and not arguments.follow
        chooser = resolve(arguments.ranks, status, context.client, is_newest=is_newest)
    elif arguments.grep is not None and not arguments.follow:
        chooser = "all"
    is_view = not (arguments.json or arguments.raw or arguments.no_prefix)
    return LogSelection(
        chooser=chooser,
        streams=(arguments.stream,) if arguments.stream else ("out", "err"),
        generation=generation,
        all_generations=is_all,
        tail_lines=_tail_lines(arguments),
        since_wall_s=times[0],
        until_wall_s=times[1],
        may_skip=arguments.follow and is_view and arguments.grep is None and arguments.exclude is None,
    )


def _with_ranks(ranks: str, context: Context, status: RunStatus) -> RunStatus:
    """The run once it has ranks, where those are told by what it then has."""
    if not needs_ranks(ranks):
        return status
    return follow(context, status.run, lambda status: status.ranks is not None) or status


def _tail_lines(arguments: argparse.Namespace) -> int | None:
    """How many lines supd is to send: with --grep all of them, as only supctl knows which ones count."""
    if arguments.grep is not None and not arguments.follow:
        return None
    if arguments.tail is None:
        is_all = arguments.raw or arguments.since is not None or arguments.around is not None
        return None if is_all else TAIL_LINES
    return None if arguments.tail == "all" else int(arguments.tail)


def _nothing(arguments: argparse.Namespace) -> str:
    """What to say where no line was chosen; "" where all of them were asked for."""
    if arguments.grep is not None:
        return f"no line of a rank holds {arguments.grep!r}"
    bounds = {"since": arguments.since, "until": arguments.until, "around": arguments.around}
    period = " ".join(f"{name} {text}" for name, text in bounds.items() if text is not None)
    return f"no lines {period}" if period else ""


def _generation_shown(selection: LogSelection, status: RunStatus) -> int | None:
    return status.generation if selection.generation is None else selection.generation


def _generation(text: str) -> int | str:
    return text if text == "all" else _number(text, -1, "a generation is 0, 1, 2 …, -1 or all")


def _merge_window_s(text: str) -> float:
    window_s = duration_s(text)
    if window_s > MERGE_WINDOW_MAX_S:
        raise argparse.ArgumentTypeError(f"lines are held back for at most {MERGE_WINDOW_MAX_S:.0f}s")
    return window_s


def _lines(text: str) -> int | str:
    if re.fullmatch("[0-9]{10,}", text):  # so many has nobody
        return "all"
    return text if text == "all" else _number(text, 0, "a number of lines is 0 or more, or all")


def _number(text: str, low: int, form: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or int(text) < low:
        raise argparse.ArgumentTypeError(form)
    return int(text)
