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


class LineJoiner:
    """Gives each line once and whole, in its stream's order, however the streams' chunks are mixed."""

    def __init__(self) -> None:
        self._unfinished: dict[Source, bytearray] = {}

    def feed(self, chunk: LogChunk) -> tuple[Source, list[bytes]]:
        """The lines, without their newline, that `chunk` completes."""
        source = Source(chunk.generation, chunk.node, chunk.rank, chunk.stream)
        buffer = self._unfinished.setdefault(source, bytearray())
        buffer += chunk.data
        *lines, rest = bytes(buffer).split(b"\n")
        if len(rest) >= MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        if rest:
            self._unfinished[source] = bytearray(rest)
        else:
            del self._unfinished[source]
        return source, lines

    def finish(self, before: int | None = None) -> list[tuple[Source, list[bytes]]]:
        """What streams ended with instead of a newline: all of them, or those of generations before `before`."""
        ended = [source for source in self._unfinished if before is None or source.generation < before]
        return [(source, [bytes(self._unfinished.pop(source))]) for source in ended]


def clean(line: bytes, keeps_colour: bool) -> str:
    """One line as a terminal may have it: no control characters but tab and, if wanted, colour.

    Of a line that a progress bar wrote over and over (`\\r`), its last state.
    """
    return safe(line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2], keeps_colour)


def safe(text: str, keeps_colour: bool = False) -> str:
    """Text on one line that does nothing to a terminal but be seen."""
    if text.isprintable():
        return text

    def keep(match: re.Match[str]) -> str:
        return match[0] if keeps_colour and _SGR.fullmatch(match[0]) else ""

    result = _UNSAFE.sub(keep, text)
    return f"{result}\x1b[0m" if "\x1b" in result else result
