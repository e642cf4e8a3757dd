"""Small files that are there whole or not at all."""

import contextlib
import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o600, *, through: bool = False) -> None:
    """Replace a file in one step. A kill at any instant leaves the old content or the new one.

    A power loss may leave an empty file, which is well for what concerns processes that end with the power: nobody
    waits for a disk then. With `through` it is on the disk when this returns. Blocks all the same: call it in a
    thread. One writer a file. Raises OSError.
    """
    draft = path.with_name(f"{path.name}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(fd, "wb") as file:
        file.write(content)
        if through:
            file.flush()
            os.fsync(fd)
    os.replace(draft, path)


def read_small(path: Path, limit_bytes: int) -> bytes | None:
    """The first `limit_bytes` of a file, or None where it cannot be read; what is no regular file is not read.

    A pipe, which may never hold anything, keeps nobody waiting; a file system that hangs does: call it in a thread.
    """
    with contextlib.suppress(OSError), open_regular(path) as file:
        return file.read(limit_bytes)
    return None


def open_regular(path: Path) -> BufferedReader:
    """A file to be read. Raises OSError, also where it is no regular one; a pipe keeps nobody waiting."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file
