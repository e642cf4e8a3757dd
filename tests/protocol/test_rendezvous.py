"""Which nodes a run has, how long it waits for whom, and who gets which place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.coordinator_events import RosterNode
from protocol.job import RendezvousTable, TopologyTable
from protocol.messages.member import Offer
from protocol.pool import ATTEMPTS_MAX, FRESH_S, natural
from protocol.rendezvous import Before, Go, Hopeless, Rendezvous, Wait
from tests.protocol.build import job_spec, offer

JOIN_S, LAST_CALL_S = 600.0, 30.0


class Gathering:
    """A rendezvous that began at 0, of a fleet whose nodes all answer but those that are `away`."""

    def __init__(
        self,
        *nodes: str,
        away: tuple[str, ...] = (),
        may_come: tuple[str, ...] = (),
        slots: dict[str, int] | None = None,
        allow_mixed: bool = False,
        without: str = "",
        labels: dict[str, dict[str, str]] | None = None,
        busy: dict[str, int] | None = None,
        **topology: Any,
    ) -> None:
        self.slots = slots or {}
        spec = job_spec(topology=TopologyTable(nproc_per_node=2, **topology), rendezvous=RendezvousTable())
        self.rendezvous = Rendezvous(spec, self.slots, allow_mixed=allow_mixed)
        self.rendezvous.see(
            RosterNode(
                name,
                name not in away,
                may_come=name in may_come,
                joined=place,
                labels=(labels or {}).get(name, {}),
                other_runs=(busy or {}).get(name, 0),
            )
            for place, name in enumerate(nodes)
        )
        self.rendezvous.begin(without, 0.0)

    def hear(self, *nodes: str, at_s: float = 0.0, **digest: str) -> "Gathering":
        for node in nodes:
            self.rendezvous.hear(node, Offer(slots=2, address=node, port=4000, digest=digest), at_s)
        return self

    def decide(self, now_s: float = 0.0, *, not_port: int | None = None) -> Go | Wait | Hopeless:
        return self.rendezvous.decide(Before(is_none=not self.slots, port=not_port), now_s)

    def nodes(self, now_s: float = 0.0) -> tuple[str, ...]:
        decision = self.decide(now_s)
        assert isinstance(decision, Go), decision
        return decision.nodes


# --- how many --------------------------------------------------------------------------------------------------------


def test_a_fixed_number_of_nodes_goes_at_once_in_the_natural_order_of_their_names() -> None:
    gathering = Gathering("n10", "n9", nnodes=(2, 2))
    assert isinstance(gathering.hear("n10").decide(), Wait)
    assert gathering.hear("n9").decide() == Go(("n9", "n10"), {"n9": 0, "n10": 1})


def test_below_the_least_it_waits_by_name_and_fails_after_the_join_timeout() -> None:
    gathering = Gathering("a", "b", "c", away=("b",), nnodes=(4, 4)).hear("a")
    waits = gathering.decide(1.0)
    assert waits == Wait(
        "the runner on c; b (unreachable) and 1 more node to join the fleet (1 of 4 nodes, a is there)", 600.0
    )
    assert isinstance(gathering.hear("a", at_s=599.0).decide(599.9), Wait)
    decision = gathering.decide(600.0)
    assert isinstance(decision, Hopeless)
    assert decision.lacks_nodes
    assert decision.reason.startswith("too few nodes after 600 s (rendezvous.join_timeout): the runner on c")


def test_a_node_that_the_job_names_and_nobody_knows_is_named() -> None:
    gathering = Gathering("a", nnodes=(2, 2), nodes=("a", "gpu-9")).hear("a")
    decision = gathering.decide()
    assert isinstance(decision, Wait)
    assert decision.text == "gpu-9 (has not joined the fleet) (1 of 2 nodes, a is there)"


def test_growing_takes_all_there_are_and_waits_for_nobody_who_cannot_come() -> None:
    """ "1:4" on a fleet of two goes at once (torchrun waits for nodes that nobody has announced)."""
    gathering = Gathering("a", "b", nnodes=(1, 4), extra_nodes="grow")
    waits = gathering.hear("a").decide(5.0 - FRESH_S)
    assert waits == Wait("the runner on b, which may still come (last call)", 2.0 + LAST_CALL_S)
    assert gathering.hear("b").nodes() == ("a", "b")


def test_the_last_call_ends_and_a_node_that_did_not_come_is_left_out() -> None:
    gathering = Gathering("a", "b", nnodes=(1, 2), extra_nodes="grow").hear("a")
    assert isinstance(gathering.decide(0.0), Wait)
    assert isinstance(gathering.hear("a", at_s=29.0).decide(29.9), Wait)
    assert gathering.nodes(30.0) == ("a",)


@pytest.mark.parametrize(("may_come", "goes"), [((), True), (("b",), False)])
def test_a_node_that_does_not_answer_is_waited_for_only_where_it_was_there_a_moment_ago(
    may_come: tuple[str, ...], goes: bool
) -> None:
    gathering = Gathering("a", "b", away=("b",), may_come=may_come, nnodes=(1, 2), extra_nodes="grow").hear("a")
    assert isinstance(gathering.decide(), Go) is goes


def test_spares_stand_by_and_the_first_ones_in_order_run() -> None:
    gathering = Gathering("a", "b", "c", nnodes=(2, 3)).hear("b", "c")
    assert isinstance(gathering.decide(), Wait)  # a comes before them, and may come
    assert gathering.hear("a").nodes() == ("a", "b")
    assert gathering.rendezvous.spares(("a", "b")) == ("c",)


def test_a_later_generation_takes_a_spare_at_once_which_inherits_the_slot() -> None:
    gathering = Gathering("a", "b", "c", nnodes=(2, 3), slots={"a": 0, "b": 1}).hear("b", "c")
    assert gathering.decide() == Go(("c", "b"), {"b": 1, "c": 0})


def test_a_node_keeps_its_slot_and_one_that_comes_back_has_its_own_again_unless_it_was_inherited() -> None:
    shrunk = Gathering("a", "b", "c", away=("b",), nnodes=(2, 3), extra_nodes="grow", slots={"a": 0, "b": 1, "c": 2})
    assert shrunk.hear("c", "a").decide() == Go(("a", "c"), {"a": 0, "c": 2, "b": 1})
    back = Gathering("a", "b", "c", nnodes=(2, 3), extra_nodes="grow", slots={"a": 0, "c": 2, "b": 1})
    assert back.hear("c", "a", "b").nodes() == ("a", "b", "c")


def test_nodes_beyond_the_most_get_no_runner() -> None:
    assert Gathering("a", "b", "c", nnodes=(1, 2)).rendezvous.pool == ("a", "b")


def test_an_offer_that_is_old_does_not_count() -> None:
    gathering = Gathering("a", nnodes=(1, 1)).hear("a", at_s=1.0)
    assert isinstance(gathering.decide(1.1 + FRESH_S), Wait)
    assert isinstance(gathering.decide(1.0 + FRESH_S), Go)


# --- which -----------------------------------------------------------------------------------------------------------


def test_nodes_are_chosen_by_globs_and_labels() -> None:
    labels = {"gpu-1": {"zone": "x"}, "gpu-2": {"zone": "y"}, "gpu-3": {"zone": "x"}, "cpu-1": {"zone": "x"}}
    gathering = Gathering(
        *labels, labels=labels, nodes=("gpu-*",), exclude=("gpu-3",), node_labels={"zone": "x"}, nnodes=(1, 4)
    )
    assert gathering.rendezvous.eligible == ("gpu-1",)


@pytest.mark.parametrize(
    ("order", "expected"), [("name", ("a", "b", "c")), ("join", ("c", "b", "a")), ("label:rack", ("b", "c", "a"))]
)
def test_ranks_follow_the_order_that_the_job_names(order: str, expected: tuple[str, ...]) -> None:
    labels = {"a": {}, "b": {"rack": "r2"}, "c": {"rack": "r10"}}
    gathering = Gathering("c", "b", "a", labels=labels, rank_order=order, nnodes=(3, 3))
    assert gathering.hear("a", "b", "c").nodes() == expected


def test_a_node_with_less_to_do_comes_first_but_not_before_one_that_has_a_slot() -> None:
    assert Gathering("a", "b", busy={"a": 1}, nnodes=(1, 1)).rendezvous.pool == ("b",)
    assert Gathering("a", "b", busy={"a": 1}, nnodes=(1, 1), slots={"a": 0}).rendezvous.pool == ("a",)


def test_the_node_that_an_operator_wants_out_is_left_out_of_one_generation() -> None:
    gathering = Gathering("a", "b", "c", nnodes=(2, 3), extra_nodes="grow", without="b", slots={"a": 0, "b": 1, "c": 2})
    assert gathering.hear("a", "b", "c").nodes() == ("a", "c")
    gathering.rendezvous.rest()
    assert "b" in gathering.rendezvous.pool


def test_a_node_with_a_problem_is_replaced_and_fails_the_run_where_nobody_can() -> None:
    gathering = Gathering("a", "b", nnodes=(1, 2)).hear("b")
    gathering.rendezvous.hear("a", offer(0, problem="no GPU"), 0.0)
    assert gathering.nodes() == ("b",)
    alone = Gathering("a", nnodes=(1, 1))
    alone.rendezvous.hear("a", offer(0, problem="no GPU"), 0.0)
    assert alone.decide() == Hopeless("a: no GPU")
    assert alone.hear("a").nodes() == ("a",)  # it has passed


def test_a_run_is_not_failed_for_one_node_by_a_coordinator_that_has_not_met_the_others_again() -> None:
    """Found by random seeds: it had lost its journal, and knew their places from a runner that it could hear."""
    gathering = Gathering("c", "d", nnodes=(2, 2), slots={"a": 0, "b": 1}).hear("c")
    gathering.rendezvous.hear("d", offer(0, problem="no GPU"), 0.0)
    waits = gathering.decide()
    assert isinstance(waits, Wait)
    assert waits.text == "1 more node to join the fleet (1 of 2 nodes, c is there; d: no GPU)"
    lacks = gathering.decide(JOIN_S)
    assert isinstance(lacks, Hopeless)
    assert lacks.lacks_nodes


def test_a_node_whose_runner_fails_to_start_again_and_again_is_done_without() -> None:
    gathering = Gathering("a", "b", nnodes=(1, 1))
    assert [gathering.rendezvous.fail("a", "no room") for _ in range(ATTEMPTS_MAX)] == [False] * 4 + [True]
    assert gathering.rendezvous.pool == ("b",)


# --- whether they would run the same ---------------------------------------------------------------------------------


def test_a_fleet_that_would_not_run_the_same_does_not_launch_and_the_odd_node_is_named() -> None:
    gathering = Gathering("a", "b", "c", nnodes=(3, 3)).hear("a", "b", script="1111").hear("c", script="2222")
    decision = gathering.decide()
    assert isinstance(decision, Hopeless)
    assert decision.reason.startswith("nodes would not run the same: script is 2222 on c and 1111 on a, b")


def test_a_later_generation_waits_for_them_to_agree_for_as_long_as_for_nodes() -> None:
    gathering = Gathering("a", "b", nnodes=(2, 2), slots={"a": 0, "b": 1}).hear("a", x="1").hear("b", x="2")
    decision = gathering.decide()
    assert isinstance(decision, Wait)
    assert decision.until_s == JOIN_S
    assert gathering.hear("b", x="1").nodes() == ("a", "b")


def test_a_mixed_fleet_launches_where_that_is_allowed() -> None:
    assert Gathering("a", "b", nnodes=(2, 2), allow_mixed=True).hear("a", x="1").hear("b", x="2").nodes() == ("a", "b")


# --- always ----------------------------------------------------------------------------------------------------------

NAMES = st.lists(st.from_regex(r"[a-c][0-9]{0,2}", fullmatch=True), unique=True, min_size=1, max_size=7)


@given(NAMES, st.data())
def test_slots_are_distinct_and_a_node_that_goes_on_keeps_its_own(names: list[str], data: st.DataObject) -> None:
    gathering = Gathering(*names, nnodes=(1, 7), extra_nodes="grow")
    for _ in range(4):
        chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
        before = dict(gathering.rendezvous.slots)
        after = gathering.rendezvous._slots_of(chosen)
        assert len(set(after.values())) == len(after)
        assert all(after[node] == before[node] for node in chosen if node in before)
        assert set(chosen) <= after.keys()
        gathering.rendezvous.slots = after


@given(st.lists(st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z]?", fullmatch=True)))
def test_names_of_any_form_have_one_order(names: list[str]) -> None:
    assert len({natural(name) for name in names}) == len(set(names))
    assert sorted(set(names), key=natural) == sorted(sorted(set(names), reverse=True), key=natural)


def test_no_deadline_is_ever_past_or_time_would_be_looked_at_without_end() -> None:
    odd = (
        Gathering("a", "b", nnodes=(2, 2), slots={"a": 0, "b": 1}, extra_nodes="grow").hear("a", x="1").hear("b", x="2")
    )
    for now_s in (0.0, 31.0, 599.0):
        odd.hear("a", at_s=now_s, x="1").hear("b", at_s=now_s, x="2")
        assert isinstance(odd.decide(now_s), Wait)
        assert odd.rendezvous.deadline_s == JOIN_S
    taken = Gathering("a", nnodes=(1, 1), slots={"a": 0}).hear("a", at_s=700.0)
    assert isinstance(taken.decide(700.0, not_port=4000), Wait)
    assert taken.rendezvous.deadline_s is None


def test_before_it_has_begun_it_waits_for_the_fleet() -> None:
    """Somebody may look at a run that was just taken up."""
    rendezvous = Rendezvous(job_spec(), {}, allow_mixed=False)
    assert isinstance(rendezvous.foresee(Before(is_none=True, port=None), 0.0), Wait)


def test_a_node_that_waits_for_a_port_hides_nobody_else_who_is_waited_for() -> None:
    gathering = Gathering("a", "b", "c", away=("c",), nnodes=(3, 3))
    gathering.rendezvous.hear("a", Offer(slots=2, address="a", port=0, waits_for="port 9 on a to be free"), 0.0)
    decision = gathering.decide()
    assert isinstance(decision, Wait)
    assert decision.text == "port 9 on a to be free and the runner on b; c (unreachable) (0 of 3 nodes)"


def test_a_node_that_is_named_and_excluded_is_not_waited_for() -> None:
    gathering = Gathering("a", nnodes=(1, 2), nodes=("a", "b"), exclude=("b",), extra_nodes="grow").hear("a")
    assert gathering.nodes() == ("a",)


def test_nodes_that_are_there_and_do_not_fit_are_named_with_what_leaves_them_out() -> None:
    decision = Gathering("n1", "n2", nnodes=(1, 1), nodes=("m*",)).decide()
    assert isinstance(decision, Wait)
    assert decision.text == (
        "1 more node to join the fleet (0 of 1 nodes; "
        "n1, n2 in the fleet, not in [topology] nodes, exclude, node_labels)"
    )
