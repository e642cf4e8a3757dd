"""From chunks of many ranks' bytes to whole lines, and from bytes to text that is safe on a terminal."""

import re
from typing import NamedTuple

from protocol.messages.control import LogChunk

MAX_LINE_BYTES = 1024 * 1024
"""An unfinished line is held back until its end, or until it is this long."""

_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_UNSAFE = re.compile(
    r"\x1b\[[0-9;:]*m"  # colour, kept where wanted
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # other control sequences (ECMA-48, 5.4)
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # strings for the terminal: title, clipboard, device control
    r"|\x1b[ -/]*[0-~]?"  # other escapes
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"  # control characters but the tab
)


class Source(NamedTuple):
    """Whose line it is."""

    generation: int
    node: str
    rank: int
    stream: str  # out, err


class Line(NamedTuple):
    """One line, without its newline."""

    data: bytes
    read_s: float  # when the runner read its end, in seconds since 1970; 0: not known


class LineJoiner:
    """Gives each line once and whole, in its stream's order, however the streams' chunks are mixed."""

    def __init__(self) -> None:
        self.unfinished: dict[Source, Line] = {}  # what stands behind each stream's last newline

    def feed(self, chunk: LogChunk) -> tuple[Source, list[Line]]:
        """The lines that `chunk` completes."""
        source = Source(chunk.generation, chunk.node, chunk.rank, chunk.stream)
        before = self.unfinished.pop(source, None)
        lines = _dated(chunk)
        if before is not None:
            lines[0] = lines[0]._replace(data=before.data + lines[0].data)
        rest = lines.pop()
        if len(rest.data) >= MAX_LINE_BYTES:
            lines.append(rest)
        elif rest.data:
            self.unfinished[source] = rest
        return source, lines

    def finish(self, before: int | None = None) -> list[tuple[Source, list[Line]]]:
        """What streams ended with instead of a newline: all of them, or those of generations before `before`."""
        ended = [source for source in self.unfinished if before is None or source.generation < before]
        return [(source, [self.unfinished.pop(source)]) for source in ended]


def _dated(chunk: LogChunk) -> list[Line]:
    """The lines of a chunk, the last one being what stands behind the last newline."""
    changes = iter([*chunk.times, (len(chunk.data) + 1, 0.0)])
    read_s = 0.0
    change_at, next_s = next(changes)
    at = 0
    lines = []
    for data in chunk.data.split(b"\n"):
        while change_at <= at:
            read_s = next_s
            change_at, next_s = next(changes)
        lines.append(Line(data, read_s))
        at += len(data) + 1
    return lines


def clean(line: bytes, keeps_colour: bool) -> str:
    """The last state of a line as a terminal may have it: no control characters but tab and, if wanted, colour."""
    return safe(last_state(line).decode("utf-8", "replace"), keeps_colour)


def last_state(line: bytes) -> bytes:
    """Of a line that a progress bar wrote over and over (`\\r`), how it was in the end."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def safe(text: str, keeps_colour: bool = False) -> str:
    """Text on one line that does nothing to a terminal but be seen."""
    if text.isprintable():
        return text

    def keep(match: re.Match[str]) -> str:
        return match[0] if keeps_colour and _SGR.fullmatch(match[0]) else ""

    result = _UNSAFE.sub(keep, text)
    return f"{result}\x1b[0m" if "\x1b" in result else result
