"""What the restart policy makes of a run: held and gone on with, charged by cause, nodes left out, its own time."""

import pytest
from msgspec.structs import replace

from protocol import foresight
from protocol.coordinator_events import (
    Blame,
    Draining,
    Effect,
    Heard,
    Phase,
    RestartRequested,
    ResumeRequested,
    Roster,
    RosterNode,
    StopRequested,
    Tick,
)
from protocol.exclusion import EXCLUDE_S
from protocol.fleet import nodes_in_use
from protocol.job import RestartTable
from protocol.life import NOTE_TIME_S
from protocol.messages.member import Part, Release, SpawnFailure, Stop
from protocol.view import run_status
from tests.protocol.build import exited, job_spec, offer, rank, submitted
from tests.protocol.fleet import (
    CRASHED_AND_GONE,
    Fleet,
    forming,
    noted,
    notes,
    orders,
    persisted,
    running,
    started,
    stopping,
    wanted_runners,
)
from tests.protocol.takeover_stage import given_out, grown, says
from tests.protocol.test_coordinator_away import reopened

HOLDS = job_spec(restart=RestartTable(max_restarts=0, on_budget_spent="hold"), nnodes=(1, 1))


def held() -> Fleet:
    fleet = stopping(spec=HOLDS)
    fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    assert fleet.phase == "held"
    return fleet


def blamed(effects: list[Effect]) -> list[str]:
    return [effect.node for effect in effects if isinstance(effect, Blame)]


# --- held --------------------------------------------------------------------------------------------------------


def test_a_run_whose_budget_is_spent_is_held_with_its_runner_and_survives_its_coordinator() -> None:
    fleet = stopping(spec=HOLDS)
    effects = fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    assert notes(effects) == ["generation.ended", "job.held"]
    (told,) = noted(effects, "job.held")
    assert told.detail == {
        "made_no_progress": False,
        "cause": "SIGSEGV",
        "budget": "max_restarts",
        "used": 0,
        "limit": 0,
        "streak": 0,
    }
    assert orders(effects) == {"a1": Stop(generation=0)}  # as it was: it stays
    again = fleet.restarted(7.0)
    assert (again.phase, fleet.record.reason) == ("held", again.coordinator.reason)
    assert "restart budget spent (0 of 0)" in fleet.record.reason
    again.passes(7.0, 60.0)
    assert again.phase == "held"


def test_a_run_that_is_held_goes_on_by_hand_with_its_budgets_as_at_its_start() -> None:
    fleet = held()
    assert fleet.record.ledger.last_cause == "SIGSEGV"
    effects = fleet.at(6.5, ResumeRequested("me"))
    assert notes(effects) == ["operator.resumed", "generation.launched"]
    assert (fleet.record.ledger.last_cause, fleet.record.reason) == ("", "")
    assert fleet.given("a").restart_reason == "rank 0 on a (pid 100) killed by SIGSEGV"


@pytest.mark.parametrize("at_checkpoint", [True, False])
def test_a_held_run_has_left_its_nodes_and_does_not_go_on_upon_one_that_is_drained(at_checkpoint: bool) -> None:
    fleet = held()
    drain = Draining(at_checkpoint=at_checkpoint, go_s=1800.0, by="me", reason="")
    nodes = (RosterNode("a", is_up=True, drain=drain), RosterNode("b", is_up=True, joined=1))
    fleet.at(7.0, Roster(nodes))
    assert not nodes_in_use(fleet.coordinator)
    again = fleet.restarted(8.0)
    again.at(8.0, Roster(nodes))
    assert not nodes_in_use(again.coordinator)
    fleet.at(9.0, ResumeRequested("me"))
    assert fleet.coordinator.rendezvous.pool == ("b",)


def test_a_restart_goes_on_with_a_held_run_as_well_and_pays_nothing_back() -> None:
    fleet = held()
    fleet.at(6.5, RestartRequested("", by="me"))
    assert (fleet.phase, fleet.record.ledger.last_cause, fleet.record.reason) == ("launching", "SIGSEGV", "")


