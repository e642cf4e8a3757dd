"""What the supervisor saw and did, oldest first (docs/events.md lists the kinds)."""

import argparse
from collections.abc import Callable

from protocol.exit_code import ExitCode
from protocol.messages.control import EventRecord, Watch
from supervisor.cli.arguments import UsageError, add_job, add_json
from supervisor.cli.context import Context, Detached
from supervisor.cli.event_kinds import KIND_GROUPS, KINDS
from supervisor.cli.log_lines import safe
from supervisor.cli.moments import FORM, clock, period
from supervisor.cli.watching import Watching

KIND_COLUMNS = 19
DETAIL_COLUMNS_MIN = 20
DETAIL_COLUMN = len("12:00:00  GEN  ") + KIND_COLUMNS + 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl events`' own arguments."""
    add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--type", metavar="KINDS", help="only these kinds, like rank.* or incident.opened,job.*")
    parser.add_argument("--since", metavar="TIME", help=f"only of that time or later: {FORM}")
    parser.add_argument("--until", metavar="TIME", help="only from before that time")
    add_json(parser, "one JSON object a line")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the events of one run."""
    wants = _wanted(arguments)
    name = context.client.resolve(arguments.job)
    show = _show_json if arguments.json else _show_text
    if not arguments.json:
        context.screen.print(f"{'TIME':<8}  GEN  {'EVENT':<{KIND_COLUMNS}}  DETAIL")
    watching = Watching(context.client, context.screen.tell, Watch(run=name, follow=arguments.follow, events=True))
    try:
        for reply in watching.replies():
            if isinstance(reply, EventRecord) and wants(reply):
                show(context, reply)
    except KeyboardInterrupt:
        raise Detached(f"detached; {name} is not touched") from None
    return ExitCode.OK


def _wanted(arguments: argparse.Namespace) -> Callable[[EventRecord], bool]:
    """What --type, --since and --until say. Raises UsageError where they make no sense."""
    since_s, until_s = period(arguments)
    kinds = None if arguments.type is None else arguments.type.split(",")
    from fnmatch import fnmatchcase

    for kind in kinds or ():
        if not any(fnmatchcase(known, kind) for known in KINDS):
            raise _no_such_kind(kind)

    def wants(event: EventRecord) -> bool:
        if since_s is not None and event.wall_s < since_s:
            return False
        if until_s is not None and event.wall_s >= until_s:
            return False
        return kinds is None or any(fnmatchcase(event.kind, kind) for kind in kinds)

    return wants


def _no_such_kind(kind: str) -> UsageError:
    from protocol.tables import did_you_mean  # only where something is wrong

    near = did_you_mean(kind, [*KINDS, *KIND_GROUPS])
    message = f"--type: there are no events {kind!r}" + (f"; {near}" if near else "")
    return UsageError(message, "write kinds like rank.* or incident.opened,job.*; docs/events.md lists them")


def _show_text(context: Context, event: EventRecord) -> None:
    generation = "-" if event.generation is None else str(event.generation)
    lead = f"{clock(event.wall_s)}  {generation:>3}  {event.kind:<{KIND_COLUMNS}}  "
    context.screen.print(*_wrapped(lead, safe(event.text), context.screen.out.columns))
    stderr = event.detail.get("stderr")
    for line in str(stderr).splitlines() if stderr else ():  # of an incident: what its rank said last
        context.screen.print(f"{'':{DETAIL_COLUMN}}┃ {safe(line)}")


def _wrapped(lead: str, text: str, columns: int | None) -> list[str]:
    """The text behind its `lead`, and below itself where a terminal is too narrow for it."""
    if columns is None or columns < len(lead) + DETAIL_COLUMNS_MIN or len(lead) + len(text) <= columns:
        return [lead + text]
    from textwrap import wrap

    below = " " * len(lead)
    return wrap(text, columns, initial_indent=lead, subsequent_indent=below, break_on_hyphens=False)


def _show_json(context: Context, event: EventRecord) -> None:
    from supervisor.cli import documents

    context.screen.print(documents.line("event", event))
