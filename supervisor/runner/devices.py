"""Which of a node's accelerators a rank may use, and whether there are as many as ranks."""

import glob
import os
from collections.abc import Mapping, Sequence

from protocol.errors import Refused
from protocol.job import DevicesTable
from protocol.ranks import Environment
from supervisor.shell.devices import CUDA_VARIABLE, accelerators, listed

_NVIDIA_FILES = "/dev/nvidia[0-9]*"  # one for each GPU that this node, or this container, has


def too_few(ranks: int, environ: Mapping[str, str]) -> str:
    """What to say of a node with fewer accelerators than ranks, which may not be meant; "" where it has none or enough.

    NVML is not asked: it takes a second to load, and nobody waits that long for a remark.
    """
    count = len(listed(environ[CUDA_VARIABLE])) if CUDA_VARIABLE in environ else len(glob.glob(_NVIDIA_FILES))
    return f"the job wants {ranks} ranks a node, and there are {count} GPUs" if 0 < count < ranks else ""


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """The entries that CUDA_VISIBLE_DEVICES has or may have here, in order; None: there is nothing to say.

    Entries are names and stay as they are: indices, UUIDs, MIG instances.
    """
    devices, _ = accelerators(environ)
    return devices if devices or CUDA_VARIABLE in environ else None


def virtual_device(local_rank: int, environ: Mapping[str, str]) -> str | None:
    """The CUDA_VISIBLE_DEVICES of one rank with `visibility = "virtual"`: its one device, which it sees as 0.

    None: there are no devices to share out. Raises Refused where there are fewer devices than ranks.
    """
    devices = visible_devices(environ)
    if not devices:
        return None
    if local_rank >= len(devices):
        raise Refused(
            "F201",
            f"rank {local_rank} of this node has no device: {len(devices)} visible ({','.join(devices)})",
            hint='lower topology.nproc_per_node, or set devices.visibility = "all"',
        )
    return devices[local_rank]


def bindings(table: DevicesTable, environs: Sequence[Environment]) -> list[frozenset[int]]:
    """The CPUs that each rank of this node is bound to, by the ranks' own environments.

    Blocks on /proc and /sys. Raises Refused where they cannot be known.
    """
    from supervisor.shell.numa import cpus_of_ranks, gpus_seen  # few jobs need it

    seen = [gpus_seen({os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}) for env in environs]
    gpus = [gpu for own in seen for gpu in own[:1]] if table.visibility == "virtual" else seen[0]
    return cpus_of_ranks(table.numa_binding, gpus, len(environs))