def test_a_stop_ends_a_held_run_at_once() -> None:
    fleet = held()
    assert orders(fleet.at(6.5, StopRequested(None, now=False, by="me"))) == {"a1": Release()}
    assert (fleet.phase, fleet.record.reason) == ("stopped", "stopped by me")


def test_a_run_that_is_not_held_is_not_resumed() -> None:
    fleet = running()
    assert fleet.at(3.0, ResumeRequested("me")) == []


# --- charged by cause --------------------------------------------------------------------------------------------


def crash(fleet: Fleet, now_s: float, generation: int, step: int) -> list[Effect]:
    """Rank 0 has shown this step, and fails."""
    fleet.hears(now_s, "a1", Part.RUNNING, generation, rank(0, step=step), rank(1))
    fleet.hears(now_s + 1, "a1", Part.STOPPING, generation, rank(0, exited(signal=11), step=step), rank(1))
    ended = (rank(0, exited(signal=11), step=step), rank(1, exited(signal=15, order=1, by_us=True)))
    return fleet.hears(now_s + 2, "a1", Part.STOPPED, generation, *ended, offer=offer(port=4000 + generation % 2 + 1))


def test_a_run_that_comes_no_further_fails_of_that_and_says_so() -> None:
    table = RestartTable(backoff_s=0.0)
    fleet = running(spec=job_spec(restart=table, nnodes=(1, 1)))
    for generation in range(2):
        crash(fleet, 10.0 * (generation + 1), generation, 40)
    assert fleet.phase == "launching"
    crash(fleet, 30.0, 2, 40)
    assert (fleet.phase, fleet.record.made_no_progress) == ("failed", True)
    assert "no progress: 3 failures in a row of one cause (SIGSEGV) at step 40" in fleet.record.reason


def test_a_decision_is_an_event_with_its_cause_and_what_is_left() -> None:
    fleet = stopping()
    effects = fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE)
    (note,) = noted(effects, "restart.decided")
    assert note.text == "restart 1 of 3, at once"
    told = {"cause": "SIGSEGV", "budget": "max_restarts", "used": 1, "limit": 3, "streak": 0, "charged": True}
    assert note.detail == {"delay_s": 0.0, **told}


@pytest.mark.parametrize(("is_nodes", "others_spawn", "infra"), [(True, False, 1), (False, True, 1), (False, False, 0)])
def test_a_spawn_that_fails_is_the_nodes_fault_where_it_lacks_something_or_another_node_can(
    is_nodes: bool, others_spawn: bool, infra: int
) -> None:
    table = RestartTable(on_startup_failure="restart")
    fleet = Fleet("a", "b", spec=job_spec(restart=table, nnodes=(2, 2)))
    fleet.opens(0.0)
    for node in "ab":
        fleet.offers(1.0, f"{node}1")
    failure = SpawnFailure(rank=0, path="/job/python", reason="no such file", is_nodes=is_nodes)
    fleet.hears(2.0, "a1", Part.STOPPED, 0, spawn_failure=failure)
    theirs = tuple(rank(n, exited(signal=15, by_us=True), first=2) for n in (2, 3)) if others_spawn else ()
    effects = fleet.hears(3.0, "b1", Part.STOPPED, 0, *theirs)
    assert (fleet.record.ledger.infra_used, fleet.record.ledger.used) == (infra, 1 - infra)
    assert blamed(effects) == ["a"]


def test_own_time_passes_while_a_coordinator_has_the_run_and_is_noted_every_ten_minutes() -> None:
    table = RestartTable(restart_window_s=3600.0)
    fleet = running(spec=job_spec(restart=table, nnodes=(1, 1)))
    fleet.at(NOTE_TIME_S + 1, Tick())
    assert fleet.record.ledger.time_s == NOTE_TIME_S + 1
    again = fleet.restarted(9000.0)  # nobody had it meanwhile
    again.at(9010.0, Tick())
    assert again.coordinator.run_s(9010.0) == NOTE_TIME_S + 11


