"""A run that has lost a node, or is about to: what the tests of that begin with."""

from typing import Any

from protocol.coordinator_events import Effect
from protocol.job import JobSpec, TopologyTable
from protocol.messages.member import Part, RankReport
from protocol.timing import DEFAULTS
from tests.protocol.build import exited, job_spec, rank
from tests.protocol.fleet import (
    PATIENT,
    Fleet,
    notes,
    running,
)

SUSPECT_S, TTL_S = DEFAULTS.suspect_s, DEFAULTS.ttl_s
LOST = ["node.suspect", "node.lost", "incident.opened"]


def spec(least: int, most: int, **topology: Any) -> JobSpec:
    return job_spec(topology=TopologyTable(nproc_per_node=2, nnodes=(least, most), **topology), restart=PATIENT)


GROWS = spec(1, 3, extra_nodes="grow")


def ended(place: int, **exit: Any) -> tuple[RankReport, RankReport]:
    """The two ranks of a node, stopped by its runner."""
    first = 2 * place
    one, two = (rank(first + i, exited(signal=15, order=i, by_us=True), first=first) for i in range(2))
    return one, two


def stops(fleet: Fleet, now_s: float, *runners: str, generation: int = 0, port: int = 4001) -> list[Effect]:
    """Their parts are gone, and they offer themselves."""
    effects: list[Effect] = []
    for runner in runners:
        place = fleet.given(runner[0]).node_rank
        effects += fleet.hears(now_s, runner, Part.STOPPED, generation, *ended(place))
        effects += fleet.offers(now_s, runner, generation, port)
    return effects


def after_a_loss(*, spec: JobSpec = GROWS) -> Fleet:
    """Of three nodes c fell silent at 2.0, and is lost."""
    fleet = running("a", "b", "c", spec=spec)
    assert notes(fleet.passes(2.0, 7.2, silent="c")) == LOST
    return fleet
