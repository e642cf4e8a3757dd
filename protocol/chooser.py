"""Which ranks of which nodes a text like `0`, `8-15`, `!0`, `local:0`, `gpu-03` or `gpu-0[1-4]/local:2` chooses.

It is told by each node for itself, so it holds for generations of any size and for nodes that come later. Pieces
between commas count from left to right: the last one that a rank is named by decides. A text that begins with `!`
means all the others.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

FORM = "like 0 or 0,3 or 8-15 or !0 or local:0 or gpu-03 or gpu-0[1-4] or gpu-03/local:2 or all"

CHOOSER_MAX = 20_000
"""Characters of one: as many as all ranks of a large run, told one by one."""

NODES_A_PIECE_MAX = 1000

_NUMBERS = r"([0-9]{1,7})(?:-([0-9]{1,7}))?"
_PIECE = re.compile(
    rf"(?P<out>!?)(?:(?P<all>all)|(?P<ranks>{_NUMBERS})|local:(?P<local>{_NUMBERS})"
    rf"|(?P<node>[A-Za-z0-9][A-Za-z0-9._\[\]-]{{0,62}})(?:/local:(?P<node_local>{_NUMBERS}))?)"
)
_NODES = re.compile(r"([^\[\]]*)\[([0-9]{1,7})-([0-9]{1,7})\]([^\[\]]*)")


class Piece(NamedTuple):
    """What stands between two commas; what is None chooses any."""

    text: str  # without its "!"
    is_out: bool
    ranks: range | None = None
    local_ranks: range | None = None
    nodes: tuple[str, ...] | None = None

    def names(self, rank: int, local_rank: int, node: str) -> bool:
        """Whether it speaks of this rank."""
        return (
            (self.ranks is None or rank in self.ranks)
            and (self.local_ranks is None or local_rank in self.local_ranks)
            and (self.nodes is None or node in self.nodes)
        )


class Chooser(NamedTuple):
    """A text that was understood."""

    pieces: tuple[Piece, ...]

    def wants(self, rank: int, local_rank: int, node: str) -> bool:
        """Whether it chooses this rank of this node."""
        for piece in reversed(self.pieces):
            if piece.names(rank, local_rank, node):
                return not piece.is_out
        return self.pieces[0].is_out

    def may_want(self, node: str, first_rank: int, nproc: int) -> bool:
        """Whether it chooses one of the ranks from `first_rank` on that this node has."""
        return any(self.wants(first_rank + local_rank, local_rank, node) for local_rank in range(nproc))

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that it names."""
        return tuple(dict.fromkeys(node for piece in self.pieces for node in piece.nodes or ()))

    @property
    def ranks(self) -> tuple[range, ...]:
        """All ranks that it names by their number."""
        return tuple(piece.ranks for piece in self.pieces if piece.ranks is not None)


def parse(text: str) -> Chooser:
    """Understand it. Raises ValueError, whose text says what is wrong."""
    if len(text) > CHOOSER_MAX:
        raise ValueError(f"ranks are told in at most {CHOOSER_MAX} characters")
    return Chooser(tuple(_pieces(text)))


def _pieces(text: str) -> Iterator[Piece]:
    for piece in text.split(","):
        found = _PIECE.fullmatch(piece)
        if found is None:
            raise ValueError(f"ranks {text!r}: write them {FORM}")
        yield Piece(
            text=piece.removeprefix("!"),
            is_out=bool(found["out"]),
            ranks=_numbers(found["ranks"]),
            local_ranks=_numbers(found["local"] or found["node_local"]),
            nodes=_node_names(found["node"], piece),
        )


def _numbers(text: str | None) -> range | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    if last and int(last) < int(first):
        raise ValueError(f"ranks {text}: the first number has to be the lower one")
    return range(int(first), int(last or first) + 1)


def _node_names(text: str | None, piece: str) -> tuple[str, ...] | None:
    """`gpu-0[1-4]` is gpu-01, gpu-02, gpu-03 and gpu-04."""
    if text is None or ("[" not in text and "]" not in text):
        return None if text is None else (text,)
    found = _NODES.fullmatch(text)
    if found is None:
        raise ValueError(f"nodes {piece!r}: write them like gpu-0[1-4]")
    before, first, last, behind = found.groups()
    numbers = _numbers(f"{first}-{last}")
    assert numbers is not None
    if len(numbers) > NODES_A_PIECE_MAX:
        raise ValueError(f"nodes {piece!r} are more than {NODES_A_PIECE_MAX}")
    return tuple(f"{before}{number:0{len(first)}}{behind}" for number in numbers)
