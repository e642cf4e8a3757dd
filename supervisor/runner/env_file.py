"""The variables of [run] env_file."""

import asyncio
from pathlib import Path

from protocol.job import Job
from protocol.ranks import ENV_FILE_MAX_BYTES, parse_env_file
from supervisor.runner.spawn import SpawnError
from supervisor.shell.files import read_small


async def read_env_file(job: Job) -> dict[str, str]:
    """As they are now. Raises SpawnError where the file cannot be read, or is none."""
    name = job.spec.run.env_file
    if not name:
        return {}
    path = Path(job.submitter.folder, name)
    content = await asyncio.to_thread(read_small, path, ENV_FILE_MAX_BYTES)
    if content is None:
        raise SpawnError(str(path), "cannot be read (run.env_file)")
    values, problems = parse_env_file(content.decode(errors="surrogateescape"))
    if problems:
        raise SpawnError(str(path), "; ".join(problems[:5]))
    return values
