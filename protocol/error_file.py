"""What a rank says of its own end in its error file, the one of torch's `@record`. Pure functions.

Programs may write anything there, or end while they write it: what is not understood is left out, and nothing is
believed that cannot be true. `@record` writes

    {"message": {"message": "TYPE: TEXT", "extraInfo": {"py_callstack": "…", "timestamp": "SECONDS"}}}

and what ends by a signal {"message": "TEXT", "timestamp": SECONDS}, where the time may be missing.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from protocol import signature
from protocol.messages.member import RankError
from protocol.text import one_line

BYTES_MAX = 1024 * 1024
"""Of an error file; a larger one is not understood."""

_LOOK_MAX = 64 * 1024
"""Characters of a text that are looked at: the first of a message, the last of a call stack."""


class NotUnderstood(ValueError):
    """No error file, or none that is whole; says why."""


def read(content: bytes, path: str, *, began_wall_s: float, ended_wall_s: float) -> RankError:
    """What the content of a rank's error file says. Raises NotUnderstood.

    The rank lived from `began_wall_s` to `ended_wall_s`, seconds since 1970 by its node's clock.
    """
    if len(content) > BYTES_MAX:
        raise NotUnderstood(f"more than {BYTES_MAX} bytes")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise NotUnderstood(f"no JSON: {one_line(str(exc), 100)}") from None
    outer = _table(data)
    inner = outer.get("message")
    text, more = (inner, outer) if isinstance(inner, str) else (_table(inner).get("message"), _table(inner))
    message = _first_line(text) if isinstance(text, str) else ""
    if not message:
        raise NotUnderstood("it has no message")
    more = _table(more.get("extraInfo")) or more
    stack = more.get("py_callstack")
    return RankError(
        message=message,
        raised=_raised(stack) if isinstance(stack, str) else "",
        file=one_line(path),
        ahead_s=_ahead_s(more.get("timestamp"), began_wall_s, ended_wall_s),
    )


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _first_line(text: str) -> str:
    lines = map(one_line, text[:_LOOK_MAX].splitlines())
    return next(filter(None, lines), "")


def _raised(stack: str) -> str:
    return signature.of_traceback(stack[-_LOOK_MAX:].encode(errors="replace").splitlines())


def _ahead_s(timestamp: object, began_wall_s: float, ended_wall_s: float) -> float:
    """How long before its end it was raised, at least: the time is a whole second, that has begun by then. 0 where the
    rank did not live at that time, as after a step of the clock."""
    if not isinstance(timestamp, str | int | float):
        return 0.0
    try:
        second = math.floor(float(timestamp))
    except (ValueError, OverflowError):  # no number, or none that is finite
        return 0.0
    if not math.floor(began_wall_s) <= second <= ended_wall_s:
        return 0.0
    return max(0.0, ended_wall_s - (second + 1))
