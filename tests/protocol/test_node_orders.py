"""protocol/node_orders.py: the host's side of the links to its nodes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages.fleet import NodeOrder, NodeReport, RunnerBuried, StartFailure
from protocol.node_orders import (
    SETTLING_MAX,
    Admitted,
    Effect,
    Event,
    Failed,
    Forgotten,
    Gone,
    NodeOrders,
    Order,
    Reported,
    Settled,
    Wanted,
)

FIRST, SECOND = ("of-b-dir", 1), ("of-b-dir", 2)
"""Two starts of a node's supd."""


def buried(incarnation: str) -> RunnerBuried:
    return RunnerBuried(run="j@1", incarnation=incarnation)


def failure(number: int, run: str = "j@1") -> StartFailure:
    return StartFailure(run=run, number=number, reason=f"reason {number}")


def with_b(start: tuple[str, int] = FIRST) -> NodeOrders:
    """The links of a fleet into which b has just come."""
    orders = NodeOrders(epoch=7)
    assert orders.handle(Admitted("b", start)) == []
    return orders


def reports(
    orders: NodeOrders, number: int, *ends: str, failures: tuple[StartFailure, ...] = (), node: str = "b"
) -> list[Effect]:
    report = NodeReport(number=number, buried=tuple(map(buried, ends)), failures=failures)
    return orders.handle(Reported(node, report))


def wants(orders: NodeOrders, run: str, *nodes: str) -> list[Effect]:
    return orders.handle(Wanted(run, frozenset(nodes)))


def test_an_order_has_all_runs_that_are_wanted_and_is_pushed_where_that_changes() -> None:
    orders = with_b()
    orders.handle(Admitted("c", ("of-c-dir", 1)))
    assert wants(orders, "j@1", "c", "b") == [Order("b"), Order("c")]
    assert wants(orders, "k@1", "b") == [Order("b")]
    assert wants(orders, "k@1", "b") == []
    assert orders.order_for("b") == NodeOrder(number=0, epoch=7, wanted=("j@1", "k@1"))
    assert wants(orders, "j@1", "c") == [Order("b")]
    assert [orders.order_for(node).wanted for node in ("b", "c")] == [("k@1",), ("j@1",)]


def test_what_is_wanted_of_a_node_that_is_not_there_is_in_its_first_order() -> None:
    orders = NodeOrders(epoch=7)
    assert wants(orders, "j@1", "b") == []
    assert orders.handle(Admitted("b", FIRST)) == []
    assert reports(orders, 1) == [Order("b")]
    assert orders.order_for("b") == NodeOrder(number=1, epoch=7, wanted=("j@1",))


def test_a_node_lacks_a_runner_of_which_its_supd_tells_nothing_on_this_connection() -> None:
    orders = with_b()
    assert not orders.lacks("b", "aa"), "it has not told yet"
    orders.handle(Reported("b", NodeReport(number=1)))
    assert not orders.lacks("b", "aa"), "an older supd tells none"
    orders.handle(Reported("b", NodeReport(number=2, runners=("bb",))))
    assert [orders.lacks("b", incarnation) for incarnation in ("aa", "bb")] == [True, False]
    assert not orders.lacks("c", "aa"), "there is no such node"
    for start in (FIRST, ("of-b-dir", 2)):
        orders.handle(Admitted("b", start))
        assert not orders.lacks("b", "aa")
        orders.handle(Reported("b", NodeReport(number=1, runners=())))
        assert orders.lacks("b", "aa")


def test_an_end_is_handed_on_once_and_is_settled_for_as_long_as_it_is_told() -> None:
    orders = with_b()
    assert reports(orders, 1, "aa") == [Gone("b", buried("aa")), Order("b")]
    assert reports(orders, 2, "aa") == [Order("b")]
    assert orders.order_for("b").settled == (), "it is not on disk yet"
    assert orders.handle(Settled("b", "aa")) == [Order("b")]
    assert orders.order_for("b") == NodeOrder(number=2, epoch=7, settled=("aa",))
    assert reports(orders, 3, "aa") == [Order("b")]
    assert reports(orders, 4) == [Order("b")]
    assert orders.order_for("b").settled == ()


def test_an_end_is_settled_over_connections_and_over_starts_of_the_nodes_supd() -> None:
    orders = with_b()
    reports(orders, 1, "aa")
    orders.handle(Admitted("b", FIRST))
    assert reports(orders, 1, "aa") == [Order("b")]
    orders.handle(Admitted("b", SECOND))
    assert reports(orders, 1, "aa") == [Order("b")]
    assert orders.handle(Settled("b", "aa")) == [Order("b")]
    assert orders.order_for("b").settled == ("aa",)


