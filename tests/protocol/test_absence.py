"""What people see of nodes that are silent, and for whose proof a run waits."""

from protocol.absence import Unproven, node_state, unproven, waiting_for
from protocol.coordinator_events import NodeLost, StopRequested, Tick
from protocol.messages.member import Part
from protocol.takeover import told_run
from tests.protocol.build import exited, rank
from tests.protocol.fleet import FINISHED, Fleet, forming, launching, running, started, stopping
from tests.protocol.takeover_stage import TTL_S, grown

NOBODY_TOLD = "whoever runs it to tell what"
PROOF = "the word of its supd that its ranks are gone, or yours: supctl node lost {}"


def state(fleet: Fleet, node: str, now_s: float) -> tuple[str, str]:
    return node_state(fleet.coordinator, node, now_s)


# --- a node ----------------------------------------------------------------------------------------------------------


def test_of_a_node_that_answers_there_is_nothing_to_tell() -> None:
    fleet = running("a", "b", "c")
    assert {state(fleet, node, 2.5) for node in "abcz"} == {("", "")}


def test_a_silent_node_is_suspect_and_it_is_said_for_how_long() -> None:
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 6.0, silent="c")
    assert state(fleet, "c", 6.0) == ("suspect", "its runner was heard 4.0 s ago")
    assert state(fleet, "a", 6.0) == ("", "")


def test_a_node_that_only_a_witness_reaches_is_unreachable() -> None:
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 6.0, via={"c1": "a1"})
    assert state(fleet, "c", 6.0) == ("unreachable", "its runner is heard by way of others only; its ranks go on")


def test_a_node_that_was_lost_is_until_it_is_heard_whatever_the_run_does() -> None:
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 8.0, silent="c")
    lost = ("lost", "nothing was heard of it until its lease was over, nor since")
    assert (fleet.phase, state(fleet, "c", 8.0)) == ("stopping", lost)
    for runner, place in (("a1", 0), ("b1", 1)):
        ranks = (rank(2 * place + i, exited(signal=15, order=i, by_us=True), first=2 * place) for i in (0, 1))
        fleet.hears(9.0, runner, Part.STOPPED, 0, *ranks)
    assert (fleet.phase, state(fleet, "c", 60.0)) == ("forming", lost)
    fleet.offers(61.0, "c1", 0)
    assert state(fleet, "c", 61.0) == ("", "")


def test_a_node_of_which_the_operator_says_so_is_lost() -> None:
    fleet = running("a", "b")
    fleet.at(3.0, NodeLost("b", by="me"))
    assert state(fleet, "b", 3.0)[0] == "lost"


def test_a_node_that_has_ended_its_ranks_by_itself_is_fenced_and_says_why() -> None:
    fleet = running("a", "b")
    ranks = (rank(i, exited(signal=9, order=i - 2, by_us=True), first=2) for i in (2, 3))
    fleet.hears(4.0, "b1", Part.STOPPED, 0, *ranks, fenced_s=4.5)
    assert state(fleet, "b", 4.0) == ("fenced", "its runner had no answer for 4.5 s and has ended its ranks")
    assert state(fleet, "a", 4.0) == ("", "")


def test_where_nothing_of_a_run_is_alive_nobody_is_suspect() -> None:
    fleet = forming("a", "b")
    fleet.offers(1.0, "a1")
    assert state(fleet, "a", 60.0) == ("", "")
    fleet = running()
    fleet.hears(5.0, "a1", Part.FINISHED, 0, *FINISHED)
    assert state(fleet, "a", 60.0) == ("", "")


# --- a run -----------------------------------------------------------------------------------------------------------


def waits(fleet: Fleet, now_s: float) -> str:
    return waiting_for(fleet.coordinator, now_s)


def test_a_run_that_hears_everybody_waits_for_nobody() -> None:
    for fleet in (forming("a", "b"), launching("a", "b"), running("a", "b"), stopping("a", "b")):
        fleet.passes(5.0, 8.0)
        assert waits(fleet, 8.0) == ""


def test_a_run_waits_for_the_proof_of_those_whose_lease_is_over_and_says_what_the_operator_can_do() -> None:
    fleet = running("a", "b", "c")
    fleet.passes(2.0, 30.0, silent="bc", mute="a")
    told = "proof for b (silent for 28 s), c (silent for 28 s): "
    fleet.sees(30.0, "b", "c")
    assert waits(fleet, 30.0) == told + PROOF.format("b")
    fleet.at(31.0, NodeLost("b", by="me"))
    assert waits(fleet, 31.0) == "proof for c (silent for 29 s): " + PROOF.format("c")
    fleet.passes(31.0, 37.0, silent="bc", mute="a")
    assert waits(fleet, 37.0) == ""  # and is lost, since its witness b was


def test_where_the_supd_of_a_silent_runner_answers_the_way_out_is_to_end_that_runner() -> None:
    """An operator's word is refused there."""
    fleet = running("a")
    told = "proof for a (silent for 28 s): end its runner there, and its supd proves that: kill -9 "
    unknown = " on a; where its supd knows of none: supctl node lost a"
    assert waits(fleet, 30.0) == told + "$(ps -o ppid= 100)" + unknown, "of a rank, whose parent it is"
    fleet.hears(30.0, "a1", Part.RUNNING, 0, rank(0, exit=exited(1)))
    assert waits(fleet, 58.0) == told + "its pid" + unknown


def test_a_run_that_is_taken_up_again_waits_for_those_that_have_not_reported_yet() -> None:
    fleet = running("a", "b")
    again = Fleet("a", "b", spec=fleet.spec, record=fleet.record, epoch=2)
    again.numbers = fleet.numbers
    again.opens(10.0)
    assert waits(again, 10.5) == "the runner on a, b to report"
    again.hears(10.5, "a1", Part.RUNNING, 0, *started())
    assert waits(again, 10.5) == "the runner on b to report"


