"""suprun on hosts with addresses and names of their own: the launch lines of torchrun's users."""

import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.hosts.namespaces import Hosts
from tests.e2e.suprun import Launches, worker
from tests.netns import hosts_in_namespaces, needs_namespaces

pytestmark = needs_namespaces
LAUNCHED = worker("launched")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """a, b and c."""
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    try:
        with hosts_in_namespaces(folder, 3) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


LINES = {
    "static": "--nproc_per_node=2 --nnodes=3 --node_rank={rank} --master_addr=10.77.0.1 --master_port=29500",
    "static by name": "--nproc_per_node=2 --nnodes=3 --node_rank={rank} --master_addr=a --master_port=29500",
    "elastic": "--nproc_per_node=2 --nnodes=3:8 --rdzv_backend=c10d --rdzv_endpoint=10.77.0.1:29400",
    "fixed": "--nproc-per-node=2 --nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=a --rdzv-id=7",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_launch_line_of_torchrun_works_with_one_word_changed(suprun: Launches, hosts: Hosts, line: str) -> None:
    nodes = [
        suprun(*line.format(rank=rank).split(), LAUNCHED, argv=host.argv())
        for rank, host in reversed(list(enumerate(hosts.of.values())))
    ]
    assert [launch.end() for launch in nodes] == [0, 0, 0]
    seen = sorted(re.findall(r"up RANK=(\d) .*WORLD_SIZE=6 GROUP_RANK=(\d)", "".join(n.text for n in nodes)))
    assert [rank for rank, _ in seen] == list("012345")
    if "node_rank" in line:
        assert re.findall("up RANK=([01]) .* MASTER_ADDR=(?:10.77.0.1|a) ", nodes[-1].text)


def test_nodes_may_name_the_endpoint_in_different_ways(suprun: Launches, hosts: Hosts) -> None:
    def words(endpoint: str) -> list[str]:
        return ["--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", LAUNCHED]

    names = {"a": "a", "b": "10.77.0.1:29400", "c": "[fd77::1]"}
    nodes = [suprun(*words(endpoint), argv=hosts.of[name].argv()) for name, endpoint in names.items()]
    assert [launch.end() for launch in nodes] == [0, 0, 0], [launch.text for launch in nodes]


def test_nodes_meet_at_an_address_of_ipv6(suprun: Launches, hosts: Hosts) -> None:
    words = ("--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint=[fd77::1]:29400", LAUNCHED)
    nodes = [suprun(*words, argv=host.argv()) for host in hosts.of.values()]
    assert [launch.end() for launch in nodes] == [0, 0, 0], [launch.text for launch in nodes]
    assert all("MASTER_ADDR=fd77::1 " in launch.text for launch in nodes)


def test_an_endpoint_that_is_the_loopback_on_its_node_is_refused_to_others(suprun: Launches, hosts: Hosts) -> None:
    words = ("--nnodes=2", "--rdzv-backend=c10d")
    host = suprun(*words, "--rdzv-endpoint=localhost:29400", LAUNCHED, argv=hosts.of["a"].argv())
    other = suprun(*words, "--rdzv-endpoint=a:29400", LAUNCHED, argv=hosts.of["b"].argv())
    assert other.end() == 78
    assert "error[F320]: b was started with the endpoint a:29400, and a, which has it, with localhost" in other.text
    host.wait_for("not taken in: b was started with the endpoint a:29400")
    host.signal(signal.SIGTERM)
    assert host.end() == 143


def test_a_second_node_with_place_0_is_told_that_it_is_not_the_one_at_the_endpoint(
    suprun: Launches, hosts: Hosts
) -> None:
    words = ("--nnodes=2", "--node-rank=0", "--master-addr=a", "--master-port=29500", LAUNCHED)
    second = suprun(*words, argv=hosts.of["b"].argv())
    second.wait_for("this node has --node-rank 0, and a, where the others look for it, is no address of it")
    second.signal(signal.SIGTERM)
    assert second.end() == 143
