"""From what nodes offer to who gets which ranks (R2), and whether a report fits what was given. Pure functions."""

from collections.abc import Mapping

from protocol.coordinator_events import Seat
from protocol.job import MAX_NPROC_PER_NODE
from protocol.messages.member import Assignment, Offer, Part, Renewal


def seats_for(
    generation: int, offers: Mapping[str, Offer], runners: Mapping[str, str], restart_reason: str
) -> dict[str, Seat]:
    """The seats of a generation, in the order of `offers`: contiguous ranks, the first node's address and port."""
    master = next(iter(offers.values()))
    world_size = sum(offer.slots for offer in offers.values())
    seats: dict[str, Seat] = {}
    first_rank = 0
    for node_rank, (node, offer) in enumerate(offers.items()):
        assignment = Assignment(
            generation=generation,
            node_rank=node_rank,
            nnodes=len(offers),
            first_rank=first_rank,
            nproc=offer.slots,
            world_size=world_size,
            master_addr=master.address,
            master_port=master.port,
            restart_reason=restart_reason,
        )
        seats[node] = Seat(node=node, incarnation=runners[node], assignment=assignment)
        first_rank += offer.slots
    return seats


def is_sound(offer: Offer) -> bool:
    """Whether a node can offer this."""
    return 0 < offer.slots <= MAX_NPROC_PER_NODE and 0 < offer.port < 2**16


def ranks_of(seat: Seat) -> range:
    """The ranks of a seat."""
    return range(seat.assignment.first_rank, seat.assignment.first_rank + seat.assignment.nproc)


def fits(seat: Seat, renewal: Renewal) -> bool:
    """Whether a report can be true of this seat: its own ranks, each once, and no success without all of them."""
    ranks = [report.rank for report in renewal.ranks]
    own = ranks_of(seat)
    if len(set(ranks)) != len(ranks) or not all(rank in own for rank in ranks):
        return False
    if renewal.part is not Part.FINISHED:
        return True
    return len(ranks) == len(own) and all(r.exit is not None and r.exit.code == 0 for r in renewal.ranks)
