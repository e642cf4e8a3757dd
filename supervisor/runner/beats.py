"""Heartbeat pages of one runner's ranks, new for each generation, with the file that tells of a planned stop; and what
the ranks need for `import supd`."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import structlog

import supervisor.worker
from protocol.errors import ConfigInvalid
from supervisor.shell.paths import ensure_private_dir
from supervisor.worker import page
from supervisor.worker.page import Beat

log = structlog.get_logger()


class _Page(NamedTuple):
    """The page of one rank."""

    path: Path
    descriptor: int


class Pages:
    """The pages of the newest generation, one file a rank in `folder` (None: nowhere to make them).

    A worker may do to its file what it likes, so it is read by pread: a mapped file that its other user cuts short
    kills its reader with SIGBUS (mmap(2)).
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._generation = -1
        self._pages: dict[int, _Page] = {}  # by rank

    async def create(self, generation: int, ranks: Iterable[int]) -> None:
        """Make new pages: nothing of the last generation is in them (R5). Where that fails, ranks start without."""
        await self.close(self._generation)
        self._generation = generation
        if self._folder is not None:
            self._pages = await asyncio.to_thread(_make_pages, self._folder, generation, ranks)

    def path(self, rank: int) -> str:
        """The file of a rank's page; "" where it has none."""
        made = self._pages.get(rank)
        return "" if made is None else str(made.path)

    @property
    def stop_file(self) -> Path | None:
        """What is to tell the ranks of a planned stop, once there is one; None where there are no pages either."""
        if self._folder is None or not self._pages:
            return None
        return self._folder / f"gen-{self._generation:04d}-stop.json"

    def read(self, rank: int) -> Beat | None:
        """What the rank's page shows now; None where it has none, or has cut it short."""
        made = self._pages.get(rank)
        if made is None:
            return None
        try:
            return page.read(os.pread(made.descriptor, page.SIZE, 0))
        except OSError:
            return None

    async def close(self, generation: int) -> None:
        """Remove the pages of a generation that is over."""
        if generation != self._generation:
            return
        stop_file = self.stop_file
        pages, self._pages = self._pages, {}
        for made in pages.values():
            os.close(made.descriptor)
        if stop_file is not None:
            await asyncio.to_thread(_unlink, [stop_file, *(made.path for made in pages.values())])

    def remove(self) -> None:
        """Remove the folder, at the end of the runner."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _make_pages(folder: Path, generation: int, ranks: Iterable[int]) -> dict[int, _Page]:
    pages: dict[int, _Page] = {}
    try:
        for private in (folder.parent, folder):  # each time: logind removes them with the user's last login (RemoveIPC)
            ensure_private_dir(private)
        for rank in ranks:
            pages[rank] = _make_page(folder / f"gen-{generation:04d}-rank-{rank:05d}")
    except (OSError, ConfigInvalid) as exc:
        log.warning("heartbeats_unmade", generation=generation, folder=str(folder), made=len(pages), error=repr(exc))
    return pages


def _make_page(path: Path) -> _Page:
    """Its bytes are written and not left a hole: a store into a hole for which there is no memory is a SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, page.blank())
    except OSError:
        os.close(descriptor)
        raise
    return _Page(path, descriptor)


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def package_dir(run_dir: Path) -> str:
    """A folder that holds the package `supd` and nothing else of ours, for the end of a worker's PYTHONPATH.

    It is a link to where this supd lies, made again for each runner: that may have been replaced. Returns "" where
    there can be none.
    """
    folder = run_dir / "python"
    try:
        folder.mkdir(0o700, exist_ok=True)
        link = folder / ".supd"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(supervisor.worker.__file__).parent)
        link.replace(folder / "supd")
    except OSError as exc:
        log.warning("package_unlinked", folder=str(folder), error=repr(exc))
        return ""
    return str(folder)
