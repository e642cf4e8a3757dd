"""Jobs that run any command, and what they wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.logs.paths import stream_path
from tests.e2e.supd import Supd


def command_job(
    supd: Supd, name: str, command: Sequence[str], *, nproc: int = 1, run: str = "", tables: str = ""
) -> Path:
    """A job file that runs `command`, given word by word; `run` is more lines of [run], `tables` more TOML."""
    path = supd.folder / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\n[run]\ncommand = {json.dumps(list(command))}\n{run}\n'
        f"[topology]\nnproc_per_node = {nproc}\n{tables}"
    )
    return path


def output(supd: Supd, run: str, rank: int = 0, stream: str = "out", generation: int = 0) -> bytes:
    """What a rank has written, from its file."""
    logs_dir = Path(supd.status(run)["logs_dir"])
    return stream_path(logs_dir, generation, rank, stream).read_bytes()


def finished(supd: Supd, path: Path, state: str) -> tuple[Any, list[Any]]:
    """Run a job to its end, which is to be `state`; returns its status and its ranks."""
    run = supd.start_job(path)
    status = supd.wait_state(run, "succeeded", "failed", "stopped")
    assert status["state"] == state, status["reason"]
    return status, supd.ranks(run)
