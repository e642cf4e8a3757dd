"""The log view: many ranks' lines under their prefixes, with what the supervisor did in between."""

from collections.abc import Callable

from protocol.messages.control import ControlReply, EventRecord, LogChunk, RunStatus, Statuses, Watch
from supervisor.cli.client import ConnectionLost
from supervisor.cli.context import Context
from supervisor.cli.follow import TICK_S, WaitLine
from supervisor.cli.log_lines import LineJoiner, Source, clean, safe
from supervisor.cli.render import incident_block
from supervisor.cli.screen import Screen

RANK_STYLES = ("cyan", "green", "magenta", "blue", "yellow")


class Story:
    """Prints the replies of a Watch on `run` as they come.

    `wants_event` chooses the supervisor's lines. Following, they are printed as they come, and incidents numbered
    above `incidents_after` are told in full. Reading the past (`incidents_after` None), supd sends all events at
    once: there they follow their generation's output.
    """

    def __init__(
        self,
        screen: Screen,
        run: RunStatus,
        wants_event: Callable[[EventRecord], bool],
        *,
        incidents_after: int | None,
        has_prefix: bool = True,
    ) -> None:
        self.run = run
        self._screen = screen
        self._wants_event = wants_event
        self._incidents_after = incidents_after
        self._has_prefix = has_prefix
        self._joiner = LineJoiner()
        self._generation: int | None = None
        self._held: list[EventRecord] = []
        self._label_columns = _label_columns(run)

    def take(self, reply: ControlReply) -> None:
        """Print what there is to print of one reply."""
        match reply:
            case Statuses(runs=[run, *_]):
                self._take_status(run)
            case EventRecord():
                if self._has_prefix and self._wants_event(reply):
                    self._held.append(reply)
                if self._incidents_after is not None:
                    self._tell_held()
            case LogChunk():
                self._begin(reply.generation)
                self._print(*self._joiner.feed(reply))
            case _:
                pass

    def finish(self) -> None:
        """No more output comes: print what has no newline."""
        for source, lines in self._joiner.finish():
            self._print(source, lines)
        self._tell_held()

    def rule(self, text: str) -> None:
        """A line across the stream."""
        if self._has_prefix:
            self._screen.print(self._screen.out.paint(f"── {text} ──", "dim"))

    def _begin(self, generation: int) -> None:
        if generation == self._generation:
            return
        for source, lines in self._joiner.finish(before=generation):
            self._print(source, lines)
        self._tell_held(before=generation)
        self._generation = generation
        ranks = self.run.ranks if self.run.generation == generation else None
        self.rule(f"generation {generation}" + ("" if ranks is None else f" · {ranks} rank{'s' * (ranks != 1)}"))

    def _print(self, source: Source, lines: list[bytes]) -> None:
        if not lines:
            return
        if not self._has_prefix:
            self._screen.print_bytes(b"\n".join([*lines, b""]))
            return
        out = self._screen.out
        label = f"{source.node}:{source.rank}" if self.run.nnodes > 1 else str(source.rank)
        label = out.paint(label.ljust(self._label_columns), RANK_STYLES[source.rank % len(RANK_STYLES)])
        bar = "│" if source.stream == "out" else out.paint("┃", "red")
        self._screen.print(*(f"{label} {bar} {clean(line, out.has_colour)}" for line in lines))

    def _sup(self, text: str) -> None:
        self._screen.print(f"{self._screen.out.paint('sup'.rjust(self._label_columns), 'dim')} │ {text}")

    def _tell_held(self, before: int | None = None) -> None:
        held, self._held = self._held, []
        for event in held:
            if before is not None and event.generation is not None and event.generation >= before:
                self._held.append(event)
            else:
                kind = "" if event.kind.startswith("generation.") else f"{event.kind.replace('.', ' ')}: "
                self._sup(f"{kind}{safe(event.text)}")  # what is said of a generation begins with it

    def _take_status(self, run: RunStatus) -> None:
        self.run = run
        self._label_columns = max(self._label_columns, _label_columns(run))
        if self._incidents_after is None or run.incident is None or run.incident.number <= self._incidents_after:
            return
        self._incidents_after = run.incident.number
        for line in [f"incident #{run.incident.number}", *incident_block(run.incident, self._screen.out)]:
            if self._has_prefix:
                self._sup(line)


def play(
    context: Context, story: Story, request: Watch, on_reply: Callable[[RunStatus], None] = lambda _run: None
) -> None:
    """Print `story` from the replies to `request`, to their end; following, also what the run waits for.

    `on_reply` is given the run at every reply and every tick. Raises ConnectionLost where a run that is followed is
    not over at the end of the replies.
    """
    wait_line = WaitLine(context.screen)
    try:
        for reply in context.client.stream(request, TICK_S):
            if reply is not None:
                story.take(reply)
            on_reply(story.run)
            if request.follow:
                wait_line.show(story.run)
    finally:
        story.finish()
    if request.follow and not story.run.is_final:
        raise ConnectionLost(context.client.address)


def _label_columns(run: RunStatus) -> int:
    """How wide the longest NODE:RANK (on one node: RANK) of a run is."""
    longest_node = max((len(node) + 1 for node in run.nodes), default=0) if run.nnodes > 1 else 0
    return longest_node + len(str(max((run.ranks or 1) - 1, 0)))
