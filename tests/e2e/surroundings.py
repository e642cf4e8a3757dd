"""What a worker was born with, as workers/surroundings.py reports it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.supd import BIN, TIMEOUT_S, WORKERS, Supd

SCRIPT = WORKERS / "surroundings.py"


class Born:
    """One rank's report."""

    def __init__(self, path: Path) -> None:
        report: dict[str, Any] = json.loads(path.read_text())
        self.environ = {bytes.fromhex(k): bytes.fromhex(v) for k, v in report.pop("environ").items()}
        self.env = {
            k.decode(errors="surrogateescape"): v.decode(errors="surrogateescape") for k, v in self.environ.items()
        }
        self.cwd: str = report["cwd"]
        self.argv: list[str] = report["argv"]
        self.executable: str = report["executable"]
        self.prefix: str = report["prefix"]
        self.umask: int = report["umask"]
        self.limits: dict[str, list[int]] = report["limits"]
        self.port_is_free: bool = report["port_is_free"]


def surroundings_job(
    supd: Supd, *args: str, nproc: int = 1, run: str = "", tables: str = "", python: str | None = sys.executable
) -> Path:
    """A job of workers that report into the test's folder; without `python` it is left to supd to find one."""
    path = supd.folder / "born.toml"
    interpreter = f"python = {json.dumps(python)}" if python else ""
    path.write_text(
        f'name = "born"\n[run]\nscript = {json.dumps(str(SCRIPT))}\nargs = {json.dumps([str(supd.folder), *args])}\n'
        f"{interpreter}\n{run}\n[topology]\nnproc_per_node = {nproc}\n{tables}"
    )
    return path


def born(
    supd: Supd, job: Path, *, env: Mapping[str, str] | None = None, shell: str = "", cwd: Path | None = None
) -> Born:
    """Run the job to its good end; what its rank 0 was born with.

    `env` is added to the submitter's environment, `shell` is what the submitter's shell did before, in `cwd`.
    """
    for old in supd.folder.glob("*-*.json"):
        old.unlink()
    before = ["/bin/sh", "-c", f'{shell}; exec "$@"', "sh"] if shell else []
    done = subprocess.run(
        [*before, str(BIN / "supctl"), "start", str(job), "--follow", "--quiet"],
        env={**supd.env, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd or supd.folder,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")
    return report(supd)


def report(supd: Supd, rank: int = 0, generation: int = 0) -> Born:
    """What one rank of a job that has run was born with."""
    return Born(supd.folder / f"{generation}-{rank}.json")
