"""What a runner tidies up of its run's output: surplus files and generations go, older files are gzipped.

One thread with the least claim to a CPU does it; nobody waits for it, and an error costs no more than room on a disk.
"""

import contextlib
import contextvars
import functools
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import structlog

from protocol.job import LogsTable
from supervisor.logs import marks, paths
from supervisor.logs.times import times_path

log = structlog.get_logger()

PIECE_BYTES = 4 << 20
"""What is gzipped in one go, without Python's lock: a thread that seldom gets a CPU must seldom hold that."""

GZIP_LEVEL = 1
"""The quickest: CPUs are there for the ranks, and a line of a log resembles the last one at any level."""

_GZIP_FORMAT = 16 + zlib.MAX_WBITS  # with header and checksum, zlib.h: deflateInit2
_LEAST = 19  # nice(2)


def surplus_parts(parts: Sequence[paths.Part], keep: int) -> list[paths.Part]:
    """The rotated files of a stream that go: all but the first one and the newest ones."""
    return list(parts[1 : max(len(parts) - keep + 1, 1)])


def surplus_generations(there: Sequence[int], failed: Collection[int], keep: int) -> list[int]:
    """The generations that go: all but the first, the last, those that failed, and the newest, in this order."""
    between = sorted(there)[1:-1]
    by_worth = sorted(between, key=lambda generation: (generation in failed, generation), reverse=True)
    return sorted(by_worth[keep - 2 :])


class Keeper:
    """Tidies the output of one run. Its methods return at once, but `stop`."""

    def __init__(self, logs_dir: Path, settings: LogsTable, owner: str) -> None:
        """`owner` is that of the marks."""
        self._logs_dir = logs_dir
        self._owner = owner
        self._settings = settings
        self._due: dict[object, Callable[[], None]] = {}
        self._stopped = False
        self._changed = threading.Condition()
        context = contextvars.copy_context()  # our log says which run it is
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="log-keeper", daemon=True)
        self._thread.start()
        self._ask("begin", self._begin)

    def on_rotated(self, live: Path) -> None:
        """The stream at `live` has one more rotated file."""
        self._ask(live, functools.partial(self._tidy_stream, live))

    def on_generation(self, generation: int) -> None:
        """The run has one more generation, this one, whose folder may be still to come."""
        self._ask("generations", functools.partial(self._tidy_generations, generation))

    def on_failed(self, generation: int) -> None:
        """A rank of this node failed by itself."""
        self._ask(generation, functools.partial(marks.mark_failed, self._logs_dir, generation))

    def stop(self, timeout_s: float) -> None:
        """Leave off, and mark the run as ended here; waits for that for at most `timeout_s`."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _ask(self, what: object, action: Callable[[], None]) -> None:
        with self._changed:
            self._due.setdefault(what, action)
            self._changed.notify()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _LEAST)  # of this thread alone
        while (action := self._next()) is not None:
            try:
                action()
            except OSError as exc:
                log.warning("output_not_tidied", path=str(self._logs_dir), error=repr(exc))
        with contextlib.suppress(OSError):
            marks.end(self._logs_dir, self._owner)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._due or self._stopped)
            quick = (what for what in self._due if not isinstance(what, Path))
            what = next(quick, None) if self._stopped else next(iter(self._due))
            return None if what is None else self._due.pop(what)

    # --- in the thread -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        marks.begin(self._logs_dir, self._owner)
        for left in self._logs_dir.glob(".gen-*"):  # unfinished, by a keeper that was killed
            shutil.rmtree(left, ignore_errors=True)
        for left in self._logs_dir.glob("gen-*/.rank-*.gz"):
            left.unlink(missing_ok=True)

    def _tidy_generations(self, newest: int) -> None:
        there = sorted({*paths.generations(self._logs_dir), newest})
        failed = {number for number in there if marks.has_failed(self._logs_dir, number)}
        for generation in surplus_generations(there, failed, self._settings.keep_generations):
            folder = paths.generation_dir(self._logs_dir, generation)
            gone = folder.with_name(f".{folder.name}")  # at once for readers
            folder.rename(gone)
            shutil.rmtree(gone)

    def _tidy_stream(self, live: Path) -> None:
        there = paths.parts(live)
        surplus = surplus_parts(there, self._settings.keep_files)
        for part in surplus:
            part.path.unlink(missing_ok=True)
            times_path(part.path).unlink(missing_ok=True)
        for part in there[:-1]:
            if part not in surplus and not part.is_gz and not self._stopped:
                self._gzip(part.path)

    def _gzip(self, plain: Path) -> None:
        """Have a gzipped file in place of this one, with its mode and its time."""
        gz = paths.gz_path(plain)
        unfinished = gz.with_name(f".{gz.name}")
        try:
            with plain.open("rb", buffering=0) as source, unfinished.open("wb", buffering=0) as target:
                was = os.fstat(source.fileno())
                os.fchmod(target.fileno(), was.st_mode & 0o777)
                packer = zlib.compressobj(GZIP_LEVEL, wbits=_GZIP_FORMAT)
                while piece := source.read(PIECE_BYTES):
                    _write(target.fileno(), packer.compress(piece))
                    if self._stopped:
                        return
                _write(target.fileno(), packer.flush())
                os.fdatasync(target.fileno())
            os.utime(unfinished, ns=(was.st_atime_ns, was.st_mtime_ns))
            unfinished.replace(gz)
            plain.unlink()
        finally:
            unfinished.unlink(missing_ok=True)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