def test_a_run_without_a_window_notes_its_time_while_a_generation_lives_and_when_that_has_become_stable() -> None:
    fleet = running(spec=job_spec(restart=RestartTable(stable_after_s=30.0)))
    written = [now_s for now_s in range(3, 2000) if persisted(fleet.renews(float(now_s), "a1"))]
    assert written == [31, 631, 1231, 1831]  # it was launched at 1.0
    idle = held()
    assert not [now_s for now_s in range(7, 2000) if persisted(idle.renews(float(now_s), "a1"))]


@pytest.mark.parametrize("stable_s", [600.0, 30.0])
def test_a_machine_that_loses_its_power_now_and_then_ends_no_run_that_is_stable_between(stable_s: float) -> None:
    """Nobody is left to tell how long its ranks have lived, as always where a runner is lost."""
    fleet, now_s = Fleet("a", spec=job_spec(restart=RestartTable(stable_after_s=stable_s))), 0.0
    fleet.opens(now_s)
    fleet.offers(1.0, "a1")
    for life in range(1, 40):
        runner, generation = f"a{life}", fleet.coordinator.generation
        for later_s in range(10, int(2 * stable_s), 10):
            fleet.hears(now_s + later_s, runner, Part.RUNNING, generation, *started())
        now_s += 2 * stable_s
        fleet = reopened(fleet, now_s)
        fleet.at(now_s, Heard("a", runner, fleet.last[runner]))  # its record
        ended = noted(fleet.gone(now_s, runner), "generation.ended")
        assert (fleet.phase, fleet.record.ledger.streak) == ("forming", 1)
        assert stable_s <= float(str(ended[0].detail["ran_s"])) < 2 * stable_s
        fleet.offers(now_s, f"a{life + 1}", generation, port=4000 + life)


def test_a_generation_that_was_taken_over_is_known_from_then_on() -> None:
    fleet, given = forming("a", "b", spec=grown("ab")), given_out("ab")
    for runner in ("a1", "b1"):
        says(fleet, 100.0, runner, given)
    assert (fleet.phase, fleet.coordinator.current.known_for_s(fleet.coordinator.run_s(100.0))) == ("running", 0.0)
    fleet.at(800.0, Tick())
    again = reopened(fleet, 9000.0)
    assert again.coordinator.current.known_for_s(again.coordinator.run_s(9000.0)) == 700.0


def test_how_long_a_generation_of_an_older_record_has_run_is_not_known() -> None:
    fleet = running()
    fleet.at(NOTE_TIME_S + 1, Tick())
    fleet.record = replace(fleet.record, known_s=None)
    again = reopened(fleet, 9000.0)
    assert again.coordinator.current.ran_s(again.coordinator.run_s(9000.0)) == 0.0


# --- who is to blame ---------------------------------------------------------------------------------------------


def test_the_node_where_an_incident_began_is_told_once_it_is_closed() -> None:
    fleet = running("a", "b")
    assert (
        blamed(fleet.hears(5.0, "b1", Part.STOPPED, 0, rank(2, exited(3), first=2), rank(3, exited(3), first=2))) == []
    )
    effects = fleet.hears(6.0, "a1", Part.STOPPED, 0, *(rank(n, exited(signal=15, by_us=True)) for n in (0, 1)))
    assert blamed(effects) == ["b"]


def test_a_program_that_fails_on_its_only_node_is_no_trouble_of_that_node_and_a_lost_runner_is() -> None:
    fleet = stopping(spec=job_spec(restart=RestartTable(backoff_s=0.0), nnodes=(1, 1)))
    assert blamed(fleet.hears(6.0, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))) == []
    assert fleet.record.generation == 1
    assert blamed(fleet.gone(7.0, "a1")) == ["a"]


