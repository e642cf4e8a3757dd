"""What can be seen to be wrong with a job on this node before anything is started, or stopped to make way for it."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from protocol import ranks
from protocol.backend import NCCL, check_backend
from protocol.errors import About, Problem, Refused
from protocol.job import Job, JobSpec, Submitter, is_reserved
from protocol.tables import shown
from protocol.text import one_line
from supervisor.shell.devices import accelerators, count_ranks
from supervisor.shell.files import read_small
from supervisor.shell.open_files import check_open_files
from supervisor.shell.program import NOT_EXECUTABLE, NoProgram, find_program

OWN_PYTHON = "F208"
LINES_MAX = 10
"""Lines of an env file of which something is said."""


def findings(spec: JobSpec, submitter: Submitter, node: str) -> tuple[list[Problem], list[str]]:
    """Everything that cannot work here, on `node`, and what may not be meant; blocks on the disk.

    What names a rank is looked up for rank 0 of the first generation; what is not known yet, like {run}, is left to
    the launch.
    """
    job, run, folder = Job(run="", spec=spec, submitter=submitter), spec.run, submitter.folder
    problems: list[Problem] = []
    if run.script:
        problems += _expect(os.path.isfile, "script", folder, run.script, "no such file on this node")
    variables, flaws = _env_file(os.path.join(folder, run.env_file)) if run.env_file else ({}, [])
    problems += flaws
    names = _names(job, node)
    env = _environment(job, variables, names)
    workdir = ranks.expand_known(run.workdir, names, env)
    if workdir:
        problems += _expect(os.path.isdir, "workdir", folder, workdir, "no such folder on this node")
    place = None if workdir is None else os.path.join(folder, workdir)
    return [*problems, *_program(job, env, place)], _python_warnings(job, env, place)


def device_problems(spec: JobSpec, submitter: Submitter) -> list[Problem]:
    """What ranks take that this node has not: accelerators, whose driver is waited for, and open files.

    Where that does not answer nothing is known, and the launch will tell.
    """
    environ = ranks.device_environment(Job(run="", spec=spec, submitter=submitter), os.environb)
    wanted = spec.topology.nproc_per_node
    try:
        count = wanted if isinstance(wanted, int) else count_ranks(wanted, environ)[0]
        check_open_files(count)
        if spec.run.backend == NCCL:
            devices, how = accelerators(environ)
            check_backend(NCCL, count, len(devices), how)
        if isinstance(wanted, int) and spec.devices.visibility == "virtual":
            devices, how = accelerators(environ)
            if 0 < len(devices) < wanted:
                message = f"each of {wanted} ranks is to see a device of its own, and there are {len(devices)}: {how}"
                raise Refused("F201", message, hint=f'write {len(devices)} or less, or devices.visibility = "all"')
    except Refused as exc:
        if exc.code == "F206":
            return []
        if exc.code == "F212":
            about = About(("run", "backend"))
            return [Problem("J408", "run.backend", shown(NCCL), one_line(str(exc)), exc.hint, about=about)]
        about = About(("topology", "nproc_per_node"))
        code = "J407" if exc.code == "F205" else "J405"
        return [Problem(code, "topology.nproc_per_node", shown(wanted), one_line(str(exc)), exc.hint, about=about)]
    return []


def _python_warnings(job: Job, env: ranks.Environment, workdir: str | None) -> list[str]:
    """Where ranks would run, by no word of the job, in the environment that supd was installed into.

    Only where that has no torch, which is to say that it was made for supd alone.
    """
    run = job.spec.run
    if run.python or sys.prefix == sys.base_prefix or importlib.util.find_spec("torch"):
        return []
    place = _place_of_program(job, env, workdir)
    if place is None or os.path.realpath(os.path.dirname(place)) != os.path.realpath(os.path.join(sys.prefix, "bin")):
        return []
    what = "run.command" if run.command else "python"
    mend = "name the one of yours by its path" if run.command else "name yours with run.python"
    return [f"warning[{OWN_PYTHON}]: {what} is {place}, of supd's own environment, which has no torch: {mend}"]


def _place_of_program(job: Job, env: ranks.Environment, workdir: str | None) -> str | None:
    """Where what is executed is found; None where that is not known, or it is not there."""
    if workdir is None or ("PATH" in job.spec.run.env and b"PATH" not in env):
        return None
    name = ranks.program(job.spec, job.submitter.folder, job.submitter.python)[0]
    try:
        return os.path.join(workdir, os.fsdecode(find_program(os.fsencode(name), _search(env), os.fsencode(workdir))))
    except NoProgram:
        return None


def _expect(exists: Callable[[str], bool], key: str, folder: str, path: str, message: str) -> Iterator[Problem]:
    full = os.path.join(folder, path)
    if not exists(full):
        if os.path.exists(full):
            message = "that is a folder, not a file" if os.path.isdir(full) else "that is a file, not a folder"
        hint = "relative paths start at the job file's folder"
        yield Problem("J402", f"run.{key}", full, f"`run.{key}`: {message}: {full}", hint, about=About(("run", key)))


def _env_file(path: str) -> tuple[dict[str, str], list[Problem]]:
    """Its variables, and what is wrong with it."""
    about = About(("run", "env_file"))
    missing = list(_expect(os.path.isfile, "env_file", "", path, "no such file on this node"))
    if missing:
        return {}, missing
    content = read_small(Path(path), ranks.ENV_FILE_MAX_BYTES)
    if content is None:
        message, hint = f"`run.env_file`: {path} cannot be read", "see its permissions"
        return {}, [Problem("J402", "run.env_file", path, message, hint, about=about)]
    variables, flaws = ranks.parse_env_file(content.decode(errors="surrogateescape"))
    if not flaws:
        return variables, []
    more = len(flaws) - LINES_MAX
    told = "; ".join([*flaws[:LINES_MAX], *([f"and {more} more"] if more > 0 else [])])
    hint = "lines are NAME=VALUE, blank, or comments that begin with #"
    return variables, [Problem("J404", "run.env_file", path, f"`run.env_file`: {path}: {told}", hint, about=about)]


def _program(job: Job, env: ranks.Environment, workdir: str | None) -> Iterator[Problem]:
    """What is executed has to be there, by the PATH of the ranks and from their folder, as far as these are known."""
    name = ranks.program(job.spec, job.submitter.folder, job.submitter.python)[0]
    is_path = "/" in name
    if is_path and workdir is None and not os.path.isabs(name):
        return
    if not is_path and "PATH" in job.spec.run.env and b"PATH" not in env:
        return
    flaw = _flaw_of(os.fsencode(name), _search(env), os.fsencode(workdir or job.submitter.folder))
    if flaw and job.spec.run.command:
        message, about = f"`run.command`: {flaw}", About(("run", "command", 0))
        hint = "name one by its path; what is relative starts at the working directory of the ranks"
        yield Problem("J403", "run.command", name, message, hint, about=about)
    elif flaw:
        is_there = flaw.endswith(NOT_EXECUTABLE)
        message = f"`run.python`: {flaw}" if is_there else f"no such interpreter on this node: {name or 'python3'}"
        hint = "name one with run.python, or set PATH"
        yield Problem("J401", "run.python", name, message, hint, about=About(("run", "python")))


def _search(env: ranks.Environment) -> bytes:
    return env.get(b"PATH", os.fsencode(os.defpath))


def _flaw_of(name: bytes, search: bytes, folder: bytes) -> str:
    """What keeps a program from being executed; "" where nothing is seen."""
    try:
        place = os.path.join(folder, find_program(name, search, folder))
    except NoProgram as exc:
        return one_line(str(exc))
    if not os.path.isfile(place):
        return f"no such program on this node: {os.fsdecode(place)}"
    return "" if os.access(place, os.X_OK) else f"{os.fsdecode(place)}: {NOT_EXECUTABLE}"


def _names(job: Job, node: str) -> dict[str, str]:
    """What is filled in for rank 0 of the first generation, as far as it is known."""
    return {"job": job.spec.name, "gen": "0", "node": node, "rank": "0", "local_rank": "0"}


def _environment(job: Job, env_file: Mapping[str, str], names: Mapping[str, str]) -> ranks.Environment:
    """What is known of the ranks' environment before there are any: not what supd sets, nor what depends on that."""
    inherited = ranks.inherited(job, os.environb)
    env = {name: value for name, value in inherited.items() if not is_reserved(os.fsdecode(name))}
    env |= {os.fsencode(name): os.fsencode(value) for name, value in env_file.items()}
    own = {name: ranks.expand_known(value, names, env) for name, value in job.spec.run.env.items()}
    for name, value in own.items():
        if value is None:
            env.pop(os.fsencode(name), None)
        else:
            env[os.fsencode(name)] = os.fsencode(value)
    return env
