"""`supctl logs --dedupe`: what many ranks say alike is shown once, and then is told which of them have said it."""

from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby

from protocol.text import numbers_text
from supervisor.cli.log_lines import Line, Source, clean
from supervisor.shell.clock import boot_s

WINDOW_S = 2.0

LINES_MAX = 10_000
"""So many lines are remembered; one that is older is shown again when it comes again."""

DIGEST_BYTES = 32
"""Of a line that is longer, its digest is kept."""

START_COLUMNS = 40
"""So much of a line is told again, to know it by."""

_Key = tuple[int, str, bytes]


@dataclass(slots=True)
class _Shown:
    """A line that was shown, and which other ranks have said it since."""

    key: _Key
    rank: int
    start: bytes
    read_s: float
    shown_s: float
    others: set[int] = field(default_factory=set)


class Dedupe:
    """Drops a line that another rank has said within the WINDOW_S before: by when both were read, or where that is not
    known by when they came here. What a rank says twice itself is shown twice."""

    def __init__(self) -> None:
        self._shown: dict[_Key, _Shown] = {}  # the oldest first
        self._over: list[_Shown] = []  # nobody else is waited for, and others have said it
        self._newest_s = 0.0

    def pick(self, source: Source, lines: list[Line]) -> list[Line]:
        """Those of `lines` that are to be shown."""
        now_s = boot_s()
        return [line for line in lines if self._is_new(source, line, now_s)]

    def _is_new(self, source: Source, line: Line, now_s: float) -> bool:
        is_long = len(line.data) > DIGEST_BYTES
        text = blake2b(line.data, digest_size=DIGEST_BYTES).digest() if is_long else line.data
        key = source.generation, source.stream, text
        self._newest_s = max(self._newest_s, line.read_s)
        shown = self._shown.get(key)
        if shown is not None:
            between_s = line.read_s - shown.read_s if line.read_s and shown.read_s else now_s - shown.shown_s
            if between_s <= WINDOW_S and source.rank != shown.rank and source.rank not in shown.others:
                shown.others.add(source.rank)
                return False
            self._end(shown)
        elif len(self._shown) >= LINES_MAX:
            self._end(next(iter(self._shown.values())))
        self._shown[key] = _Shown(key, source.rank, line.data[: 4 * START_COLUMNS], line.read_s, now_s)
        return True

    def _end(self, shown: _Shown) -> None:
        del self._shown[shown.key]
        if shown.others:
            self._over.append(shown)

    def told(self, *, is_idle: bool = False, is_last: bool = False) -> list[str]:
        """What there is to be told of lines shown before: of those whose time is over, which at the end all are.
        `is_idle`: nothing has come for a while, so time is that of the clock."""
        now_s = boot_s()
        while self._shown:
            shown = next(iter(self._shown.values()))
            by_read_s = self._newest_s - shown.read_s if shown.read_s else 0.0
            passed_s = max(by_read_s, now_s - shown.shown_s if is_idle or not shown.read_s else 0.0)
            is_like_the_last = bool(self._over) and _who(shown) == _who(self._over[-1])
            if passed_s <= WINDOW_S and not is_last and not is_like_the_last:
                break
            self._end(shown)
        over, self._over = self._over, []
        return [_text([*alike]) for _, alike in groupby(over, _who)]


def _who(shown: _Shown) -> tuple[int, list[int]]:
    return shown.rank, sorted(shown.others)


def _text(alike: list[_Shown]) -> str:
    ranks, start = alike[0].others, clean(alike[0].start, keeps_colour=False).strip()
    what = "the same line" if len(alike) == 1 else f"the same {len(alike):,} lines"
    which = start if len(start) <= START_COLUMNS else f"{start[: START_COLUMNS - 1]}…"
    return f"{what} from {len(ranks)} more rank{'s' * (len(ranks) != 1)}: {numbers_text(ranks)} · {which}"
