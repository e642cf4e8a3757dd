"""The coordinator of a run: what operators want, and ranks that do not finish."""

import pytest
from msgspec.structs import replace

from protocol.coordinator_events import (
    Event,
    Phase,
    RestartRequested,
    StopRequested,
    Tick,
)
from protocol.job import RestartTable, StopTable
from protocol.messages.member import Part, Run, Stop
from protocol.restart import Ledger
from tests.protocol.build import assignment, exited, job_spec, offer, rank
from tests.protocol.fleet import (
    CRASHED_AND_GONE,
    FINISHED,
    Fleet,
    backoff,
    forming,
    is_sent_after_persisting,
    launching,
    notes,
    orders,
    persisted,
    running,
    stopping,
    wanted_runners,
)

STOP = StopRequested(None, now=False, by="me")
RESTART = RestartRequested("", by="me")

# --- operators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet", [forming(), backoff()], ids=["forming", "backoff"])
def test_a_stop_where_nothing_is_alive_ends_the_run_at_once(fleet: Fleet) -> None:
    effects = fleet.at(30.0, STOP)
    assert (notes(effects), is_sent_after_persisting(effects)) == (["operator.stopped", "job.stopped"], True)
    assert (fleet.phase, fleet.record.reason, fleet.coordinator.deadline_s) == ("stopped", "stopped by me", None)
    assert wanted_runners(effects) == []


@pytest.mark.parametrize("begin", [launching, running, stopping])
def test_a_stop_is_persisted_told_and_ends_the_run_when_all_is_gone(begin: object) -> None:
    fleet: Fleet = begin()  # type: ignore[operator]
    effects = fleet.at(30.0, StopRequested(7.0, now=False, by="me"))
    stop = Stop(generation=0, grace_s=7.0)
    reason = "" if fleet.coordinator.case.is_open else "stopped by me"  # what follows a failure was not planned
    assert (orders(effects), is_sent_after_persisting(effects)) == ({"a1": replace(stop, reason=reason)}, True)
    assert fleet.record.stop == stop
    effects = fleet.hears(31.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    assert notes(effects) == ["generation.ended", "job.stopped"]
    assert (fleet.record.phase, fleet.record.reason, fleet.record.ledger.used) == (Phase.STOPPED, "stopped by me", 0)


def test_a_stop_of_a_run_that_is_over_is_nothing() -> None:
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert fleet.at(6.0, STOP) == []
    assert fleet.at(6.0, RESTART) == []


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (StopRequested(None, True, "me"), StopRequested(300.0, False, "you"), Stop(generation=0, now=True)),
        (StopRequested(None, False, "me"), StopRequested(300.0, False, "you"), Stop(generation=0)),
        (StopRequested(None, False, "me"), StopRequested(3.0, False, "you"), Stop(generation=0, grace_s=3.0)),
        (StopRequested(300.0, False, "me"), StopRequested(None, False, "you"), Stop(generation=0)),
        (StopRequested(3.0, False, "me"), StopRequested(None, True, "you"), Stop(generation=0, grace_s=3.0, now=True)),
    ],
)
def test_a_second_stop_only_brings_the_end_nearer(first: Event, second: Event, told: Stop) -> None:
    fleet = running()
    fleet.at(5.0, first)
    fleet.at(6.0, second)
    assert fleet.coordinator.order_for("a", "a1") == replace(told, reason="stopped by me")
    assert fleet.record.reason == "stopped by me"


@pytest.mark.parametrize("begin", [launching, running])
def test_a_restart_ends_the_generation_and_begins_the_next_uncharged_and_without_a_wait(begin: object) -> None:
    fleet: Fleet = begin()  # type: ignore[operator]
    effects = fleet.at(5.0, RestartRequested("new data", by="me"))
    assert (notes(effects), orders(effects)) == (["operator.restarted"], {"a1": Stop(generation=0, reason="new data")})
    assert persisted(effects)[0].restart == "new data"
    effects = fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    assert orders(effects) == {"a1": Run(assignment=assignment(1, master_port=4001, restart_reason="new data"))}
    assert (replace(fleet.record.ledger, time_s=0.0), fleet.record.restart, fleet.record.incidents) == (
        Ledger(),
        None,
        0,
    )


