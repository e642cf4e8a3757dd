"""Output without a view around it: bytes as they were written, or JSON, one object a line. What else there is to be
known goes to stderr."""

import re
from abc import ABC, abstractmethod
from typing import Protocol

from protocol.messages.control import ControlReply, LogChunk, Notice, RunStatus, Statuses
from supervisor.cli.grep import Grep
from supervisor.cli.log_lines import MAX_LINE_BYTES, Line, LineJoiner, Source, missing, safe, source_of
from supervisor.cli.screen import Screen

_CONTROLS = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Of what may not reach a terminal, what JSON leaves as it is."""


class Show(Protocol):
    """What a Watch is shown by: given its replies one after the other."""

    run: RunStatus  # as it was told last
    has_shown: bool  # some line of a rank

    def take(self, reply: ControlReply) -> None:
        """Show what there is to show of one reply."""

    def tick(self) -> None:
        """Called after every reply, and at least once a second by a follower: time has passed."""

    def finish(self) -> None:
        """No more comes: show what was held back."""


class _Output(ABC):
    """What all of them do with what is no output."""

    def __init__(self, screen: Screen, run: RunStatus) -> None:
        self.run = run
        self.has_shown = False
        self._screen = screen
        self._generation = -1

    def take(self, reply: ControlReply) -> None:
        match reply:
            case Statuses(runs=[self.run, *_]):
                pass
            case Notice(text=text):
                self._screen.complain(safe(text))
            case LogChunk():
                self._take_chunk(reply)
            case _:
                pass

    def _take_chunk(self, chunk: LogChunk) -> None:
        if chunk.generation > self._generation:
            self._generation = chunk.generation
            self._end_before(chunk.generation)
        source = source_of(chunk)
        if text := missing(chunk):
            self._end(source)
            self._screen.complain(text)
        if chunk.data:
            self._show(source, chunk)

    def tick(self) -> None:  # noqa: B027  # only a view has what is shown later than it came
        """Nothing to do."""

    @abstractmethod
    def _show(self, source: Source, chunk: LogChunk) -> None:
        """Show it, or hold it back until its line is whole."""

    @abstractmethod
    def _end(self, source: Source) -> None:
        """What is held back of it is all of its line."""

    @abstractmethod
    def _end_before(self, generation: int | None) -> None:
        """The same of all sources of older generations, or of all."""

    def finish(self) -> None:
        self._end_before(None)


class Raw(_Output):
    """--raw: each rank's bytes in their order, and nothing else, also on a terminal."""

    def _show(self, source: Source, chunk: LogChunk) -> None:
        self.has_shown = True
        self._screen.print_bytes(chunk.data)

    def _end(self, source: Source) -> None:
        pass

    def _end_before(self, generation: int | None) -> None:
        pass


class Lines(_Output):
    """--no-prefix into a pipe: whole lines, byte for byte. One of more than MAX_LINE_BYTES comes in pieces, one right
    behind the other unless another rank's line comes in between."""

    def __init__(self, screen: Screen, run: RunStatus) -> None:
        super().__init__(screen, run)
        self._held: dict[Source, bytes] = {}  # behind each stream's last newline
        self._open: Source | None = None  # whose piece was printed last, without a newline

    def _show(self, source: Source, chunk: LogChunk) -> None:
        data = chunk.data
        held = self._held.pop(source, b"")
        end = len(data) if data.endswith(b"\n") else data.rfind(b"\n") + 1
        if end:
            self._print(source, held, data[:end])
            held = b""
        held += data[end:]
        if held and (self._open == source or len(held) >= MAX_LINE_BYTES):
            self._print(source, held)
            self._open = source
        elif held:
            self._held[source] = held

    def _end(self, source: Source) -> None:
        if source in self._held or self._open == source:
            self._print(source, self._held.pop(source, b""), b"\n")

    def _end_before(self, generation: int | None) -> None:
        unfinished = [*self._held, *([] if self._open is None else [self._open])]
        for source in unfinished:
            if generation is None or source.generation < generation:
                self._end(source)

    def _print(self, source: Source, *pieces: bytes) -> None:
        self.has_shown = True
        if self._open is not None and self._open != source:
            self._screen.print_bytes(b"\n")
        self._open = None
        for piece in pieces:
            if piece:
                self._screen.print_bytes(piece)


class JsonLines(_Output):
    """--json: one object a line."""

    def __init__(self, screen: Screen, run: RunStatus, grep: Grep) -> None:
        super().__init__(screen, run)
        self._grep = grep
        self._joiner = LineJoiner()

    def _show(self, source: Source, chunk: LogChunk) -> None:
        self._print(*self._joiner.feed(chunk))

    def _end(self, source: Source) -> None:
        self._print(source, self._joiner.end(source))

    def _end_before(self, generation: int | None) -> None:
        for source, lines in self._joiner.finish(generation):
            self._print(source, lines)
        for source, lines in self._grep.release():
            self._write(source, lines)

    def _print(self, source: Source, lines: list[Line]) -> None:
        self._write(source, self._grep.pick(source, lines))

    def _write(self, source: Source, lines: list[Line]) -> None:
        if not lines:
            return
        from supervisor.cli import documents

        self.has_shown = True
        text = documents.log_lines(self.run.run, source, lines)
        if self._screen.out.is_terminal:
            text = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text.decode()).encode()
        self._screen.print_bytes(text)
