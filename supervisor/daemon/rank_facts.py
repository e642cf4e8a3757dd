"""What a rank of this node was started with, computed as its runner computed it.

Secrets are masked before anything is filled in, so that they are not in arguments either: their values never leave
supd. What only the runner knew (the device, the threads, the heartbeat page) is read from the rank's process, where it
is there and still has that environment.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from protocol import ranks
from protocol.effective import MASK, is_secret
from protocol.job import Job
from protocol.messages.control import LogSelection
from protocol.messages.fleet import RankFacts
from protocol.messages.member import Assignment
from supervisor.daemon import log_choice
from supervisor.daemon.slow_disk import ask
from supervisor.logs.paths import stream_path
from supervisor.shell.devices import count_cpus
from supervisor.shell.files import read_small

ENVIRON_MAX_BYTES = 8 * 1024 * 1024


async def rank_facts(
    job: Job,
    assignment: Assignment,
    rank: int,
    incarnation: str,
    pid: int | None,
    *,
    node: str,
    logs_dir: Path,
    with_env: bool,
) -> RankFacts:
    """Of a rank that this assignment gives to this node; `pid` is its process's where that lives, `logs_dir` is the
    run's. Without `with_env` only the variables that supd set. Raises Refused where files do not answer."""
    masked, daemon_env = _masked(job), _masked_env(os.environb, job.spec.run.secret_env)
    base = ranks.inherited(masked, daemon_env)
    env_file = await ask(job.submitter.folder, _env_file, job)
    cpus, _ = await ask("/sys/fs/cgroup", count_cpus)
    environ = await ask(f"/proc/{pid}", _environ_of, pid, incarnation)
    files = await ask(logs_dir, log_choice.paths, logs_dir, LogSelection(chooser=str(rank)), node)
    place = ranks.Place(
        node=node,
        local_rank=rank - assignment.first_rank,
        incarnation=incarnation,
        error_file=str(stream_path(logs_dir, assignment.generation, rank, "error.json")),
        cpus=cpus,
    )
    command = ranks.command(masked, assignment, place, base, env_file)
    own = {name.encode() for name in (*job.spec.run.env, *env_file)}
    seen = {
        name: value
        for name, value in environ.items()
        if name not in own and not is_secret(os.fsdecode(name), job.spec.run.secret_env)
    }
    env = command.env | seen

    def origin(name: bytes) -> str:
        if name in own:
            return "job" if os.fsdecode(name) in job.spec.run.env else "env_file"
        return "inherited" if base.get(name) == env[name] else "supd"

    variables = ((_text(name), _text(env[name]), origin(name)) for name in sorted(env))
    return RankFacts(
        command=tuple(map(_text, command.argv)),
        cwd=_text(command.cwd),
        env=tuple(variable for variable in variables if with_env or variable[2] == "supd"),
        files=files,
    )


def _masked(job: Job) -> Job:
    """The job with MASK for the values of all secrets that it holds."""
    globs = job.spec.run.secret_env
    env = {name: MASK if is_secret(name, globs) else value for name, value in job.spec.run.env.items()}
    return replace(
        job,
        spec=replace(job.spec, run=replace(job.spec.run, env=env)),
        submitter=replace(job.submitter, env=_masked_env(job.submitter.env, globs)),
    )


def _masked_env(env: Mapping[bytes, bytes], globs: tuple[str, ...]) -> ranks.Environment:
    return {name: MASK.encode() if is_secret(os.fsdecode(name), globs) else value for name, value in env.items()}


def _env_file(job: Job) -> dict[str, str]:
    """The variables of [run] env_file as it stands now, masked; none where it cannot be read any more."""
    if not job.spec.run.env_file:
        return {}
    content = read_small(Path(job.submitter.folder, job.spec.run.env_file), ranks.ENV_FILE_MAX_BYTES) or b""
    values, _ = ranks.parse_env_file(content.decode(errors="surrogateescape"))
    return {name: MASK if is_secret(name, job.spec.run.secret_env) else value for name, value in values.items()}


def _environ_of(pid: int | None, incarnation: str) -> ranks.Environment:
    """What this rank's process was executed with; empty where it is not there, or has written over it."""
    content = b"" if pid is None else read_small(Path(f"/proc/{pid}/environ"), ENVIRON_MAX_BYTES) or b""
    found = {name: value for name, equals, value in (v.partition(b"=") for v in content.split(b"\0")) if equals}
    return found if found.get(b"SUPD_RUNNER") == incarnation.encode() else {}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
