"""The coordinator of a run: every arrow of its table, the rules R1 to R4, operators, and runners that come and go."""

import pytest

from protocol.coordinator_events import (
    Note,
    Opened,
    Persist,
    Phase,
    RestartRequested,
    RunRecord,
    Seat,
    StopRequested,
    Tick,
    Want,
)
from protocol.job import RestartTable
from protocol.messages.member import Part, Release, Run, SpawnFailure, Stop, Wait
from protocol.pool import ATTEMPTS_MAX
from protocol.restart import Ledger
from tests.protocol.build import assignment, exited, job_spec, offer, rank
from tests.protocol.fleet import (
    CRASHED,
    CRASHED_AND_GONE,
    FINISHED,
    Fleet,
    answer,
    backoff,
    forming,
    launching,
    notes,
    orders,
    persisted,
    running,
    started,
    stopping,
    wanted_runners,
)

STOP = StopRequested(None, now=False, by="me")
RESTART = RestartRequested("", by="me")

# --- arrows ----------------------------------------------------------------------------------------------------------


def test_a_run_that_is_accepted_wants_a_runner_on_every_node() -> None:
    fleet = Fleet("a", "b")
    assert fleet.opens(0.0) == [Want(frozenset({"a", "b"}))]


def test_a_runner_without_an_offer_is_told_to_wait() -> None:
    assert forming().hears(1.0, "a1", Part.IDLE, -1) == [answer(Wait(), 1)]


def test_a_generation_with_its_full_assignment_is_persisted_before_it_is_sent() -> None:
    """R8."""
    fleet, given = forming(), assignment()
    seat = Seat(node="a", incarnation="a1", assignment=given)
    record = RunRecord(
        phase=Phase.LAUNCHING, generation=0, known_s=1.0, seats=(seat,), ledger=Ledger(time_s=1.0), slots={"a": 0}
    )
    assert fleet.offers(1.0, "a1") == [
        Persist(record),
        Note(
            "generation.launched",
            "generation 0: 2 ranks on 1 node, master 10.0.0.1:4000",
            0,
            {"ranks": 2, "nodes": 1, "master": "10.0.0.1:4000"},
        ),
        Want(frozenset()),
        answer(Run(assignment=given), 1),
    ]


def test_the_ranks_of_a_generation_are_distinct_contiguous_and_agree_on_everything() -> None:
    """R2."""
    fleet = forming("a", "b", "c")
    for slots, runner in enumerate(("a1", "b1", "c1"), 1):
        effects = fleet.hears(1.0, runner, Part.IDLE, -1, offer=offer(slots))
    given = [order.assignment for order in orders(effects).values() if isinstance(order, Run)]
    assert [(a.node_rank, a.first_rank, a.nproc) for a in given] == [(0, 0, 1), (1, 1, 2), (2, 3, 3)]
    assert {(a.nnodes, a.world_size, a.master_addr, a.master_port, a.generation) for a in given} == {
        (3, 6, "10.0.0.1", 4000, 0)
    }


def test_a_generation_waits_for_the_last_node() -> None:
    fleet = forming("a", "b")
    assert persisted(fleet.offers(1.0, "a1")) == []
    assert set(orders(fleet.offers(2.0, "b1"))) == {"a1", "b1"}


def test_a_generation_runs_once_every_rank_everywhere_has_started() -> None:
    fleet = launching("a", "b")
    assert fleet.hears(2.0, "a1", Part.RUNNING, 0, *started()) == [answer(fleet.coordinator.order_for("a", "a1"), 2)]
    effects = fleet.hears(3.0, "b1", Part.RUNNING, 0, *started(1))
    assert notes(effects) == ["generation.ready"]
    assert (fleet.phase, fleet.record.has_started) == ("running", True)


def test_a_generation_of_which_every_rank_ended_with_0_is_a_success_and_all_runners_are_released() -> None:
    fleet = running()
    effects = fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert (notes(effects), orders(effects)) == (["job.succeeded"], {"a1": Release()})
    assert (fleet.phase, fleet.record.reason) == ("succeeded", "every rank ended with 0")


