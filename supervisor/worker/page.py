"""The heartbeat page of one rank: 64 bytes that the training process writes and the runner reads.

The layout is public (docs/heartbeat.md has it, with the order of the stores): a program in any language may write it.
"""

from __future__ import annotations

import struct

SIZE = 64
MAGIC = b"supd"
VERSION = 1
PHASE_BYTES = 32

_LAYOUT = struct.Struct("<4sIQqII32s")  # magic, version, count, step, pid, flags, phase
assert _LAYOUT.size == SIZE

DONE = 1
"""The flag for: no more beats will come."""

COUNT, STEP, OWNER = 1, 2, 3
"""Fields as numbers of 64-bit words: one store each, never torn. OWNER holds the pid below and the flags above."""

FLAGS_SHIFT = 32
PHASE = slice(SIZE - PHASE_BYTES, SIZE)


class Beat:
    """What a page shows. Any change of it is a sign of life; how much `count` has grown means nothing."""

    __slots__ = ("count", "is_done", "phase", "pid", "step")

    def __init__(self, count: int, step: int | None, pid: int, phase: str, is_done: bool) -> None:
        self.count = count
        self.step = step
        self.pid = pid  # of the process that beats, as that process sees it; 0: none yet
        self.phase = phase
        self.is_done = is_done


def blank() -> bytes:
    """A page before its first beat."""
    return _LAYOUT.pack(MAGIC, VERSION, 0, -1, 0, 0, b"")


def is_known(content: bytes) -> bool:
    """Whether this is a page of the version that is described here; nobody writes to another."""
    return len(content) == SIZE and content[:8] == blank()[:8]


def read(content: bytes) -> Beat | None:
    """What a page shows; None where it is too short. Any bytes will do: a rank can spoil no page but its own."""
    if len(content) != SIZE:
        return None
    _, _, count, step, pid, flags, phase = _LAYOUT.unpack(content)
    return Beat(count, step if step >= 0 else None, pid, _name(phase), bool(flags & DONE))


def _name(phase: bytes) -> str:
    """The name in a phase field; what can't be shown in it is a question mark."""
    text = phase.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def phase_field(name: str) -> bytes:
    """A name as the field has it: at most 32 bytes of UTF-8, cut between two characters, padded with NULs."""
    text = name.partition("\0")[0].encode("utf-8", "replace")[:PHASE_BYTES]
    return text.decode("utf-8", "ignore").encode("utf-8").ljust(PHASE_BYTES, b"\0")
