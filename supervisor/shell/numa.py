"""Which CPUs are near a GPU, for ranks that are bound to these (`devices.numa_binding`).

All is read from /proc and /sys: no library of NVIDIA's is loaded. The GPUs of a number are those of CUDA where all are
alike, or CUDA_DEVICE_ORDER is PCI_BUS_ID: in the order of their PCI addresses.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from protocol.errors import Refused
from supervisor.shell.devices import CUDA_VARIABLE, listed

_GPUS = "proc/driver/nvidia/gpus"  # a folder for each GPU, by PCI address; written by NVIDIA's driver


def gpus_seen(environ: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """The GPUs that a process with this environment sees, as CUDA_VISIBLE_DEVICES names them."""
    if CUDA_VARIABLE in environ:
        return listed(environ[CUDA_VARIABLE])
    return [str(number) for number in range(len(_addresses(root)))]


def cpus_of_ranks(mode: str, gpus: Sequence[str], ranks: int, root: Path = Path("/")) -> list[frozenset[int]]:
    """The CPUs of each local rank, whose GPU is the one at its place in `gpus`, of those that we may use.

    `node`: of the GPU's NUMA node. `socket`: of all NUMA nodes of its socket. `exclusive`: whole cores of its NUMA
    node, shared out among the GPUs there. `core-complex`: that have one last-level cache there, another for each GPU
    as far as there are several. Raises Refused where this cannot be known, or there are not enough.
    """
    if ranks > len(gpus):
        raise _refused(f"local rank {len(gpus)} has no GPU, {len(gpus)} can be seen")
    try:
        nodes = [_node_of_gpu(gpu, root) for gpu in gpus]
        return [_cpus(mode, nodes, place, root) for place in range(ranks)]
    except (OSError, ValueError) as exc:
        raise _refused(str(exc)) from exc


def _refused(why: str) -> Refused:
    hint = "leave --numa-binding (devices.numa_binding) out: ranks run on any CPU of the node then"
    return Refused("F213", f"ranks cannot be bound to the CPUs near their GPUs: {why}", hint=hint)


def _cpus(mode: str, nodes: Sequence[int], place: int, root: Path) -> frozenset[int]:
    node = nodes[place]
    near = _cpus_of_node(node, root)
    if not near:
        raise _refused(f"of the CPUs of NUMA node {node} none may be used here")
    if mode == "node":
        return near
    if mode == "socket":
        all_nodes = [_cpus_of_node(other, root) for other in _numbers(_read(root / "sys/devices/system/node/online"))]
        own = _socket_of(near, root)
        return near.union(*(cpus for cpus in all_nodes if cpus and _socket_of(cpus, root) == own))
    sharing = [other for other, its_node in enumerate(nodes) if its_node == node]
    number = sharing.index(place)
    if mode == "exclusive":
        return _share(_grouped(near, lambda cpu: _core_of(cpu, root)), number, len(sharing))
    assert mode == "core-complex", mode
    complexes = sorted(_grouped(near, lambda cpu: _last_cache_of(cpu, root)), key=len, reverse=True)
    return complexes[number % len(complexes)]


def _share(cores: Sequence[frozenset[int]], number: int, of: int) -> frozenset[int]:
    """The cores of one of so many; what cannot be divided goes to the first ones."""
    least, more = divmod(len(cores), of)
    if not least:
        raise _refused(f"{of} GPUs share {len(cores)} core{'s' if len(cores) > 1 else ''}")
    begin = number * least + min(number, more)
    return frozenset[int]().union(*cores[begin : begin + least + (number < more)])


def _grouped(cpus: Iterable[int], key: Callable[[int], int]) -> list[frozenset[int]]:
    """CPUs that have one key, in the order of these."""
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), set()).add(cpu)
    return [frozenset(group) for _, group in sorted(groups.items())]


# --- what the kernel says ----------------------------------------------------------------------------------------


def _addresses(root: Path) -> list[str]:
    """PCI addresses of the GPUs."""
    folder = root / _GPUS
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def _node_of_gpu(gpu: str, root: Path) -> int:
    """Its NUMA node. Where there is but one the kernel may name none: -1."""
    return max(0, int(_read(root / "sys/bus/pci/devices" / _address(gpu, root).lower() / "numa_node")))


def _address(gpu: str, root: Path) -> str:
    known = _addresses(root)
    if gpu.isdecimal():
        if int(gpu) < len(known):
            return known[int(gpu)]
        raise ValueError(f"NVIDIA's driver knows no GPU {gpu}, only {len(known)}")
    for address in known:
        facts = (line.partition(":") for line in _read(root / _GPUS / address / "information").splitlines())
        uuids = (value.strip() for name, _, value in facts if name.strip() == "GPU UUID")
        if gpu.startswith("GPU-") and any(uuid.startswith(gpu) for uuid in uuids):
            return address
    raise ValueError(f"where {gpu} of {CUDA_VARIABLE} is cannot be known")


def _cpus_of_node(node: int, root: Path) -> frozenset[int]:
    """Those of a NUMA node that we may use."""
    return _numbers(_read(root / f"sys/devices/system/node/node{node}/cpulist")) & os.sched_getaffinity(0)


def _socket_of(cpus: Iterable[int], root: Path) -> int:
    return int(_read(_cpu(min(cpus), root) / "topology/physical_package_id"))


def _core_of(cpu: int, root: Path) -> int:
    """Its physical core, by the first of its CPUs."""
    return min(_numbers(_read(_cpu(cpu, root) / "topology/thread_siblings_list")))


def _last_cache_of(cpu: int, root: Path) -> int:
    """The largest cache that it shares, by the first of the CPUs that do; its own where it has none."""
    caches = [
        folder for folder in (_cpu(cpu, root) / "cache").glob("index*") if _read(folder / "type") != "Instruction"
    ]
    last = max(caches, key=lambda folder: int(_read(folder / "level")), default=None)
    return cpu if last is None else min(_numbers(_read(last / "shared_cpu_list")))


def _cpu(cpu: int, root: Path) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}"


def _read(path: Path) -> str:
    return path.read_text().strip()


def _numbers(text: str) -> frozenset[int]:
    """`0-2,4`: as in the kernel's lists."""
    pairs = (part.partition("-") for part in text.split(",") if part)
    return frozenset(cpu for first, _, last in pairs for cpu in range(int(first), int(last or first) + 1))
