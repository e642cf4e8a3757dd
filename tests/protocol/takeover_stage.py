"""Runners that are ahead of the coordinator under test, with short ways to let them speak."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from protocol.coordinator_events import Effect, RestartRequested, StopRequested
from protocol.job import JobSpec, TopologyTable
from protocol.messages.member import Assignment, Part
from protocol.timing import DEFAULTS
from protocol.view import run_status
from tests.protocol.build import exited, job_spec, rank, submitted
from tests.protocol.fleet import (
    PATIENT,
    Fleet,
    launching,
    started,
)

TTL_S = DEFAULTS.ttl_s
STOP = StopRequested(None, now=False, by="me")
RESTART = RestartRequested("because", by="me")
EIGHT = "abcdefgh"

Given = dict[str, Assignment]
"""Runner -> its assignment of the generation that the coordinator does not know."""


def given_out(nodes: Iterable[str], generation: int = 4, *, keeps_isolated: bool = False) -> Given:
    """What an earlier coordinator has given to the first runner of each node."""
    seats = launching(*nodes, keeps_isolated=keeps_isolated).record.seats
    return {seat.incarnation: replace(seat.assignment, generation=generation) for seat in seats}


def grown(nodes: str) -> JobSpec:
    """A job that one node can run as well."""
    table = TopologyTable(nproc_per_node=2, nnodes=(1, len(nodes)), extra_nodes="grow")
    return job_spec(topology=table, restart=PATIENT)


def says(fleet: Fleet, now_s: float, runner: str, given: Given, *, tells: bool = True, **more: Any) -> list[Effect]:
    """A runner whose ranks run renews; with its assignment, as it was told to."""
    mine = given[runner]
    ranks = started(mine.node_rank)
    return fleet.hears(now_s, runner, Part.RUNNING, mine.generation, *ranks, assignment=mine if tells else None, **more)


def ended(fleet: Fleet, now_s: float, runner: str, given: Given, *, tells: bool = False) -> list[Effect]:
    """A runner has stopped its part, and says so."""
    mine = given[runner]
    ranks = (rank(mine.first_rank + i, exited(signal=15, order=i, by_us=True), first=mine.first_rank) for i in (0, 1))
    told = mine if tells else None
    return fleet.hears(now_s, runner, Part.STOPPED, mine.generation, *ranks, assignment=told)


def waiting_for(fleet: Fleet, now_s: float) -> str:
    return run_status(
        fleet.coordinator,
        submitted(fleet.spec),
        now_s,
        submitted_wall_s=0.0,
        ended_wall_s=None,
        logs_dir="",
        with_ranks=False,
    ).waiting_for


def assignments(fleet: Fleet) -> Given:
    return {seat.incarnation: seat.assignment for seat in fleet.record.seats}
