"""Everything about one run, or one of its ranks, for `supctl describe`."""

import os

from msgspec.structs import replace

from protocol import ranks
from protocol.coordinator_events import Seat
from protocol.effective import effective
from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.job import Job
from protocol.messages.control import Describe, Description, RunStatus
from supervisor.daemon.fetch import Fetcher
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.rank_facts import rank_facts
from supervisor.daemon.run import Run


async def describe(jobs: Jobs, fetcher: Fetcher, node: str, request: Describe, client_node: str) -> Description:
    """The answer to `request`, on this node; for `client_node` see `Jobs.status`. Raises Refused where there is no
    such run or rank, or the node with it tells nothing."""
    run = jobs.find(request.run)
    about = _describe_job(run.job, jobs.status(run, with_ranks=request.rank is not None, node=client_node))
    if request.rank is None:
        return about
    seat, pid = _seat_of(run, request.rank), _pid_of(about.status, request.rank)
    if seat.node == node:
        facts = await rank_facts(
            run.job,
            seat.assignment,
            request.rank,
            seat.incarnation,
            pid,
            node=node,
            logs_dir=jobs.logs_dir(run),
            with_env=request.with_env,
        )
    else:
        facts = await fetcher.rank(run.job, seat, request.rank, pid, with_env=request.with_env)
    return replace(about, command=facts.command, cwd=facts.cwd, env=facts.env, files=facts.files)


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


def _pid_of(status: RunStatus, rank: int) -> int | None:
    return next((r.pid for r in status.rank_list if r.rank == rank and r.ended_wall_s is None), None)
