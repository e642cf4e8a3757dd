"""What a node says of its machine, for people."""

import os
import platform
from collections import Counter
from pathlib import Path

from protocol.messages.fleet import NodeFacts
from supervisor.shell.files import read_small
from supervisor.shell.version import VERSION

_READ_MAX_BYTES = 4096


def node_facts() -> NodeFacts:
    """Blocks for a moment; wakes no device."""
    system = os.uname()
    return NodeFacts(
        host=system.nodename[:300],
        boot_id=_text(Path("/proc/sys/kernel/random/boot_id")),
        kernel=f"{system.sysname} {system.release}"[:300],
        python=platform.python_version(),
        supd=VERSION,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        devices=_devices(Path("/proc/driver/nvidia/gpus")),
    )


def _devices(folder: Path) -> str:
    """`8 NVIDIA H100 80GB HBM3`, by what NVIDIA's driver lists; "none"."""
    lines = [line for file in folder.glob("*/information") for line in _text(file).splitlines()]
    models = Counter(line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))
    return ", ".join(f"{count} {model}" for model, count in sorted(models.items()))[:300] or "none"


def _text(path: Path) -> str:
    return (read_small(path, _READ_MAX_BYTES) or b"").decode(errors="replace").strip()