def test_a_restart_without_a_reason_names_who_wanted_it() -> None:
    fleet = running()
    fleet.at(5.0, RESTART)
    assert fleet.record.restart == "restart requested by me"


def test_a_restart_while_forming_is_what_happens_anyway() -> None:
    fleet = forming()
    effects = fleet.at(1.0, RESTART)
    assert (notes(effects), persisted(effects)) == (["operator.restarted"], [])
    fleet.offers(2.0, "a1")
    assert (fleet.phase, fleet.record.generation, fleet.record.restart) == ("launching", 0, None)


def test_a_restart_during_a_backoff_ends_the_wait() -> None:
    fleet = backoff()
    fleet.offers(22.0, "a1", 1, port=4002)
    effects = fleet.at(22.5, RESTART)
    assert notes(effects) == ["operator.restarted", "generation.launched"]
    assert fleet.coordinator.backoff_until_s is None


def test_a_restart_that_was_accepted_while_a_failure_is_handled_comes_whatever_the_policy_says() -> None:
    """R8: nothing the operator was told is lost."""
    fleet = stopping(spec=job_spec(restart=RestartTable(policy="never")))
    fleet.at(5.5, RESTART)
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    assert (fleet.phase, fleet.record.generation, fleet.record.ledger.used) == ("launching", 1, 0)


def test_a_stop_wins_over_a_restart_whichever_came_first() -> None:
    for first, second in ((STOP, RESTART), (RESTART, STOP)):
        fleet = running()
        fleet.at(5.0, first)
        fleet.at(5.5, second)
        fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
        assert fleet.phase == "stopped"


# --- ranks that do not finish ----------------------------------------------------------------------------------------

SOON = job_spec(stop=StopTable(finish_timeout_s=10.0))


def test_ranks_that_do_not_end_within_finish_timeout_of_the_first_are_an_incident() -> None:
    fleet = running(spec=SOON)
    fleet.hears(5.0, "a1", Part.RUNNING, 0, rank(0, exited(0)), rank(1))
    assert fleet.coordinator.deadline_s == 15.0
    fleet.hears(6.0, "a1", Part.RUNNING, 0, rank(0, exited(0)), rank(1))
    assert fleet.at(14.9, Tick()) == []
    effects = fleet.at(15.0, Tick())
    assert (notes(effects), orders(effects)) == (["incident.opened"], {"a1": Stop(generation=0)})
    assert fleet.record.incident is not None
    assert (fleet.record.incident.cause, fleet.record.incident.rank) == ("finish-timeout", 1)
    assert fleet.coordinator.deadline_s is None


def test_ranks_of_a_silent_node_are_named_with_their_own_node() -> None:
    fleet = launching("a", "b", spec=job_spec(stop=StopTable(finish_timeout_s=10.0), nnodes=(2, 2)))
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    fleet.at(15.0, Tick())
    assert fleet.record.incident is not None
    assert (fleet.record.incident.node, fleet.record.incident.rank) == ("b", 2)


def test_finish_timeout_is_no_matter_once_every_rank_has_ended() -> None:
    fleet = running(spec=SOON)
    fleet.hears(5.0, "a1", Part.RUNNING, 0, *FINISHED)
    assert fleet.at(15.0, Tick()) == []
    fleet.hears(30.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert fleet.phase == "succeeded"


def test_finish_timeout_dies_with_its_generation() -> None:
    """R5."""
    fleet = running(spec=SOON)
    fleet.hears(5.0, "a1", Part.RUNNING, 0, rank(0, exited(0)), rank(1))
    fleet.at(6.0, RESTART)
    fleet.hears(7.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    assert (fleet.phase, fleet.coordinator.deadline_s) == ("launching", None)
