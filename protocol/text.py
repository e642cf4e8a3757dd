"""Text that is fit to travel and to be shown: whatever a path or a person brings."""

LINE_MAX = 500
"""Characters of one line in a message; a reason in a worker's environment counts against its limit (execve(2))."""


def sendable(text: str) -> str:
    """The text as UTF-8 can have it: bytes that were none (surrogates, PEP 383) come out as question marks."""
    return text.encode(errors="replace").decode()


def one_line(text: str, limit: int = LINE_MAX) -> str:
    """The text on one printable line of at most `limit` characters.

    Bytes that are no UTF-8 (surrogates, PEP 383) come out as replacement signs: they could not be sent.
    """
    sound = text.encode(errors="surrogateescape").decode(errors="replace")
    line = " ".join("".join(c if c.isprintable() else " " for c in sound).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
