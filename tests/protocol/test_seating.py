"""Whether rank 0 lost its port: by its last lines, and only where that can be what ended it."""

import pytest

from protocol.coordinator_events import Seat
from protocol.messages.member import Part
from protocol.seating import lost_its_port
from tests.protocol.build import PORT, assignment, exited, rank, renewal

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
