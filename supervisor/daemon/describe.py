"""Everything about one run, or one of its ranks, for `supctl describe`.

What a rank was started with is computed as its runner computed it. Secrets are masked before anything is filled in,
so that they are not in arguments either: their values never leave supd. What only the runner knew (the device, the
threads, the heartbeat page) is read from the rank's process, where it is there and still has that environment.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from protocol import ranks
from protocol.coordinator_events import Seat
from protocol.effective import MASK, effective, is_secret
from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.job import Job
from protocol.messages.control import Describe, Description, LogSelection, RunStatus
from supervisor.daemon import logs_service
from supervisor.daemon.jobs import Jobs, Run
from supervisor.daemon.slow_disk import ask
from supervisor.logs.segments import stream_path
from supervisor.shell.devices import count_cpus
from supervisor.shell.files import read_small

ENVIRON_MAX_BYTES = 8 * 1024 * 1024

Variables = tuple[tuple[str, str, str], ...]


async def describe(jobs: Jobs, request: Describe) -> Description:
    """The answer to `request`. Raises Refused where there is no such run or rank, or its files do not answer."""
    run = jobs.find(request.run)
    about = _describe_job(run.job, jobs.status(run, with_ranks=request.rank is not None))
    if request.rank is None:
        return about
    return await _describe_rank(about, run, request.rank, jobs.logs_dir(run), with_all=request.with_env)


def _describe_job(job: Job, status: RunStatus) -> Description:
    submitter = job.submitter
    return Description(
        status=status,
        source=os.path.join(submitter.folder, os.path.basename(submitter.source)),
        settings=effective(job.spec, folder=submitter.folder, python=submitter.python, limits=submitter.limits),
        command=(*ranks.program(job.spec, submitter.folder, submitter.python), *job.spec.run.args),
        cwd=ranks.working_folder(submitter.folder, job.spec.run.workdir),
        limits=submitter.limits | job.spec.run.limits,
    )


def _seat_of(run: Run, rank: int) -> Seat:
    """The seat that holds a rank of the newest generation."""
    size = 0
    for seat in run.machine.seats.values():
        first, size = seat.assignment.first_rank, seat.assignment.world_size
        if first <= rank < first + seat.assignment.nproc:
            return seat
    known = f"it has ranks 0-{size - 1}" if size else "its ranks are not known yet"
    name = run.job.run
    raise Refused("F109", f"no rank {rank} in {name}: {known}", hint=f"supctl ps {name}", exit_code=ExitCode.NOT_FOUND)


async def _describe_rank(about: Description, run: Run, rank: int, logs_dir: Path, *, with_all: bool) -> Description:
    seat, pid = _seat_of(run, rank), _pid_of(about.status, rank)
    job, daemon_env = _masked(run.job), _masked_env(os.environb, run.job.spec.run.secret_env)
    base = ranks.inherited(job, daemon_env)
    env_file = await ask(job.submitter.folder, _env_file, job)
    cpus, _ = await ask("/sys/fs/cgroup", count_cpus)
    environ = await ask(f"/proc/{pid}", _environ_of, pid, seat.incarnation)
    files = await ask(logs_dir, logs_service.paths, logs_dir, LogSelection(ranks=(rank,)))
    place = ranks.Place(
        node=seat.node,
        local_rank=rank - seat.assignment.first_rank,
        incarnation=seat.incarnation,
        error_file=str(stream_path(logs_dir, seat.assignment.generation, rank, "error.json")),
        cpus=cpus,
    )
    command = ranks.command(job, seat.assignment, place, base, env_file)
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
    return replace(
        about,
        command=tuple(map(_text, command.argv)),
        cwd=_text(command.cwd),
        env=tuple(variable for variable in variables if with_all or variable[2] == "supd"),
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


def _pid_of(status: RunStatus, rank: int) -> int | None:
    return next((r.pid for r in status.rank_list if r.rank == rank and r.ended_wall_s is None), None)


def _environ_of(pid: int | None, incarnation: str) -> ranks.Environment:
    """What this rank's process was executed with; empty where it is not there, or has written over it."""
    content = b"" if pid is None else read_small(Path(f"/proc/{pid}/environ"), ENVIRON_MAX_BYTES) or b""
    found = {name: value for name, equals, value in (v.partition(b"=") for v in content.split(b"\0")) if equals}
    return found if found.get(b"SUPD_RUNNER") == incarnation.encode() else {}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
