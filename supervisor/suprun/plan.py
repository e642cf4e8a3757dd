"""From a command line to a plan: everything that suprun has to know to run the job on its node. Pure.

What is accepted without effect, or means something else than with torchrun, is a note; what cannot be meant is refused
before anything is started.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from protocol.addresses import is_loopback
from protocol.checks import MAX_DURATION_S
from supervisor.suprun import slurm, values
from supervisor.suprun.line import BAD_BACKEND, BAD_ENDPOINT, BAD_LINE, CONTRADICTION, Line, refused, suprun_line
from supervisor.suprun.options import Flags
from supervisor.suprun.slurm import Step, outside, read_step
from supervisor.suprun.templates import argument

JOIN_TIMEOUT_S = {"static": 900.0, "c10d": 600.0}
LAST_CALL_S = 30.0  # as torchrun has it, where none is given
GRACE_VARIABLE, GRACE_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30.0
PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
MAX_RESTARTS_MAX = 1_000_000
NO_ID = ("", "none")

_NAME = re.compile("[a-z0-9][a-z0-9-]{0,62}")


class Mode(enum.StrEnum):
    """How the nodes of the job find each other."""

    STANDALONE = "standalone"  # there is only this one
    STATIC = "static"  # a fixed number of nodes, each with its place
    ELASTIC = "elastic"  # nodes come and go


class How(enum.StrEnum):
    """What the program is."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A launch, validated.

    A word in `nproc_per_node` has torchrun's sense, which is not the job file's: before the job runs, the number takes
    its place that `supervisor.shell.devices.count_as_torchrun` gives.
    """

    # where
    mode: Mode
    host: str = ""  # of the endpoint: a name or an address without brackets; "" in mode STANDALONE
    port: int = 0  # of the endpoint, the fleet port of the node that coordinates; 0: any that is free
    is_host: bool | None = True  # whether this node coordinates; None: if the endpoint is one of its addresses
    node: str = ""  # this node's name in Slurm; "": that of the machine
    node_rank: int | None = None  # None: given by the fleet
    local_addr: str = ""  # for the other nodes; "": by which this one reaches the endpoint
    nnodes: tuple[int, int] = (1, 1)
    join_timeout_s: float = JOIN_TIMEOUT_S["c10d"]
    last_call_s: float | None = None  # None: none was given
    run_id: str = ""  # as --rdzv-id has it; "": none was given
    is_insecure: bool = False
    step: Step | None = None  # of Slurm
    hides_slurm: bool = False  # from the ranks: its variables
    # what
    name: str  # of the job
    how: How
    program: str
    args: tuple[str, ...] = ()  # as [run] args has them
    env: dict[str, str] = {}  # as [run] env has it
    python: str = ""  # "": the one of the environment that suprun is called in
    nproc_per_node: int | str = 1  # or "gpu", "cpu", "xpu", "auto": accelerators, else CPUs
    role: str = "default"
    is_virtual: bool = False  # each rank sees one device
    numa_binding: str | None = None
    # failures and the end
    max_restarts: int = 0
    grace_s: float = GRACE_S
    signals: tuple[str, ...] = ()  # that end the job gracefully
    # output
    log_dir: str | None = None  # None: nothing is left behind
    redirects: values.Mask = values.Mask()
    tee: values.Mask = values.Mask()
    shown_ranks: tuple[int, ...] = ()  # local ranks on the console; (): all
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()


class Planned(NamedTuple):
    """A plan, and what is to be told of it, one line each."""

    plan: LaunchPlan
    notes: tuple[str, ...]


class _Meeting(NamedTuple):
    """How the nodes find each other."""

    mode: Mode
    host: str
    port: int
    is_host: bool | None
    node_rank: int | None
    nnodes: tuple[int, int]


def plan_of(line: Line, environ: Mapping[str, str]) -> Planned:
    """The plan of a line that names a script. Raises Refused."""
    flags, notes = line.flags, list(_without_effect(line, environ))
    step = read_step(environ, line.words)
    conf, told = values.rendezvous(line.origin("rdzv_conf"), flags.rdzv_conf)
    meeting = _meeting(line, step, conf, notes)
    notes += told
    if step is not None and step.restart_count and step.node_rank == 0:
        notes.append(f"Slurm has requeued job {step.job_id}: this is its start number {step.restart_count + 1}")
    signals, told = values.signals(line.origin("signals_to_handle"), flags.signals_to_handle)
    notes += told
    nproc = values.nproc_per_node(line.origin("nproc_per_node"), flags.nproc_per_node)
    is_static = meeting.mode is Mode.STATIC
    join_timeout_s = (conf.timeout_s if is_static else None) or conf.join_timeout_s
    how = _how(line)
    run_id = "" if flags.rdzv_id in NO_ID or flags.standalone else flags.rdzv_id  # as torchrun has it
    plan = LaunchPlan(
        mode=meeting.mode,
        host=meeting.host,
        port=meeting.port,
        is_host=meeting.is_host,
        node=step.node if step else "",
        node_rank=meeting.node_rank,
        local_addr=values.host(line.origin("local_addr"), flags.local_addr) if flags.local_addr else "",
        nnodes=meeting.nnodes,
        join_timeout_s=join_timeout_s or JOIN_TIMEOUT_S["static" if is_static else "c10d"],
        last_call_s=conf.last_call_s,
        run_id=run_id,
        is_insecure=flags.insecure,
        step=step,
        hides_slurm=flags.hide_slurm,
        name=_job_name(line, run_id, how),
        how=how,
        program=line.script,
        args=tuple(map(argument, line.args)),
        python=environ.get("PYTHON_EXEC", ""),
        nproc_per_node=nproc,
        role=_role(line),
        is_virtual=flags.virtual_local_rank,
        numa_binding=flags.numa_binding,
        max_restarts=_within(line, "max_restarts", flags.max_restarts, MAX_RESTARTS_MAX),
        grace_s=_grace_s(line, environ, step),
        signals=signals,
        log_dir=flags.log_dir or None,
        redirects=values.mask(line.origin("redirects"), flags.redirects),
        tee=values.mask(line.origin("tee"), flags.tee),
        shown_ranks=values.local_ranks(line.origin("local_ranks_filter"), flags.local_ranks_filter),
        stdout_filters=tuple(flags.duplicate_stdout_filters),
        stderr_filters=tuple(flags.duplicate_stderr_filters),
    )
    if (
        step is None
        and plan.mode is Mode.STANDALONE
        and not flags.standalone
        and (told_of := outside(environ, line.words))
    ):
        notes.append(told_of)
    return Planned(plan, (*notes, *_absent_ranks(line, plan)))


# --- nodes -------------------------------------------------------------------------------------------------------


def _meeting(line: Line, step: Step | None, conf: values.Rendezvous, notes: list[str]) -> _Meeting:
    """By the line, else by the step of Slurm. Raises Refused."""
    flags = line.flags
    least, most = values.nnodes(line.origin("nnodes"), flags.nnodes)
    if flags.standalone:
        return _standalone(line, least, notes)
    _check_backend(line)
    if step is not None and not line.is_given("rdzv_endpoint", "master_addr"):
        nodes = len(step.nodes)
        if nodes > 1 or most > 1:
            return _of_step(line, step, conf, (least, most) if line.is_given("nnodes") else (nodes, nodes))
    if flags.rdzv_backend == "static":
        is_bare = not flags.rdzv_endpoint and flags.master_port is None and most == 1
        return _alone() if is_bare else _static(line, step, most, notes, is_range=least < most)
    return _elastic(line, (least, most), conf, notes)


def _alone() -> _Meeting:
    return _Meeting(Mode.STANDALONE, "", 0, True, 0, (1, 1))


def _standalone(line: Line, least: int, notes: list[str]) -> _Meeting:
    if least > 1:
        message = f"{line.origin('standalone')} is one node, and {line.origin('nnodes')} wants {least}"
        hint = "leave --standalone out, and write --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT; or leave --nnodes out"
        raise refused(CONTRADICTION, message, hint)
    idle = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "node_rank", "master_addr", "master_port", "nnodes")
    given = [line.origins[field] for field in idle if line.is_given(field) and not (field == "nnodes" and least == 1)]
    if given:
        notes.append(f"{', '.join(given)}: no effect beside {line.origin('standalone')}")
    return _alone()


def _check_backend(line: Line) -> None:
    """Raises Refused."""
    backend, origin = line.flags.rdzv_backend, line.origin("rdzv_backend")
    if backend in JOIN_TIMEOUT_S:
        return
    if backend.startswith("etcd"):
        message = f"{origin} is {backend}: suprun needs no etcd, and speaks to none; the nodes find each other at one "
        message += "of them, and the job goes on without that one"
    else:
        message = f"{origin} is {backend!r}: there are static and c10d, and suprun takes no plugins of torchrun"
    hint = f"--rdzv-backend=c10d --rdzv-endpoint=NODE:{values.ENDPOINT_PORT}, NODE being one of the nodes of the job"
    raise refused(BAD_BACKEND, message, hint)


def _of_step(line: Line, step: Step, conf: values.Rendezvous, nnodes: tuple[int, int]) -> _Meeting:
    """The nodes of a Slurm step, which need no options. Raises Refused."""
    (least, most), nodes = nnodes, len(step.nodes)
    if not least <= nodes <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        message = f"the step of Slurm has {nodes} nodes, and {line.origin('nnodes')} wants {wanted}"
        raise refused(CONTRADICTION, message, f"leave --nnodes out, or ask for as many: srun --nodes={least}")
    is_static = line.flags.rdzv_backend == "static" and least == most
    rank = line.flags.node_rank if line.is_given("node_rank") else step.node_rank
    given = line.flags.master_port
    port = step.port if given is None else values.port(line.origin("master_port"), given)
    if is_static:
        _check_rank(line, rank, most)
    is_host = rank == 0 if is_static or conf.is_host is None else conf.is_host
    return _Meeting(
        Mode.STATIC if is_static else Mode.ELASTIC, step.host, port, is_host, rank if is_static else None, nnodes
    )


def _static(line: Line, step: Step | None, most: int, notes: list[str], *, is_range: bool) -> _Meeting:
    """Each node has its place. Raises Refused."""
    flags = line.flags
    if flags.rdzv_endpoint:
        origin = line.origin("rdzv_endpoint")
        host, port = values.endpoint(origin, flags.rdzv_endpoint)
        if not port:
            message = f"{origin} {flags.rdzv_endpoint} has no port, which the static rendezvous needs"
            raise refused(
                BAD_ENDPOINT, message, f"{origin} {flags.rdzv_endpoint.partition(':')[0]}:{values.MASTER_PORT}"
            )
    else:
        host = values.host(line.origin("master_addr"), flags.master_addr)
        given = flags.master_port
        port = values.MASTER_PORT if given is None else values.port(line.origin("master_port"), given)
        if given is not None:
            notes.append(
                f"{line.origin('master_port')} {port} is where the nodes meet: MASTER_PORT of the ranks is another"
            )
    rank = flags.node_rank
    _check_rank(line, rank, most)
    if step is not None and step.node_rank > rank == 0 and (host, most) == (step.host, len(step.nodes)):
        rank = step.node_rank  # a batch script fills in $SLURM_NODEID once, on its first node, where it is 0
        if line.is_given("node_rank"):
            notes.append(f"{line.origin('node_rank')} 0 is {step.host}'s place: {step.node} has {rank} in Slurm's step")
    if is_range:
        notes.append(
            f"{line.origin('nnodes')}: a static rendezvous takes all {most} nodes; --rdzv-backend=c10d takes fewer"
        )
    _warn_of_loopback(host, most, notes)
    return _Meeting(Mode.STATIC, host, port, rank == 0, rank, (most, most))


def _check_rank(line: Line, rank: int, nodes: int) -> None:
    """Raises Refused."""
    if not 0 <= rank < nodes:
        message = (
            f"{line.origin('node_rank')} is {rank}, and {line.origin('nnodes')} is {nodes}: places are 0 to {nodes - 1}"
        )
        raise refused(CONTRADICTION, message, f"--nnodes={max(rank, 0) + 1}, or another --node-rank")


def _elastic(line: Line, nnodes: tuple[int, int], conf: values.Rendezvous, notes: list[str]) -> _Meeting:
    """Nodes come and go. Raises Refused."""
    flags, origin = line.flags, line.origin("rdzv_endpoint")
    host, port = "localhost", values.ENDPOINT_PORT
    if flags.rdzv_endpoint.strip():
        found = values.endpoint(origin, flags.rdzv_endpoint)
        host, port = found.host, values.ENDPOINT_PORT if found.port is None else found.port
    idle = [line.origins[f] for f in ("node_rank", "master_addr", "master_port") if line.is_given(f)]
    if idle:
        notes.append(f"{', '.join(idle)}: no effect beside --rdzv-backend=c10d")
    if conf.timeout_s is not None:
        notes.append(
            f"{line.origin('rdzv_conf')} timeout: no effect beside --rdzv-backend=c10d; there it is join_timeout"
        )
    if port == 0:
        if nnodes[1] == 1:
            return _alone()
        message = f"{origin} {flags.rdzv_endpoint} is any free port, which the other nodes would not know"
        raise refused(BAD_ENDPOINT, message, f"{origin} {host}:{values.ENDPOINT_PORT}")
    _warn_of_loopback(host, nnodes[1], notes)
    return _Meeting(Mode.ELASTIC, host, port, conf.is_host, None, nnodes)


def _warn_of_loopback(host: str, most: int, notes: list[str]) -> None:
    if most > 1 and (host == "localhost" or is_loopback(host)):
        notes.append(
            f"{host} is each machine itself: other nodes find nobody there; name an address of one of the nodes"
        )


# --- the rest ----------------------------------------------------------------------------------------------------


def _how(line: Line) -> How:
    """Raises Refused."""
    flags = line.flags
    if flags.run_path:
        return How.SCRIPT
    if flags.module and flags.no_python:
        message = f"{line.origin('no_python')} and {line.origin('module')} exclude each other: a module needs python"
        raise refused(CONTRADICTION, message, suprun_line(["-m", line.script, *line.args]))
    if flags.module and ("/" in line.script or line.script.endswith(".py")):
        options = line.words[: len(line.words) - len(line.args) - 1]
        message = f"{line.origin('module')} takes a module, and {line.script!r} is the name of a file"
        kept = [word for word in options if word != line.origin("module")]
        raise refused(CONTRADICTION, message, suprun_line([*kept, line.script, *line.args]))
    return How.MODULE if flags.module else How.COMMAND if flags.no_python else How.SCRIPT


def _job_name(line: Line, run_id: str, how: How) -> str:
    """--name, else the id, else the program, in the form that a job's name has. Raises Refused."""
    name = line.flags.name
    if line.is_given("name"):
        if not _NAME.fullmatch(name):
            message = f"--name is 1 to 63 of a-z, 0-9 and -, a letter or digit first, not {name!r}"
            raise refused(BAD_LINE, message, f"--name {_as_name(name) or 'my-job'}")
        return name
    last = line.script.rpartition("." if how is How.MODULE else "/")[2].removesuffix(".py")
    return _as_name(run_id) or _as_name(last) or "job"