def test_what_fails_of_one_cause_on_two_nodes_is_a_trouble_of_the_first_one_only() -> None:
    fleet = running("a", "b")
    killed = tuple(rank(n, exited(signal=15, by_us=True)) for n in (0, 1))
    fleet.hears(5.0, "b1", Part.STOPPED, 0, rank(2, exited(3), first=2), rank(3, exited(3), first=2), offer=offer())
    assert blamed(fleet.hears(6.0, "a1", Part.STOPPED, 0, *killed, offer=offer(port=4001))) == ["b"]
    fleet.at(30.0, Tick())
    fleet.hears(30.0, "b1", Part.STOPPED, 0, offer=offer())
    fleet.hears(30.0, "a1", Part.STOPPED, 0, offer=offer(port=4001))
    assert fleet.record.generation == 1
    fleet.hears(35.0, "a1", Part.STOPPED, 1, rank(0, exited(3)), rank(1, exited(3)), offer=offer())
    killed = tuple(rank(n, exited(signal=15, by_us=True), first=2) for n in (2, 3))
    assert blamed(fleet.hears(36.0, "b1", Part.STOPPED, 1, *killed, offer=offer())) == []


def test_an_end_that_the_job_wants_is_nobodys_trouble() -> None:
    table = RestartTable(always_on_exit=(33,))
    fleet = running(spec=job_spec(restart=table, nnodes=(1, 1)))
    ended = (rank(0, exited(33)), rank(1, exited(signal=15, order=1, by_us=True)))
    assert blamed(fleet.hears(5.0, "a1", Part.STOPPED, 0, *ended)) == []
    assert fleet.record.ledger.used == 0


# --- nodes that are left out -------------------------------------------------------------------------------------


def fleet_of_three(*, least: int = 2, after: int = 2) -> Fleet:
    table = RestartTable(exclude_node_after=after, backoff_s=0.0)
    spec = job_spec(restart=table, nnodes=(least, 3))
    fleet = Fleet("a", "b", "c", spec=spec, keeps_isolated=True)
    fleet.opens(0.0)
    for node in "abc":
        fleet.offers(1.0, f"{node}1")
    return fleet


def sees(fleet: Fleet, now_s: float, **troubles: tuple[float, ...]) -> list[Effect]:
    """The fleet as it stands, with the incidents that began on its nodes."""
    nodes = (
        RosterNode(name, is_up=True, joined=place, troubles=troubles.get(name, ()))
        for place, name in enumerate(fleet.nodes)
    )
    return fleet.at(now_s, Roster(tuple(nodes)))


def end(fleet: Fleet, now_s: float) -> list[Effect]:
    """The generation on a and b ends, and its runners offer again."""
    fleet.hears(now_s, "a1", Part.STOPPED, 0, *CRASHED_AND_GONE, offer=offer(port=4001))
    return fleet.hears(
        now_s + 1,
        "b1",
        Part.STOPPED,
        0,
        *(rank(n, exited(signal=15, by_us=True), first=2) for n in (2, 3)),
        offer=offer(),
    )


def test_a_node_on_which_incidents_begin_is_left_out_at_the_next_generation_where_there_is_a_spare() -> None:
    """H47."""
    fleet = fleet_of_three()
    assert tuple(fleet.coordinator.seats) == ("a", "b")
    effects = sees(fleet, 4.0, a=(2.0, 3.0))
    (note,) = noted(effects, "node.excluded")
    assert note.text == "a is left out: 15 min more, 2 incidents within an hour (supctl undrain a lifts that)"
    assert fleet.coordinator.rendezvous.wanted == {"c"}  # what runs goes on
    assert set(fleet.coordinator.rendezvous.eligible) == {"b", "c"}
    fleet.offers(5.0, "c1", port=4002)
    end(fleet, 5.5)
    assert set(fleet.coordinator.seats) == {"b", "c"}
    fleet.hears(7.0, "a1", Part.STOPPED, 0, offer=offer())
    assert fleet.coordinator.order_for("a", "a1") == Release()  # another one looks at the node when that is over


