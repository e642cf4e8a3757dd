"""Which lines `supctl logs --grep` and `--exclude` leave."""

import re
import warnings
from collections import deque
from collections.abc import Iterator

from supervisor.cli.arguments import UsageError
from supervisor.cli.log_lines import Line, Source, clean


class Grep:
    """Passes on lines that hold `pattern` and not `excluded`, both tried on the line as it is shown, without colour.

    With `last`, only the last so many of each stream, which therefore are passed on at the end.
    """

    def __init__(self, pattern: str | None = None, excluded: str | None = None, last: int | None = None) -> None:
        self._pattern = None if pattern is None else _compiled("--grep", pattern)
        self._excluded = None if excluded is None else _compiled("--exclude", excluded)
        self._last = last
        self._held: dict[Source, deque[tuple[int, Line]]] = {}
        self._count = 0

    @property
    def is_idle(self) -> bool:
        """Whether it passes on everything at once."""
        return self._pattern is None and self._excluded is None and self._last is None

    def pick(self, source: Source, lines: list[Line]) -> list[Line]:
        """Those of `lines` that are to be shown now."""
        if self._pattern is not None or self._excluded is not None:
            lines = [line for line in lines if self._wants(clean(line.data, keeps_colour=False))]
        if self._last is None:
            return lines
        held = self._held.setdefault(source, deque(maxlen=self._last))
        for line in lines:
            self._count += 1
            held.append((self._count, line))
        return []

    def release(self) -> Iterator[tuple[Source, list[Line]]]:
        """What was held back until now, in the order in which it came."""
        held = [(number, source, line) for source, lines in self._held.items() for number, line in lines]
        self._held = {}
        for _, source, line in sorted(held):
            yield source, [line]

    def _wants(self, text: str) -> bool:
        if self._pattern is not None and not self._pattern.search(text):
            return False
        return self._excluded is None or not self._excluded.search(text)


def _compiled(option: str, pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise
            return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        hint = f"""write a regular expression, like {option} 'loss (nan|inf)'; \\ in front of ( [ + * . ? means them"""
        raise UsageError(f"{option} {pattern!r}: {exc}", hint) from None