def test_a_report_that_a_newer_one_overtook_says_nothing() -> None:
    orders = with_b()
    reports(orders, 2, "aa")
    orders.handle(Settled("b", "aa"))
    assert reports(orders, 1, "bb", failures=(failure(1),)) == []
    assert orders.order_for("b") == NodeOrder(number=2, epoch=7, settled=("aa",))
    orders.handle(Admitted("b", FIRST))
    assert reports(orders, 1, "aa") == [Order("b")], "they are counted anew on each connection"


def test_a_failure_is_handed_on_once_over_all_connections_of_one_start() -> None:
    orders = with_b()
    first, second = Failed("b", "j@1", "reason 1"), Failed("b", "k@1", "reason 2")
    assert reports(orders, 1, failures=(failure(2, "k@1"), failure(1))) == [first, second, Order("b")]
    assert reports(orders, 2, failures=(failure(1),)) == [Order("b")]
    assert reports(orders, 3, failures=(failure(2, "k@1"),)) == [Order("b")]
    orders.handle(Admitted("b", FIRST))
    assert reports(orders, 1, failures=(failure(2, "k@1"),)) == [Order("b")]
    orders.handle(Admitted("b", SECOND))
    assert reports(orders, 1, failures=(failure(1),)) == [first, Order("b")], "another supd, which counts anew"


def test_of_too_many_ends_the_last_ones_wait_until_there_is_room() -> None:
    orders = with_b()
    ends = [f"{number:04}" for number in range(SETTLING_MAX + 1)]
    taken = [effect for effect in reports(orders, 1, *ends) if isinstance(effect, Gone)]
    assert len(taken) == SETTLING_MAX
    orders.handle(Settled("b", ends[0]))
    assert reports(orders, 2, *ends) == [Gone("b", buried(ends[-1])), Order("b")]


def test_a_node_that_was_forgotten_is_nobody() -> None:
    orders = with_b()
    reports(orders, 1, "aa")
    orders.handle(Forgotten("b"))
    assert reports(orders, 2, "bb") == []
    assert orders.handle(Settled("b", "aa")) == []
    assert wants(orders, "j@1", "b") == []


name = st.sampled_from("bc")
end = st.sampled_from(("aa", "bb", "cc"))
events = st.one_of(
    st.builds(Wanted, st.sampled_from(("j@1", "k@1")), st.frozensets(name)),
    st.builds(Admitted, name, st.sampled_from([FIRST, SECOND])),
    st.builds(
        Reported,
        name,
        st.builds(
            NodeReport,
            number=st.integers(0, 5),
            buried=st.lists(end.map(buried), max_size=3).map(tuple),
            failures=st.lists(st.integers(0, 3).map(failure), max_size=2).map(tuple),
        ),
    ),
    st.builds(Forgotten, name),
    st.just(None),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=40))
def test_whatever_nodes_do_nothing_is_settled_that_is_not_on_disk(steps: list[Event | None]) -> None:
    orders, on_their_way, on_disk = NodeOrders(epoch=7), list[Settled](), set[str]()
    for step in steps:
        if step is None and not on_their_way:
            continue
        event = step or on_their_way.pop(0)
        if isinstance(event, Settled):
            on_disk.add(event.incarnation)
        for effect in orders.handle(event):
            if isinstance(effect, Gone):
                on_their_way.append(Settled(effect.node, effect.buried.incarnation))
            elif isinstance(effect, Order):
                order = orders.order_for(effect.node)
                assert set(order.settled) <= on_disk
                assert len(set(order.wanted)) == len(order.wanted)


def test_of_a_nodes_old_runs_those_that_the_coordinator_does_not_know_are_named_by_its_newest_report_alone() -> None:
    known = {"kept@1"}
    orders = NodeOrders(7, lambda run: run not in known)
    orders.handle(Admitted("b", FIRST))
    orders.handle(Reported("b", NodeReport(number=1, old=("old@1", "kept@1"))))
    assert orders.order_for("b").forgotten == ("old@1",)
    known.clear()
    assert orders.order_for("b").forgotten == ("old@1", "kept@1")
    orders.handle(Reported("b", NodeReport(number=2)))
    assert orders.order_for("b").forgotten == ()
