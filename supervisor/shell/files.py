"""Small files that are there whole or not at all."""

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step. A kill or a power loss at any instant leaves the old content or the new one.

    Blocks on the disk: call it in a thread. One writer a file. Raises OSError.
    """
    draft = path.with_name(f"{path.name}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(draft, path)


def read_small(path: Path, limit_bytes: int) -> bytes | None:
    """The first `limit_bytes` of a file, or None where it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(limit_bytes)
    return None
