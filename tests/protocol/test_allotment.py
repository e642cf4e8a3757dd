"""Slots of nodes among runs: none has two owners, nobody overtakes, nobody starves, all nodes or none."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.allotment import Claim, Room, Share, allot, free_slots, slots_needed
from protocol.coordinator_events import Grant
from protocol.job import JobSpec, RunTable, TopologyTable

EIGHT = tuple("01234567")
FOUR = tuple("0123")


def claim(
    run: str, need: int | None, *nodes: str, least: int = 1, most: int = 0, has_ranks: bool = False, **held: Grant
) -> Claim:
    return Claim(
        run=run,
        need=need,
        least=least,
        most=most or least,
        nodes=nodes,
        held={node: (grant,) for node, grant in held.items()},
        has_ranks=has_ranks,
    )


def devices(share: Share) -> tuple[str, ...] | None:
    assert share.grant is not None, share.lack
    return share.grant.devices


def spec(nproc: int | str, **env: str) -> JobSpec:
    topology = TopologyTable(nproc_per_node=nproc)
    return JobSpec(name="job", run=RunTable(script="train.py", env=env), topology=topology)


@pytest.mark.parametrize(
    ("nproc", "own", "need"),
    [
        (4, None, 4),
        ("auto", None, None),
        ("cpu", None, None),
        (4, "", 0),
        (4, "-1", 0),
        (4, " NoDevFiles,0", 0),
        (2, "0,1", None),
        (2, "{local_rank}", None),
    ],
)
def test_a_job_takes_a_slot_a_rank_the_whole_node_by_a_word_and_none_where_it_hides_them(
    nproc: int | str, own: str | None, need: int | None
) -> None:
    env = {} if own is None else {"CUDA_VISIBLE_DEVICES": own}
    assert slots_needed(spec(nproc, **env)) == need


def test_runs_get_the_lowest_neighbours_that_are_free() -> None:
    shares = allot({"a": Room(EIGHT)}, [claim("x", 1, "a", has_ranks=True, a=Grant(("1",))), claim("y", 2, "a")])
    assert devices(shares["y"]["a"]) == ("2", "3")


def test_without_neighbours_a_run_gets_the_lowest_that_are_free() -> None:
    x = claim("x", 1, "a", has_ranks=True, a=Grant(("1",)))
    shares = allot({"a": Room(FOUR)}, [x, claim("y", 3, "a")])
    assert devices(shares["y"]["a"]) == ("0", "2", "3")


def test_a_run_keeps_the_devices_it_has_also_where_lower_ones_are_free() -> None:
    assert devices(allot({"a": Room(EIGHT)}, [claim("x", 2, "a", a=Grant(("6", "7")))])["x"]["a"]) == ("6", "7")


def test_a_word_takes_all_slots_or_waits_for_them() -> None:
    shares = allot({"a": Room(FOUR)}, [claim("x", 1, "a"), claim("y", None, "a")])
    assert shares["y"]["a"] == Share(None, "1 of its 4 slots is x's")
    assert devices(allot({"a": Room(FOUR)}, [claim("y", None, "a")])["y"]["a"]) == FOUR


def test_slots_without_names_are_counted() -> None:
    shares = allot({"a": Room(("", "", ""))}, [claim("x", 2, "a"), claim("y", 2, "a"), claim("z", 1, "b")])
    assert devices(shares["x"]["a"]) == ("", "")
    assert shares["y"]["a"].lack == "2 of its 3 slots are x's"


def test_a_run_that_hides_the_devices_has_room_on_a_full_node_but_counts_as_a_job() -> None:
    claims = [claim("x", 4, "a"), claim("y", 0, "a")]
    assert devices(allot({"a": Room(FOUR)}, claims)["y"]["a"]) == ()
    shares = allot({"a": Room(FOUR, max_jobs=1)}, claims)
    assert shares["y"]["a"] == Share(None, "it takes 1 job at once (node.max_jobs): x")


def test_nodes_without_a_limit_are_for_everybody_and_spare_nobody_a_look() -> None:
    shares = allot({"a": Room(), "b": Room()}, [claim("x", 1, "a", "b"), claim("y", 99, "a", "b")])
    assert {share for run in shares.values() for share in run.values()} == {Share(Grant())}


def test_a_run_gets_all_the_nodes_it_needs_or_none() -> None:
    rooms = {"a": Room(FOUR), "b": Room(FOUR)}
    x = claim("x", 4, "a", has_ranks=True, a=Grant(FOUR))
    shares = allot(rooms, [x, claim("y", 4, "a", "b", least=2)])
    assert shares["y"] == {"a": Share(None, "its 4 slots are x's"), "b": Share(None)}


def test_where_nodes_are_too_few_a_run_gets_those_there_are_and_waits_for_the_others() -> None:
    shares = allot({"a": Room(FOUR)}, [claim("y", 4, "a", least=2)])
    assert devices(shares["y"]["a"]) == FOUR


def test_nobody_overtakes_on_a_node_that_an_earlier_run_could_use() -> None:
    x = claim("x", 1, "a", has_ranks=True, a=Grant(("0",)))
    shares = allot({"a": Room(FOUR), "b": Room(FOUR)}, [x, claim("y", 4, "a"), claim("z", 1, "a", "b")])
    assert shares["z"]["a"] == Share(None, "y was accepted before, and waits for it")
    assert devices(shares["z"]["b"]) == ("0",)


def test_a_node_that_is_too_small_for_a_run_is_not_kept_for_it() -> None:
    rooms = {"small": Room(("0",)), "large": Room(EIGHT)}
    full = claim("x", None, "large", has_ranks=True, large=Grant(EIGHT))
    shares = allot(rooms, [full, claim("y", 2, "large", "small"), claim("z", 1, "small")])
    assert shares["y"]["small"].lack == "it has 1 slot, and the job takes 2 of a node"
    assert devices(shares["z"]["small"]) == ("0",)


def test_a_node_that_is_away_keeps_no_run_from_waiting_for_one_that_answers() -> None:
    rooms = {"away": Room(FOUR), "here": Room(FOUR)}
    x = claim("x", 4, "here", has_ranks=True, here=Grant(FOUR))
    y = Claim(run="y", need=4, least=1, most=1, nodes=("here", "away"), away={"away"})
    z = claim("z", 4, "here")
    assert allot(rooms, [x, y, z])["y"] == {"here": Share(None, "its 4 slots are x's"), "away": Share(None)}
    assert devices(allot(rooms, [y])["y"]["here"]) == FOUR


def test_two_runs_that_have_lost_a_node_each_do_not_wait_for_each_other_for_ever() -> None:
    """Both are without ranks; the earlier one gets both nodes, once the later one has let go."""
    rooms = {"a": Room(FOUR), "b": Room(FOUR)}
    first = claim("x", 4, "a", "b", least=2, a=Grant(FOUR))
    second = claim("y", 4, "a", "b", least=2, b=Grant(FOUR))
    shares = allot(rooms, [first, second])
    assert all(share.grant is None for run in shares.values() for share in run.values())
    again = allot(rooms, [claim("x", 4, "a", "b", least=2), claim("y", 4, "a", "b", least=2)])
    assert (devices(again["x"]["a"]), devices(again["x"]["b"]), again["y"]["a"].grant) == (FOUR, FOUR, None)


def test_who_has_all_it_needs_gives_nothing_of_it_to_an_earlier_run_that_waits() -> None:
    first = claim("x", 4, "a")
    second = claim("y", 2, "a", a=Grant(("2", "3")))  # between two generations
    shares = allot({"a": Room(FOUR)}, [first, second])
    assert shares["x"]["a"].lack == "2 of its 4 slots are y's"
    assert devices(shares["y"]["a"]) == ("2", "3")


def test_a_node_whose_slots_have_changed_is_granted_anew_and_what_runs_there_counts_meanwhile() -> None:
    """Its supd was started with other devices: ranks still have the old ones."""
    x = claim("x", 2, "a", has_ranks=True, a=Grant(("4", "5")))
    shares = allot({"a": Room(FOUR)}, [x, claim("y", 2, "a")])
    assert devices(shares["x"]["a"]) == ("0", "1")
    assert devices(shares["y"]["a"]) == ("2", "3")


def test_ranks_that_were_begun_without_a_limit_have_the_whole_node() -> None:
    x = claim("x", 1, "a", has_ranks=True, a=Grant(None))
    shares = allot({"a": Room(FOUR)}, [x, claim("y", 1, "a")])
    assert shares["y"]["a"].lack == "its 4 slots are x's"
    assert free_slots(Room(FOUR), [[Grant(None)]]) == 0
    assert free_slots(Room(FOUR), [[Grant(("0",)), Grant(("0", "1"))], [Grant(("3",))]]) == 1
    assert free_slots(Room(), [[Grant(None)]]) is None


# --- whatever happens --------------------------------------------------------------------------------------------

NODES = ("a", "b", "c")
NAMES = st.sampled_from([(), ("0",), ("", ""), FOUR, ("0", "0", "1", "1"), EIGHT])
ROOM = st.builds(Room, st.none() | NAMES, st.sampled_from([0, 0, 1, 2]))
ROOMS = st.fixed_dictionaries(dict.fromkeys(NODES, ROOM))
WANTS = st.tuples(
    st.sampled_from([None, 0, 1, 2, 4, 8]),
    st.integers(1, 3),
    st.integers(0, 2),
    st.permutations(NODES).flatmap(lambda nodes: st.integers(1, 3).map(lambda count: tuple(nodes[:count]))),
)


Want = tuple[int | None, int, int, tuple[str, ...]]
"""Slots of each node, nodes, more nodes that it could use, and which."""


class Runs:
    """Runs with their machines, each of which takes in what it is told some time later."""

    def __init__(self, rooms: Mapping[str, Room], wants: Sequence[Want]) -> None:
        self.rooms = rooms
        self.open: dict[str, Want] = {}
        self.told: dict[str, list[dict[str, Grant]]] = {}  # the first is what its machine goes by
        self.seats: dict[str, dict[str, Grant]] = {}
        self.shares: dict[str, dict[str, Share]] = {}
        for number, want in enumerate(wants):
            self.add(f"run-{number}", want)

    def add(self, run: str, want: Want) -> None:
        self.open[run], self.told[run], self.seats[run] = want, [{}], {}

    def claim(self, run: str) -> Claim:
        need, least, more, nodes = self.open[run]
        held: dict[str, list[Grant]] = {}
        for grants in (self.seats[run], *reversed(self.told[run])):
            for node, grant in grants.items():
                held.setdefault(node, []).append(grant)
        nodes = (*self.seats[run], *(node for node in nodes if node not in self.seats[run]))  # as Rendezvous does
        return Claim(run, need, least, least + more, nodes, held=held, has_ranks=bool(self.seats[run]))

    def share(self) -> None:
        self.shares = allot(self.rooms, [self.claim(run) for run in self.open])
        for run, shares in self.shares.items():
            told = {node: share.grant for node, share in shares.items() if share.grant is not None}
            if told != self.told[run][-1]:
                self.told[run].append(told)

    def see(self, run: str, left: int = 0) -> None:
        """Its machine takes in its rosters, up to as many from the last, and goes by that one."""
        self.told[run] = self.told[run][-1 - left :]

    def launch(self, run: str) -> None:
        _, least, _, _ = self.open[run]
        if not self.seats[run] and len(self.told[run][0]) >= least:
            self.seats[run] = dict(self.told[run][0])

    def settle(self) -> None:
        """Nothing happens for a while but that all machines hear and do what they can."""
        for _ in range(3):
            self.share()
            for run in self.open:
                self.see(run)
                self.launch(run)

    def check(self) -> None:
        for node, room in self.rooms.items():
            ranks = Counter[str]()
            owners = [run for run in self.open if node in self.seats[run]]
            for run in owners:
                ranks += Counter(self.seats[run][node].devices or ())
            if room.slots is not None:
                assert ranks <= Counter(room.slots), f"a slot of {node} has two owners"
            assert not room.max_jobs or len(owners) <= room.max_jobs
        for run, shares in self.shares.items():
            if run in self.open:
                self._check_share(run, shares)

    def _check_share(self, run: str, shares: Mapping[str, Share]) -> None:
        need, least, _, _ = self.open[run]
        limited = [n for n, share in shares.items() if share.grant is not None and self.rooms[n].is_limited]
        granted = [n for n, share in shares.items() if share.grant is not None]
        could = [n for n in shares if self.fits(n, need)]
        if limited and not self.seats[run] and len(could) >= least:
            assert len(granted) >= least, "neither all that it needs nor nothing"

    def fits(self, node: str, need: int | None) -> bool:
        slots = self.rooms[node].slots
        return slots is None or (bool(slots) if need is None else need <= len(slots))


SIZES = (None, 0, 1, 2, 4, 8)


def a_want(rng: random.Random) -> Want:
    nodes = rng.sample(NODES, rng.randint(1, 3))
    return rng.choice(SIZES), rng.randint(1, len(nodes)), rng.randint(0, 1), tuple(nodes)


@pytest.mark.parametrize("seed", range(40))
def test_no_slot_has_two_owners_whenever_machines_hear_of_what_they_are_granted(seed: int) -> None:
    """Nor whichever nodes they want, and whatever of them: runs come, end and restart, jobs are replaced."""
    rng = random.Random(seed)
    rooms = {node: Room(rng.choice([None, FOUR, ("0", "0", "1", "1"), EIGHT]), rng.choice([0, 0, 2])) for node in NODES}
    runs = Runs(rooms, [])
    for step in range(300):
        if len(runs.open) < 4:
            runs.add(f"run-{step}", a_want(rng))
        run = rng.choice(list(runs.open))
        match rng.choice(["see", "see", "see", "launch", "launch", "end generation", "end", "want"]):
            case "see":
                runs.see(run, left=rng.randint(0, 2))
            case "launch":
                runs.launch(run)
            case "end generation":
                runs.seats[run] = {}
            case "end":
                del runs.open[run]
            case _:
                runs.open[run] = a_want(rng)
        runs.share()
        runs.check()


@given(ROOMS, st.lists(WANTS, min_size=1, max_size=6))
def test_no_run_starves_and_none_is_given_up_for_another(rooms: dict[str, Room], wants: list[Want]) -> None:
    """Each run that fits gets its turn once those before it have ended, and has the same devices until then."""
    runs = Runs(rooms, wants)
    while runs.open:
        runs.settle()
        runs.check()
        before = {run: dict(seats) for run, seats in runs.seats.items() if run in runs.open}
        runs.settle()
        for run, seats in before.items():
            kept = {node: share.grant for node, share in runs.shares[run].items() if node in seats}
            assert kept == seats, "devices of a run that goes on are others now"
        first = next(iter(runs.open))
        need, least, _, nodes = runs.open[first]
        if sum(runs.fits(node, need) for node in nodes) >= least:
            assert runs.seats[first], f"{first} waits though it is the first"
        del runs.open[first]


@given(ROOMS, st.lists(WANTS, min_size=2, max_size=6))
def test_while_a_run_waits_no_later_one_gets_anything_new_of_a_limited_node_that_it_could_use(
    rooms: dict[str, Room], wants: list[Want]
) -> None:
    runs = Runs(rooms, wants)
    runs.share()
    order = list(runs.open)
    for number, run in enumerate(order):
        need, least, _, nodes = runs.open[run]
        could = [node for node in nodes if runs.fits(node, need)]
        if len(could) < least or any(share.grant is not None for share in runs.shares[run].values()):
            continue
        for later in order[number + 1 :]:
            takes = runs.open[later][0] != 0
            for node in could:
                share = runs.shares[later].get(node)
                if share is not None and rooms[node].is_limited and (takes or rooms[node].max_jobs):
                    assert share.grant is None, f"{later} overtakes {run} on {node}"
