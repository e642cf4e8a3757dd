"""What a rank that has ended says of it in its error file (TORCHELASTIC_ERROR_FILE)."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from protocol.messages.member import RankError
from supervisor.shell.files import read_small

log = structlog.get_logger()

READ_S = 0.5
"""How long the news of a rank's end wait for a slow disk."""

_THREAD = ThreadPoolExecutor(1, "error-file")  # of its own: a disk that hangs keeps nothing else waiting


async def read_error(path: Path, ended_wall_s: float, ran_s: float) -> RankError | None:
    """What it says; None where there is no such file, or it is not understood, or the disk is too slow."""
    try:
        async with asyncio.timeout(READ_S):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(_THREAD, _read, path, ended_wall_s, ran_s)
    except TimeoutError:
        log.warning("error_file_slow", path=str(path), waited_s=READ_S)
        return None


def _read(path: Path, ended_wall_s: float, ran_s: float) -> RankError | None:
    if not os.path.exists(path):  # unlike Path's it raises nothing
        return None  # as a rule, and then nothing is loaded
    from protocol import error_file  # only here

    content = read_small(path, error_file.BYTES_MAX + 1)
    if content is None:
        return None
    try:
        return error_file.read(content, str(path), began_wall_s=ended_wall_s - ran_s, ended_wall_s=ended_wall_s)
    except error_file.NotUnderstood as exc:
        log.warning("error_file_not_understood", path=str(path), reason=str(exc))
        return None
