"""protocol/node.py: a node's side of its link to the coordinator."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages import encode
from protocol.messages.fleet import (
    BURIED_A_REPORT_MAX,
    FAILURES_A_REPORT_MAX,
    OLD_A_REPORT_MAX,
    RUNNERS_A_REPORT_MAX,
    NodeOrder,
    NodeReport,
    RunnerBuried,
    StartFailure,
    decode_report,
)
from protocol.messages.member import Renewal
from protocol.node import (
    Aged,
    Buried,
    Clear,
    Effect,
    Ensure,
    Event,
    Forget,
    Given,
    LinkDown,
    LinkUp,
    Node,
    Ordered,
    Report,
    Signalled,
    StartFailed,
    Tick,
)


def order(number: int, *wanted: str, settled: tuple[str, ...] = ()) -> Ordered:
    return Ordered(NodeOrder(number=number, epoch=1, wanted=wanted, settled=settled))


def report(
    number: int,
    buried: tuple[RunnerBuried, ...] = (),
    failures: tuple[StartFailure, ...] = (),
    runners: tuple[str, ...] = (),
    signals: dict[str, int] | None = None,
) -> Report:
    report = NodeReport(number=number, buried=buried, failures=failures, runners=runners, signals=signals or {})
    return Report(report)


def due_s(node: Node) -> float | None:
    return node.deadline_s


def linked(given: dict[str, str] | None = None) -> Node:
    """A node whose link came up at 0 s."""
    node = Node(given or {})
    node.handle(LinkUp(), 0.0)
    return node


def test_it_reports_as_the_link_comes_up_then_every_second_and_never_without_one() -> None:
    node = Node({"aa": "j@1"})
    assert node.handle(Tick(), 0.0) == []
    assert due_s(node) is None
    assert node.handle(LinkUp(), 5.0) == [report(1, runners=("aa",))]
    assert node.deadline_s == 6.0
    assert node.handle(Tick(), 5.9) == []
    assert node.handle(Tick(), 6.0) == [report(2, runners=("aa",))]
    assert (node.handle(LinkDown(), 6.5), due_s(node)) == ([], None)
    assert node.handle(LinkUp(), 9.0) == [report(1, runners=("aa",))], "reports are counted anew on each connection"


def test_a_signal_is_told_at_once_and_supd_may_end_once_the_coordinator_has_heard_of_it() -> None:
    node = linked()
    assert node.handle(order(1), 0.1) == []
    assert node.handle(Signalled({"SIGTERM": 1}), 0.2) == [report(2, signals={"SIGTERM": 1})]
    may_end = []
    for number in (1, 2):
        node.handle(order(number), 0.3)
        may_end.append(node.may_end)
    assert may_end == [False, True], "the first order answers an earlier report"
    assert node.handle(Tick(), 1.2) == [report(3, signals={"SIGTERM": 1})], "it is said for as long as supd lives"


def test_without_a_link_nobody_is_told_of_a_signal_and_the_next_one_is_told_anew() -> None:
    node = Node({})
    assert node.handle(Signalled({"SIGUSR1": 2}), 0.2) == []
    may_end = [node.may_end]
    assert node.handle(LinkUp(), 5.0) == [report(1, signals={"SIGUSR1": 2})]
    assert [*may_end, node.may_end] == [True, False]


def test_what_is_wanted_is_started_once() -> None:
    node = linked()
    assert node.handle(order(1, "j@1", "k@1"), 0.1) == [Ensure("j@1"), Ensure("k@1")]
    assert node.handle(order(1, "j@1", "k@1"), 0.2) == []
    assert node.handle(Given("j@1", "aa"), 0.3) == []
    told = [report(2, runners=("aa",))]
    assert node.handle(order(2, "j@1", "k@1"), 5.0) == told, "the other is still being started"


def test_a_runner_that_was_there_before_serves_its_run() -> None:
    assert linked({"aa": "j@1"}).handle(order(1, "j@1"), 0.1) == []


def test_what_is_not_wanted_any_more_is_left_alone() -> None:
    node = linked({"aa": "j@1"})
    assert node.handle(order(1), 0.1) == []
    assert node.runners == {"aa": "j@1"}


def test_an_end_is_told_until_it_is_settled_and_only_then_the_run_has_another_runner() -> None:
    node, last = linked({"aa": "j@1"}), Renewal(number=9)
    node.handle(order(1, "j@1"), 0.1)
    buried = RunnerBuried(run="j@1", incarnation="aa", last=last)
    assert node.handle(Buried("j@1", "aa", last), 0.2) == [report(2, buried=(buried,))]
    assert node.handle(order(2, "j@1"), 0.3) == [], "the coordinator would meet the new one first"
    assert node.handle(Tick(), 1.2) == [report(3, buried=(buried,))]
    assert node.handle(order(3, "j@1", settled=("aa", "nonsense")), 1.3) == [Forget("aa"), Ensure("j@1")]
    assert node.handle(Tick(), 2.2) == [report(4)]


def test_an_end_is_told_on_the_next_link_too() -> None:
    node = Node({"aa": "j@1"})
    assert node.handle(Buried("j@1", "aa", None), 0.0) == []
    assert node.handle(LinkUp(), 3.0) == [report(1, buried=(RunnerBuried(run="j@1", incarnation="aa"),))]


def test_more_ends_than_fit_into_a_report_are_told_as_soon_as_the_first_are_settled() -> None:
    names = [f"{number:02}" for number in range(BURIED_A_REPORT_MAX + 1)]
    node = Node({name: f"j@{name}" for name in names})
    for name in names:
        node.handle(Buried(f"j@{name}", name, None), 0.0)
    (first,) = node.handle(LinkUp(), 1.0)
    assert isinstance(first, Report)
    assert [one.incarnation for one in first.report.buried] == names[:-1]
    *_, second = node.handle(order(1, settled=tuple(names[:-1])), 1.1)
    assert isinstance(second, Report)
    assert [one.incarnation for one in second.report.buried] == names[-1:]


def test_of_more_ends_than_fit_into_a_report_none_waits_for_those_that_are_settled_late() -> None:
    names = [f"{number:02}" for number in range(BURIED_A_REPORT_MAX + 1)]
    node = Node({})
    for name in names:
        node.handle(Buried(f"j@{name}", name, None), 0.0)
    reports = [*node.handle(LinkUp(), 1.0), *node.handle(Tick(), 2.0)]
    told = [[one.incarnation for one in each.report.buried] for each in reports if isinstance(each, Report)]
    assert told == [names[:-1], [names[-1], *names[:-2]]]


def test_a_start_that_fails_is_told_by_number_and_tried_again_a_second_later_at_the_soonest() -> None:
    node = linked()
    node.handle(order(1, "j@1"), 0.5)
    first = StartFailure(run="j@1", number=1, reason="no room")
    assert node.handle(StartFailed("j@1", "no room"), 0.6) == [report(2, failures=(first,))]
    assert node.handle(order(2, "j@1"), 0.7) == []
    assert node.deadline_s == 1.5
    assert node.handle(Tick(), 1.5) == [Ensure("j@1")]
    second = StartFailure(run="j@1", number=2, reason="no room")
    assert node.handle(StartFailed("j@1", "no room"), 1.55) == [report(3, failures=(second,))]
    assert node.handle(order(3), 1.6) == []
    assert node.handle(Tick(), 2.55) == [report(4)], "not wanted: not told, and not tried again"


def test_a_runner_that_comes_ends_the_failure_before_it() -> None:
    node = linked()
    node.handle(order(1, "j@1"), 0.0)
    node.handle(StartFailed("j@1", "no room"), 0.1)
    node.handle(Tick(), 1.1)
    assert node.handle(Given("j@1", "aa"), 1.2) == []
    assert node.handle(Tick(), 2.1) == [report(4, runners=("aa",))]


def test_of_more_runners_than_a_report_may_have_it_tells_none() -> None:
    """What is not among them would be taken for gone."""
    node = linked({str(number): f"j@{number}" for number in range(RUNNERS_A_REPORT_MAX + 1)})
    (told,) = node.handle(Tick(), 1.0)
    assert isinstance(told, Report)
    assert told.report.runners is None


def test_a_runner_that_dies_at_once_is_not_replaced_at_once() -> None:
    node = linked()
    node.handle(order(1, "j@1"), 10.0)
    node.handle(Given("j@1", "aa"), 10.1)
    node.handle(Buried("j@1", "aa", None), 10.2)
    assert node.handle(order(2, "j@1", settled=("aa",)), 10.3) == [Forget("aa")]
    assert node.deadline_s == 11.0
    assert Ensure("j@1") in node.handle(Tick(), 11.0)


def test_nothing_is_started_without_a_link() -> None:
    node = linked()
    node.handle(order(1, "j@1"), 0.0)
    node.handle(StartFailed("j@1", "no room"), 0.1)
    node.handle(LinkDown(), 0.2)
    assert (node.handle(Tick(), 9.0), due_s(node)) == ([], None)
    assert node.handle(order(9, "k@1"), 9.1) == [], "an order of a link that is gone"


def test_nothing_is_started_by_what_was_wanted_on_an_earlier_link() -> None:
    node = linked()
    node.handle(order(1, "j@1"), 0.0)
    node.handle(Given("j@1", "aa"), 0.1)
    node.handle(order(2, "j@1", "k@1"), 0.2)
    node.handle(StartFailed("k@1", "no room"), 0.3)
    node.handle(LinkDown(), 0.4)
    node.handle(Buried("j@1", "aa", None), 3600.0)
    effects = node.handle(LinkUp(), 3601.0)
    assert [type(effect) for effect in effects] == [Report], "both runs may be over"
    assert node.handle(order(1, "k@1"), 3601.1) == [Ensure("k@1")]


def test_an_order_that_was_overtaken_is_the_past() -> None:
    node = linked()
    assert node.handle(order(7, "j@1"), 0.1) == [Ensure("j@1")]
    assert node.handle(order(6), 0.2) == []
    assert node.wanted == ("j@1",)


def test_a_report_keeps_within_the_limits_of_its_message() -> None:
    runs = tuple(f"j{number}@1" for number in range(FAILURES_A_REPORT_MAX + 1))
    node = linked()
    node.handle(order(1, *runs), 0.1)
    for run in runs:
        node.handle(StartFailed(run, "no\nroom " * 1000), 0.2)
    (told,) = (effect for effect in node.handle(Tick(), 1.2) if isinstance(effect, Report))
    assert decode_report(encode(told.report)) == told.report
    assert len(told.report.failures) == FAILURES_A_REPORT_MAX


run = st.sampled_from(("j@1", "k@1", "l@1"))
incarnation = st.integers(0, 39).map(lambda count: f"r{count}")
orders = st.builds(
    NodeOrder,
    number=st.integers(0, 5),
    epoch=st.just(1),
    wanted=st.lists(run, max_size=4).map(tuple),
    settled=st.lists(incarnation, max_size=20).map(tuple),
)
from_outside = st.one_of(
    st.just(LinkUp()), st.just(LinkDown()), st.just(Tick()), st.builds(Ordered, orders), st.sampled_from(["ok", "bad"])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(from_outside, st.floats(0.0, 2.0)), max_size=40))
def test_whatever_comes_no_run_has_two_runners_and_no_end_is_forgotten_unsettled(
    steps: list[tuple[Event | str, float]],
) -> None:
    node, now_s, alive, due, ended = Node({}), 0.0, dict[str, str](), list[str](), set[str]()
    for count, (step, wait_s) in enumerate(steps):
        now_s += wait_s
        event: Event = Tick()
        if not isinstance(step, str):
            event = step
        elif step == "ok" and due:
            alive[f"r{count}"] = due[0]
            event = Given(due.pop(0), f"r{count}")
        elif step == "bad" and due:
            event = StartFailed(due.pop(0), "no room")
        elif step == "bad" and alive:
            name, served = alive.popitem()
            ended.add(name)
            event = Buried(served, name, None)
        effects: list[Effect] = node.handle(event, now_s)
        for effect in effects:
            if isinstance(effect, Ensure):
                assert effect.run not in alive.values()
                assert effect.run not in due
                due.append(effect.run)
            elif isinstance(effect, Forget):
                assert isinstance(event, Ordered)
                assert effect.incarnation in event.order.settled
                ended.remove(effect.incarnation)
        assert set(node.buried) == ended
        assert set(node.runners) == set(alive)


def test_files_of_an_old_run_go_once_the_coordinator_does_not_know_it_and_no_runner_of_it_is_here() -> None:
    node = linked({"aa": "live@1"})
    node.handle(Aged(("old@1", "kept@1", "live@1")), 0.5)
    (told,) = node.handle(Tick(), 1.0)
    assert isinstance(told, Report)
    assert told.report.old == ("old@1", "kept@1", "live@1")
    forgotten = NodeOrder(number=2, epoch=1, forgotten=("old@1", "live@1", "never heard of@1"))
    assert node.handle(Ordered(forgotten), 1.1) == [Clear(("old@1",))]
    assert node.handle(Ordered(forgotten), 1.2) == [], "it is on its way"
    assert node.old == ("kept@1", "live@1")


def test_what_an_order_wants_is_not_cleared_by_the_same_order() -> None:
    node = linked()
    node.handle(Aged(("old@1",)), 0.5)
    both = NodeOrder(number=1, epoch=1, wanted=("old@1",), forgotten=("old@1",))
    assert node.handle(Ordered(both), 0.6) == [Ensure("old@1")]


def test_of_very_many_old_runs_the_first_are_told() -> None:
    node = linked()
    runs = tuple(f"old@{number:x}" for number in range(OLD_A_REPORT_MAX + 1))
    node.handle(Aged(runs), 0.5)
    (told,) = node.handle(Tick(), 1.0)
    assert isinstance(told, Report)
    assert told.report.old == runs[:OLD_A_REPORT_MAX]
    assert decode_report(encode(told.report)) == told.report
