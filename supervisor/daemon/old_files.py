"""What a node keeps of its runs and their runners besides output, and what of it may go. Blocking: for threads.

<state>/runs/<run>/<incarnation>.record      goes once the coordinator knows of the runner's end
<state>/runs/<run>/<incarnation>.log         of runners that are gone the newest LOGS_KEPT stay; a long one is cut
<state>/runs/<run>, <logs>/<run>             go once the run is old here, and the coordinator has forgotten it
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from protocol.ids import RUN_FORM
from supervisor.daemon.retention import Keep, surplus
from supervisor.logs import marks
from supervisor.logs.quota import remove_output
from supervisor.shell.config import Config

LOGS_KEPT = 20

LOG_MAX_BYTES, LOG_TAIL_BYTES = 16 << 20, 4 << 20
"""How long the log of a runner may become, and what is kept of it then: one runner may serve 10,000 generations."""


class OldFiles:
    """Looks after them on one node; `serves` says whether a run has a runner here."""

    def __init__(self, config: Config, serves: Callable[[str], bool]) -> None:
        self._runs_dir = config.state_dir / "runs"
        self._locks_dir = config.state_dir / "runners"
        self._logs_dir = config.logs_dir
        self._owner = marks.owner(config.node, config.state_dir)
        self._keep = Keep(config.keep_runs, config.keep_days)
        self._serves = serves

    def look(self, now_s: float) -> list[str]:
        """The runs that are old here, the oldest first; `now_s` is in seconds since 1970. Logs that are too long are
        cut. Raises OSError."""
        if not self._runs_dir.is_dir():
            return []
        changed = {}
        with os.scandir(self._runs_dir) as entries:
            for entry in entries:
                if re.search(RUN_FORM, entry.name) and entry.is_dir(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):  # it is being removed
                        _cut_logs(Path(entry.path))
                        if not self._serves(entry.name):
                            changed[entry.name] = entry.stat().st_mtime
        return surplus(changed, self._keep, now_s)

    def remove_run(self, run: str) -> None:
        """Remove all that lies here of a run, its output first; of several in one folder of output the last one that
        leaves removes that. Raises OSError."""
        if self._serves(run):
            return
        if not marks.leave(self._logs_dir / run, self._owner):
            remove_output(self._logs_dir, run)
        shutil.rmtree(self._runs_dir / run, ignore_errors=True)

    def forget_runner(self, incarnation: str) -> None:
        """What a runner knew last is on the coordinator's disk. Raises OSError."""
        for run in os.listdir(self._runs_dir):
            run_dir = self._runs_dir / run
            if (run_dir / f"{incarnation}.log").exists():
                for suffix in ("record", "record.new"):
                    (run_dir / f"{incarnation}.{suffix}").unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):  # the whole folder is being removed
                    self._thin_out(run_dir)

    def _thin_out(self, run_dir: Path) -> None:
        gone = [log for log in run_dir.glob("*.log") if not (self._locks_dir / f"{log.stem}.lock").exists()]
        for log in sorted(gone, key=lambda log: log.stat().st_mtime)[:-LOGS_KEPT]:
            log.unlink(missing_ok=True)


def _cut_logs(run_dir: Path) -> None:
    for log in run_dir.glob("*.log"):
        if log.stat().st_size > LOG_MAX_BYTES:
            _cut(log)


def _cut(log: Path) -> None:
    """Keep the end of it. Whoever writes goes on: they append. What they write at this very instant may be lost."""
    with log.open("r+b") as file:
        file.seek(-LOG_TAIL_BYTES, os.SEEK_END)
        tail = file.read(2 * LOG_TAIL_BYTES)
        file.truncate(0)
    with log.open("ab") as file:
        file.write(tail.partition(b"\n")[2])
