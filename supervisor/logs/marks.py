"""Marks in the folders of output: who may remove them, and which are worth keeping.

    <logs>/<run>/here-gpu-03-5ee1c0de     a runner of this supd is here, or was killed here
    <logs>/<run>/ended-gpu-03-5ee1c0de    the last one has ended in order
    <logs>/<run>/gen-0002/failed          a rank failed by itself in this generation

A folder of logs may be that of several supd: of a fleet on one file system, or of people who share it.
"""

import contextlib
import os
import zlib
from pathlib import Path

from supervisor.logs.paths import generation_dir

_HERE, _ENDED, _FAILED = "here-", "ended-", "failed"


def owner(node: str, state_dir: Path) -> str:
    """A name for the supd of this node with this state folder, in names of marks."""
    return f"{node}-{zlib.crc32(os.fsencode(os.path.realpath(state_dir))):08x}"


def begin(run_dir: Path, owner: str) -> None:
    """A runner begins to write there."""
    (run_dir / f"{_HERE}{owner}").touch()
    (run_dir / f"{_ENDED}{owner}").unlink(missing_ok=True)


def end(run_dir: Path, owner: str) -> None:
    """It has ended in order."""
    (run_dir / f"{_ENDED}{owner}").touch()
    (run_dir / f"{_HERE}{owner}").unlink(missing_ok=True)


def ended_s(run_dir: Path, owner: str) -> float | None:
    """When the owner's last runner ended there, in seconds since 1970; None: not in order, or others are there."""
    with contextlib.suppress(FileNotFoundError):
        if not any(name.startswith(_HERE) for name in os.listdir(run_dir)):
            return (run_dir / f"{_ENDED}{owner}").stat().st_mtime
    return None


def was_cut_off(run_dir: Path, owner: str) -> bool:
    """Whether the owner's last runner has not ended in order, if it has ended, and nobody else's is there."""
    try:
        return [name for name in os.listdir(run_dir) if name.startswith(_HERE)] == [f"{_HERE}{owner}"]
    except FileNotFoundError:
        return False


def leave(run_dir: Path, owner: str) -> bool:
    """The owner has no claim to what lies there any more; returns whether a runner of somebody else may be there."""
    for mark in (_HERE, _ENDED):
        (run_dir / f"{mark}{owner}").unlink(missing_ok=True)
    try:
        return any(name.startswith(_HERE) for name in os.listdir(run_dir))
    except FileNotFoundError:
        return False


def mark_failed(run_dir: Path, generation: int) -> None:
    """A rank has failed by itself in this generation."""
    (generation_dir(run_dir, generation) / _FAILED).touch()


def has_failed(run_dir: Path, generation: int) -> bool:
    """Whether one has."""
    return (generation_dir(run_dir, generation) / _FAILED).exists()
