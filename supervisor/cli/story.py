"""The log view: many ranks' lines under their prefixes, with what the supervisor did in between."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from protocol.messages.control import ControlReply, EventRecord, LogChunk, Notice, RunStatus, Statuses, Watch
from supervisor.cli.client import ConnectionLost
from supervisor.cli.context import Context
from supervisor.cli.follow import TICK_S, WaitLine
from supervisor.cli.grep import Grep
from supervisor.cli.log_lines import Line, LineJoiner, Source, clean, last_state, safe
from supervisor.cli.prefix import Prefix
from supervisor.cli.render import incident_lines
from supervisor.cli.screen import Screen
from supervisor.shell.clock import boot_s, wall_s

BAR_EVERY_S = 1.0
"""A follower sees the state of a progress bar (`\\r`) so often at most."""


@dataclass(slots=True)
class _Bar:
    """What was shown last of a line that is written over and over."""

    data: bytes
    at_s: float


class Story:
    """Prints the replies of a Watch on `run` as they come, generation after generation.

    `wants_event` chooses the supervisor's lines. Incidents from `in_full_from_s` (s since 1970) on are told in full,
    each at its place among the other events.
    """

    def __init__(
        self,
        screen: Screen,
        run: RunStatus,
        wants_event: Callable[[EventRecord], bool],
        *,
        in_full_from_s: float = math.inf,
        prefix: Prefix | None = None,
        grep: Grep | None = None,
        has_prefix: bool = True,
    ) -> None:
        """Without any prefix the ranks' lines are printed as they were written, and nothing else."""
        self.run = run
        self._screen = screen
        self._wants_event = wants_event
        self._in_full_from_s = in_full_from_s
        self._has_prefix = has_prefix
        self._prefix = prefix or Prefix()
        self._grep = grep or Grep()
        self._joiner = LineJoiner()
        self._generation: int | None = None
        self._has_rule = True
        self._launched: tuple[int | None, int | None, int | None] = (None, None, None)  # the last generation launched,
        # its ranks, and its nodes
        self._bars: dict[Source, _Bar] = {}
        self._prefix.fit(run)

    def take(self, reply: ControlReply) -> None:
        """Print what there is to print of one reply."""
        match reply:
            case Statuses(runs=[run, *_]):
                self._take_status(run)
            case EventRecord():
                self._take_event(reply)
            case Notice(text=text):
                self._take_notice(text)
            case LogChunk():
                self._begin(reply.generation)
                self._print_lines(*self._joiner.feed(reply))
            case _:
                pass

    def show_bars(self) -> None:
        """Print how far progress bars are that have moved; called at every reply and every tick of a follower."""
        if not self._has_prefix:
            return
        now_s = boot_s()
        for source, line in self._joiner.unfinished.items():
            bar = self._bars.get(source)
            if bar is not None and now_s - bar.at_s < BAR_EVERY_S:
                continue
            state = last_state(line.data)
            if b"\r" in line.data and state.strip() and (bar is None or bar.data != state):
                self._bars[source] = _Bar(state, now_s)
                self._print(source, self._grep.pick(source, [line._replace(data=state)]))

    def finish(self) -> None:
        """No more output comes: print what has no newline, and what was held back."""
        self._end_generations(None)

    def rule(self, text: str) -> None:
        """A line across the stream."""
        if self._has_prefix:
            self._screen.print(self._screen.out.paint(f"── {text} ──", "dim"))

    def _begin(self, generation: int) -> None:
        if generation == self._generation:
            return
        self._end_generations(generation)
        self._generation = generation
        self._has_rule = False

    def _end_generations(self, before: int | None) -> None:
        for source, lines in self._joiner.finish(before):
            self._print_lines(source, lines)
        for source, lines in self._grep.release():
            self._print(source, lines)
        self._bars.clear()

    def _print_lines(self, source: Source, lines: list[Line]) -> None:
        """Print what of these lines is to be seen, but for the last state of a bar that was shown already."""
        if lines and (bar := self._bars.pop(source, None)) is not None and last_state(lines[0].data) == bar.data:
            lines = lines[1:]
        self._print(source, self._grep.pick(source, lines))

    def _print(self, source: Source, lines: list[Line]) -> None:
        if not lines:
            return
        if not self._has_prefix:
            self._screen.print_bytes(b"".join(line.data + b"\n" for line in lines))
            return
        self._print_rule()
        out = self._screen.out
        self._screen.print(
            *(self._prefix.of(source, line.read_s, out) + clean(line.data, out.has_colour) for line in lines)
        )

    def _sup(self, text: str, wall_s: float) -> None:
        self._screen.print(self._prefix.of_supervisor(wall_s, self._screen.out) + text)

    def _print_rule(self) -> None:
        """Above the first line of a generation."""
        if self._has_rule:
            return
        self._has_rule = True
        launched, ranks, nodes = self._launched
        if launched != self._generation:
            is_newest = self.run.generation == self._generation
            ranks, nodes = (self.run.ranks, len(self.run.nodes)) if is_newest else (None, None)
        count = "" if ranks is None else f" · {ranks} rank{'s' * (ranks != 1)}"
        if nodes and self.run.nnodes[1] > 1:
            count += f" · {nodes} node{'s' * (nodes != 1)}"
        self.rule(f"generation {self._generation}{count}")

    def _take_event(self, event: EventRecord) -> None:
        ranks, nodes = event.detail.get("ranks"), event.detail.get("nodes")
        if event.kind == "generation.launched" and isinstance(ranks, int):
            self._launched = event.generation, ranks, nodes if isinstance(nodes, int) else None
        if not self._wants_event(event):
            return
        if event.generation is not None:
            self._begin(event.generation)
            self._print_rule()
        if event.kind.startswith("incident.") and event.wall_s >= self._in_full_from_s:
            for line in incident_lines(event, self._screen.out):
                self._sup(line, event.wall_s)
            return
        kind = "" if event.kind.startswith("generation.") else f"{event.kind.replace('.', ' ')}: "
        self._sup(f"{kind}{safe(event.text)}", event.wall_s)  # what is said of a generation begins with it

    def _take_notice(self, text: str) -> None:
        """That some output is missing."""
        if self._has_prefix:
            self._sup(safe(text), wall_s())
        else:
            self._screen.complain(safe(text))

    def _take_status(self, run: RunStatus) -> None:
        self.run = run
        self._prefix.fit(run)


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
                story.show_bars()
                wait_line.show(story.run)
    finally:
        story.finish()
    if request.follow and not story.run.is_final:
        raise ConnectionLost(context.client.address)
