"""A generation that its coordinator has no record of, put together from what its runners tell (R6). Pure.

A coordinator may have lost its journal, or come back with yesterday's, or run on another node now. Runners are then
ahead of it. They are told to go on and to tell their assignments, and these make up the generation: all of it, or all
but seats that only others name, as their witnesses. Such a seat is judged by its lease like any other one. A seat that
nobody names is waited for.
"""

from collections.abc import Mapping

from protocol.coordinator_events import RunRecord, Seat
from protocol.messages.fleet import NODES_MAX
from protocol.messages.member import Assignment, Renewal, Witness
from protocol.seating import witness_ranks
from protocol.text import some_of


class Takeover:
    """One generation that is being put together."""

    def __init__(self, generation: int, due_s: float) -> None:
        self.generation = generation
        self.due_s: float | None = due_s  # until when everybody is waited for; None: no longer
        self.parts: dict[str, Renewal] = {}  # node -> what its runner said last
        self.speakers: dict[str, str] = {}  # node -> that runner, which may be gone by now
        self._told: dict[int, Seat] = {}  # by node_rank
        self._named: dict[int, Witness] = {}

    def hear(self, node: str, incarnation: str, renewal: Renewal) -> None:
        """A runner of this generation."""
        self.parts[node], self.speakers[node] = renewal, incarnation
        assignment = renewal.assignment
        if assignment is None or assignment.generation != self.generation or not _can_be(assignment):
            return
        self._told[assignment.node_rank] = Seat(node=node, incarnation=incarnation, assignment=assignment)
        self._named |= {witness.node_rank: witness for witness in assignment.witnesses}

    def is_late(self, now_s: float) -> bool:
        """Whether there was time enough for everybody to tell."""
        if self.due_s is not None and now_s >= self.due_s:
            self.due_s = None
        return self.due_s is None

    def speaks_for(self, node: str, incarnation: str) -> bool:
        """Whether others name this runner as one of the generation."""
        return any((w.node, w.incarnation) == (node, incarnation) for w in self._named.values())

    def has(self, incarnation: str) -> bool:
        """Whether this runner is one of the generation, as itself or others tell."""
        told = (seat.incarnation for seat in self._told.values())
        return incarnation in told or any(witness.incarnation == incarnation for witness in self._named.values())

    @property
    def has_seats(self) -> bool:
        """Whether anything is known of it."""
        return bool(self._told)

    @property
    def is_whole(self) -> bool:
        """Whether every runner has told its assignment."""
        return bool(self._told) and len(self._told) == self._size

    @property
    def is_known(self) -> bool:
        """Whether it is known of every seat whose it is."""
        return bool(self._told) and all(rank in self._told or rank in self._named for rank in range(self._size))

    @property
    def _size(self) -> int:
        return next(iter(self._told.values())).assignment.nnodes if self._told else 0

    def seats(self) -> dict[str, Seat]:
        """Those that are known, by node_rank."""
        ranks = sorted(self._told.keys() | self._named.keys())
        seats = (self._told[rank] if rank in self._told else self._named_seat(rank) for rank in ranks)
        return {seat.node: seat for seat in seats}

    def _named_seat(self, node_rank: int) -> Seat:
        """Of a runner that was not heard. It got the rest of its assignment as the others did."""
        named, other = self._named[node_rank], next(iter(self._told.values())).assignment
        # Only those that others name: whether one listens, and so is a witness of anybody, nobody else knows.
        witnesses = (self._named.get(rank) for rank in witness_ranks(node_rank, other.nnodes))
        assignment = Assignment(
            generation=self.generation,
            node_rank=node_rank,
            nnodes=other.nnodes,
            first_rank=named.first_rank,
            nproc=named.nproc,
            world_size=other.world_size,
            master_addr=other.master_addr,
            master_port=other.master_port,
            restart_reason=other.restart_reason,
            timing=other.timing,
            witnesses=tuple(filter(None, witnesses)),
        )
        return Seat(node=named.node, incarnation=named.incarnation, assignment=assignment)

    def missing(self) -> str:
        """Who has not told yet, for people."""
        if not self._told:
            return "whoever runs it to tell what"
        ranks = [rank for rank in range(self._size) if rank not in self._told]
        names = [self._named[rank].node for rank in ranks if rank in self._named]
        unnamed = len(ranks) - len(names)
        others = f"{unnamed} more whose name nobody knows" if unnamed else ""
        return " and ".join(filter(None, (some_of(names) if names else "", others)))


def _can_be(assignment: Assignment) -> bool:
    """Whether any coordinator can have given this out."""
    return 0 <= assignment.node_rank < assignment.nnodes <= NODES_MAX


def told_run() -> RunRecord:
    """What is kept first of a run that only its runners know of."""
    return RunRecord(is_taken_over=True)


def slots_of(seats: Mapping[str, Seat]) -> dict[str, int]:
    """The places in the order of ranks that these seats show."""
    return {node: seat.assignment.node_rank for node, seat in seats.items()}
