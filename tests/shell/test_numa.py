"""CPUs near a GPU, on machines that are made of files."""

import os
from pathlib import Path

import pytest

from protocol.errors import Refused
from supervisor.shell import numa

ADDRESSES = ("0000:07:00.0", "0000:0F:00.0", "0000:47:00.0", "0000:87:00.0")


def put(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sockets of two NUMA nodes each, two threads a core, a cache for each two cores: 32 CPUs, of which CPU N and
    N + 16 are one core. GPUs 0 and 1 are at node 0, GPU 2 at node 1, GPU 3 at node 3."""
    for number, (address, node) in enumerate(zip(ADDRESSES, (0, 0, 1, 3), strict=True)):
        put(tmp_path / "sys/bus/pci/devices" / address.lower() / "numa_node", node)
        information = f"Model: \t\t X\nGPU UUID:   \t GPU-{number}aaa-bbb\nDevice Minor: \t {number}"
        put(tmp_path / "proc/driver/nvidia/gpus" / address / "information", information)
    nodes = tmp_path / "sys/devices/system/node"
    put(nodes / "online", "0-4")
    put(nodes / "node4/cpulist", "")  # memory alone
    for node in range(4):
        put(nodes / f"node{node}/cpulist", f"{4 * node}-{4 * node + 3},{4 * node + 16}-{4 * node + 19}")
    for cpu in range(32):
        folder, core = tmp_path / f"sys/devices/system/cpu/cpu{cpu}", cpu % 16
        put(folder / "topology/physical_package_id", core // 8)
        put(folder / "topology/thread_siblings_list", f"{core},{core + 16}")
        put(folder / "cache/index0/type", "Data")
        put(folder / "cache/index0/level", 1)
        put(folder / "cache/index0/shared_cpu_list", f"{core},{core + 16}")
        put(folder / "cache/index1/type", "Instruction")
        put(folder / "cache/index1/level", 9)
        first = core // 2 * 2
        put(folder / "cache/index3/type", "Unified")
        put(folder / "cache/index3/level", 3)
        put(folder / "cache/index3/shared_cpu_list", f"{first}-{first + 1},{first + 16}-{first + 17}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    return tmp_path


def bound(root: Path, mode: str, environ: dict[str, str] | None = None, ranks: int = 4) -> list[set[int]]:
    gpus = numa.gpus_seen(environ or {}, root)
    return [set(cpus) for cpus in numa.cpus_of_ranks(mode, gpus, ranks, root)]


def cpus(*cores: int) -> set[int]:
    return {cpu for core in cores for cpu in (core, core + 16)}


def test_a_rank_is_near_its_gpu_by_numa_node_or_by_socket(root: Path) -> None:
    assert bound(root, "node") == [cpus(0, 1, 2, 3), cpus(0, 1, 2, 3), cpus(4, 5, 6, 7), cpus(12, 13, 14, 15)]
    assert bound(root, "socket") == [cpus(*range(8))] * 3 + [cpus(*range(8, 16))]


def test_ranks_that_share_a_numa_node_have_cores_or_caches_of_their_own(root: Path) -> None:
    assert bound(root, "exclusive") == [cpus(0, 1), cpus(2, 3), cpus(4, 5, 6, 7), cpus(12, 13, 14, 15)]
    assert bound(root, "core-complex") == [cpus(0, 1), cpus(2, 3), cpus(4, 5), cpus(12, 13)]


def test_cores_that_cannot_be_divided_go_to_the_first(root: Path) -> None:
    put(root / "sys/bus/pci/devices/0000:47:00.0/numa_node", -1)  # the kernel names none: it is the first
    assert bound(root, "exclusive")[:3] == [cpus(0, 1), cpus(2), cpus(3)]
    assert bound(root, "core-complex")[:3] == [cpus(0, 1), cpus(2, 3), cpus(0, 1)]


def test_gpus_are_those_that_the_ranks_see(root: Path) -> None:
    assert bound(root, "node", {"CUDA_VISIBLE_DEVICES": "3,GPU-2aaa"}, 2) == [cpus(12, 13, 14, 15), cpus(4, 5, 6, 7)]


def test_of_the_cpus_only_those_are_taken_that_may_be_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3, 19, 4})
    assert bound(root, "exclusive", ranks=2) == [{1, 2}, {3, 19}]
    assert bound(root, "core-complex", ranks=2) == [{2, 3, 19}, {1}]
    with pytest.raises(Refused, match="of the CPUs of NUMA node 3 none may be used here"):
        bound(root, "node")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 17})
    with pytest.raises(Refused, match=r"2 GPUs share 1 core$"):
        bound(root, "exclusive", ranks=1)


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ("", "local rank 0 has no GPU, 0 can be seen"),
        ("7", "NVIDIA's driver knows no GPU 7, only 4"),
        ("MIG-1", "where MIG-1 of CUDA_VISIBLE_DEVICES is cannot be known"),
        ("GPU-9", "where GPU-9 of CUDA_VISIBLE_DEVICES is cannot be known"),
    ],
)
def test_a_gpu_whose_place_is_not_known_is_refused_with_the_reason(root: Path, devices: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        bound(root, "node", {"CUDA_VISIBLE_DEVICES": devices}, 1)
    assert caught.value.code == "F213"


def test_a_kernel_that_does_not_tell_is_refused(root: Path) -> None:
    (root / "sys/devices/system/node/node0/cpulist").unlink()
    with pytest.raises(Refused, match="cpulist"):
        bound(root, "node", ranks=1)
