"""Output of a run's ranks: rank 0 and the stderr of all, with what the supervisor did in between.

`0 │ text` is stdout, `0 ┃ text` is stderr; on more than one node the rank is written NODE:RANK. Following goes on
over restarts and ends with the run.
"""

import argparse
import re

from protocol.errors import Refused
from protocol.messages.control import EventRecord, LogChunk, LogPaths, LogSelection, Paths, RunStatus, Watch
from supervisor.cli.arguments import add_job, add_json, ranks_of
from supervisor.cli.context import Context, Detached
from supervisor.cli.exit_code import ExitCode
from supervisor.cli.follow import TICK_S, follow
from supervisor.cli.log_lines import LineJoiner, Source, safe
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
    parser.add_argument("--gen", metavar="N", type=_generation, help="a generation, -1: the one before, or all")
    parser.add_argument(
        "-n",
        "--tail",
        metavar="N",
        type=_lines,
        default=TAIL_LINES,
        help=f"last N lines a stream, or all (default {TAIL_LINES})",
    )
    parser.add_argument("--stream", choices=("out", "err"), help="only stdout, or only stderr")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--no-prefix", action="store_true", help="lines as they were written, and nothing else")
    add_json(how, "one JSON object a line")
    parser.add_argument("--path", action="store_true", help="where the files lie, instead of what is in them")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print output, or where it lies."""
    name = context.client.resolve(arguments.job)
    status = context.client.status(name)
    selection = _selection(arguments, context, status)
    if arguments.path:
        paths = context.client.ask(LogPaths(run=name, logs=selection), Paths).paths
        if arguments.json:
            from supervisor.cli import documents

            context.screen.print(documents.document("log-paths", {"run": name, "paths": list(paths)}))
        else:
            context.screen.print(*paths)
        return ExitCode.OK
    is_past = selection.generation is not None and selection.generation != status.generation
    is_following = arguments.follow and not status.is_final and not is_past
    try:
        if arguments.json:
            return _print_json(context, name, selection, is_following)
        return _print_story(context, status, selection, is_following=is_following, has_prefix=not arguments.no_prefix)
    except KeyboardInterrupt:
        raise Detached(f"detached; {name} is not touched") from None


def _print_story(
    context: Context, status: RunStatus, selection: LogSelection, *, is_following: bool, has_prefix: bool
) -> int:
    screen = context.screen
    begin_s = wall_s()

    def wants_event(event: EventRecord) -> bool:
        if is_following and event.wall_s >= begin_s:
            return not event.kind.startswith("incident.")  # told in full
        if not is_following and event.kind in OPENING_KINDS:
            return False
        return selection.all_generations or event.generation == _generation_shown(selection, status)

    last_incident = status.incident.number if status.incident else 0
    story = Story(
        screen,
        status,
        wants_event,
        incidents_after=last_incident if is_following else None,
        has_prefix=has_prefix,
    )
    request = Watch(run=status.run, follow=is_following, events=has_prefix, snapshots=True, logs=selection)
    play(context, story, request)
    if story.run.is_final and _generation_shown(selection, status) == status.generation:
        reason = f": {safe(story.run.reason)}" if story.run.reason else ""
        story.rule(f"{status.run} {story.run.state}{reason}")
    return ExitCode.OK


def _print_json(context: Context, run: str, selection: LogSelection, is_following: bool) -> int:
    from supervisor.cli import documents

    def show(source: Source, lines: list[bytes]) -> None:
        context.screen.print(*(documents.line_of(documents.log_line_of(run, source, line)) for line in lines))

    joiner = LineJoiner()
    for reply in context.client.stream(Watch(run=run, follow=is_following, logs=selection), TICK_S):
        if isinstance(reply, LogChunk):
            show(*joiner.feed(reply))
    for source, lines in joiner.finish():
        show(source, lines)
    return ExitCode.OK


def _selection(arguments: argparse.Namespace, context: Context, status: RunStatus) -> LogSelection:
    if arguments.ranks is not None and arguments.follow and status.ranks is None and not status.is_final:
        known = follow(context, status.run, lambda status: status.ranks is not None)
        status = known or status
    is_all = arguments.gen == "all"
    generation = None if is_all else arguments.gen
    newest = -1 if status.generation is None else status.generation
    if generation is not None and (generation > newest or (generation == -1 and newest < 1)):
        which = "before the newest" if generation == -1 else str(generation)
        raise Refused(
            "C012",
            f"no generation {which} in {status.run}" + ("" if newest < 0 else f": the newest is {newest}"),
            hint=f"supctl status {status.run}",
            exit_code=ExitCode.NOT_FOUND,
        )
    return LogSelection(
        ranks=None if arguments.ranks is None else ranks_of(arguments.ranks, status),
        streams=(arguments.stream,) if arguments.stream else ("out", "err"),
        generation=generation,
        all_generations=is_all,
        tail_lines=arguments.tail,
    )


def _generation_shown(selection: LogSelection, status: RunStatus) -> int | None:
    if selection.generation is None or status.generation is None:
        return status.generation
    return status.generation - 1 if selection.generation == -1 else selection.generation


def _generation(text: str) -> int | str:
    return text if text == "all" else _number(text, -1, "a generation is 0, 1, 2 …, -1 or all")


def _lines(text: str) -> int | None:
    return None if text == "all" else _number(text, 0, "a number of lines is 0 or more, or all")


def _number(text: str, low: int, form: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or int(text) < low:
        raise argparse.ArgumentTypeError(form)
    return int(text)