def test_a_generation_that_ended_before_it_was_ever_seen_running_is_a_success_too() -> None:
    fleet = launching()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert fleet.phase == "succeeded"


def test_a_failure_opens_an_incident_and_stops_every_runner() -> None:
    fleet = running("a", "b")
    effects = fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    assert (notes(effects), orders(effects)) == (
        ["incident.opened"],
        {"a1": Stop(generation=0), "b1": Stop(generation=0)},
    )
    assert fleet.record.incident is not None
    assert fleet.record.incident.summary == "rank 0 on a (pid 100) killed by SIGSEGV"
    assert (fleet.record.phase, fleet.record.incidents, fleet.record.incident_is_open) == (Phase.STOPPING, 1, True)


def test_the_next_generation_begins_only_when_every_runner_has_reported_that_its_tree_is_gone() -> None:
    """R1."""
    fleet = stopping("a", "b")
    assert persisted(fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)) == []
    assert persisted(fleet.offers(6.5, "a1", 0)) == []
    effects = fleet.hears(7.0, "b1", Part.STOPPED, 0, *started(1))
    assert notes(effects) == ["generation.ended", "restart.decided"]
    assert fleet.phase == "forming"
    fleet.offers(7.5, "a1", 0, port=4001)
    effects = fleet.offers(8.0, "b1", 0)
    assert [o.assignment.generation for o in orders(effects).values() if isinstance(o, Run)] == [1, 1]


