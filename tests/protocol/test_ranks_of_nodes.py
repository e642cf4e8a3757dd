"""What ranks on several nodes are told of each other: torchrun's contract, whatever the nodes offer."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.job import RESERVED_ENV
from protocol.messages.member import Offer
from protocol.ranks import Place, command, inherited
from protocol.seating import seats_for
from protocol.timing import DEFAULTS
from tests.protocol.build import PORT, job_spec, submitted

ADDRESSES = st.sampled_from(["10.0.0.1", "gpu-01.example.org", "fd00::1", "[fd00::1]", "fe80::1%eth0"])


def environments(slots: Sequence[int], address: str = "10.0.0.1") -> list[dict[str, str]]:
    """The environments of all ranks of a generation on nodes that offer so many, node by node."""
    nodes = [f"n{i}" for i in range(len(slots))]
    offers = {node: Offer(slots=count, address=address, port=PORT) for node, count in zip(nodes, slots, strict=True)}
    seats = seats_for(
        2, offers, dict.fromkeys(nodes, "f00d"), "rank 1 on n1 ended with exit code 1", DEFAULTS, has_witnesses=True
    )
    job = submitted(job_spec(role="trainer", nnodes=(1, len(slots))))
    return [
        {
            name.decode(): value.decode()
            for name, value in command(
                job,
                seat.assignment,
                Place(node=node, local_rank=local_rank, incarnation="f00d", error_file="/e"),
                inherited(job, {}),
                {},
            ).env.items()
        }
        for node, seat in seats.items()
        for local_rank in range(seat.assignment.nproc)
    ]


@settings(deadline=None)  # the machine may be busy
@given(slots=st.lists(st.integers(1, 5), min_size=1, max_size=6), address=ADDRESSES)
def test_ranks_of_all_nodes_agree_on_their_world_and_each_has_a_place_of_its_own(
    slots: list[int], address: str
) -> None:
    """R2."""
    ranks = environments(slots, address)
    world = sum(slots)
    assert [int(env["RANK"]) for env in ranks] == list(range(world))
    assert [env["ROLE_RANK"] for env in ranks] == [env["RANK"] for env in ranks]
    assert [int(env["GROUP_RANK"]) for env in ranks] == [node for node, n in enumerate(slots) for _ in range(n)]
    assert [int(env["LOCAL_RANK"]) for env in ranks] == [local for n in slots for local in range(n)]
    of_node = Counter(env["GROUP_RANK"] for env in ranks)
    for env in ranks:
        assert env["WORLD_SIZE"] == env["ROLE_WORLD_SIZE"] == str(world)
        assert int(env["LOCAL_WORLD_SIZE"]) == of_node[env["GROUP_RANK"]] > int(env["LOCAL_RANK"])
        assert int(env["GROUP_WORLD_SIZE"]) == len(slots) > int(env["GROUP_RANK"])
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (address.strip("[]"), str(PORT))
        assert (env["TORCHELASTIC_RESTART_COUNT"], env["ROLE_NAME"]) == ("2", "trainer")
        assert env["SUPD_NODE"] == f"n{env['GROUP_RANK']}"


@pytest.mark.parametrize("slots", [[1], [2, 2], [3, 1, 2]])
def test_what_torchrun_sets_is_set_on_every_node_and_no_number_of_a_node_beside_it(slots: list[int]) -> None:
    for env in environments(slots):
        assert env.keys() >= RESERVED_ENV
        assert "NODE_RANK" not in env, "an option of torchrun, and no variable of a worker"
