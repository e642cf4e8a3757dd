"""Who is whose witness; and whether rank 0 lost its port: by its last lines, and only where that can have ended it."""

from itertools import pairwise

import pytest

from protocol.coordinator_events import Seat
from protocol.messages.member import WITNESSES_MAX, Offer, Part
from protocol.seating import lost_its_port, seats_for, witness_ranks
from protocol.timing import Timing
from tests.protocol.build import PORT, assignment, exited, offer, rank, renewal

SEAT = Seat(node="a", incarnation="a1", assignment=assignment())
PYTHONS = b"OSError: [Errno 98] Address already in use"
C10DS = b"The server socket has failed to bind to [::]:%d (errno: 98 - Address already in use)." % PORT
C10D_DENSE = b"port: %d, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use" % PORT


def lost(*tail: bytes, started: bool = False, code: int = 1, by_us: bool = False, culprit: int | None = 0) -> bool:
    ended = rank(0, exited(code, by_us=by_us, stderr_tail=tail), started=started)
    return lost_its_port(culprit, SEAT, renewal(1, Part.STOPPING, 0, rank(1), ended))


@pytest.mark.parametrize("line", [PYTHONS, C10DS, C10D_DENSE, b"bind: address already in use", b"bind: EADDRINUSE"])
def test_rank_0_that_found_its_port_taken_says_so_in_one_of_these_ways(line: bytes) -> None:
    assert lost(b"Traceback:", line, b"")


def test_where_another_failed_or_supd_stopped_it_no_lost_port_is_the_cause() -> None:
    """A rank 0 that coped with a taken port once, and ends with its fleet much later, still has the line."""
    assert not lost(C10DS, by_us=True)
    assert not lost(C10DS, culprit=1)
    assert not lost(C10DS, culprit=None)


def test_a_rank_that_had_started_must_name_the_port() -> None:
    assert not lost(PYTHONS, started=True)
    assert not lost(C10DS.replace(b"4000", b"14000"), started=True)
    assert lost(C10DS, started=True)


def test_another_end_is_no_lost_port() -> None:
    assert not lost(b"ValueError: 98")
    assert not lost(PYTHONS, code=0)
    assert not lost_its_port(0, SEAT, None)
    assert not lost_its_port(0, SEAT, renewal(1, Part.RUNNING, 0, rank(0), rank(1)))
    others = rank(1, exited(1, stderr_tail=(PYTHONS,)), started=False)
    assert not lost_its_port(0, SEAT, renewal(1, Part.STOPPING, 0, rank(0), others))


# --- witnesses -------------------------------------------------------------------------------------------------------


def test_every_member_has_up_to_three_witnesses_which_are_others_and_not_the_same() -> None:
    for nnodes in range(1, 1001):
        for node_rank in {0, 1, nnodes // 2, nnodes - 1} & set(range(nnodes)):
            ranks = witness_ranks(node_rank, nnodes)
            assert len({*ranks, node_rank}) == min(WITNESSES_MAX, nnodes - 1) + 1, (node_rank, nnodes)
            assert all(0 <= rank < nnodes for rank in ranks)


def test_witnesses_are_spread_evenly_over_the_slots() -> None:
    """Neighbours, which fail together, are not each other's."""
    for nnodes in range(50, 1001):
        places = sorted([0, *witness_ranks(0, nnodes), nnodes])
        assert all(after - before >= nnodes // 8 for before, after in pairwise(places)), nnodes
    assert witness_ranks(990, 1000) == (241, 490, 740)


def test_no_part_of_the_members_has_all_its_witnesses_in_itself() -> None:
    """Or else it could live by its own words for ever, whatever became of the rest."""
    for nnodes in range(1, 301):
        found, new = {0}, {0}
        while new:
            new = {witness for rank in new for witness in witness_ranks(rank, nnodes)} - found
            found |= new
        assert len(found) == nnodes


@pytest.mark.parametrize("nnodes", [2, 3, 5, 8, 100])
def test_nobody_is_the_witness_of_more_members_than_another(nnodes: int) -> None:
    named = [rank for node_rank in range(nnodes) for rank in witness_ranks(node_rank, nnodes)]
    assert {named.count(rank) for rank in range(nnodes)} == {min(WITNESSES_MAX, nnodes - 1)}


def given(offers: dict[str, Offer], *, has_witnesses: bool = True) -> dict[str, Seat]:
    runners = {node: f"{node}1" for node in offers}
    return seats_for(7, offers, runners, "", Timing(ttl_s=9.0), has_witnesses=has_witnesses)


def test_an_assignment_says_where_each_witness_listens_which_ranks_it_has_and_how_long_things_last() -> None:
    offers = {"a": offer(1), "b": offer(2, witness_port=7001), "c": offer(3, witness_port=7002)}
    mine = given(offers)["a"].assignment
    told = [(w.node, w.incarnation, w.address, w.port, w.node_rank, w.first_rank, w.nproc) for w in mine.witnesses]
    assert told == [("b", "b1", "10.0.0.1", 7001, 1, 1, 2), ("c", "c1", "10.0.0.1", 7002, 2, 3, 3)]
    assert mine.timing == Timing(ttl_s=9.0)


def test_without_leases_that_end_and_on_one_node_there_are_no_witnesses() -> None:
    kept = given({"a": offer(), "b": offer()}, has_witnesses=False)
    alone = given({"a": offer()})
    assert [seat.assignment.witnesses for seat in (*kept.values(), *alone.values())] == [()] * 3