def _as_name(text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")


def _role(line: Line) -> str:
    """Raises Refused."""
    if not line.flags.role:
        raise refused(BAD_LINE, f"{line.origin('role')} is empty", "leave it out, or --role trainer")
    return line.flags.role


def _grace_s(line: Line, environ: Mapping[str, str], step: Step | None) -> float:
    """Raises Refused."""
    given = line.flags.shutdown_timeout
    if given is not None:
        return float(_within(line, "shutdown_timeout", given, int(MAX_DURATION_S)))
    text = environ.get(GRACE_VARIABLE, f"{GRACE_S if step is None else slurm.GRACE_S:.0f}")
    if not re.fullmatch("[0-9]{1,8}", text) or int(text) > MAX_DURATION_S:
        raise refused(
            BAD_LINE, f"{GRACE_VARIABLE} is {text!r}, and no number of seconds", f"export {GRACE_VARIABLE}=30"
        )
    return float(text)


def _within(line: Line, field: str, number: int, most: int) -> int:
    """Raises Refused."""
    if not 0 <= number <= most:
        raise refused(BAD_LINE, f"{line.origin(field)} is 0 to {most}, not {number}", f"{line.origin(field)} 3")
    return number


def _without_effect(line: Line, environ: Mapping[str, str]) -> Iterator[str]:
    """What is accepted, and does nothing here."""
    reasons = {
        "monitor_interval": "the end of a rank is seen at once",
        "start_method": "ranks are always programs of their own",
        "event_log_handler": "what happens is told on the console",
        "logs_specs": "suprun writes the output itself",
    }
    for field, reason in reasons.items():
        if line.is_given(field) and getattr(line.flags, field) != getattr(Flags(), field):
            yield f"{line.origins[field]}: no effect, {reason}"
    if line.flags.run_path:
        yield f"{line.origin('run_path')}: the script gets an interpreter of its own, as without it"
    if PREFIX_VARIABLE in environ:
        yield f"{PREFIX_VARIABLE}: no effect, lines begin with node and rank"


def _absent_ranks(line: Line, plan: LaunchPlan) -> Iterator[str]:
    """Local ranks that are named, and are not there."""
    if isinstance(plan.nproc_per_node, str):
        return
    named = {"redirects": plan.redirects.ranks, "tee": plan.tee.ranks, "local_ranks_filter": plan.shown_ranks}
    for field, ranks in named.items():
        absent = sorted(rank for rank in ranks if rank >= plan.nproc_per_node)
        if absent:
            there = "rank 0" if plan.nproc_per_node == 1 else f"ranks 0 to {plan.nproc_per_node - 1}"
            yield f"{line.origin(field)}: local rank {absent[0]} is not there, a node has {there}"
