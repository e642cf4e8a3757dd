"""Output of a run's ranks: rank 0 and the stderr of all, with what the supervisor did in between.

`0 │ text` is stdout, `0 ┃ text` is stderr; on more than one node the rank is written NODE:RANK. Following goes on
over restarts and ends with the run.
"""

import argparse
import math
import re

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import EventRecord, LogChunk, LogPaths, LogSelection, Notice, Paths, RunStatus, Watch
from supervisor.cli.arguments import add_job, add_json, chosen_ranks
from supervisor.cli.context import Context, Detached
from supervisor.cli.follow import TICK_S, follow
from supervisor.cli.grep import Grep
from supervisor.cli.log_lines import Line, LineJoiner, Source, safe
from supervisor.cli.moments import FORM, period
from supervisor.cli.prefix import Prefix
from supervisor.cli.story import Story, play
from supervisor.shell.clock import wall_s

TAIL_LINES = 200
OPENING_KINDS = ("job.accepted", "generation.launched", "generation.ready")
"""In the past these are said by the rule above the output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl logs`' own arguments."""
    add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("-r", "--ranks", metavar="RANKS", help="like 0 or 0,3 or 8-15 or !0 or all")
    parser.add_argument("--gen", metavar="GEN", type=_generation, help="a generation, -1: the one before, or all")
    parser.add_argument(
        "-n",
        "--tail",
        metavar="N",
        type=_lines,
        help=f"last N lines a stream, or all (default {TAIL_LINES}; with --since and --grep: all)",
    )
    parser.add_argument("--stream", choices=("out", "err"), help="only stdout, or only stderr")
    parser.add_argument("--since", metavar="TIME", help=f"lines of that time or later, of all generations: {FORM}")
    parser.add_argument("--until", metavar="TIME", help="lines before that time")
    parser.add_argument(
        "--grep",
        metavar="RE",
        help="lines of the ranks that hold this regular expression, of the whole run, and no `sup` lines; with -n the "
        "last N of those. With -f: of the lines that -f shows",
    )
    parser.add_argument("--exclude", metavar="RE", help="lines that don't hold this one")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--timestamps", action="store_true", help="when each line was read")
    how.add_argument("--prefix", metavar="TPL", help="like '{time} {node}:{rank} '; also local_rank, gen, stream")
    how.add_argument("--no-prefix", action="store_true", help="lines as they were written, and nothing else")
    add_json(how, "one JSON object a line")
    parser.add_argument("--utc", action="store_true", help="times in UTC, with their date")
    parser.add_argument("--path", action="store_true", help="where the files lie, instead of what is in them")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print output, or where it lies."""
    times = period(arguments)
    prefix = Prefix(arguments.prefix, has_time=arguments.timestamps, is_utc=arguments.utc)
    is_grep = arguments.grep is not None and not arguments.follow
    grep = Grep(arguments.grep, arguments.exclude, arguments.tail if is_grep and arguments.tail != "all" else None)
    name = context.client.resolve(arguments.job)
    status = context.client.status(name, with_ranks=arguments.prefix is not None)
    selection = _selection(arguments, context, status, times)
    if arguments.path:
        paths = context.client.ask(LogPaths(run=name, logs=selection), Paths).paths
        if arguments.json:
            from supervisor.cli import documents

            context.screen.print(documents.document("log-paths", {"run": name, "paths": paths}))
        else:
            context.screen.print(*paths)
        return ExitCode.OK
    is_past = selection.generation is not None and selection.generation != status.generation
    is_following = arguments.follow and not status.is_final and not is_past
    try:
        if arguments.json:
            _print_json(context, name, selection, grep, is_following)
        else:
            _print_story(
                context,
                status,
                selection,
                prefix=prefix,
                grep=grep,
                is_following=is_following,
                has_prefix=not arguments.no_prefix,
                has_events=arguments.grep is None and not arguments.no_prefix,
            )
    except KeyboardInterrupt:
        raise Detached(f"detached; {name} is not touched") from None
    if not grep.has_found and (nothing := _nothing(arguments)):
        context.screen.tell(nothing)
    return ExitCode.OK


def _print_story(
    context: Context,
    status: RunStatus,
    selection: LogSelection,
    *,
    prefix: Prefix,
    grep: Grep,
    is_following: bool,
    has_prefix: bool,
    has_events: bool,
) -> None:
    screen = context.screen
    begin_s = wall_s()

    def wants_event(event: EventRecord) -> bool:
        if not has_events:
            return False
        if is_following and event.wall_s >= begin_s:
            return True
        if not is_following and event.kind in OPENING_KINDS:
            return False
        if selection.since_wall_s is not None and event.wall_s < selection.since_wall_s:
            return False
        if selection.until_wall_s is not None and event.wall_s >= selection.until_wall_s:
            return False
        return selection.all_generations or event.generation == _generation_shown(selection, status)

    story = Story(
        screen,
        status,
        wants_event,
        in_full_from_s=begin_s if is_following else math.inf,
        prefix=prefix,
        grep=grep,
        has_prefix=has_prefix,
    )
    # Without a prefix, nothing of ours is shown; else it is events that tell of how many ranks a generation was.
    request = Watch(run=status.run, follow=is_following, events=has_prefix, snapshots=True, logs=selection)
    play(context, story, request)
    if has_events and story.run.is_final and _generation_shown(selection, status) == status.generation:
        reason = f": {safe(story.run.reason)}" if story.run.reason else ""
        story.rule(f"{status.run} {story.run.state}{reason}")


def _print_json(context: Context, run: str, selection: LogSelection, grep: Grep, is_following: bool) -> None:
    from supervisor.cli import documents

    def show(source: Source, lines: list[Line]) -> None:
        context.screen.print(*(documents.log_line(run, source, line) for line in lines))

    joiner = LineJoiner()
    for reply in context.client.stream(Watch(run=run, follow=is_following, logs=selection), TICK_S):
        if isinstance(reply, LogChunk):
            source, lines = joiner.feed(reply)
            show(source, grep.pick(source, lines))
        elif isinstance(reply, Notice):
            context.screen.complain(safe(reply.text))
    for source, lines in joiner.finish():
        show(source, grep.pick(source, lines))
    for source, lines in grep.release():
        show(source, lines)


def _selection(
    arguments: argparse.Namespace,
    context: Context,
    status: RunStatus,
    times: tuple[float | None, float | None],
) -> LogSelection:
    if arguments.ranks is not None and arguments.follow and status.ranks is None and not status.is_final:
        known = follow(context, status.run, lambda status: status.ranks is not None)
        status = known or status
    is_whole_run = arguments.gen is None and (times != (None, None) or (arguments.grep and not arguments.follow))
    is_all = is_whole_run or arguments.gen == "all"
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
    return LogSelection(
        ranks=None if arguments.ranks is None else chosen_ranks(arguments.ranks, status),
        streams=(arguments.stream,) if arguments.stream else ("out", "err"),
        generation=generation,
        all_generations=is_all,
        tail_lines=_tail_lines(arguments),
        since_wall_s=times[0],
        until_wall_s=times[1],
    )


def _tail_lines(arguments: argparse.Namespace) -> int | None:
    """How many lines supd is to send: with --grep all of them, as only supctl knows which ones count."""
    if arguments.grep is not None and not arguments.follow:
        return None
    if arguments.tail is None:
        return TAIL_LINES if arguments.since is None else None
    return None if arguments.tail == "all" else int(arguments.tail)


def _nothing(arguments: argparse.Namespace) -> str:
    """What to say where no line was chosen; "" where all of them were asked for."""
    if arguments.grep is not None:
        return f"no line of a rank holds {arguments.grep!r}"
    bounds = {"since": arguments.since, "until": arguments.until}
    period = " ".join(f"{name} {text}" for name, text in bounds.items() if text is not None)
    return f"no lines {period}" if period else ""


def _generation_shown(selection: LogSelection, status: RunStatus) -> int | None:
    return status.generation if selection.generation is None else selection.generation


def _generation(text: str) -> int | str:
    return text if text == "all" else _number(text, -1, "a generation is 0, 1, 2 …, -1 or all")


def _lines(text: str) -> int | str:
    return text if text == "all" else _number(text, 0, "a number of lines is 0 or more, or all")


def _number(text: str, low: int, form: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or int(text) < low:
        raise argparse.ArgumentTypeError(form)
    return int(text)
