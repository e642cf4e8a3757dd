"""How much room supd's files may take on a node: where it is too much, output of the oldest finished runs goes.

Output of a run that has a runner here is never touched, nor is that of the run that ended last: who looks for why it
failed must find it. In a folder that several supd share each removes its own (supervisor/logs/marks.py).
"""

import contextlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from protocol.ids import RUN_FORM
from supervisor.logs import marks

FORGOTTEN_AFTER_S = 7 * 86400.0
"""A run whose runner has left no mark (it was killed, say) counts as finished once nothing was written for so long."""

_GOING = ".gone-"
"""In front of the name of a folder that is being removed."""


class Limits(NamedTuple):
    """What [state] allows."""

    max_bytes: int | None  # of the state folder and of all output; None: no limit
    min_free_bytes: int  # on the file system of the output
    min_free_percent: float


class Tidied(NamedTuple):
    """What one look has come to."""

    removed: tuple[str, ...]  # runs
    used_bytes: int  # what is left
    free_bytes: int
    is_over: bool  # and nothing is left that may go


class _Output(NamedTuple):
    """What lies here of one run."""

    run: str
    used_bytes: int
    ended_s: float | None  # None: it may go on


class Quota:
    """Looks after the room of one node. Blocking; one thread at a time may call it."""

    def __init__(self, state_dir: Path, logs_dir: Path, limits: Limits, owner: str) -> None:
        """`owner` is that of our marks."""
        self._state_dir = state_dir
        self._owner = owner
        self._logs_dir = logs_dir
        self._limits = limits
        self._ended: dict[str, tuple[float, int]] = {}  # run: when it ended, and its size then
        self._lock = threading.Lock()

    def tidy(self, is_live: Callable[[str], bool], now_s: float) -> Tidied | None:
        """Remove what is too much; None where an earlier call still waits for the disk.

        `is_live` says whether a run has a runner here, `now_s` is in seconds since 1970. Raises OSError where the disk
        does.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._tidy(is_live, now_s)
        finally:
            self._lock.release()

    def _tidy(self, is_live: Callable[[str], bool], now_s: float) -> Tidied:
        for left in self._logs_dir.glob(f"{_GOING}*"):
            shutil.rmtree(left, ignore_errors=True)
        outputs, used_bytes = self._look(is_live, now_s)
        if self._is_over(used_bytes):  # somebody may have made room in a run that was measured long ago
            self._ended = {}
            outputs, used_bytes = self._look(is_live, now_s)
        finished = [(output.ended_s, output) for output in outputs if output.ended_s is not None]
        removed: list[str] = []
        for _, output in sorted(finished)[:-1]:
            if not self._is_over(used_bytes):
                break
            if is_live(output.run):  # since then
                continue
            remove_output(self._logs_dir, output.run)
            removed.append(output.run)
            used_bytes -= output.used_bytes
        return Tidied(tuple(removed), used_bytes, self._free()[0], self._is_over(used_bytes))

    def _is_over(self, used_bytes: int) -> bool:
        if self._limits.max_bytes is not None and used_bytes > self._limits.max_bytes:
            return True
        free_bytes, all_bytes = self._free()
        return free_bytes < max(self._limits.min_free_bytes, all_bytes * self._limits.min_free_percent / 100)

    def _free(self) -> tuple[int, int]:
        found = os.statvfs(self._logs_dir)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def _runs(self) -> list[str]:
        with os.scandir(self._logs_dir) as entries:
            return [e.name for e in entries if re.search(RUN_FORM, e.name) and e.is_dir(follow_symlinks=False)]

    def _look(self, is_live: Callable[[str], bool], now_s: float) -> tuple[list[_Output], int]:
        """What lies here, and how much it is, the state folder included."""
        outputs = [self._look_at(run, is_live, now_s) for run in self._runs()]
        there = {output.run for output in outputs}
        self._ended = {run: ended for run, ended in self._ended.items() if run in there}
        return outputs, sum(output.used_bytes for output in outputs) + self._used_besides()

    def _look_at(self, run: str, is_live: Callable[[str], bool], now_s: float) -> _Output:
        folder = self._logs_dir / run
        ended_s = None if is_live(run) else marks.ended_s(folder, self._owner)
        known_s, known_bytes = self._ended.get(run, (None, 0))
        if ended_s is not None and ended_s == known_s:
            return _Output(run, known_bytes, ended_s)
        used_bytes, changed_s = _measure(folder)
        if ended_s is not None:
            self._ended[run] = ended_s, used_bytes
        elif now_s - changed_s > FORGOTTEN_AFTER_S and marks.was_cut_off(folder, self._owner) and not is_live(run):
            ended_s = changed_s
        return _Output(run, used_bytes, ended_s)

    def _used_besides(self) -> int:
        """What the state folder holds but the output of runs."""
        return sum(_used(found) for found in _files(self._state_dir, without=self._logs_dir))


def remove_output(logs_dir: Path, run: str) -> None:
    """Remove a run's output. Raises OSError; what a kill leaves of it goes at the next look."""
    gone = logs_dir / f"{_GOING}{run}"
    with contextlib.suppress(FileNotFoundError):  # another supd of the same fleet was quicker
        (logs_dir / run).rename(gone)  # at once for readers
    shutil.rmtree(gone, ignore_errors=True)


def _measure(folder: Path) -> tuple[int, float]:
    """The bytes on disk of all below a folder, and when the last one of it was changed."""
    used_bytes, changed_s = 0, 0.0
    for found in _files(folder):
        used_bytes += _used(found)
        changed_s = max(changed_s, found.st_mtime)
    return used_bytes, changed_s


def _files(folder: Path, without: Path | None = None) -> Iterator[os.stat_result]:
    """All below a folder; what goes meanwhile, or may not be read, is left out."""
    folders = [folder]
    while folders:
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        if Path(entry.path) != without:
                            folders.append(Path(entry.path))
                    else:
                        yield found


def _used(found: os.stat_result) -> int:
    return found.st_blocks * 512  # stat(2)
