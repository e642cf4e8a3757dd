"""Draws a problem where it stands: the line, carets under what it is about, and how to mend it.

error[J204]: `stop.grace` needs a unit
  --> llama.toml:21:9
   |
21 | grace = 300
   |         ^^^ write "300s" or "5m"
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from protocol.errors import About, KeyPath, Place, Problem
from protocol.spans import Extent, Mark, part_of_string, scan

COLUMNS_MIN = 40  # on a narrower terminal lines wrap
_TAB = "    "
_UNSAFE = "\ufffd"  # stands for what a terminal might obey
_HIDDEN = "***"  # as wide on every terminal: carets stand behind it
_CUT = "..."
_WORD = re.compile(r"[A-Za-z0-9_-]+")


class Canvas(NamedTuple):
    """What snippets are drawn for: lines longer than this are cut around the carets."""

    columns: int = 120
    is_ascii: bool = False  # other characters are shown as a question mark, and take one column


class Source:
    """One text that settings were read from: a file, or an option of the command line.

    `marks` finds its keys and values; there are none in a text that is not TOML. Values of the keys that `is_secret`
    are never shown.
    """

    def __init__(
        self,
        name: str,
        text: str,
        marks: Callable[[], Mark | None],
        *,
        is_secret: Callable[[KeyPath], bool] | None = None,
        is_file: bool = True,
    ) -> None:
        self.name = name
        self.text = text
        self.is_file = is_file
        self._marks = marks
        self._is_secret = is_secret

    @cached_property
    def root(self) -> Mark | None:
        """Where its keys and values stand; None where that is not known."""
        return self._marks()

    @cached_property
    def _hidden(self) -> list[Extent]:
        return sorted(_hidden(self.text, self.root, self._is_secret)) if self._is_secret else []

    def find(self, about: About) -> "Part | None":
        """Where something stands; None where that is not known."""
        if about.span:
            return Part(self, Extent(*about.span))
        mark = self.root.find(about.path) if self.root else None
        if mark is None:
            return None
        whole = mark.key if about.is_key else mark.value or mark.key
        if whole is None:
            return None
        exact = part_of_string(self.text, whole, about.within) if about.within else None
        return Part(self, exact or whole)

    def hidden_in(self, window: Extent) -> list[Extent]:
        """The values in a part of the text that are not shown."""
        first = bisect_right(self._hidden, window.start, key=lambda extent: extent.end)
        return self._hidden[first : bisect_left(self._hidden, window.end, key=lambda extent: extent.start)]


class Part(NamedTuple):
    """A part of one source that is to be shown."""

    source: Source
    extent: Extent

    @property
    def line(self) -> int:
        """The number of its line, from 1."""
        return self.source.text.count("\n", 0, self.extent.start) + 1

    @property
    def line_extent(self) -> Extent:
        """Its line, without the end of it."""
        text = self.source.text
        end = text.find("\n", self.extent.start)
        return Extent(text.rfind("\n", 0, self.extent.start) + 1, len(text) if end < 0 else end)

    @property
    def place(self) -> Place:
        """Where it stands, for people and programs."""
        source, line = self.source, self.line_extent
        column, length = self.extent.start - line.start + 1, min(self.extent.end, line.end) - self.extent.start
        if source.is_file:
            return Place(source.name, self.line, column, max(1, length))
        canvas = Canvas()
        window = _window(self, canvas, canvas.columns)
        return Place(f"{source.name} {_drawn(self, window, canvas)[0]}", None, column, max(1, length))


def settle(
    problems: Iterable[Problem],
    file: str,
    sources: Sequence[tuple[KeyPath, Source]],
    canvas: Canvas | None = None,
) -> list[Problem]:
    """Draw problems of a file where they stand, and put them in the order in which they stand there.

    A source wins over the ones before it in what is below its path.
    """
    numbers = {source: number for number, (_, source) in enumerate(sources)}
    order: list[tuple[int, int, Problem]] = []
    for problem in problems:
        part = _find(problem.about, sources)
        if part is None:
            _draw_nowhere(problem, file)
            order.append((len(sources), 0, problem))
        else:
            _draw(problem, part, problem.other and _find(problem.other[0], sources), canvas or Canvas())
            order.append((numbers[part.source], part.extent.start, problem))
    order.sort(key=lambda entry: entry[:2])
    return [problem for *_, problem in order]


def _find(about: About | None, sources: Sequence[tuple[KeyPath, Source]]) -> Part | None:
    if about is None:
        return None
    newest = [*reversed(sources)]
    for path, source in newest:
        if about.path[: len(path)] == path:
            part = source.find(about)
            if part or path:
                return part
    return next((source.find(about) for path, source in newest if path[: len(about.path)] == about.path), None)


def _draw(problem: Problem, part: Part, other: Part | None, canvas: Canvas) -> None:
    """Draw a problem at a part of a source; `other` is where its second one stands."""
    problem.place = part.place
    gutter = " " * max(2, *(len(str(at.line)) for at in (part, other or part)))
    room = max(canvas.columns, COLUMNS_MIN) - len(f"{gutter} | ")
    window = _window(part, canvas, room)
    notes = [problem.note] if problem.note else []
    marked = [(part, "^", problem.hint)]
    if problem.other and other:
        _, label = problem.other
        if other.source is not part.source:
            notes.insert(0, f"{label} at {_where(other.place)}")
        elif other.line != part.line or _contains(window, other.extent):
            marked = sorted([*marked, (other, "-", label)], key=lambda mark: (mark[0].line, mark[1] == "^"))
    lines = [f"{gutter}--> {_where(problem.place)}", f"{gutter} |"]
    last = 0
    for at, sign, said in marked:
        text, column, width = _drawn(at, window if at.line == part.line else _window(at, canvas, room), canvas)
        if at.line != last:
            lines += ["..."] * (0 < last < at.line - 1)
            lines.append(f"{str(at.line).rjust(len(gutter)) if at.source.is_file else gutter} | {text}")
        carets = f"{' ' * column}{sign * width}"
        if len(f"{carets} {said}") <= room:
            lines.append(f"{gutter} | {carets} {said}")
        else:  # below, as far to the right as it fits
            lines += [f"{gutter} | {carets}", f"{gutter} | {' ' * max(0, min(column, room - len(said)))}{said}"]
        last = at.line
    problem.snippet = "\n".join([*lines, *(f"{gutter} = {note}" for note in notes)])


def _draw_nowhere(problem: Problem, file: str) -> None:
    """Draw a problem of a file where nothing is known of its place."""
    notes = [problem.hint, problem.note] if problem.note else [problem.hint]
    problem.snippet = "\n".join([f"  --> {file}", *(f"   = {note}" for note in notes)])


def _where(place: Place) -> str:
    return f"{place.file}:{place.line}:{place.column}" if place.line else place.file


def _contains(window: Extent, extent: Extent) -> bool:
    return window.start <= extent.start < window.end


def _window(part: Part, canvas: Canvas, room: int) -> Extent:
    """The part of its line that is shown in so many columns."""
    text, line = part.source.text, part.line_extent
    if _reach(text, line.start, line.end, canvas, room) == line.end:
        return line
    room -= len(_CUT)
    start = _reach(text, part.extent.start, line.start, canvas, room // 3)
    end = _reach(text, start, line.end, canvas, room - len(_CUT) * (start > line.start))
    return Extent(_reach(text, end, line.start, canvas, room) if end == line.end else start, end)


def _reach(text: str, start: int, stop: int, canvas: Canvas, room: int) -> int:
    """How far one comes from `start` towards `stop`, forwards or backwards, in so many columns."""
    step = 1 if start < stop else -1
    for at in range(start, stop, step):
        room -= max(1, _safe(text[at if step > 0 else at - 1], canvas)[1])
        if room < 0:
            return at
    return stop


def _drawn(part: Part, window: Extent, canvas: Canvas) -> tuple[str, int, int]:
    """A window of a line as it is shown, and the column and width of the part in it."""
    line, (start, end) = part.line_extent, part.extent
    pieces = [_CUT] if window.start > line.start else []
    column = len(_CUT) * len(pieces)
    columns: list[int] = []
    hidden = part.source.hidden_in(window)
    for at in range(window.start, window.end):
        secret = next((extent for extent in hidden if extent.start <= at < extent.end), None)
        if secret and at > max(secret.start, window.start):
            columns.append(column - len(_HIDDEN))
            continue
        piece, width = (_HIDDEN, len(_HIDDEN)) if secret else _safe(part.source.text[at], canvas)
        pieces.append(piece)
        columns.append(column)
        column += width
    columns.append(column)
    if window.end < line.end:
        pieces.append(_CUT)
    begin = columns[start - window.start]
    return "".join(pieces), begin, max(1, columns[min(end, window.end) - window.start] - begin)


def _safe(char: str, canvas: Canvas) -> tuple[str, int]:
    """A character as it is shown, and the columns that it takes."""
    if char == "\t":
        return _TAB, len(_TAB)
    if canvas.is_ascii and not char.isascii():
        return "?", 1
    if not char.isprintable():
        return "?" if canvas.is_ascii else _UNSAFE, 1
    if unicodedata.category(char) in ("Mn", "Me"):
        return char, 0
    return char, 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _hidden(text: str, root: Mark | None, is_secret: Callable[[KeyPath], bool]) -> Iterator[Extent]:
    """The secret values; where the text is not TOML, also all behind that place that might be one."""
    if root is not None:
        yield from _secrets(root, is_secret)
        return
    result = scan(text)
    yield from _secrets(result.root, is_secret)
    if result.stopped is None:
        return
    line_end = text.find("\n", result.stopped)
    line_end = len(text) if line_end < 0 else line_end
    behind = result.stopped if result.value is None else result.value
    path: KeyPath = result.path
    if result.value is None or text.startswith("[", behind):
        path = (*path, 0)
    elif text.startswith("{", behind):
        path = (*path, "")
    if is_secret(path) or any(is_secret((word,)) for word in _WORD.findall(text, behind, line_end)):
        yield Extent(behind, len(text))
    elif not text.startswith(('"""', "'''"), result.stopped):
        yield Extent(line_end, len(text))


def _secrets(root: Mark, is_secret: Callable[[KeyPath], bool]) -> Iterator[Extent]:
    marks: list[tuple[KeyPath, Mark]] = [((), root)]
    while marks:
        path, mark = marks.pop()
        marks += [((*path, name), below) for name, below in mark.entries.items()]
        is_header = mark.key is not None and mark.value is not None and mark.key.start > mark.value.start
        if mark.value and not mark.entries and not is_header and is_secret(path):
            yield mark.value
