"""What the supervisor saw and did, oldest first (docs/events.md lists the kinds)."""

import argparse

from protocol.messages.control import EventRecord, Watch
from supervisor.cli.arguments import add_job, add_json
from supervisor.cli.context import Context, Detached
from supervisor.cli.exit_code import ExitCode
from supervisor.cli.follow import TICK_S
from supervisor.cli.log_lines import safe
from supervisor.cli.render import clock

KIND_COLUMNS = 19
DETAIL_COLUMN = len("12:00:00  GEN  ") + KIND_COLUMNS + 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl events`' own arguments."""
    add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    add_json(parser, "one JSON object a line")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print the events of one run."""
    name = context.client.resolve(arguments.job)
    show = _show_json if arguments.json else _show_text
    if not arguments.json:
        context.screen.print(f"{'TIME':<8}  GEN  {'EVENT':<{KIND_COLUMNS}}  DETAIL")
    try:
        for reply in context.client.stream(Watch(run=name, follow=arguments.follow, events=True), TICK_S):
            if isinstance(reply, EventRecord):
                show(context, reply)
    except KeyboardInterrupt:
        raise Detached(f"detached; {name} is not touched") from None
    return ExitCode.OK


def _show_text(context: Context, event: EventRecord) -> None:
    generation = "-" if event.generation is None else str(event.generation)
    context.screen.print(f"{clock(event.wall_s)}  {generation:>3}  {event.kind:<{KIND_COLUMNS}}  {safe(event.text)}")
    stderr = event.detail.get("stderr")
    for line in str(stderr).splitlines() if stderr else ():  # of an incident: what its rank said last
        context.screen.print(f"{'':{DETAIL_COLUMN}}┃ {safe(line)}")


def _show_json(context: Context, event: EventRecord) -> None:
    from supervisor.cli import documents

    context.screen.print(documents.line_of(documents.event_of(event)))
