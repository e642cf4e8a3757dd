"""The unix socket of a node's supd: one daemon a path, and nobody else's file is touched."""

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import Refused

PROBE_TIMEOUT_S = 1.0


async def make(path: Path, backlog: int) -> socket.socket:
    """As `listen`, in a thread. Whoever is cancelled meanwhile leaves no socket behind."""
    making = asyncio.get_running_loop().run_in_executor(None, listen, path, backlog)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with contextlib.suppress(Refused, OSError), await making:
            os.unlink(path)
        raise


def listen(path: Path, backlog: int) -> socket.socket:
    """A listening socket at `path`, 0600. What a dead supd left there is removed, a living one's is not.

    Raises Refused where another supd listens there, something else is in the way, or the path cannot be used.
    Blocks for about a second at most: call it in a thread.
    """
    try:
        with _folder_to_ourselves(path.parent):
            _make_way(path)
            listener = socket.socket(socket.AF_UNIX)
            old_umask = os.umask(0o177)
            try:
                listener.bind(os.fspath(path))
            finally:
                os.umask(old_umask)
            listener.listen(backlog)
            return listener
    except OSError as exc:
        raise Refused(
            "F033", f"cannot listen at {path}: {exc.strerror or exc}", hint="name another [listen] control"
        ) from exc


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at `path` from another one there; None: there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _folder_to_ourselves(folder: Path) -> Iterator[None]:
    """Two daemons that begin in one moment look one after the other."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make_way(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Refused("F033", f"{path} is there and is no socket", hint="name another [listen] control")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # somebody listens there and is busy: unix(7), a full backlog
    raise Refused("F032", f"another supd listens at {path}", hint="give this one its own [listen] control")
