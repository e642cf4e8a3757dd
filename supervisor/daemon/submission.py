"""A job as a client hands it in: its file read, and looked at on the node where the client is."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from protocol.coordinator_events import RosterNode
from protocol.errors import Problem, Refused
from protocol.job import LIMITS, Job, JobSpec, Submitter
from protocol.job_file import JobFile, read_job
from protocol.messages.control import Start
from protocol.pool import matches
from protocol.ranks import inherited, interpreter, working_folder
from protocol.snippets import Canvas
from supervisor.daemon import slow_disk
from supervisor.daemon.limits import limit_warnings
from supervisor.daemon.preflight import device_problems, findings


class Submission(NamedTuple):
    """What is to be started."""

    file: JobFile
    submitter: Submitter

    @property
    def spec(self) -> JobSpec:
        """The job itself."""
        return self.file.spec


class Finding(NamedTuple):
    """What is seen of it on a node."""

    problems: list[Problem]  # that keep it from running there
    warnings: tuple[str, ...]


async def read(request: Start, user: str) -> Submission:
    """The job of a request by `user`; raises JobInvalid."""
    file = await asyncio.to_thread(  # a large file takes a second, and runners wait for answers meanwhile
        read_job,
        request.job_file,
        request.source,
        settings=request.settings,
        name=request.name,
        args=request.args,
        canvas=Canvas(request.columns, request.is_ascii),
    )
    submitter = Submitter(
        folder=request.folder,
        source=request.source,
        python=request.python,
        env=request.env,
        limits={name: value for name, value in request.limits.items() if name in LIMITS},
        umask=request.umask,
        user=user,
        allow_mixed=request.allow_mixed,
    )
    return Submission(file, submitter)


Look = Callable[[JobSpec], Awaitable[list[Problem]]]


async def look(
    submission: Submission, node: str, labels: Mapping[str, str], look_at_ports: Look | None = None
) -> Finding:
    """What is seen on this node, unless the job cannot run here. Raises Refused where a disk does not answer."""
    spec, submitter = submission.spec, submission.submitter
    here = RosterNode(name=node, is_up=True, labels=labels)
    if not matches(spec.topology, here):
        return Finding([], ())
    problems, warnings = await slow_disk.ask(submitter.folder, findings, spec, submitter, node)
    with contextlib.suppress(Refused):  # a driver that takes its time: the launch has more of it
        problems += await slow_disk.ask("the accelerators' driver", device_problems, spec, submitter)
    if look_at_ports is not None:
        problems += await look_at_ports(spec)
    return Finding(problems, (*limit_warnings(spec, submitter), *warnings))


def notes(submission: Submission) -> tuple[str, ...]:
    """What a user wants to know of a start: which Python, path and folder (never by accident the daemon's)."""
    spec, submitter = submission.spec, submission.submitter
    workdir = working_folder(submitter.folder, spec.run.workdir)
    python = () if spec.run.command else (f"python {interpreter(spec, submitter.folder, submitter.python)}",)
    inherits = inherited(Job(run="", spec=spec, submitter=submitter), {})
    search = spec.run.env.get("PYTHONPATH", inherits.get(b"PYTHONPATH", b"").decode(errors="replace"))
    return (*python, *((f"PYTHONPATH {search}",) if search else ()), f"in {workdir}")
