"""How many ranks a node runs, and which accelerators it has to give.

Nothing here loads CUDA: a process that has opened a device holds memory on it. Numbers come from the
environment or from NVML, whose package is optional; without NVIDIA's libraries nothing is imported.
"""

import ctypes
import glob
import importlib
import os
from collections.abc import Mapping

from protocol.errors import Refused
from supervisor.shell.cgroup import parse_memberships, parse_mounts, read_text

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NOTHING = ("", "-1", "NoDevFiles")  # CUDA stops reading at the first entry that is no device; the last is Slurm's
_INTEL_VENDOR = "0x8086"  # PCI vendor id
_NVML_LIBRARY = "libnvidia-ml.so.1"


def count_ranks(nproc_per_node: int | str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Ranks on this node by `topology.nproc_per_node`, and how they were counted, for people.

    `environ` is the workers'. Raises Refused where a kind of device is asked for that is not here.
    """
    match nproc_per_node:
        case int():
            return nproc_per_node, "as the job says"
        case "auto":
            devices, how = _accelerators(environ)
            return (len(devices), how) if devices else (1, f"1 rank: {how}")
        case "gpu":
            devices, how = _accelerators(environ)
            if not devices:
                raise _missing("gpu", how)
            return len(devices), how
        case "xpu":
            count, how = _count_xpus(environ)
            if not count:
                raise _missing("xpu", how)
            return count, how
        case _:
            assert nproc_per_node == "cpu", nproc_per_node
            return _count_cpus()


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """The entries that CUDA_VISIBLE_DEVICES has or may have here, in order; None: there is nothing to say.

    Entries are names and stay as they are: indices, UUIDs, MIG instances.
    """
    devices, _ = _accelerators(environ)
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


def _missing(kind: str, how: str) -> Refused:
    return Refused(
        "F202",
        f'nproc_per_node = "{kind}", but this node has none: {how}',
        hint='set topology.nproc_per_node to a number, or to "auto" or "cpu"',
    )


def _accelerators(environ: Mapping[str, str]) -> tuple[list[str], str]:
    if CUDA_VARIABLE in environ:
        devices: list[str] = []
        for entry in map(str.strip, environ[CUDA_VARIABLE].split(",")):
            if entry in _NOTHING:
                break
            devices.append(entry)
        return devices, f"{len(devices)} in {CUDA_VARIABLE}={environ[CUDA_VARIABLE]}"
    return _ask_nvml()


def _ask_nvml() -> tuple[list[str], str]:
    try:
        ctypes.CDLL(_NVML_LIBRARY)
    except OSError:
        return [], f"no accelerator found (no {_NVML_LIBRARY})"
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return [], f"{_NVML_LIBRARY} is here, but the Python package nvidia-ml-py is not (install supd[gpu])"
    try:
        nvml.nvmlInit()
        try:
            count: int = nvml.nvmlDeviceGetCount()
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as exc:
        return [], f"no accelerator found (NVML: {exc})"
    return [str(index) for index in range(count)], f"{count} by NVML"


def _count_xpus(environ: Mapping[str, str]) -> tuple[int, str]:
    """Intel's accelerators: entries of ZE_AFFINITY_MASK (Level Zero), else render nodes of that vendor."""
    mask = environ.get("ZE_AFFINITY_MASK")
    if mask is not None:
        count = len([entry for entry in mask.split(",") if entry.strip()])
        return count, f"{count} in ZE_AFFINITY_MASK={mask}"
    vendors = [read_text(path).strip() for path in glob.glob("/sys/class/drm/renderD*/device/vendor")]
    count = vendors.count(_INTEL_VENDOR)
    return count, f"{count} render nodes of Intel"


def _count_cpus() -> tuple[int, str]:
    """CPUs that this node's processes may use: by affinity, and by the quota of their cgroups, whole ones only."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is None or quota >= allowed:
        return allowed, f"{allowed} CPUs by affinity"
    return max(1, int(quota)), f"{quota:g} CPUs by the cgroup's quota, {allowed} by affinity"


def cpu_quota(proc: str = "/proc") -> float | None:
    """CPUs' worth of time that the tightest cgroup on our way up allows; None: no quota."""
    paths = parse_memberships(read_text(f"{proc}/self/cgroup"))
    quotas: list[float] = []
    for mount in parse_mounts(read_text(f"{proc}/self/mountinfo")):
        if not mount.is_v2 and "cpu" not in mount.controllers:
            continue
        path = paths.get("" if mount.is_v2 else "cpu")
        folder = mount.folder(path) if path is not None else None
        while folder is not None and folder.startswith(mount.point):
            quota = _quota_at(folder.rstrip("/"), is_v2=mount.is_v2)
            if quota is not None:
                quotas.append(quota)
            folder = folder.rpartition("/")[0]
    return min(quotas, default=None)


def _quota_at(folder: str, *, is_v2: bool) -> float | None:
    """`cpu.max` is "QUOTA PERIOD" or "max PERIOD"; in v1 there are two files, and -1 is no quota."""
    if is_v2:
        words = read_text(f"{folder}/cpu.max").split()
    else:
        words = [read_text(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(map(str.isdecimal, words)):
        return None
    return int(words[0]) / int(words[1])