def test_it_is_looked_at_anew_when_that_is_over_and_taken_last_for_an_hour() -> None:
    """H47: the cool-down ends, and the node is proven before it is used."""
    fleet = fleet_of_three()
    sees(fleet, 4.0, a=(2.0, 3.0))
    fleet.offers(5.0, "c1", port=4002)
    end(fleet, 5.5)
    fleet.gone(7.0, "a1")
    over_s = 3.0 + EXCLUDE_S
    assert fleet.coordinator.deadline_s is not None
    effects = fleet.at(over_s, Tick())
    assert wanted_runners(effects) == ["a"]
    effects = fleet.offers(over_s + 1, "a2")
    assert notes(effects) == ["node.paroled"]
    assert fleet.coordinator.rendezvous.eligible[-1] == "a"
    fleet.at(over_s + 3601, Tick())
    assert notes(fleet.offers(over_s + 3602, "a2")) == []


def test_an_operator_lifts_it_at_once() -> None:
    """H47."""
    fleet = fleet_of_three()
    sees(fleet, 4.0, a=(2.0, 3.0))
    effects = sees(fleet, 5.0)
    assert fleet.coordinator.rendezvous.uses("a")
    assert notes(effects) == []


def test_where_there_is_no_other_node_it_is_used_all_the_same_and_that_is_told_once() -> None:
    fleet = fleet_of_three(least=3)
    effects = sees(fleet, 4.0, a=(2.0, 3.0))
    (note,) = noted(effects, "node.excluded")
    assert note.detail["is_used"] is True
    assert notes(sees(fleet, 4.5, a=(2.0, 3.0))) == []
    assert fleet.coordinator.rendezvous.uses("a")


def test_a_job_may_want_no_exclusion_at_all() -> None:
    assert notes(sees(fleet_of_three(after=0), 4.0, a=(2.0, 3.0))) == []


# --- seen from outside -------------------------------------------------------------------------------------------


def test_status_tells_what_is_used_up_and_which_nodes_are_left_out() -> None:
    fleet = fleet_of_three()
    sees(fleet, 4.0, a=(2.0, 3.0))
    status = run_status(
        fleet.coordinator,
        submitted(fleet.spec),
        4.0,
        submitted_wall_s=0.0,
        ended_wall_s=None,
        logs_dir="",
        with_ranks=False,
    )
    assert (status.restarts_used, status.infra_used, status.streak, status.no_progress_limit) == (0, 0, 0, 3)
    assert status.excluded == ("a (15 min more, 2 incidents within an hour)",)


def test_what_the_policy_would_do_is_told_failure_by_failure_and_changes_nothing() -> None:
    fleet = running()
    before = fleet.coordinator.record()
    steps = foresight.steps(fleet.coordinator, 139, 5, 10.0)
    assert [(step.number, step.action, step.delay_s, step.charged) for step in steps] == [
        (1, "restart", 0.0, True),
        (2, "restart", 5.0, True),
        (3, "restart", 10.0, True),
        (4, "fail", 0.0, False),
    ]
    assert steps[-1].why == "restart budget spent (3 of 3)"
    assert fleet.coordinator.record() == before
    assert fleet.phase is Phase.RUNNING.value


def test_a_code_of_the_job_file_is_foreseen_by_its_rule_and_a_signal_is_no_code() -> None:
    table = RestartTable(always_on_exit=(139,), never_on_exit=(7,), on_budget_spent="hold", max_restarts=0)
    fleet = running(spec=job_spec(restart=table, nnodes=(1, 1)))
    assert [step.action for step in foresight.steps(fleet.coordinator, 139, 9, 10.0)] == ["hold"]
    (never,) = foresight.steps(fleet.coordinator, 7, 9, 10.0)
    assert (never.action, never.why) == ("fail", "exit code 7 is in restart.never_on_exit")
