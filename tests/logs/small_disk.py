"""A disk that is full, and gets room again; and what a file says of what it has not."""

import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A folder in which a file can't become larger than 1 MiB until `grow` is called."""

    folder: Path
    reason: str  # in the kernel's words
    grow: Callable[[], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder]).returncode == 0:
        yield SmallDisk(folder, "No space left on device", lambda: remount(folder, "size=16m"))
        subprocess.run(["umount", folder], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)  # for who may not mount: another limit, the same effect
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield SmallDisk(folder, "File too large", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


def lost_bytes(content: bytes, reason: str) -> int:
    notice = rb"^\[supd: (\d+) bytes not written until [0-9TZ:.-]{24}: %s\]$" % reason.encode()
    return sum(map(int, re.findall(notice, content, re.MULTILINE)))


def without_notices(content: bytes) -> bytes:
    return re.sub(rb"\n?\[supd: .*\]\n", b"", content)
