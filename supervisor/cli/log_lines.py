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
    r"|[\u202a-\u202e\u2066-\u2069]"  # what shows text in another order than it has (UAX 9)
)


class Source(NamedTuple):
    """Whose line it is."""

    generation: int
    node: str
    rank: int
    stream: str  # out, err
    local_rank: int = -1  # -1: not known


class Line(NamedTuple):
    """One line, without its newline."""

    data: bytes
    read_s: float = 0.0  # when the runner read its end, in seconds since 1970; 0: not known
    offset: int = 0  # of its first byte in its stream


def source_of(chunk: LogChunk) -> Source:
    """Whose bytes these are."""
    return Source(chunk.generation, chunk.node, chunk.rank, chunk.stream, chunk.local_rank)


class LineJoiner:
    """Gives each line once and whole, in its stream's order, however the streams' chunks are mixed."""

    def __init__(self) -> None:
        self.unfinished: dict[Source, Line] = {}  # what stands behind each stream's last newline

    def feed(self, chunk: LogChunk) -> tuple[Source, list[Line]]:
        """The lines that `chunk` completes."""
        source = source_of(chunk)
        if not chunk.data:
            return source, []
        before = self.unfinished.pop(source, None)
        lines = _dated(chunk)
        if before is not None:
            lines[0] = Line(before.data + lines[0].data, lines[0].read_s, before.offset)
        rest = lines.pop()
        if len(rest.data) >= MAX_LINE_BYTES:
            lines.append(rest)
        elif rest.data:
            self.unfinished[source] = rest
        return source, lines

    def end(self, source: Source) -> list[Line]:
        """What a stream has behind its last newline, where what comes next is not the rest of that line."""
        rest = self.unfinished.pop(source, None)
        return [] if rest is None else [rest]

    def finish(self, before: int | None = None) -> list[tuple[Source, list[Line]]]:
        """What streams ended with instead of a newline: all of them, or those of generations before `before`."""
        ended = [source for source in self.unfinished if before is None or source.generation < before]
        return [(source, self.end(source)) for source in ended]


def _dated(chunk: LogChunk) -> list[Line]:
    """The lines of a chunk, the last one being what stands behind the last newline."""
    changes = iter([*chunk.times, (len(chunk.data) + 1, 0.0)])
    read_s = 0.0
    change_at, next_s = next(changes)
    at, offset = 0, chunk.offset
    lines = []
    for data in chunk.data.split(b"\n"):
        while change_at <= at:
            read_s = next_s
            change_at, next_s = next(changes)
        lines.append(Line(data, read_s, offset + at))
        at += len(data) + 1
    return lines


def pieces(chunk: LogChunk) -> list[tuple[bytes, float]]:
    """Its bytes and when their lines were read, cut where that changes."""
    marks = chunk.times if chunk.times and chunk.times[0][0] == 0 else ((0, 0.0), *chunk.times)
    ends = [*(at for at, _ in marks[1:]), len(chunk.data)]
    return [(chunk.data[start:end], read_s) for (start, read_s), end in zip(marks, ends, strict=True)]


def plain(lines: bytes) -> str | None:
    """Whole lines as text, without the last newline, where that is as safe on a terminal as it is; else None."""
    if not lines.endswith(b"\n"):
        return None
    try:
        text = lines[:-1].decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\t", "").isprintable() else None


def missing(chunk: LogChunk) -> str:
    """What a reader is told of what is not there in front of a chunk; "": nothing is missing."""
    whose = f"rank {chunk.rank}"
    texts = []
    if chunk.removed_bytes:
        texts.append(f"{size_text(chunk.removed_bytes)} of {whose} (std{chunk.stream}) are not kept any more")
    if chunk.skipped_lines:
        lines = f"{chunk.skipped_lines:,} line{'s' * (chunk.skipped_lines != 1)}"
        texts.append(f"{lines} of {whose} not shown (in file: supctl logs --path -r {chunk.rank})")
    return "; ".join(texts)


def size_text(size: int) -> str:
    """`512 bytes`, `3.4 MiB`: as exact as somebody wants to know it."""
    if size < 1024:
        return f"{size} byte{'s' * (size != 1)}"
    number, unit = size / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.1f} {unit}"


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
