import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from protocol.errors import Refused
from protocol.job import DevicesTable, JobSpec, RendezvousTable, RunTable, TopologyTable
from protocol.messages.member import Offer
from supervisor.runner.offers import Offers
from supervisor.shell.open_files import FILES_A_RANK, OWN_FILES
from tests.protocol.build import submitted

HOST = "127.0.0.1"
WITNESS_PORT = 4711


MADE: list[Offers] = []
"""By one test."""


def kept(offers: Offers) -> Offers:
    MADE.append(offers)
    return offers


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """What a test has made holds no port after it."""
    yield
    while MADE:
        MADE.pop().close()


async def listening() -> int:
    """A runner that others reach at WITNESS_PORT."""
    return WITNESS_PORT


async def refused() -> int:
    """A runner that nobody reaches."""
    raise Refused("F210", "no port is free", hint="name another")


def offers(
    nproc: int | str,
    *,
    env: dict[bytes, bytes] | None = None,
    port: int | str = "auto",
    own_env: dict[str, str] | None = None,
) -> Offers:
    """Of a job whose submitter has the environment `env`, and whose file adds `own_env`."""
    spec = JobSpec(
        name="j",
        run=RunTable(script="t.py", env=own_env or {}),
        topology=TopologyTable(nproc_per_node=nproc),
        rendezvous=RendezvousTable(master_port=port),
    )
    return kept(Offers(submitted(spec, env=env or {}), "a", HOST, refused))  # which is never asked: there is one node


async def looked_up(offers: Offers) -> Offer:
    return await offers.look_up(None)


async def test_an_offer_has_the_ranks_of_the_node_and_says_how_they_were_counted() -> None:
    offer = await looked_up(offers("gpu", env={b"CUDA_VISIBLE_DEVICES": b"3,1"}))
    assert (offer.slots, offer.problem, offer.waits_for) == (2, "", "")
    assert offer.note == '2 ranks by nproc_per_node = "gpu": 2 in CUDA_VISIBLE_DEVICES=3,1'
    assert (await looked_up(offers(4))).note == "", "there is nothing to tell of a number"


async def test_what_supd_was_started_with_is_all_that_is_counted_but_for_the_jobs_own_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert (await looked_up(offers("gpu", env={b"CUDA_VISIBLE_DEVICES": b"3,1"}))).slots == 3
    assert (await looked_up(offers("gpu"))).slots == 3
    assert (await looked_up(offers("gpu", own_env={"CUDA_VISIBLE_DEVICES": "0"}))).slots == 1


async def test_a_node_without_a_gpu_for_each_rank_of_nccl_offers_nothing_and_says_why() -> None:
    spec = JobSpec(name="j", run=RunTable(script="t.py", backend="nccl"), topology=TopologyTable(nproc_per_node=3))
    job = submitted(spec, env={b"CUDA_VISIBLE_DEVICES": b"3,1"})
    offer = await looked_up(Offers(job, "a", HOST, refused))
    assert (offer.slots, offer.problem[:68]) == (
        0,
        'backend = "nccl" needs a GPU for each of 3 ranks, and there are 2: 2',
    )


async def test_fewer_gpus_than_ranks_are_told_and_no_reason_to_refuse() -> None:
    offer = await looked_up(offers(3, env={b"CUDA_VISIBLE_DEVICES": b"3,1"}))
    assert (offer.slots, offer.problem) == (3, "")
    assert offer.note == "the job wants 3 ranks a node, and there are 2 GPUs"
    assert (await looked_up(offers(3, env={b"CUDA_VISIBLE_DEVICES": b""}))).note == "", "a job for CPUs"


@pytest.mark.parametrize(("devices", "ranks"), [("a,b", 2), ("{local_rank}", 3), ("$DEVICES", 3)])
async def test_what_the_job_file_sets_counts_unless_it_differs_from_rank_to_rank(devices: str, ranks: int) -> None:
    job = offers("gpu", env={b"CUDA_VISIBLE_DEVICES": b"0,1,2"}, own_env={"CUDA_VISIBLE_DEVICES": devices})
    assert (await looked_up(job)).slots == ranks


async def test_a_node_that_cannot_run_the_job_offers_nothing_but_the_reason() -> None:
    offer = await looked_up(offers("gpu", env={b"CUDA_VISIBLE_DEVICES": b"-1"}))
    assert (offer.slots, offer.port) == (0, 0)
    assert 'nproc_per_node = "gpu", but this node has none' in offer.problem
    assert offer.knows_devices
    assert 'set topology.nproc_per_node to a number, or to "auto" or "cpu"' in offer.problem


