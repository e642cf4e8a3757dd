"""The log view: many ranks' lines under their prefixes, with what the supervisor did in between."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from protocol.messages.control import ControlReply, EventRecord, LogChunk, Notice, RunStatus, Statuses, Watch
from supervisor.cli.context import Context
from supervisor.cli.dedupe import Dedupe
from supervisor.cli.follow import WaitLine
from supervisor.cli.grep import Grep
from supervisor.cli.log_lines import (
    Line,
    LineJoiner,
    Source,
    clean,
    last_state,
    missing,
    pieces,
    plain,
    safe,
    source_of,
)
from supervisor.cli.log_output import Show
from supervisor.cli.prefix import Prefix
from supervisor.cli.render import incident_lines
from supervisor.cli.screen import Screen
from supervisor.cli.watching import Watching
from supervisor.shell.clock import boot_s, wall_s

DEFAULT_VIEW = "rank 0, errors of all"

BAR_EVERY_S = 1.0
"""A follower sees the state of a progress bar (`\\r`) so often at most."""

BARS_A_LOOK, LOOK_S = 10, 0.005
"""They are looked at after each reply; where there are many, only every LOOK_S for each ten of them."""


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
        showing: str = "",
        in_full_from_s: float = math.inf,
        prefix: Prefix | None = None,
        grep: Grep | None = None,
        dedupe: Dedupe | None = None,
        has_prefix: bool = True,
    ) -> None:
        """`showing`: what the first rule says of what is chosen. Without any prefix the ranks' lines are printed as
        they were written, and nothing else."""
        self.run = run
        self.has_shown = False
        self._screen = screen
        self._wants_event = wants_event
        self._showing = showing
        self._in_full_from_s = in_full_from_s
        self._has_prefix = has_prefix
        self._prefix = prefix or Prefix()
        self._grep = grep or Grep()
        self._dedupe = dedupe
        self._joiner = LineJoiner()
        self._generation: int | None = None
        self._has_rule = True
        self._launched: tuple[int | None, int | None, int | None] = (None, None, None)  # the last generation launched,
        # its ranks, and its nodes
        self._bars: dict[Source, _Bar] = {}
        self._bars_at_s = 0.0
        self._prefix.fit(run)
        self._is_whole = has_prefix and self._grep.is_idle and dedupe is None

    def take(self, reply: ControlReply) -> None:
        """Print what there is to print of one reply."""
        match reply:
            case Statuses(runs=[run, *_]):
                self._take_status(run)
            case EventRecord():
                self._take_event(reply)
            case Notice(text=text):
                self._tell(text)
            case LogChunk():
                self._take_chunk(reply)
            case _:
                pass

    def tick(self) -> None:
        """Print how far progress bars are that have moved, and what has waited for long enough."""
        self._show_bars()
        if self._dedupe is not None:
            self._tell_alike(self._dedupe.told(is_idle=True))

    def finish(self) -> None:
        """No more output comes: print what has no newline, and what was held back."""
        self._end_generations(None)
        if self._dedupe is not None:
            self._tell_alike(self._dedupe.told(is_last=True))

    def rule(self, text: str) -> None:
        """A line across the stream."""
        if self._has_prefix:
            self._screen.print(self._screen.out.paint(f"── {text} ──", "dim"))

    def _take_chunk(self, chunk: LogChunk) -> None:
        source = source_of(chunk)
        gap = missing(chunk)
        if chunk.data or gap:
            self._begin(chunk.generation)
        if gap:
            self._print_lines(source, self._joiner.end(source))
            self._tell(gap)
        is_begun = source in self._joiner.unfinished or source in self._bars
        if not (self._is_whole and not is_begun and self._print_whole(source, chunk)):
            self._print_lines(*self._joiner.feed(chunk))

    def _print_whole(self, source: Source, chunk: LogChunk) -> bool:
        """Print whole lines of plain text all at once; False: they are not that."""
        texts = []
        for data, read_s in [(chunk.data, 0.0)] if self._prefix.is_steady else pieces(chunk):
            text = plain(data)
            if text is None:
                return False
            lead = self._prefix.of(source, read_s, self._screen.out)
            texts.append(lead + text.replace("\n", f"\n{lead}"))
        self._print_rule()
        self.has_shown = True
        self._screen.print(*texts)
        return True

    def _show_bars(self) -> None:
        unfinished = self._joiner.unfinished
        if not unfinished or not (self._has_prefix or self._screen.out.is_terminal):
            return
        now_s = boot_s()
        if now_s - self._bars_at_s < len(unfinished) // BARS_A_LOOK * LOOK_S:
            return
        self._bars_at_s = now_s
        for source, line in unfinished.items():
            bar = self._bars.get(source)
            if bar is not None and now_s - bar.at_s < BAR_EVERY_S:
                continue
            state = last_state(line.data)
            if b"\r" in line.data and state.strip() and (bar is None or bar.data != state):
                self._bars[source] = _Bar(state, now_s)
                self._pick(source, [line._replace(data=state)])

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
        self._pick(source, lines)

    def _pick(self, source: Source, lines: list[Line]) -> None:
        self._print(source, self._grep.pick(source, lines))

    def _print(self, source: Source, lines: list[Line]) -> None:
        if self._dedupe is not None and lines:
            lines = self._dedupe.pick(source, lines)
            self._tell_alike(self._dedupe.told())
        if not lines:
            return
        self.has_shown = True
        out = self._screen.out
        if not self._has_prefix and not out.is_terminal:
            self._screen.print_bytes(b"".join(line.data + b"\n" for line in lines))
        elif not self._has_prefix:
            self._screen.print(*(clean(line.data, out.has_colour) for line in lines))
        else:
            self._print_rule()
            prefix = self._prefix
            self._screen.print(
                *(prefix.of(source, line.read_s, out) + clean(line.data, out.has_colour) for line in lines)
            )

    def _tell_alike(self, texts: list[str]) -> None:
        for text in texts:
            self._sup(text, wall_s())

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
        if self._showing and ranks != 1:
            showing, self._showing = self._showing, ""  # it is said once
            return self.rule(f"{self.run.job} generation {self._generation}{count} · showing {showing}")
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

    def _tell(self, text: str) -> None:
        """That some output is missing."""
        if self._has_prefix:
            self._print_rule()
            self._sup(safe(text), wall_s())
        else:
            self._screen.complain(safe(text))

    def _take_status(self, run: RunStatus) -> None:
        self.run = run
        self._prefix.fit(run)


def play(context: Context, show: Show, request: Watch, on_reply: Callable[[RunStatus], None] | None = None) -> None:
    """Show the replies to `request`, to their end, which of a run that is followed is its own; following, also what the
    run waits for. `on_reply` is given the run at every reply and every tick."""
    wait_line = WaitLine(context.screen)
    watching = Watching(context.client, context.screen.tell, request)
    try:
        for reply in watching.replies():
            if reply is not None:
                show.take(reply)
            if on_reply is not None:
                on_reply(show.run)
            if request.follow:
                show.tick()
                if not watching.is_lost:
                    wait_line.show(show.run)
    finally:
        show.finish()
