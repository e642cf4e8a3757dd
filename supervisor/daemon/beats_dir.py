"""Where a runner makes its ranks' heartbeat pages: a folder of its own on a memory file system."""

import os
import shutil
from pathlib import Path

from protocol.errors import ConfigInvalid
from supervisor.shell.paths import ensure_private_dir

SHARED_MEMORY = Path("/dev/shm")
IN_MEMORY = ("tmpfs", "ramfs")


def choose(run_dir: Path, incarnation: str, mounts: Path = Path("/proc/self/mounts")) -> Path:
    """`/dev/shm/supd-UID/INCARNATION`, else `INCARNATION.beats` in the run's folder; it need not be there yet.

    A store into a mapped file of a disk may wait for that disk to write the page back, and a beat must not.
    """
    if _file_system(mounts.read_text(), SHARED_MEMORY) not in IN_MEMORY:
        return in_run_dir(run_dir, incarnation)
    folder = _in_memory(incarnation)
    try:
        ensure_private_dir(folder.parent)
    except ConfigInvalid:  # /dev/shm is everybody's: another user may have been first
        return in_run_dir(run_dir, incarnation)
    return folder


def remove(run_dir: Path | None, incarnation: str) -> None:
    """Remove what a runner that was killed has left; `run_dir` None: it had no run."""
    shutil.rmtree(_in_memory(incarnation), ignore_errors=True)
    if run_dir is not None:
        shutil.rmtree(in_run_dir(run_dir, incarnation), ignore_errors=True)


def _in_memory(incarnation: str) -> Path:
    return SHARED_MEMORY / f"supd-{os.getuid()}" / incarnation


def in_run_dir(run_dir: Path, incarnation: str) -> Path:
    """In the run's folder."""
    return run_dir / f"{incarnation}.beats"


def _file_system(mounts: str, mount_point: Path) -> str:
    """The type of what is mounted there last, by proc_pid_mounts(5); "" for nothing."""
    lines = [line.split(" ") for line in mounts.splitlines()]
    return next((fields[2] for fields in reversed(lines) if fields[1] == str(mount_point)), "")
