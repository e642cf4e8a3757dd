"""What suprun begins with, before it loads what takes long to load: its folders, and a runner that loads meanwhile."""

import os
from pathlib import Path

from protocol.dataclass import dataclass
from supervisor.front import folders
from supervisor.front.forking import forked
from supervisor.shell.guarding import Tie
from supervisor.shell.runner_start import Started, new_incarnation, start_runner

LOG_LEVEL = "warning"
"""Of a runner, into a file that is removed with the rest."""


@dataclass(frozen=True)
class Begun:
    """What there is of this launch on this node."""

    state: Path
    logs: Path
    tie: Tie
    ahead: Started | None

    def remove(self) -> None:
        """At the end of suprun; a guard does it where suprun was killed."""
        folders.remove(self.state, self.logs)


def begin(logs: Path | None) -> Begun:
    """Make the folders, as `make_folders`, and start a runner. Raises Refused, and OSError; then no folder is left."""
    state, logs = folders.make_folders(logs)
    try:
        return _begin(state, logs)
    except BaseException:
        folders.remove(state, logs)
        raise


def _begin(state: Path, logs: Path) -> Begun:
    runners = state / folders.RUNNERS
    runners.mkdir(0o700)
    read_end, _write_end = os.pipe()  # which nobody else has, and the kernel closes with this process
    tie = Tie(read_end, str(state), str(logs))
    try:
        ahead = start_runner(runners, new_incarnation(), uses_cgroup=True, log_level=LOG_LEVEL, tie=tie, start=forked)
    except OSError:
        ahead = None  # it is tried again, and told, when it is needed
    return Begun(state, logs, tie, ahead)
