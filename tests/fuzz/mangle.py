"""What a broken, a strange or an evil peer may make of a frame."""

from random import Random
from typing import Any

import msgspec

from protocol.framing import HEADER_BYTES, MAX_FRAME_BYTES

EVIL_BYTES = (b"\xc1", b"\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff")
"""Never used, and lengths of maps, arrays and texts that nobody could hold."""

DEEP = 2000
"""Arrays within arrays: more than any reader follows by recursion."""

VALUES: tuple[Any, ...] = (None, True, -1, 2**64 - 1, 0.5, "", "x" * 400, b"\xff", [], [1], {}, {"type": "Hello"})


def mangled(frame: bytes, rng: Random) -> bytes:
    """The frame, header and all, with something wrong: often only a little."""
    return rng.choice(WAYS)(frame, rng)


def _flip(frame: bytes, rng: Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _flip_body(frame: bytes, rng: Random) -> bytes:
    """The header stays true, so that what is behind it is read."""
    return frame[:HEADER_BYTES] + _flip(frame[HEADER_BYTES:], rng)


def _cut(frame: bytes, rng: Random) -> bytes:
    return _framed(frame[HEADER_BYTES : rng.randrange(HEADER_BYTES, len(frame))])


def _insert(frame: bytes, rng: Random) -> bytes:
    body, at = frame[HEADER_BYTES:], rng.randrange(len(frame) - HEADER_BYTES)
    return _framed(body[:at] + rng.choice(EVIL_BYTES) + body[at:])


def _longer(frame: bytes, rng: Random) -> bytes:
    return _framed(frame[HEADER_BYTES:] + rng.randbytes(rng.randint(1, 8)))


def _claims(frame: bytes, rng: Random) -> bytes:
    """The header lies."""
    length = rng.choice((0, 1, len(frame), MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 2**32 - 1))
    return length.to_bytes(HEADER_BYTES, "big") + frame[HEADER_BYTES:]


def _deep(_: bytes, rng: Random) -> bytes:
    return _framed(b"\x82\xa4type\xa5Hello\xa3run" + b"\x91" * rng.randint(1, DEEP))


def _noise(_: bytes, rng: Random) -> bytes:
    return _framed(rng.randbytes(rng.randint(0, 40)))


def _other_field(frame: bytes, rng: Random) -> bytes:
    """A message as it is, but for one field: gone, new, or of another type."""
    fields = msgspec.msgpack.decode(frame[HEADER_BYTES:])
    match rng.randrange(3):
        case 0:
            fields.pop(rng.choice(list(fields)))
        case 1:
            fields[rng.choice(("later", "type", ""))] = rng.choice(VALUES)
        case _:
            fields[rng.choice(list(fields))] = rng.choice(VALUES)
    return _framed(msgspec.msgpack.encode(fields))


WAYS = (_flip, _flip_body, _flip_body, _cut, _insert, _longer, _claims, _deep, _noise, _other_field, _other_field)


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "big") + body
