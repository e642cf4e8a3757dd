"""Which lines of a rank's stderr tell of an error: what everybody is shown of every rank (ux: "errors of all").

A traceback, a line of log level error or worse, the banner of a fatal signal, an NCCL warning, each with what belongs
to it: the indented lines behind it, and those that were read within `GAP_S` of the one before.
"""

import re
from collections.abc import Iterator

from supervisor.logs.blocks import GAP_S, TOGETHER_S, TRACEBACK, Block

PLAIN_LINES_MAX = 50
"""Lines that are not indented belong to an error only so long: a rank may write without a pause."""

_HINTS = (
    TRACEBACK,
    *(b"ERROR", b"CRITICAL", b"FATAL", b"Fatal ", b"Exception ", b"NCCL WARN"),
    *(b"*** ", b"SIG", b"Segmentation", b"Bus error", b"Illegal instr", b"terminate called", b"Aborted"),
)
"""Without one of these, and without a line that begins like glog's, there is no sign: looked for first, as it is
quick. (A traceback of threads begins with one of Exception.)"""

_GLOG_HINT = re.compile(rb"[EF][01]\d[0-3]\d ")

_SIGN = re.compile(
    rb"Traceback \(most recent call last\)|Exception (?:in thread|ignored in)\b|Fatal Python error"
    rb"|(?:^|[\[\s:])[EF][01]\d[0-3]\d \d\d:\d\d:\d\d"  # glog, also behind "[rank3]:["
    rb"|(?<!\w)(?:ERROR|CRITICAL|FATAL)(?!\w)"  # logging and its kin
    rb"|NCCL WARN"
    rb"|Segmentation fault|Bus error|Illegal instruction|terminate called|Aborted(?: \(core dumped\)|$)"
    rb"|\*\*\* (?:Aborted at|Check failure|SIG)|\bSIG(?:SEGV|ABRT|BUS|FPE|ILL|SYS|TRAP|KILL)\b"
)

_OTHER = re.compile(rb"(?:^|[\[\s:])[IWDV][01]\d[0-3]\d \d\d:\d\d:\d\d|(?<!\w)(?:DEBUG|INFO|NOTICE|WARN|WARNING)(?!\w)")
"""A log line of a lower level: with it something else begins."""

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")

_INSIDE = re.compile(rb"[ \t]|(?:\[rank\d+\]:)?(?:[ \t]|frame #)")
"""Beginning of a line that belongs to an error, however many there are."""


class Errors:
    """Picks the lines that tell of an error from the blocks of one stream, one after the other."""

    def __init__(self) -> None:
        self.begin = 0  # lines that stand before this offset are only looked at
        self._is_open = False  # what follows may belong to an error
        self._read_s = 0.0  # of the line before
        self._plain_lines = 0  # since the last line that belongs to an error in any case

    def pick(self, block: Block) -> Iterator[Block]:
        """What is to be shown of a block, in pieces that are of one kind."""
        if not self._is_open and not _may_hold_sign(block.data):
            self._read_s = block.read_s
            return
        offset, start = block.offset, -1  # of the lines that are shown together
        for line in _LINE.findall(block.data):
            is_shown = self._belongs(line.rstrip(b"\r\n"), block.read_s) and offset >= self.begin
            if is_shown and start < 0:
                start = offset
            elif not is_shown and start >= 0:
                yield _part(block, start, offset)
                start = -1
            offset += len(line)
        if start >= 0:
            yield _part(block, start, offset)

    def _belongs(self, line: bytes, read_s: float) -> bool:
        gap_s, self._read_s = read_s - self._read_s, read_s
        if _SIGN.search(line):
            self._is_open, self._plain_lines = True, 0
        elif self._is_open and _INSIDE.match(line):
            self._is_open = gap_s < TOGETHER_S
            self._plain_lines = 0
        elif self._is_open:
            self._plain_lines += 1
            self._is_open = gap_s < GAP_S and self._plain_lines <= PLAIN_LINES_MAX and not _OTHER.search(line)
        return self._is_open


def _may_hold_sign(data: bytes) -> bool:
    return any(hint in data for hint in _HINTS) or _GLOG_HINT.search(data) is not None


def _part(block: Block, start: int, end: int) -> Block:
    data = block.data[start - block.offset : end - block.offset]
    return Block(block.key_s, data, block.read_s, start)
