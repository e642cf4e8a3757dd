"""Where supctl writes: data on stdout, everything else on stderr; colour, width and symbols fit each stream."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from protocol.errors import SupdError

ASCII = str.maketrans(
    {"│": "|", "┃": "!", "─": "-", "·": "-", "✓": "ok", "✗": "x", "→": "->", "…": "...", "×": "x", "—": "-", "✦": "*"}
)
STYLES = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "dim": "2",
    "bold": "1",
}
STATE_STYLES = {
    "running": "green",
    "ready": "green",
    "succeeded": "green",
    "failed": "red",
    "killed": "red",
    "lost": "red",
    "stalled": "red",
    "unreachable": "red",
    "fenced": "red",
    "suspect": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "pending": "yellow",
    "stopped": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
}
CLEAR_LINE = "\r\x1b[K"
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
"""What a terminal does with the end of a line that is too long: cut it off, or go on below."""


def give_up(stream: TextIO) -> None:
    """Let what is written end nowhere: also what is in the buffers, which Python would write at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Stream:
    """One output stream and what may be written to it."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str], color: str) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()
        self.is_tty = self.is_terminal and environ.get("TERM") != "dumb"
        self.has_colour = color == "always" or (color == "auto" and _wants_colour(self.is_tty, environ))
        self.is_unicode = _is_utf8(stream.encoding, environ)
        self._environ = environ

    @property
    def columns(self) -> int | None:
        """As many as the terminal has now; None: no terminal."""
        return self._size("COLUMNS", 80) if self.is_terminal else None

    @property
    def lines(self) -> int | None:
        """As many as the terminal has now; None: no terminal."""
        return self._size("LINES", 24) if self.is_terminal else None

    def _size(self, name: str, fallback: int) -> int:
        """As the environment says, else as the terminal does."""
        said = self._environ.get(name, "")
        if said.isdecimal() and int(said) > 0:
            return int(said)
        try:
            return getattr(os.get_terminal_size(self._stream.fileno()), name.lower()) or fallback
        except OSError:
            return fallback

    def paint(self, text: str, style: str | None, more: str = "") -> str:
        """`text` in a style of STYLES and perhaps a second one, where this stream has colours."""
        if not self.has_colour or style is None:
            return text
        return f"\x1b[{STYLES[style]}{f';{STYLES[more]}' if more else ''}m{text}\x1b[0m"

    def spell(self, text: str) -> str:
        """`text` in the characters this stream has."""
        return text if self.is_unicode else text.translate(ASCII)

    def cut(self, text: str, columns: int) -> str:
        """`text` in the characters this stream has, at most `columns` of them."""
        spelled, mark = self.spell(text), self.spell("…")
        return spelled if len(spelled) <= columns else (spelled[: max(columns - len(mark), 0)] + mark)[:columns]

    def write(self, data: bytes) -> None:
        """Exactly these bytes, at once."""
        self._stream.flush()
        self._stream.buffer.write(data)
        self._stream.flush()

    def give_up(self) -> None:
        """Nobody gets what was written last, nor what is written from now on."""
        give_up(self._stream)

    def write_text(self, text: str) -> None:
        """`text` as it is, at once; what the stream cannot encode becomes a question mark."""
        self.write(self.encoded(text))

    def encoded(self, text: str) -> bytes:
        """The bytes by which this stream has `text`."""
        return self.spell(text).encode(self._stream.encoding, "replace")


class Screen:
    """Both streams of this supctl, and at most one line on stderr that is drawn again in place."""

    def __init__(
        self, stdout: TextIO, stderr: TextIO, environ: Mapping[str, str], *, color: str = "auto", is_quiet: bool = False
    ) -> None:
        self.out = Stream(stdout, environ, color)
        self.err = Stream(stderr, environ, color)
        self.is_quiet = is_quiet
        self._has_redrawn = False
        self._drawn = 0  # lines of the frame on stdout

    def print(self, *lines: str) -> None:
        """Data, one item a line."""
        self.print_bytes(b"")
        self.out.write_text("".join(f"{line}\n" for line in lines))

    def print_bytes(self, data: bytes) -> None:
        """Data, byte for byte."""
        self._clear()
        self.out.write(data)

    @property
    def frame_lines(self) -> int:
        """How many lines of a frame are seen."""
        return (self.out.lines or 24) - 1

    def draw(self, lines: Sequence[str]) -> None:
        """A frame on stdout that replaces the one before. Only for a terminal, which it never scrolls nor wraps."""
        room = self.frame_lines
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        frame = "".join(f"{line}\x1b[K\n" for line in lines[:room])
        self.print_bytes(b"")
        self.out.write_text(f"{up}{NO_WRAP}{frame}{WRAP}\x1b[J")
        self._drawn = min(len(lines), room)

    def tell(self, text: str) -> None:
        """Progress, a warning, a hint: nothing that a script would read; silent with --quiet."""
        if not self.is_quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        """What went wrong; also with --quiet."""
        self._clear()
        self._say(f"{text}\n")

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits at a terminal, and can answer."""
        return self.err.is_terminal and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        """Yes or no; anything but a yes is a no. Only where it `can_ask`."""
        self._clear()
        self._say(f"{question} [y/N] ")
        return sys.stdin.buffer.readline().strip().lower() in (b"y", b"yes")

    def redraw(self, text: str) -> None:
        """A line that the next one replaces. Only for a terminal: the caller asks `err.is_tty`."""
        if not self.is_quiet:
            self._say(CLEAR_LINE + self.err.cut(text, (self.err.columns or 80) - 1))
            self._has_redrawn = True

    def next_step(self, text: str) -> None:
        """What to do now; every failing command ends with one, also with --quiet."""
        self.complain(f"→ {text}")

    def fail(self, error: SupdError, fallback_hint: str) -> None:
        """An error an operator can act on, and its next step."""
        message = str(error)
        if not message.startswith("error["):
            message = f"error[{error.code}]: {message}"
        label, bracket, rest = message.partition(":")
        self.complain(f"{self.err.paint(label, 'red')}{bracket}{rest}")
        self.next_step(error.hint or fallback_hint)

    def _say(self, text: str) -> None:
        try:
            self.err.write_text(text)
        except OSError:  # no reader, no room: no reason to leave undone what was asked for
            self.err.give_up()

    def _clear(self) -> None:
        if self._has_redrawn:
            self._has_redrawn = False
            self._say(CLEAR_LINE)


def _wants_colour(is_tty: bool, environ: Mapping[str, str]) -> bool:
    if environ.get("NO_COLOR"):
        return False
    return is_tty or bool(environ.get("FORCE_COLOR"))


def _is_utf8(encoding: str, environ: Mapping[str, str]) -> bool:
    """Python writes UTF-8 in the C locale too (PEP 540), so the locale's own name is asked as well."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    return encoding.lower().replace("-", "") == "utf8" and "utf8" in locale.lower().replace("-", "")
