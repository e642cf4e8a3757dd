"""Where rank 0 listens: ports that are lost, named, or waited for; and what is told of how ranks were counted."""

from msgspec.structs import replace

from protocol.coordinator_events import Note, RestartRequested
from protocol.job import RendezvousTable, RestartTable
from protocol.messages.member import Part, Run
from protocol.view import run_status
from tests.protocol.build import PORT, exited, job_spec, offer, rank, submitted
from tests.protocol.fleet import CRASHED_AND_GONE, Fleet, forming, launching, notes, orders, stopping

TAKEN = b"OSError: [Errno 98] Address already in use"
LOST = (rank(0, exited(1, stderr_tail=(TAKEN,)), started=False), rank(1, started=False))
LOST_AND_GONE = (LOST[0], rank(1, exited(signal=15, order=1, by_us=True), started=False))
NAMED = job_spec(rendezvous=RendezvousTable(master_port=PORT), restart=RestartTable(max_restarts=3))


def lose_port(fleet: Fleet, now_s: float, generation: int) -> list[str]:
    """Rank 0 finds its port taken; what is noted once everything has ended."""
    fleet.hears(now_s, "a1", Part.STOPPING, generation, *LOST)
    return notes(fleet.hears(now_s, "a1", Part.STOPPED, generation, *LOST_AND_GONE))


def test_a_port_that_somebody_took_before_rank_0_costs_a_generation_and_nothing_else() -> None:
    """H39. A failure before the start would end the run by default."""
    fleet = launching()
    for generation in range(3):
        assert lose_port(fleet, 2.0, generation) == ["generation.ended", "restart.decided"]
        assert (fleet.phase, fleet.record.ledger.used) == ("forming", 0)
        fleet.offers(3.0, "a1", generation, port=PORT + 1 + generation)
    assert lose_port(fleet, 4.0, 3) == ["generation.ended", "job.failed"]


def test_a_crash_of_another_rank_is_charged_though_rank_0_once_met_a_taken_port() -> None:
    line = b"failed to bind to [::]:%d (errno: 98 - Address already in use)" % PORT
    fleet = launching(spec=job_spec(restart=RestartTable(on_startup_failure="restart")))
    crashed = rank(1, exited(1))
    fleet.hears(2.0, "a1", Part.STOPPING, 0, rank(0), crashed)
    ended = rank(0, exited(signal=15, order=1, by_us=True, stderr_tail=(line,)))
    fleet.hears(3.0, "a1", Part.STOPPED, 0, ended, crashed)
    assert fleet.record.ledger.used == 1


def test_the_row_of_lost_ports_survives_a_restart_of_the_coordinator() -> None:
    fleet = launching()
    lose_port(fleet, 2.0, 0)
    assert fleet.restarted(3.0).coordinator.ledger.ports == 1


def test_a_port_that_the_job_names_is_its_own_affair() -> None:
    fleet = launching(spec=NAMED)
    assert lose_port(fleet, 2.0, 0) == ["generation.ended", "job.failed"]


def test_a_port_that_the_job_names_is_given_out_again() -> None:
    fleet = stopping(spec=NAMED)
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    order = orders(fleet.offers(7.0, "a1", 0, port=PORT))["a1"]
    assert isinstance(order, Run)
    assert (order.assignment.generation, order.assignment.master_port) == (1, PORT)


def test_an_offer_that_waits_for_a_port_begins_nothing_and_is_what_the_run_waits_for() -> None:
    fleet = stopping(spec=NAMED)
    waiting = replace(offer(port=0), waits_for="port 4000 on a to be free")
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=waiting)
    assert fleet.phase == "forming"
    status = run_status(
        fleet.coordinator,
        submitted(fleet.spec),
        7.0,
        submitted_wall_s=1.0,
        ended_wall_s=None,
        logs_dir="",
        with_ranks=False,
    )
    assert (status.state, status.waiting_for) == ("restarting", "port 4000 on a to be free")
    assert isinstance(orders(fleet.offers(8.0, "a1", 0, port=PORT))["a1"], Run)


def test_how_ranks_were_counted_is_told_once_and_again_when_it_has_changed() -> None:
    told = []
    fleet = forming(spec=NAMED)
    for generation, how in enumerate(["2 by NVML", "2 by NVML", "", "2 by affinity"]):
        part = Part.IDLE if generation == 0 else Part.STOPPED
        effects = fleet.hears(1.0, "a1", part, generation - 1, offer=replace(offer(), note=how))
        told.append([effect.text for effect in effects if isinstance(effect, Note) and effect.kind == "ranks.counted"])
        fleet.at(2.0, RestartRequested("", by="me"))
        fleet.hears(3.0, "a1", Part.STOPPED, generation, *CRASHED_AND_GONE)
    assert told == [["a: 2 by NVML"], [], [], ["a: 2 by affinity"]]
