"""From what nodes offer to who gets which ranks (R2), and whether a report fits what was given. Pure functions."""

import re
from collections.abc import Mapping
from itertools import accumulate
from math import gcd

from protocol.coordinator_events import Seat
from protocol.job import MAX_NPROC_PER_NODE
from protocol.messages.member import WITNESSES_MAX, Assignment, Offer, Part, Renewal, Witness
from protocol.timing import Timing

NO_LIMIT: Mapping[str, tuple[str, ...] | None] = {}

_TAKEN = re.compile(rb"address already in use|EADDRINUSE|errno: 98\b", re.IGNORECASE)
"""How programs say that a port is somebody else's: C's strerror, its name, and c10d's number."""


def witness_ranks(node_rank: int, nnodes: int) -> tuple[int, ...]:
    """The node_ranks of the witnesses of one member of a generation: up to three, spread evenly over the slots, so that
    neighbours, which fail together, are not each other's. The first stride has no divisor in common with `nnodes`: so
    no part of the members has all its witnesses in itself."""
    most = min(WITNESSES_MAX, nnodes - 1)
    strides = [round(place * nnodes / (most + 1)) for place in range(1, most + 1)]
    if strides:
        strides[0] = next(stride for stride in range(strides[0], nnodes) if gcd(stride, nnodes) == 1)
    return tuple((node_rank + stride) % nnodes for stride in strides)


def seats_for(
    generation: int,
    offers: Mapping[str, Offer],
    runners: Mapping[str, str],
    restart_reason: str,
    timing: Timing,
    *,
    has_witnesses: bool,
    devices: Mapping[str, tuple[str, ...] | None] = NO_LIMIT,
    resume_step: int | None = None,
) -> dict[str, Seat]:
    """The seats of a generation, in the order of `offers`: contiguous ranks, the first node's address and port, and
    witnesses, if the lease is to end where nobody is heard. A runner that listens nowhere is nobody's witness.
    `devices` are those that the run was granted of each node where there is a limit; `resume_step` was saved last."""
    master = next(iter(offers.values()))
    counts = [offer.slots for offer in offers.values()]
    world_size, first_ranks = sum(counts), [0, *accumulate(counts)]
    members = [
        Witness(
            node=node,
            incarnation=runners[node],
            address=offer.address,
            port=max(offer.witness_port, 1),
            node_rank=place,
            first_rank=first_ranks[place],
            nproc=offer.slots,
        )
        for place, (node, offer) in enumerate(offers.items())
    ]
    listens = [offer.witness_port > 0 for offer in offers.values()]
    seats: dict[str, Seat] = {}
    for place, (node, offer) in enumerate(offers.items()):
        ranks = witness_ranks(place, len(offers)) if has_witnesses else ()
        assignment = Assignment(
            generation=generation,
            node_rank=place,
            nnodes=len(offers),
            first_rank=first_ranks[place],
            nproc=offer.slots,
            world_size=world_size,
            master_addr=master.address,
            master_port=master.port,
            restart_reason=restart_reason,
            timing=timing,
            witnesses=tuple(members[rank] for rank in ranks if listens[rank]),
            resume_step=resume_step,
            devices=devices.get(node),
        )
        seats[node] = Seat(node=node, incarnation=runners[node], assignment=assignment)
    return seats


def is_sound(offer: Offer) -> bool:
    """Whether a node can offer this."""
    return 0 < offer.slots <= MAX_NPROC_PER_NODE and 0 < offer.port < 2**16


def lost_its_port(culprit: int | None, seat: Seat, part: Renewal | None) -> bool:
    """Whether a generation failed because somebody had taken the port of rank 0, in this seat; by its last lines.

    Only where it failed by itself, and before all others. A rank that had started has to name the port, too: programs
    have other ports of their own.
    """
    report = next((r for r in part.ranks if r.rank == 0), None) if part is not None else None
    if culprit != 0 or report is None or report.exit is None or not report.exit.failed:
        return False
    text = b"\n".join(report.exit.stderr_tail)
    names_it = re.search(rb"\b%d\b" % seat.assignment.master_port, text) is not None
    return _TAKEN.search(text) is not None and (names_it or not report.started)


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
