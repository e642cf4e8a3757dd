"""Where supctl writes: data on stdout, everything else on stderr; colour, width and symbols fit each stream."""

import os
from collections.abc import Mapping
from typing import TextIO

from protocol.errors import SupdError

ASCII = str.maketrans(
    {"│": "|", "┃": "!", "─": "-", "·": "-", "✓": "ok", "✗": "x", "→": "->", "…": "...", "×": "x", "—": "-"}
)
STYLES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36", "dim": "2"}
STATE_STYLES = {
    "running": "green",
    "succeeded": "green",
    "failed": "red",
    "killed": "red",
    "lost": "red",
    "stopped": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
}
CLEAR_LINE = "\r\x1b[K"


class Channel:
    """One output stream and what may be written to it."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str], color: str) -> None:
        self._stream = stream
        self.is_tty = stream.isatty() and environ.get("TERM") != "dumb"
        self.has_colour = color == "always" or (color == "auto" and _wants_colour(self.is_tty, environ))
        self.is_unicode = _is_utf8(stream.encoding, environ)
        self.columns = _columns(stream, environ) if self.is_tty else None

    def paint(self, text: str, style: str | None) -> str:
        """`text` in a style of STYLES, where this stream has colours."""
        if not self.has_colour or style is None:
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"

    def spell(self, text: str) -> str:
        """`text` in the characters this stream has."""
        return text if self.is_unicode else text.translate(ASCII)

    def write(self, data: bytes) -> None:
        """Exactly these bytes, at once."""
        self._stream.flush()
        self._stream.buffer.write(data)
        self._stream.flush()

    def write_text(self, text: str) -> None:
        """`text` as it is, at once; what the stream cannot encode becomes a question mark."""
        self.write(self.spell(text).encode(self._stream.encoding, "replace"))


class Screen:
    """Both streams of this supctl, and at most one line on stderr that is drawn again in place."""

    def __init__(
        self, stdout: TextIO, stderr: TextIO, environ: Mapping[str, str], *, color: str = "auto", is_quiet: bool = False
    ) -> None:
        self.out = Channel(stdout, environ, color)
        self.err = Channel(stderr, environ, color)
        self.is_quiet = is_quiet
        self._has_redrawn = False

    def print(self, *lines: str) -> None:
        """Data, one item a line."""
        self.print_bytes(b"")
        self.out.write_text("".join(f"{line}\n" for line in lines))

    def print_bytes(self, data: bytes) -> None:
        """Data, byte for byte."""
        self._clear()
        self.out.write(data)

    def tell(self, text: str) -> None:
        """Progress, a warning, a hint: nothing that a script would read; silent with --quiet."""
        if not self.is_quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        """What went wrong; also with --quiet."""
        self._clear()
        self.err.write_text(f"{text}\n")

    def redraw(self, text: str) -> None:
        """A line that the next one replaces. Only for a terminal: the caller asks `err.is_tty`."""
        if not self.is_quiet:
            cut = shorten(text, (self.err.columns or 80) - 1)
            self.err.write_text(CLEAR_LINE + cut)
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

    def _clear(self) -> None:
        if self._has_redrawn:
            self._has_redrawn = False
            self.err.write_text(CLEAR_LINE)


def shorten(text: str, columns: int) -> str:
    """`text` in at most `columns` characters."""
    return text if len(text) <= columns else text[: max(columns - 1, 0)] + "…"


def _wants_colour(is_tty: bool, environ: Mapping[str, str]) -> bool:
    if environ.get("NO_COLOR"):
        return False
    return is_tty or bool(environ.get("FORCE_COLOR"))


def _is_utf8(encoding: str, environ: Mapping[str, str]) -> bool:
    """Python writes UTF-8 in the C locale too (PEP 540), so the locale's own name is asked as well."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    return encoding.lower().replace("-", "") == "utf8" and "utf8" in locale.lower().replace("-", "")


def _columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    columns = environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
