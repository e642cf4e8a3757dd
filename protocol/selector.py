"""Which ranks a word like `0`, `0,3`, `8-15`, `!0` or `all` chooses: `supctl logs -r`, `progress.log_ranks`."""

import re

FORM = "like 0 or 0,3 or 8-15 or !0 or all"

_PIECE = re.compile(r"(!?)(?:(all)|([0-9]{1,7})(?:-([0-9]{1,7}))?)")


class NoSuchRank(ValueError):
    """A piece of a selector names a rank that is not there; the text is that piece."""


def is_selector(text: str) -> bool:
    """Whether this has the form of a selector."""
    return all(_PIECE.fullmatch(piece) for piece in text.split(","))


def choose_ranks(selector: str, world_size: int, *, is_strict: bool = True) -> tuple[int, ...]:
    """The ranks it chooses of those from 0 to `world_size` - 1, in order.

    Raises ValueError for another form, and NoSuchRank for a rank that is not there, which else is skipped.
    """
    every = range(world_size)
    pieces = selector.split(",")
    chosen: set[int] = set(every) if pieces[0].startswith("!") else set()
    for piece in pieces:
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise ValueError(f"ranks {selector!r}: write them {FORM}")
        exclude, is_all, first, last = match.groups()
        ranks = every if is_all else range(int(first), int(last or first) + 1)
        if is_strict and (not ranks or ranks[-1] >= world_size):
            raise NoSuchRank(piece.removeprefix("!"))
        ranks = range(ranks.start, min(ranks.stop, world_size))  # of millions, those that are there
        if exclude:
            chosen.difference_update(ranks)
        else:
            chosen.update(ranks)
    return tuple(sorted(chosen.intersection(every)))
