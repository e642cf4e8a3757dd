"""How many ranks a node runs, and which accelerators it has to give.

Nothing here loads CUDA: a process that has opened a device holds memory on it. Numbers come from the
environment or from NVML, whose package is optional; without NVIDIA's libraries nothing is imported.
"""

import ctypes
import glob
import importlib
import itertools
import os
import re
import threading
from collections.abc import Mapping
from typing import Any

from protocol.errors import Refused
from supervisor.shell.cgroup import parse_memberships, parse_mounts, read_text

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"

NVML_LIMIT_S = 60.0
"""How long NVIDIA's driver may take: up to half a minute where it has to wake up many GPUs first."""

_NVIDIA_FILE = re.compile("nvidia[0-9]+")  # one for each GPU that this node, or this container, has

_NOTHING = ("", "-1", "NoDevFiles")  # CUDA stops reading at the first entry that is no device; the last is Slurm's
_INTEL_VENDOR = "0x8086"  # PCI vendor id
_NVML_LIBRARY = "libnvidia-ml.so.1"


def count_ranks(nproc_per_node: int | str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Ranks on this node by `topology.nproc_per_node`, and how they were counted, for people.

    `environ` is the workers'. Raises Refused where a kind of device is asked for that is not here, or NVIDIA's driver
    does not answer.
    """
    match nproc_per_node:
        case int():
            return nproc_per_node, "as the job says"
        case "auto":
            devices, how = accelerators(environ)
            return max(1, len(devices)), how
        case "gpu":
            devices, how = accelerators(environ)
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
            return count_cpus()


def count_as_torchrun(nproc_per_node: int | str, environ: Mapping[str, str]) -> tuple[int, str]:
    """The same by torchrun's --nproc-per-node, whose "auto" is one for each CPU where there is no accelerator."""
    if nproc_per_node != "auto":
        return count_ranks(nproc_per_node, environ)
    devices, how = accelerators(environ)
    if devices:
        return len(devices), how
    xpus, how = _count_xpus(environ)
    return (xpus, how) if xpus else count_cpus()


def accelerators(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """NVIDIA's GPUs by name or index, and how they were found, for people."""
    if CUDA_VARIABLE in environ:
        devices = listed(environ[CUDA_VARIABLE])
        return devices, f"{len(devices)} in {CUDA_VARIABLE}={environ[CUDA_VARIABLE]}"
    return _ask_nvml()


def listed(variable: str) -> list[str]:
    """The devices that a CUDA_VISIBLE_DEVICES names."""
    entries = map(str.strip, variable.split(","))
    return list(itertools.takewhile(lambda entry: entry not in _NOTHING, entries))


def node_slots(devices: int | None, environ: Mapping[str, str], dev: str = "/dev") -> tuple[str, ...] | None:
    """What supd has to allot to runs, one a rank, by `[node] devices`; None: nothing that has a limit.

    `environ` is supd's own: it gives nobody what it was not given itself. With None for `devices` there is a slot for
    each accelerator; else there are so many, spread over the accelerators, and without a name where there are none.
    """
    if CUDA_VARIABLE in environ:
        found = listed(environ[CUDA_VARIABLE])
    else:
        files = filter(_NVIDIA_FILE.fullmatch, os.listdir(dev))
        found = sorted((file.removeprefix("nvidia") for file in files), key=int)
    if devices is None:
        return tuple(found) or None
    return tuple(found[place * len(found) // devices] if found else "" for place in range(devices))


def _missing(kind: str, how: str) -> Refused:
    return Refused(
        "F202",
        f'nproc_per_node = "{kind}", but this node has none: {how}',
        hint='set topology.nproc_per_node to a number, or to "auto" or "cpu"',
    )


def _ask_nvml() -> tuple[list[str], str]:
    try:
        ctypes.CDLL(_NVML_LIBRARY)
    except OSError:
        return [], f"no accelerator found (no {_NVML_LIBRARY})"
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return [], f"{_NVML_LIBRARY} is here, but the Python package nvidia-ml-py is not (install supd[gpu])"
    answers: list[tuple[list[str], str]] = []
    # The driver of a GPU that hangs may never answer: such a thread is left behind.
    thread = threading.Thread(target=lambda: answers.append(_count_by_nvml(nvml)), name="nvml", daemon=True)
    thread.start()
    thread.join(NVML_LIMIT_S)
    if thread.is_alive():
        what = f"NVIDIA's driver does not answer for {NVML_LIMIT_S:g} s"
        raise Refused("F206", what, hint="nvidia-smi hangs as well? the kernel's log names the GPU")
    return answers[0]


def _count_by_nvml(nvml: Any) -> tuple[list[str], str]:
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


def count_cpus() -> tuple[int, str]:
    """CPUs that this node's processes may use: by affinity, and by the quota of their cgroups, whole ones only."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is None or quota >= allowed:
        return allowed, f"{allowed} CPU{'s' if allowed > 1 else ''} by affinity"
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
