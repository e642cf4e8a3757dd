"""Which streams of a run a selection means, as the node sees it on which they lie."""

from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from protocol.chooser import Chooser, parse
from protocol.coordinator_events import Seat
from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.messages.control import LogSelection
from supervisor.logs.paths import generations, parts, stream_path, streams


class Chosen(NamedTuple):
    """One stream of a generation that is wanted."""

    rank: int
    name: str  # out, err
    local_rank: int
    is_errors_only: bool  # of all that it holds


class Choice:
    """A selection that was understood."""

    def __init__(self, selection: LogSelection) -> None:
        """Raises Refused where its chooser has no form that is known."""
        self.selection = selection
        self._chooser: Chooser | None = None
        if selection.chooser is not None:
            try:
                self._chooser = parse(selection.chooser)
            except ValueError as exc:
                raise Refused("F040", str(exc), hint="supctl logs --help", exit_code=ExitCode.USAGE) from None

    def may_have(self, seat: Seat) -> bool:
        """Whether a node with this seat may have output that is wanted."""
        first, nproc = seat.assignment.first_rank, seat.assignment.nproc
        if self._chooser is None:
            return first == 0 or "err" in self.selection.streams
        return self._chooser.may_want(seat.node, first, nproc)

    def generations(self, logs_dir: Path, first: int) -> list[int]:
        """Those that are wanted: where the selection names none, from `first` on; blocking."""
        if self.selection.generation is not None:
            return [self.selection.generation]
        return [generation for generation in generations(logs_dir) if generation >= first]

    def find(
        self, logs_dir: Path, generation: int, node: str, seen: Container[tuple[int, str, int]] = ()
    ) -> list[Chosen]:
        """The streams of a generation on this node that are wanted, as far as they have files; blocking. Those of
        which it is known already (`seen`: rank, name, local rank) are left out."""
        there = streams(logs_dir, generation)
        first = there[0][0] if there else 0
        found = []
        for rank, name in there:
            if name not in self.selection.streams or (rank, name, rank - first) in seen:
                continue
            is_errors_only = False
            if self._chooser is not None:
                is_wanted = self._chooser.wants(rank, rank - first, node)
            else:
                is_wanted, is_errors_only = rank == 0 or name == "err", rank != 0
            if is_wanted:
                found.append(Chosen(rank, name, rank - first, is_errors_only))
        return found


def paths(logs_dir: Path, selection: LogSelection, node: str) -> tuple[str, ...]:
    """The files of a selection that are on this node, those of a stream in its order; blocking. May raise Refused."""
    choice = Choice(selection)
    there = generations(logs_dir)
    newest = there[-1] if there and not selection.all_generations else 0
    found: list[Path] = []
    for generation in choice.generations(logs_dir, newest):
        for chosen in choice.find(logs_dir, generation, node):
            live = stream_path(logs_dir, generation, chosen.rank, chosen.name)
            found += [*(part.path for part in parts(live)), live]
    return tuple(map(str, found))
