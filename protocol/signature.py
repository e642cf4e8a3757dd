"""What a failure is of, in a form that is the same for two failures of one cause: its exception and the place, its
signal, its exit code. Never the rank: a fault that moves from rank to rank is one fault. Pure functions."""

import re
from collections.abc import Iterable, Sequence

from protocol.messages.member import RankExit, RankReport, SpawnFailure
from protocol.signals import signal_name
from protocol.text import one_line

SIGNATURE_MAX_CHARS = 200

_OF_RANK = re.compile(rb"^\[rank\d+\]: ?")
"""What torch puts before each line of an exception where several ranks may write one."""

_FRAME = re.compile(rb'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(rb"^(?P<type>[A-Za-z_][\w.]*)(?::|\s*$)")


def of_exit(exit: RankExit) -> str:
    """`RuntimeError at train.py:31`, `SIGSEGV`, `exit code 3`."""
    if exit.oom:
        return "out of memory"
    if exit.error is not None and exit.error.raised:
        return exit.error.raised
    if exit.signal is not None:
        return signal_name(exit.signal)
    return of_code(exit.code or 0, exit.stderr_tail)


def of_code(code: int, stderr_tail: Sequence[bytes] = ()) -> str:
    """Of a rank that exited by itself: what its last lines tell, else the code."""
    return of_traceback(stderr_tail) or f"exit code {code}"


def of_stalls(reports: Iterable[RankReport]) -> str:
    """Of ranks that hang: what the first of them was in, and which limit passed."""
    report = next(iter(reports))
    assert report.stall is not None
    phase = f"phase {report.phase}" if report.phase else "no phase"
    return one_line(f"hang in {phase} at {report.stall.setting}", SIGNATURE_MAX_CHARS)


def of_spawn(failure: SpawnFailure) -> str:
    """Of a rank that could not be spawned."""
    return one_line(f"spawn of {failure.path}: {failure.reason}", SIGNATURE_MAX_CHARS)


def of_traceback(lines: Sequence[bytes]) -> str:
    """The type of the exception that a Python traceback in these lines ends with, and where it was raised; "": there
    is none."""
    bare = [_OF_RANK.sub(b"", line) for line in lines]
    frame, at = None, 0
    for i, line in enumerate(bare):
        if match := _FRAME.match(line):
            frame, at = match, i
    if frame is None:
        return ""
    behind = (line for line in bare[at + 1 :] if line.strip() and not line[:1].isspace())
    exception = _EXCEPTION.match(next(behind, b""))
    if exception is None:
        return ""
    kind, file = exception["type"].decode(), frame["file"].decode(errors="replace")
    return one_line(f"{kind} at {file}:{int(frame['line'])}", SIGNATURE_MAX_CHARS)
