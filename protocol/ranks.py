"""From a job, an assignment and a rank to what is executed: command, environment, folder. Pure functions.

The worker's environment follows torchrun's contract (torch 2.13.0, torch.distributed.elastic); what is ours
begins with SUPD_. Layers, later ones win: what is inherited, what supd sets, [run] env_file, [run] env.
"""

import fnmatch
import posixpath
import re
from collections.abc import Mapping

from protocol.backend import backend_variables
from protocol.dataclass import dataclass
from protocol.ids import job_name
from protocol.job import Job, JobSpec, is_reserved
from protocol.messages.member import Assignment

Environment = dict[bytes, bytes]

ENV_FILE_MAX_BYTES = 1024 * 1024

NOT_FROM_SUBMITTER = ("SSH_*", "DISPLAY", "XDG_*", "TERM*", "SUPD_*", "PWD", "OLDPWD")
"""Of the submitter's environment: what belongs to a terminal or a login, or is ours."""

NOT_FROM_DAEMON = ("SUPD_*", "PWD", "OLDPWD")

_QUOTED = re.compile(r"""(['"])((?:(?!\1).)*)\1(?:[ \t]+#.*)?""", re.DOTALL)
_TEMPLATE = re.compile(r"\{\{|\$\$|\{(job|run|gen|node|rank|local_rank)\}|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Place:
    """One rank's place, with what its node adds."""

    node: str
    local_rank: int
    incarnation: str  # of the runner: the marker by which leftovers are found
    error_file: str  # for `@record` of torch.distributed.elastic
    device: str | None = None  # CUDA_VISIBLE_DEVICES of this rank; None: leave it as it is
    cpus: int = 1  # of the node, for `omp_num_threads = "auto"`
    heartbeat: str = ""  # the rank's heartbeat page; "": it has none
    stop_file: str = ""  # where the rank can read of a planned stop; "": nowhere
    package_dir: str = ""  # a folder with nothing but the package `supd` in it; "": there is none


@dataclass(frozen=True)
class Command:
    """What is executed for one rank."""

    argv: tuple[bytes, ...]
    env: Environment
    cwd: bytes
    marker: bytes  # the file that tells the last checkpoint; b"": none
    progress_file: bytes  # the file that tells the step; b"": none


def expand(text: str, names: Mapping[str, str], env: Mapping[bytes, bytes]) -> str:
    """Fill in `{job} {run} {gen} {node} {rank} {local_rank}` and `${NAME}` of a variable that is set.

    Anything else in braces is left as it is; `{{` and `$$` give one. Bytes that are no UTF-8 come as surrogates
    (PEP 383); whoever encodes the result with them gets the same bytes again.
    """

    def fill(match: re.Match[str]) -> str:
        if match[1] is not None:
            return names[match[1]]
        if match[2] is not None:
            value = env.get(match[2].encode())
            return match[0] if value is None else value.decode(errors="surrogateescape")
        return match[0][0]

    return _TEMPLATE.sub(fill, text)


def expand_known(text: str, names: Mapping[str, str], env: Mapping[bytes, bytes]) -> str | None:
    """`text` filled in as `expand` does it; None where it takes more than `names` and `env` to do so."""
    for field, name in _TEMPLATE.findall(text):
        if (field and field not in names) or (name and name.encode() not in env):
            return None
    return expand(text, names, env)


def inherited(job: Job, daemon_env: Mapping[bytes, bytes]) -> Environment:
    """The environment a worker starts from, by [run] inherit_env."""
    wanted = job.spec.run.inherit_env
    if wanted == "none":
        return {}
    source, left_out = (daemon_env, NOT_FROM_DAEMON) if wanted == "daemon" else (job.submitter.env, NOT_FROM_SUBMITTER)
    globs = ("*",) if isinstance(wanted, str) else wanted
    return {n: value for n, value in source.items() if _matches(n, globs) and not _matches(n, left_out)}


def device_environment(job: Job, daemon_env: Mapping[bytes, bytes]) -> dict[str, str]:
    """By which the node's accelerators are counted, before there are ranks: values that are filled in are left out."""
    base = {
        name.decode(errors="surrogateescape"): value.decode(errors="surrogateescape")
        for name, value in inherited(job, daemon_env).items()
    }
    return base | {name: value for name, value in job.spec.run.env.items() if "{" not in value and "$" not in value}


def _matches(name: bytes, globs: tuple[str, ...]) -> bool:
    text = name.decode(errors="surrogateescape")
    return any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def allotted_device(assignment: Assignment, local_rank: int, *, is_virtual: bool) -> str | None:
    """The CUDA_VISIBLE_DEVICES of one rank by the allotment: its own device, or all of its node's ranks, each once.

    None: there is none, or of slots that name no devices.
    """
    own = assignment.devices or ()
    named = tuple(dict.fromkeys(device for device in own if device))
    if not named:
        return None
    return own[local_rank] if is_virtual and local_rank < len(own) else ",".join(named)


@dataclass(frozen=True)
class NoticeCommand:
    """What is executed on a node for [preemption] notice_command."""

    argv: tuple[bytes, ...]
    env: Environment
    cwd: bytes


def notice_command(
    job: Job, node: str, incarnation: str, base: Environment, env_file: Mapping[str, str]
) -> NoticeCommand:
    """In the job's environment and folder, but for what only a rank has: of that nothing is filled in."""
    names, env = _known(job, node, incarnation, base, env_file)
    workdir = expand_known(job.spec.run.workdir, names, env) or ""
    return NoticeCommand(
        argv=tuple(_bytes(word) for word in job.spec.preemption.notice_command),
        env=env,
        cwd=_bytes(working_folder(job.submitter.folder, workdir)),
    )


def known_marker(job: Job, node: str, incarnation: str, base: Environment, env_file: Mapping[str, str]) -> bytes:
    """The file that tells the last checkpoint, before there are ranks; b"": there is none, or its path takes a rank."""
    names, env = _known(job, node, incarnation, base, env_file)
    marker = expand_known(job.spec.checkpoint.marker, names, env)
    return _bytes(posixpath.join(job.submitter.folder, marker)) if marker else b""


def _known(
    job: Job, node: str, incarnation: str, base: Environment, env_file: Mapping[str, str]
) -> tuple[dict[str, str], Environment]:
    """What can be filled in on a node, and the environment, but for what only a rank has."""
    names = {"job": job.spec.name, "run": job.run, "node": node}
    own = {"SUPD_JOB": names["job"], "SUPD_RUN": job.run, "SUPD_NODE": node, "SUPD_RUNNER": incarnation}
    env = {name: value for name, value in base.items() if not is_reserved(name.decode(errors="surrogateescape"))}
    env |= {_bytes(name): _bytes(value) for name, value in {**own, **env_file}.items()}
    filled = {name: expand_known(value, names, env) for name, value in job.spec.run.env.items()}
    env |= {_bytes(name): _bytes(value) for name, value in filled.items() if value is not None}
    return names, env


def command(job: Job, assignment: Assignment, place: Place, base: Environment, env_file: Mapping[str, str]) -> Command:
    """What one rank executes, and where. `base` is what it inherits (`inherited`), the same for all ranks."""
    names = _names(job, assignment, place)
    env = {**base, **_contract(job, assignment, place, base)}
    env |= {_bytes(name): _bytes(value) for name, value in env_file.items()}
    env |= {_bytes(name): _bytes(expand(value, names, env)) for name, value in job.spec.run.env.items()}
    _add_package(env, place.package_dir)
    run = job.spec.run
    marker = expand(job.spec.checkpoint.marker, names, env)
    progress_file = expand(job.spec.progress.file, names, env)
    args = (expand(arg, names, env) for arg in run.args)
    argv = (*program(job.spec, job.submitter.folder, job.submitter.python), *args)
    return Command(
        argv=tuple(_bytes(word) for word in argv),
        env=env,
        cwd=_bytes(working_folder(job.submitter.folder, expand(run.workdir, names, env))),
        marker=_bytes(posixpath.join(job.submitter.folder, marker)) if marker else b"",
        progress_file=_bytes(posixpath.join(job.submitter.folder, progress_file)) if progress_file else b"",
    )


def working_folder(folder: str, workdir: str) -> str:
    """The path of `run.workdir` for a job file in `folder`; `..` stays, since beside links it is no matter of text."""
    return posixpath.join(folder, workdir) if workdir else folder


def _add_package(env: Environment, folder: str) -> None:
    """Let `import supd` find its package, behind everything else that PYTHONPATH names.

    An empty element is the working directory (Python's documentation, PYTHONPATH): none is added. A folder with a
    colon in it can't be named there.
    """
    if folder and ":" not in folder:
        own = env.get(b"PYTHONPATH", b"")
        env[b"PYTHONPATH"] = own + b":" + _bytes(folder) if own else _bytes(folder)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def interpreter(spec: JobSpec, folder: str, submitters: str) -> str:
    """The Python of a script or module: [run] python (a path is relative to the job file), else the submitter's."""
    named = spec.run.python
    return posixpath.join(folder, named) if "/" in named else named or submitters


def program(spec: JobSpec, folder: str, submitters_python: str) -> tuple[str, ...]:
    """What is executed, without its arguments: `folder` is the job file's."""
    if spec.run.command:
        return spec.run.command
    python = interpreter(spec, folder, submitters_python)
    if spec.run.module:
        return (python, "-m", spec.run.module)
    return (python, posixpath.join(folder, spec.run.script))


def _names(job: Job, assignment: Assignment, place: Place) -> dict[str, str]:
    return {
        "job": job.spec.name,
        "run": job.run,
        "gen": str(assignment.generation),
        "node": place.node,
        "rank": str(assignment.first_rank + place.local_rank),
        "local_rank": str(place.local_rank),
    }


def _contract(job: Job, assignment: Assignment, place: Place, base: Mapping[bytes, bytes]) -> Environment:
    """What supd sets: torchrun's variables and ours."""
    spec = job.spec
    rank = assignment.first_rank + place.local_rank
    virtual = spec.devices.visibility == "virtual"
    values: dict[str, str | int] = {
        "RANK": rank,
        "LOCAL_RANK": 0 if virtual else place.local_rank,
        "WORLD_SIZE": assignment.world_size,
        "LOCAL_WORLD_SIZE": assignment.nproc,
        "GROUP_RANK": assignment.node_rank,
        "GROUP_WORLD_SIZE": assignment.nnodes,
        "ROLE_NAME": spec.topology.role,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": assignment.world_size,
        "MASTER_ADDR": assignment.master_addr.strip("[]"),  # which belong to an address with a port
        "MASTER_PORT": assignment.master_port,
        # The generation, equal on all ranks. (torchrun's own value is one agent's count of used restarts.)
        "TORCHELASTIC_RESTART_COUNT": assignment.generation,
        "TORCHELASTIC_MAX_RESTARTS": spec.restart.max_restarts,
        "TORCHELASTIC_RUN_ID": job.run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": place.error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "SUPD_JOB": job_name(job.run),  # type: ignore[arg-type]
        "SUPD_RUN": job.run,
        "SUPD_GENERATION": assignment.generation,
        "SUPD_NODE": place.node,
        "SUPD_RESTART_REASON": assignment.restart_reason,
        "SUPD_RUNNER": place.incarnation,
        **backend_variables(spec.run.backend),
        **job.submitter.contract,
    }
    # Defaults a user's own value wins over.
    defaults = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONUNBUFFERED": "1",  # lines appear when they are printed, and those before a crash are there
        "PYTHONFAULTHANDLER": "1",  # a fatal signal leaves Python's stacks on stderr
    }
    values |= {name: value for name, value in defaults.items() if name.encode() not in base}
    if place.heartbeat:
        values["SUPD_HEARTBEAT"] = place.heartbeat
    if place.stop_file:
        values["SUPD_STOP_FILE"] = place.stop_file
    if assignment.resume_step is not None:
        values["SUPD_RESUME_STEP"] = assignment.resume_step
    omp = spec.devices.omp_num_threads
    if omp == "auto":
        values["OMP_NUM_THREADS"] = max(1, place.cpus // assignment.nproc)
    elif isinstance(omp, int):
        values["OMP_NUM_THREADS"] = omp
    elif not omp and assignment.nproc > 1 and b"OMP_NUM_THREADS" not in base:
        values["OMP_NUM_THREADS"] = 1
    if place.device is not None:
        values["CUDA_VISIBLE_DEVICES"] = place.device
    return {_bytes(name): _bytes(str(value)) for name, value in values.items()}


def parse_env_file(text: str) -> tuple[dict[str, str], list[str]]:
    """The variables of an env file, and what is wrong with it (one line each, with line numbers).

    A line is `NAME=VALUE`, blank, or a `#` comment; `export ` in front and one pair of quotes around the value are
    taken off, and behind such a value a comment, too; nothing is expanded. What supd sets itself cannot be set here.
    Values are not shown in problems: they may be secrets.
    """
    values: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        name, value = name.strip(" \t"), value.strip(" \t")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            problems.append(f"line {number}: not NAME=VALUE")
        elif is_reserved(name):
            problems.append(f"line {number}: supd sets {name} itself for every rank")
        elif "\0" in value:
            problems.append(f"line {number}: {name} contains a NUL")
        elif quoted := _QUOTED.fullmatch(value):
            values[name] = quoted[2]
        elif value[:1] in ("'", '"') and value[0] in value[1:]:
            problems.append(f"line {number}: there is more behind the closing quote of {name}")
        else:
            values[name] = value
    return values, problems
