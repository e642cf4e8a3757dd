"""Told when files grow: inotify (inotify(7)), one instance for all readers of a process, one watch for a folder.

It is a shortcut: whoever waits for a bell looks now and then all the same, since there are file systems and limits that
leave none.
"""

import asyncio
import contextlib
import ctypes
import os
import struct
from pathlib import Path

from protocol.dataclass import dataclass, field
from protocol.errors import Refused
from supervisor.daemon.slow_disk import ask

PAUSE_S = 0.005
"""Between two looks at what has grown: a flood of writes costs little."""

READ_BYTES = 64 << 10

_MODIFY, _MOVED_TO, _CREATE, _IGNORED = 0x2, 0x80, 0x100, 0x8000
_CLOSED_ON_EXEC = os.O_CLOEXEC | os.O_NONBLOCK
_EVENT = struct.Struct("iIII")
_INDEX = b".times"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=False, eq=False)
class _Folder:
    """Who listens to a folder."""

    path: Path
    wd: int = -1  # the watch; -1: not yet, or not any more
    bells: set[asyncio.Event] = field(default_factory=set)


class Growth:
    """Rings bells when a file of a folder was written, made or renamed; indexes of times do not count."""

    def __init__(self) -> None:
        self._fd = -1
        self._folders: dict[Path, _Folder] = {}
        self._watched: dict[int, _Folder] = {}

    async def listen(self, folder: Path, bell: asyncio.Event) -> bool:
        """Ring this bell from now on, until `leave`; what was written before is not told. Returns whether that works:
        not where the folder is not there, and not everywhere. It may be repeated."""
        found = self._folders.setdefault(folder, _Folder(folder))
        found.bells.add(bell)
        if found.wd < 0 and self._opened():
            fd = self._fd
            try:
                wd = await ask(folder, _add_watch, fd, folder)
            except Refused:  # the folder does not answer
                return False
            if fd == self._fd and self._folders.get(folder) is found and wd >= 0:
                found.wd = wd
                self._watched[wd] = found
        return found.wd >= 0

    def leave(self, bell: asyncio.Event) -> None:
        """Ring this bell no more."""
        for folder in [folder for folder in self._folders.values() if bell in folder.bells]:
            folder.bells.discard(bell)
            if not folder.bells:
                del self._folders[folder.path]
                if self._watched.pop(folder.wd, None) is not None:
                    _libc.inotify_rm_watch(self._fd, folder.wd)
        if not self._folders and self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._watched.clear()

    def listeners(self, folder: Path) -> int:
        """How many bells ring for it."""
        found = self._folders.get(folder)
        return len(found.bells) if found is not None else 0

    def _opened(self) -> bool:
        if self._fd < 0 and hasattr(_libc, "inotify_init1"):
            self._fd = _libc.inotify_init1(_CLOSED_ON_EXEC)
            if self._fd >= 0:
                asyncio.get_running_loop().add_reader(self._fd, self._on_readable)
        return self._fd >= 0

    def _on_readable(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BlockingIOError):
            for folder in self._named(os.read(self._fd, READ_BYTES)):
                for bell in folder.bells:
                    bell.set()
        loop.remove_reader(self._fd)
        loop.call_later(PAUSE_S, self._go_on, self._fd)

    def _go_on(self, fd: int) -> None:
        if fd == self._fd:
            asyncio.get_running_loop().add_reader(fd, self._on_readable)

    def _named(self, data: bytes) -> set[_Folder]:
        """The folders that the kernel tells of."""
        named: set[_Folder] = set()
        at = 0
        while at < len(data):
            wd, mask, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            at += _EVENT.size + length
            if wd < 0:  # it has lost count
                return set(self._watched.values())
            folder = self._watched.get(wd)
            if folder is not None and not name.endswith(_INDEX):
                named.add(folder)
                if mask & _IGNORED:
                    del self._watched[wd]
                    folder.wd = -1
        return named


def _add_watch(fd: int, folder: Path) -> int:
    return int(_libc.inotify_add_watch(fd, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE))


GROWTH = Growth()
"""This process's."""
