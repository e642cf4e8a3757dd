"""--log-dir: the output of this node's ranks, where torchrun has it. Nothing in it is ever deleted.

    DIR/ID_xxxxxxxx/attempt_0/3/stdout.log      also stderr.log, and error.json where the rank has written one
    DIR/ID_xxxxxxxx/attempt_0/filtered_stdout.log      lines of --duplicate-stdout-filters

The files are those that the runner writes, by another name (a hard link); attempts are generations.
"""

import contextlib
import os
import re
import tempfile
from pathlib import Path

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from supervisor.logs.paths import generation_dir, generations
from supervisor.suprun.plan import LaunchPlan

FILTERED = {"out": "filtered_stdout.log", "err": "filtered_stderr.log"}
NAMES = {"out": "stdout.log", "err": "stderr.log", "error.json": "error.json"}

_FILE = re.compile(r"rank-([0-9]{5,})\.(out|err|error\.json)")


def make(plan: LaunchPlan) -> Path:
    """The folder of this launch. Raises Refused."""
    assert plan.log_dir is not None
    try:
        os.makedirs(plan.log_dir, exist_ok=True)
        prefix = re.sub(r"[^A-Za-z0-9._-]", "_", plan.run_id or "none")[:100]
        return Path(tempfile.mkdtemp(prefix=f"{prefix}_", dir=plan.log_dir)).absolute()
    except OSError as exc:
        message = f"--log-dir {plan.log_dir} cannot be used: {exc.strerror or exc}"
        raise Refused("C033", message, hint="name another folder", exit_code=ExitCode.INVALID) from None


def hidden(kept: Path) -> Path:
    """Where the runner writes; only the other names of its files stay."""
    return kept / ".suprun"


def rank_folder(kept: Path, generation: int, local_rank: int) -> Path:
    """The folder of one rank."""
    return kept / f"attempt_{generation}" / str(local_rank)


class Links:
    """Gives files of a run their names in the folder `kept`."""

    def __init__(self, logs_dir: Path, kept: Path) -> None:
        """`logs_dir` is the run's."""
        self._logs_dir = logs_dir
        self._kept = kept
        self.first_ranks: dict[int, int] = {}  # generation -> the first rank of this node

    def make(self) -> None:
        """For all files that are there and have none yet. Blocks on the disk; what it does not take is left out."""
        for generation in generations(self._logs_dir):
            first = self.first_ranks.get(generation)
            if first is None:
                continue
            folder = generation_dir(self._logs_dir, generation)
            with contextlib.suppress(OSError):
                for found in filter(None, map(_FILE.fullmatch, os.listdir(folder))):
                    place = rank_folder(self._kept, generation, int(found[1]) - first)
                    self._link(folder / found[0], place / NAMES[found[2]])

    def copy(self, generation: int, stream: str, lines: bytes) -> None:
        """Add lines to the file of those that have a word of --duplicate-stdout-filters, or -stderr-. Blocks on the
        disk; what it does not take is left out."""
        with contextlib.suppress(OSError):
            folder = self._kept / f"attempt_{generation}"
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / FILTERED[stream], "ab") as file:
                file.write(lines)

    def _link(self, file: Path, name: Path) -> None:
        with contextlib.suppress(OSError):
            name.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.link(file, name)