def test_a_runner_that_fails_and_is_gone_in_one_report_is_followed_by_the_next_generation() -> None:
    fleet = running()
    effects = fleet.hears(5.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    assert notes(effects) == ["incident.opened", "generation.ended", "restart.decided", "generation.launched"]
    assert len(persisted(effects)) == 1
    again = assignment(1, master_port=4001, restart_reason="rank 0 on a (pid 100) killed by SIGSEGV")
    assert orders(effects) == {"a1": Run(assignment=again)}
    assert (fleet.record.ledger.used, fleet.record.ledger.streak) == (1, 1)


def test_a_backoff_ends_by_itself_and_the_next_generation_begins() -> None:
    fleet = backoff()
    assert fleet.coordinator.deadline_s == 24.75
    fleet.offers(22.0, "a1", 1, port=4002)
    assert fleet.at(24.7, Tick()) == []
    assert notes(fleet.at(24.75, Tick())) == ["generation.launched"]
    assert fleet.record.generation == 2


def test_a_run_whose_budget_is_spent_fails_with_its_reason() -> None:
    fleet = stopping(spec=job_spec(restart=RestartTable(max_restarts=0)))
    effects = fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    assert (notes(effects), orders(effects)) == (["generation.ended", "job.failed"], {"a1": Release()})
    assert fleet.record.reason == "rank 0 on a (pid 100) killed by SIGSEGV; restart budget spent (0 of 0)"


def test_a_rank_that_cannot_be_spawned_ends_the_generation_and_is_its_cause() -> None:
    fleet = launching()
    failure = SpawnFailure(rank=1, path="/no", reason="No such file")
    fleet.hears(2.0, "a1", Part.STOPPING, 0, rank(0, started=False), spawn_failure=failure)
    assert fleet.record.incident is not None
    assert (fleet.phase, fleet.record.incident.cause) == ("stopping", "spawn")


def test_ranks_killed_at_the_end_of_their_grace_are_told_with_the_end_of_the_generation() -> None:
    fleet = stopping()
    ranks = (rank(0, exited(signal=11)), rank(1, exited(signal=9, order=1, by_us=True)))
    effects = fleet.hears(60.0, "a1", Part.STOPPED, 0, *ranks, stuck_pids=(7,))
    [told] = [e.text for e in effects if isinstance(e, Note) and e.kind == "generation.ended"]
    stuck = "1 processes still wait for the kernel"
    assert told == f"generation 0 ended after 59.0 s, rank 1 ended by SIGKILL (grace 30 s), {stuck}"


# --- one incident ----------------------------------------------------------------------------------------------------


def test_whatever_fails_while_a_generation_is_stopping_belongs_to_its_incident_and_is_charged_once() -> None:
    """R4."""
    fleet = stopping("a", "b")
    fleet.hears(6.0, "b1", Part.STOPPING, 0, rank(2, exited(1), first=2), rank(3, first=2))
    fleet.hears(7.0, "b1", Part.STOPPED, 0, rank(2, exited(1), first=2), rank(3, exited(1, order=1), first=2))
    fleet.hears(7.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    assert (fleet.record.incidents, fleet.record.ledger.used) == (1, 1)
    assert fleet.record.incident is not None
    assert fleet.record.incident.rank == 0


def test_a_victims_report_is_corrected_by_what_the_same_runner_says_later() -> None:
    """R4: the cause may be corrected until the next generation runs."""
    fleet = running()
    fleet.hears(5.0, "a1", Part.STOPPING, 0, rank(0), rank(1, exited(1)))
    effects = fleet.hears(5.1, "a1", Part.STOPPING, 0, rank(0, exited(signal=9)), rank(1, exited(1, order=1)))
    assert notes(effects) == ["incident.corrected"]
    assert fleet.record.incident is not None
    assert (fleet.record.incident.rank, fleet.record.incident.number, fleet.record.incidents) == (0, 1, 1)
    assert notes(fleet.hears(5.2, "a1", Part.STOPPING, 0, rank(0, exited(signal=9)), rank(1, exited(1, order=1)))) == []


def test_the_policy_judges_the_corrected_cause() -> None:
    fleet = running(spec=job_spec(restart=RestartTable(never_on_exit=(42,))))
    fleet.hears(5.0, "a1", Part.STOPPING, 0, rank(0), rank(1, exited(1)))
    fleet.hears(5.1, "a1", Part.STOPPED, 0, rank(0, exited(42)), rank(1, exited(1, order=1)))
    assert (fleet.phase, fleet.record.reason.partition("; ")[2]) == (
        "failed",
        "exit code 42 is in restart.never_on_exit",
    )


def test_ranks_that_all_started_count_as_started_also_where_the_coordinator_hears_of_it_with_their_failure() -> None:
    """Its supd was away while the ranks started and one failed: that is no startup failure."""
    fleet = launching()
    fleet.hears(5.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    assert (fleet.phase, fleet.record.has_started) == ("forming", True)
    fleet = launching()
    fleet.hears(5.0, "a1", Part.STOPPED, 0, rank(0, exited(1), started=False), CRASHED_AND_GONE[1])
    assert fleet.phase == "failed"


def test_a_runner_that_somebody_else_ended_is_an_incident_that_is_not_charged() -> None:
    fleet = running()
    ranks = tuple(rank(n, exited(signal=15, order=n, by_us=True)) for n in (0, 1))
    fleet.hears(5.0, "a1", Part.STOPPED, 0, *ranks)
    assert fleet.record.incident is not None
    assert fleet.record.incident.summary == "the runner on a was told to end by somebody else"
    assert (fleet.phase, fleet.record.ledger.used) == ("forming", 0)


def test_success_wins_where_all_have_finished_before_the_stop_could_matter() -> None:
    for event in (STOP, RESTART):
        fleet = running()
        fleet.at(5.0, event)
        fleet.hears(6.0, "a1", Part.FINISHED, 0, *FINISHED)
        assert fleet.phase == "succeeded"


# --- the past, strangers, nonsense -----------------------------------------------------------------------------------


def test_the_past_and_strangers_change_nothing_and_are_answered_with_the_present_order() -> None:
    """R3."""
    fleet = running()
    present = Run(assignment=assignment())
    assert fleet.hears(5.0, "a1", Part.STOPPED, -1, *CRASHED) == [answer(present, 3)]
    assert fleet.hears(5.0, "z1", Part.STOPPED, 0, *CRASHED) == [answer(Stop(generation=0), 1, runner="z1")]
    assert fleet.phase == "running"


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    fleet = stopping()
    fleet.numbers["a1"] = 1
    effects = fleet.hears(6.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert effects == [answer(Stop(generation=0), 3)]
    assert fleet.phase == "stopping"


@pytest.mark.parametrize(
    "ranks",
    [(), FINISHED[:1], (FINISHED[0], FINISHED[0]), (FINISHED[0], rank(1)), (*FINISHED, rank(2)), CRASHED_AND_GONE],
)
def test_a_success_that_cannot_be_true_is_not_believed(ranks: tuple[object, ...]) -> None:
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *ranks)  # type: ignore[arg-type]
    assert fleet.phase == "running"


@pytest.mark.parametrize("given", [offer(0), offer(-1), offer(2**40), offer(port=0), offer(port=2**16)], ids=str)
def test_an_offer_that_cannot_be_is_none(given: object) -> None:
    fleet = forming()
    fleet.hears(1.0, "a1", Part.IDLE, -1, offer=given)
    assert fleet.phase == "forming"


def test_a_runner_that_runs_something_cannot_offer_itself() -> None:
    """R1."""
    fleet = forming()
    fleet.hears(1.0, "a1", Part.RUNNING, -1, *started(), offer=offer())
    assert fleet.phase == "forming"


def test_a_generation_beyond_all_bounds_is_nonsense() -> None:
    fleet = running()
    fleet.hears(5.0, "a1", Part.RUNNING, 2**63, *started())
    assert (fleet.phase, fleet.record.generation) == ("running", 0)


# --- runners that come and go ----------------------------------------------------------------------------------------


def test_a_runner_that_is_gone_ends_its_generation_uncharged_and_is_replaced() -> None:
    fleet = running()
    effects = fleet.gone(5.0, "a1")
    assert notes(effects) == ["runner.lost", "incident.opened", "generation.ended", "restart.decided"]
    assert wanted_runners(effects) == ["a"]
    ledger = fleet.record.ledger
    assert (fleet.phase, ledger.used, ledger.infra_used, ledger.streak) == ("forming", 0, 1, 1)
    effects = fleet.offers(6.0, "a2", port=4001)
    assert [type(order) for order in orders(effects).values()] == [Run]
    assert fleet.record.seats[0].incarnation == "a2"


def test_what_a_dead_runner_left_on_disk_is_heard_before_its_end_and_is_the_cause() -> None:
    fleet = running()
    fleet.hears(5.0, "a1", Part.STOPPING, 0, *CRASHED)
    fleet.gone(5.0, "a1")
    assert fleet.record.incident is not None
    assert (fleet.record.incident.cause, fleet.record.ledger.used) == ("signal", 1)


def test_a_runner_that_is_gone_after_its_part_had_finished_is_no_loss() -> None:
    fleet = running("a", "b")
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert notes(fleet.gone(6.0, "a1")) == []
    assert fleet.phase == "running"
    ended = (rank(2, exited(0), first=2), rank(3, exited(0), first=2))
    fleet.hears(7.0, "b1", Part.FINISHED, 0, *ended)
    assert fleet.phase == "succeeded"


def test_a_runner_that_is_gone_when_its_run_is_over_is_nothing() -> None:
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert fleet.gone(6.0, "a1") == []


def test_a_runner_that_is_gone_while_its_generation_stops_was_stopped() -> None:
    fleet = stopping("a", "b")
    fleet.gone(6.0, "b1")
    assert (fleet.phase, fleet.record.incidents) == ("stopping", 1)
    fleet.hears(7.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    assert fleet.phase == "forming"


def test_the_end_of_a_runner_that_was_never_seated_changes_nothing() -> None:
    fleet = running()
    assert fleet.gone(5.0, "a9") == []


def test_another_runner_of_the_node_proves_nothing_and_is_a_stranger_until_the_seated_one_is_gone() -> None:
    """It may come from a second state folder: then the first one's ranks are alive (R1)."""
    fleet = running()
    assert orders(fleet.offers(5.0, "a2", port=4001)) == {"a2": Stop(generation=0)}
    assert (fleet.phase, fleet.coordinator.roll.runners) == ("running", {"a": "a1"})
    fleet.gone(6.0, "a1")
    assert [type(order) for order in orders(fleet.offers(6.5, "a2", port=4001)).values()] == [Run]
    assert fleet.record.seats[0].incarnation == "a2"


def test_the_late_word_of_a_runner_that_is_gone_neither_counts_nor_unseats_the_new_one() -> None:
    fleet = running()
    fleet.gone(4.0, "a1")
    fleet.offers(5.0, "a2", port=4001)
    for part, ranks in ((Part.RUNNING, started()), (Part.STOPPING, CRASHED), (Part.STOPPED, CRASHED_AND_GONE)):
        assert orders(fleet.hears(6.0, "a1", part, 0, *ranks)) == {"a1": Release()}
        assert notes(fleet.gone(6.0, "a1")) == []
    assert (fleet.phase, fleet.coordinator.roll.runners) == ("launching", {"a": "a2"})


def test_a_runner_whose_start_fails_is_tried_again_and_in_the_end_the_run_fails_with_the_reason() -> None:
    fleet = forming()
    now_s = 0.0
    for _ in range(ATTEMPTS_MAX - 1):
        assert notes(fleet.no_runner(now_s, "a")) == ["runner.failed"]
        now_s += 1.0
        assert fleet.coordinator.rendezvous.wanted == {"a"}
    assert notes(fleet.no_runner(now_s, "a")) == ["runner.failed", "job.failed"]
    assert fleet.record.reason == "a: no runner could be started: no room"
    assert fleet.coordinator.deadline_s is None


def test_a_runner_that_ends_before_it_has_reported_counts_as_a_failed_start() -> None:
    """Or else one that cannot even begin would be started again and again, without a pause and without an end."""
    fleet = forming()
    for attempt in range(1, ATTEMPTS_MAX):
        assert notes(fleet.gone(float(attempt), f"a{attempt}")) == ["runner.failed"]
        assert fleet.coordinator.rendezvous.wanted == {"a"}
    assert notes(fleet.gone(9.0, "a9")) == ["runner.failed", "job.failed"]
    assert "it ended before it reported" in fleet.record.reason


def test_a_run_that_is_over_keeps_how_its_ranks_ended() -> None:
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    del fleet.last["a1"]
    assert fleet.restarted(6.0).coordinator.parts["a"].ranks == FINISHED


def test_a_run_that_is_over_wants_no_runner_from_the_next_supd() -> None:
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert Fleet(record=fleet.record).at(6.0, Opened()) == []


def test_a_runner_that_comes_begins_the_count_of_failed_starts_anew() -> None:
    fleet = forming()
    for round_number in range(3):
        for _ in range(ATTEMPTS_MAX - 1):
            fleet.no_runner(1.0, "a")
        fleet.hears(2.0, f"a{round_number}", Part.IDLE, -1)
        fleet.gone(3.0, f"a{round_number}")
    assert fleet.phase == "forming"


def test_a_failed_start_on_a_node_that_has_a_runner_is_nothing() -> None:
    assert running().no_runner(5.0, "a") == []


def test_a_node_that_can_run_nothing_fails_the_run_with_its_problem() -> None:
    fleet = forming()
    effects = fleet.hears(1.0, "a1", Part.IDLE, -1, offer=offer(0, problem="no GPU was found"))
    assert (notes(effects), orders(effects)) == (["job.failed"], {"a1": Release()})
    assert fleet.record.reason == "a: no GPU was found"


def test_the_port_of_the_last_generation_is_not_used_again() -> None:
    fleet = stopping()
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    fleet.offers(6.5, "a1", 0, port=4000)
    assert fleet.phase == "forming"
    fleet.offers(7.5, "a1", 0, port=4001)
    assert fleet.phase == "launching"