def test_who_has_ended_is_not_waited_for() -> None:
    fleet = running("a", "b")
    fleet.hears(3.0, "a1", Part.FINISHED, 0, *FINISHED)
    fleet.passes(3.0, 30.0, silent="a")
    assert waits(fleet, 30.0) == ""


def test_a_run_that_is_taken_over_waits_for_its_runners_to_tell() -> None:
    fleet = forming("a", "b")
    fleet.hears(1.0, "a1", Part.RUNNING, 4, *started())
    assert waits(fleet, 1.0) == f"{NOBODY_TOLD} (generation 4 is taken over from its runners)"


def test_a_run_of_which_no_generation_is_known_is_taken_over_all_the_same() -> None:
    fleet = Fleet("a", record=told_run())
    fleet.opens(0.0)
    assert waits(fleet, 1.0) == f"{NOBODY_TOLD} (it is taken over from its runners)"


def test_a_run_that_is_taken_over_says_what_an_operator_can_do_once_that_is_not_refused() -> None:
    fleet = forming("a", "b")
    fleet.hears(1.0, "a1", Part.RUNNING, 4, *started())
    fleet.at(1.0 + TTL_S, Tick())
    told = f"{NOBODY_TOLD} (generation 4 is taken over from its runners)"
    fleet.renews(6.5, "a1")
    assert waits(fleet, 7.0) == told  # it is heard, and may tell any time
    assert waits(fleet, 20.0) == f"{told}; or for your word that nothing runs on a: supctl node lost a"
    fleet.at(21.0, NodeLost("a", by="me"))
    assert waits(fleet, 21.0) == f"{told}; or for your word that nobody runs it: supctl restart"


def test_a_run_that_is_taken_over_and_told_to_stop_offers_no_restart() -> None:
    """That would be refused."""
    fleet = forming("a", "b")
    fleet.hears(1.0, "a1", Part.RUNNING, 4, *started())
    fleet.at(2.0, StopRequested(None, now=False, by="me"))
    fleet.at(1.0 + TTL_S, Tick())
    assert waits(fleet, 20.0).endswith(
        "(generation 4 is taken over from its runners); supctl stop --now waits for nobody"
    )
    assert fleet.at(21.0, StopRequested(None, now=True, by="me"))
    assert fleet.phase == "stopped"


def test_a_run_that_cannot_begin_because_of_who_was_busy_and_is_silent_says_how_that_ends() -> None:
    """Its disk was lost: nobody is left to prove it gone."""
    fleet = forming("a", "b", spec=grown("ab"))
    fleet.hears(1.0, "b1", Part.STOPPING, -1)
    fleet.offers(2.0, "a1")
    assert waits(fleet, 2.0) == ""
    fleet.sees(10.0, "b")
    assert waits(fleet, 10.0) == "proof for b (silent for 9 s): " + PROOF.format("b")
    fleet.offers(11.0, "a1")
    fleet.at(11.5, NodeLost("b", by="me"))
    assert (fleet.phase, set(fleet.coordinator.seats)) == ("launching", {"a"})


# --- whose word it takes


def unproven_on_b(fleet: Fleet, now_s: float, *known: str, is_up: bool = True) -> Unproven:
    """As the supd on b says that it has these runners; not `is_up`: it does not answer."""
    lacks = (lambda runner: runner not in known) if is_up else None
    return unproven("b", {"job": fleet.coordinator}, lacks, now_s)


def test_a_runner_that_is_heard_needs_nobody_s_word() -> None:
    fleet = running("a", "b")
    for is_up in (True, False):
        assert unproven_on_b(fleet, 3.0, "b1", is_up=is_up) == Unproven(heard=("job",))
    assert unproven_on_b(fleet, 3.0) == Unproven(heard=("job",)), "whatever the supd there may say"


def test_a_silent_runner_needs_an_operator_s_word_unless_the_supd_there_has_it() -> None:
    fleet = running("a", "b")
    assert unproven_on_b(fleet, 30.0, is_up=False) == Unproven(needs_word=("job",))
    assert unproven_on_b(fleet, 30.0) == Unproven(needs_word=("job",)), "its disk was lost, say"
    assert unproven_on_b(fleet, 30.0, "b1") == Unproven(quiet=("job",))
    fleet.gone(31.0, "b1")
    assert unproven_on_b(fleet, 31.0) == Unproven()


def test_another_runner_that_answers_and_has_no_ranks_proves_nothing_of_the_one_that_had_them() -> None:
    fleet = running("a", "b")
    again = Fleet("a", "b", spec=fleet.spec, record=fleet.record, epoch=2)
    again.opens(10.0)
    for now_s in range(11, 30):
        again.at(float(now_s), Tick())
    again.offers(29.0, "b2")
    assert unproven_on_b(again, 30.0, "b2") == Unproven(needs_word=("job",))
    assert unproven_on_b(again, 30.0, "b1", "b2") == Unproven(quiet=("job",))


def test_a_runner_that_is_ahead_is_not_given_up_for_the_one_that_had_the_seat() -> None:
    fleet = running("a", "b")
    again = Fleet("a", "b", spec=fleet.spec, record=fleet.record, epoch=2)
    again.opens(10.0)
    again.hears(11.0, "b2", Part.RUNNING, 4, *started())
    assert unproven_on_b(again, 12.0, "b2") == Unproven(heard=("job",))
    assert unproven_on_b(again, 30.0, "b2") == Unproven(quiet=("job",))