async def test_a_port_that_is_waited_for_makes_the_offer_one_that_cannot_be_taken_yet() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        job = offers(2, port=port)
        offer = await job.look_up(port)
    assert (offer.slots, offer.port, offer.problem) == (2, 0, "")
    assert offer.waits_for.startswith(f"port {port} on a to be free (")
    assert (await job.look_up(port)).port == port


async def test_a_device_for_each_rank_takes_as_many_devices_as_ranks() -> None:
    spec = JobSpec(
        name="j",
        run=RunTable(script="t.py"),
        topology=TopologyTable(nproc_per_node=3),
        devices=DevicesTable(visibility="virtual"),
    )
    offer = await looked_up(kept(Offers(submitted(spec, env={b"CUDA_VISIBLE_DEVICES": b"3,1"}), "a", HOST, refused)))
    assert "rank 2 of this node has no device: 2 visible (3,1)" in offer.problem


async def test_ranks_that_are_to_be_near_their_gpus_take_a_gpu_each() -> None:
    spec = JobSpec(
        name="j",
        run=RunTable(script="t.py"),
        topology=TopologyTable(nproc_per_node=2),
        devices=DevicesTable(numa_binding="node"),
    )
    offer = await looked_up(kept(Offers(submitted(spec, env={b"CUDA_VISIBLE_DEVICES": b""}), "a", HOST, refused)))
    assert (offer.slots, "local rank 0 has no GPU, 0 can be seen" in offer.problem) == (0, True)


@pytest.fixture
def few_files() -> Iterator[int]:
    """A soft limit of descriptors that this process has for the length of a test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_ranks_that_need_more_descriptors_than_there_are_are_refused_with_both_numbers(few_files: int) -> None:
    """H83."""
    fitting = (few_files - OWN_FILES) // FILES_A_RANK
    assert (await looked_up(offers(fitting))).slots == fitting
    offer = await looked_up(offers(fitting + 1))
    assert offer.slots == 0
    needed = OWN_FILES + FILES_A_RANK * (fitting + 1)
    said = f"{fitting + 1} ranks take up to {needed} open files on a node, and the hard limit there is {few_files}"
    assert offer.problem.startswith(said)


# --- several nodes -----------------------------------------------------------------------------------------------


def of_a_fleet(folder: Path, address: str = HOST, listen: Callable[[], Awaitable[int]] = listening) -> Offers:
    """Of a job on two nodes, or one of them, whose script is t.py in this folder."""
    spec = JobSpec(name="j", run=RunTable(script="t.py"), topology=TopologyTable(nnodes=(1, 2), nproc_per_node=1))
    return kept(Offers(submitted(spec, folder=str(folder), python=sys.executable), "a", address, listen))


async def test_what_a_node_would_run_is_told_only_where_there_may_be_another_one(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("print(1)")
    assert (await looked_up(offers(1))).digest == {}, "its script is not even there"
    offer = await looked_up(of_a_fleet(tmp_path))
    assert (offer.problem, set(offer.digest)) == ("", {"job", "script", "python", "torch"})


async def test_a_node_that_lacks_the_script_offers_nothing_but_that(tmp_path: Path) -> None:
    offer = await looked_up(of_a_fleet(tmp_path))
    assert (offer.slots, offer.digest) == (0, {})
    assert offer.problem.startswith(f"cannot read {tmp_path}/t.py: No such file or directory; a job on several nodes")


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", "gpu-01.example.org"])
async def test_an_address_that_is_none_of_this_machine_is_offered_as_it_is_given(tmp_path: Path, address: str) -> None:
    """H30: behind NAT, or by a name. The port is one that is free on all interfaces."""
    (tmp_path / "t.py").write_text("")
    offer = await looked_up(of_a_fleet(tmp_path, address))
    assert (offer.address, offer.problem, offer.waits_for) == (address, "", "")
    with socket.create_server(("", offer.port)):
        pass


async def test_a_node_of_several_tells_where_its_runner_is_reached_by_others(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    assert (await looked_up(of_a_fleet(tmp_path))).witness_port == WITNESS_PORT
    assert (await looked_up(offers(1))).witness_port == 0


async def test_a_node_whose_runner_cannot_be_reached_by_others_offers_nothing_but_that(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    offer = await looked_up(of_a_fleet(tmp_path, listen=refused))
    assert (offer.slots, offer.problem) == (0, "no port is free; name another")
