"""protocol/grants.py: what runs hold, by what their machines know and were told."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from protocol.coordinator import Coordinator
from protocol.coordinator_events import Grant, Opened, Phase, Roster, RosterNode, RunRecord, Seat
from protocol.grants import Told, free_by_node, held, never_fits, rosters
from protocol.job import JobSpec, TopologyTable
from protocol.messages.member import Assignment
from protocol.takeover import told_run
from tests.protocol.build import job_spec, offer

FOUR = ("0", "1", "2", "3")


@dataclass
class OneRun:
    """A run without a shell around it."""

    machine: Coordinator
    told: Told = field(default_factory=Told)
    is_settled: bool = False

    def tell(self, roster: Roster, *, heeds: bool = True) -> None:
        self.told.add(roster)
        if heeds:
            self.machine.rendezvous.see(roster.nodes)


def spec(nproc: int, least: int = 1, most: int = 1) -> JobSpec:
    return job_spec(topology=TopologyTable(nproc_per_node=nproc, nnodes=(least, most)))


def a_run(nproc: int, record: RunRecord | None = None) -> OneRun:
    return OneRun(Coordinator(spec(nproc), record or RunRecord(), 1, lambda: 0.5, allow_mixed=False))


def seated(node: str, *devices: str) -> Seat:
    assignment = Assignment(
        generation=0,
        node_rank=0,
        nnodes=1,
        first_rank=0,
        nproc=len(devices),
        world_size=len(devices),
        master_addr="a",
        master_port=4000,
        devices=devices,
    )
    return Seat(node=node, incarnation="i1", assignment=assignment)


def node(name: str = "a", slots: tuple[str, ...] | None = FOUR) -> RosterNode:
    return RosterNode(name, is_up=True, slots=slots)


def grants(roster: Roster) -> dict[str, Grant | None]:
    return {one.name: one.grant for one in roster.nodes}


def test_a_run_is_told_what_it_may_use_of_each_node_and_why_of_one_it_may_not() -> None:
    runs = {"x@1": a_run(3), "y@2": a_run(2)}
    told = rosters(runs, [node()])
    assert grants(told["x@1"]) == {"a": Grant(("0", "1", "2"))}
    assert grants(told["y@2"]) == {"a": None}
    assert told["y@2"].nodes[0].lack == "3 of its 4 slots are x@1's"


def test_what_a_machine_goes_by_is_held_until_it_has_taken_in_that_it_may_not_use_it_any_more() -> None:
    run, other = a_run(4), a_run(4)
    run.tell(rosters({"x@1": run}, [node()])["x@1"])
    without = Roster((RosterNode("a", is_up=True, slots=FOUR, grant=None),))
    run.tell(without, heeds=False)
    assert held(run) == {"a": [Grant(FOUR)]}
    assert free_by_node([run], [node()]) == {"a": 0}
    run.machine.rendezvous.see(without.nodes)
    assert held(run) == {}
    assert grants(rosters({"y@2": other, "x@1": run}, [node()])["y@2"]) == {"a": Grant(FOUR)}


def test_a_roster_that_is_on_its_way_counts_as_well() -> None:
    run = a_run(4)
    run.tell(rosters({"x@1": run}, [node()])["x@1"], heeds=False)
    run.tell(Roster((RosterNode("a", is_up=True, slots=FOUR, grant=None),)), heeds=False)
    assert held(run) == {"a": [Grant(FOUR)]}


def test_after_a_restart_of_the_coordinator_what_ranks_have_comes_first_also_of_a_later_run() -> None:
    """The earlier run waits, and the later one has ranks; that one keeps its very devices."""
    record = RunRecord(phase=Phase.RUNNING, generation=0, seats=(seated("a", "1", "2"),), slots={"a": 0})
    runs = {"x@1": a_run(3), "y@2": a_run(2, record)}
    told = rosters(runs, [node()])
    assert grants(told["x@1"]) == {"a": None}
    assert grants(told["y@2"]) == {"a": Grant(("1", "2"))}


def test_a_run_between_two_generations_keeps_its_devices_over_a_restart_of_the_coordinator() -> None:
    record = RunRecord(phase=Phase.BACKOFF, generation=0, seats=(seated("a", "1", "2"),), slots={"a": 0})
    runs = {"x@1": a_run(3), "y@2": a_run(2, record)}
    assert grants(rosters(runs, [node()])["y@2"]) == {"a": Grant(("1", "2"))}


def test_a_run_that_is_held_keeps_what_it_has_and_makes_nobody_wait_for_what_it_lacks() -> None:
    record = RunRecord(phase=Phase.HELD, generation=0, seats=(seated("a", "1", "2"),), slots={"a": 0})
    runs = {"x@1": a_run(2, record), "y@2": a_run(2)}
    told = rosters(runs, [node("a"), node("b")])
    assert grants(told["x@1"]) == {"a": Grant(("1", "2")), "b": None}
    assert grants(told["y@2"]) == {"a": None, "b": Grant(("0", "1"))}


def test_a_run_of_which_only_its_runners_know_keeps_later_ones_from_the_nodes_it_may_be_on() -> None:
    runs = {"x@1": a_run(2, told_run()), "y@2": a_run(4)}
    runs["x@1"].machine.roll.busy.add("a")
    assert held(runs["x@1"]) == {"a": [Grant(None)]}
    told = rosters(runs, [node()])
    assert grants(told["y@2"]) == {"a": None}


def test_a_run_that_is_over_holds_nothing_once_that_is_on_disk() -> None:
    record = RunRecord(phase=Phase.STOPPED, generation=0, seats=(seated("a", *FOUR),))
    run = a_run(4, record)
    run.told.add(rosters({"x@1": a_run(4)}, [node()])["x@1"])
    assert free_by_node([run], [node()]) == {"a": 0}
    run.is_settled = True
    assert free_by_node([run], [node()]) == {"a": 4}
    assert rosters({"x@1": run}, [node()]) == {}


def test_ranks_whose_node_has_other_slots_now_keep_their_own_until_they_end() -> None:
    """Its supd was started anew, with other devices in its configuration."""
    record = RunRecord(phase=Phase.RUNNING, generation=0, seats=(seated("a", "6", "7"),), slots={"a": 0})
    run = a_run(2, record)
    assert grants(rosters({"x@1": run}, [node()])["x@1"]) == {"a": Grant(("0", "1"))}
    assert held(run)["a"][0] == Grant(("6", "7"))


def test_nodes_without_a_limit_are_granted_to_everybody() -> None:
    runs = {"x@1": a_run(3), "y@2": a_run(200)}
    told = rosters(runs, [node(slots=None)])
    assert [grants(roster) for roster in told.values()] == [{"a": Grant()}] * 2
    assert free_by_node(runs.values(), [node(slots=None)]) == {"a": None}


def test_a_job_never_fits_where_fewer_nodes_than_it_wants_are_large_enough() -> None:
    nodes = [node("n2"), node("n10", FOUR * 4), node("n3", ())]
    assert (
        never_fits(spec(16, 2, 2), nodes)
        == "the job wants 2 nodes with 16 slots each, and there is 1: n2 4, n3 0, n10 16"
    )
    assert never_fits(spec(17), nodes) == "no node has 17 slots: n2 4, n3 0, n10 16"
    assert never_fits(spec(1), [node("n3", ())]) == "no node has a slot: n3 0"
    assert never_fits(spec(16, 4, 4), nodes) == ""  # more may join
    assert never_fits(spec(99), [node(slots=None)]) == ""


def test_what_a_machine_has_taken_in_is_forgotten_also_where_nothing_is_limited() -> None:
    run = a_run(3)
    for names in ("a", "ab", "abc"):
        run.tell(rosters({"x@1": run}, [node(name, slots=None) for name in names])["x@1"])
    rosters({"x@1": run}, [node(slots=None)])
    assert len(run.told.grants(seen=None)) == 1


SCALED = RunRecord(nnodes=(5, 5), nnodes_before=(1, 1))


def test_a_run_that_an_operator_wants_on_more_nodes_than_there_are_gets_what_it_had() -> None:
    run, later = a_run(4, SCALED), a_run(4)
    told = rosters({"x@1": run, "y@2": later}, [node("a"), node("b")])
    assert grants(told["x@1"]) == {"a": Grant(FOUR), "b": Grant(FOUR)}
    run.tell(told["x@1"])
    run.machine.handle(Opened(), 0.0)
    assert not run.machine.rendezvous.lacks_slots


def test_where_others_have_the_nodes_that_are_to_come_to_it_they_are_its_next() -> None:
    """A2: it goes on meanwhile, and is not overtaken."""
    first, run, later = a_run(4, RunRecord()), a_run(4, RunRecord(nnodes=(2, 2), nnodes_before=(1, 1))), a_run(4)
    runs = {"v@0": first, "x@1": run, "y@2": later}
    told = rosters(runs, [node("a"), node("b")])
    assert [name for name, grant in grants(told["x@1"]).items() if grant is not None] == ["b"]
    assert set(grants(told["y@2"]).values()) == {None}
    for name, one in runs.items():
        one.tell(told[name])
    told = rosters({"x@1": run, "y@2": later}, [node("a"), node("b")])  # the first is over
    assert grants(told["x@1"]) == {"a": Grant(FOUR), "b": Grant(FOUR)}


def test_a_run_whose_ranks_began_before_there_were_slots_takes_whole_nodes_until_its_runner_knows_them() -> None:
    """A1: that runner lives for as long as the run does."""
    seat = seated("a", *FOUR[:2])
    seat = replace(seat, assignment=replace(seat.assignment, devices=None))
    record = RunRecord(phase=Phase.FORMING, generation=0, seats=(seat,), slots={"a": 0})
    run = a_run(2, record)
    run.tell(rosters({"x@1": run}, [node()])["x@1"])
    assert grants(rosters({"x@1": run}, [node()])["x@1"]) == {"a": Grant(FOUR)}
    run.machine.rendezvous.hear("a", offer(), 1.0)
    run.told = Told()
    run.machine.rendezvous.see(())
    assert run.machine.rendezvous.need == 2
