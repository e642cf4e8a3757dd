"""What can be seen to be wrong with a job on this node before anything is started."""

import os
import shutil
from collections.abc import Callable, Iterator

from protocol.errors import JobInvalid, Problem
from protocol.job import JobSpec, Submitter
from protocol.ranks import interpreter


def check_job(spec: JobSpec, submitter: Submitter) -> None:
    """Raises JobInvalid with everything that does not exist here; blocks on the disk.

    Paths with `{…}` or `${…}` are left to the launch, which knows the worker's environment.
    """
    problems = list(_problems(spec, submitter))
    if problems:
        raise JobInvalid(submitter.source, problems)


def _problems(spec: JobSpec, submitter: Submitter) -> Iterator[Problem]:
    run = spec.run
    if run.script:
        yield from _expect(os.path.isfile, "run.script", submitter.folder, run.script, "no such file on this node")
    if run.env_file:
        yield from _expect(os.path.isfile, "run.env_file", submitter.folder, run.env_file, "no such file on this node")
    if run.workdir:
        yield from _expect(os.path.isdir, "run.workdir", submitter.folder, run.workdir, "no such folder on this node")
    if not run.command:
        python = interpreter(spec, submitter.folder, submitter.python)
        search = submitter.env.get(b"PATH", os.defpath.encode())
        if not python or shutil.which(python, path=os.fsdecode(search)) is None:
            yield Problem(
                "J401",
                "run.python",
                python,
                "no such interpreter on this node",
                "name one with run.python, or set PATH",
            )


def _expect(exists: Callable[[str], bool], key: str, folder: str, path: str, message: str) -> Iterator[Problem]:
    if "{" in path:
        return
    full = os.path.join(folder, path)
    if not exists(full):
        yield Problem("J402", key, full, f"`{key}`: {message}", "relative paths start at the job file's folder")
