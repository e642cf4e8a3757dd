"""What the environment of a Slurm step says of its nodes, so that `srun suprun train.py` needs no rendezvous option.

Only the environment is read: inside a container there may be no `scontrol`. A batch script itself is no step: what it
starts without srun runs on its first node only.
"""

import re
import zlib
from collections.abc import Mapping, Sequence

import msgspec

from supervisor.suprun.hostlist import NotAHostlist, expand
from supervisor.suprun.line import BAD_STEP, SEVERAL_TASKS, refused, split_line, suprun_line

PORT_FIRST, PORT_COUNT = 20_000, 9400
"""Ports of endpoints: below those that supd and torchrun have by themselves (29400 and above), and below the ports that
Linux gives to whoever asks for any (`net.ipv4.ip_local_port_range`)."""

GRACE_S = 25.0
"""From SIGTERM to SIGKILL, in a step. Slurm kills everything KillWait after its own SIGTERM, 30 s by default; by then
nothing may be left, and whoever is killed cannot tidy up."""

AGAIN_CODE = 75
"""A rank of a step that ends with it has saved, and wants to go on in another start of the job. It is EX_TEMPFAIL of
sysexits.h, and what supd has for runs that were preempted."""

_TASKS = re.compile(r"([0-9]{1,6})(?:\(x[0-9]{1,6}\))?(?:,|$)")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a Slurm job, seen from one of its nodes."""

    job_id: str
    step_id: str
    nodes: tuple[str, ...]  # in Slurm's order
    node: str  # this one's name in Slurm
    node_rank: int  # its place among them
    restart_count: int  # how often Slurm has requeued the job

    @property
    def host(self) -> str:
        """The node that coordinates: the first one."""
        return self.nodes[0]

    @property
    def port(self) -> int:
        """Of the endpoint: the same on every node of the step, another for another step."""
        return PORT_FIRST + zlib.crc32(f"{self.job_id}.{self.step_id}".encode()) % PORT_COUNT


def read_step(environ: Mapping[str, str], words: Sequence[str]) -> Step | None:
    """The step that this process is a task of; None outside of one. `words` are suprun's, for the mend.

    Raises Refused where there are several tasks on a node, and where the variables are not Slurm's.
    """
    if not environ.get("SLURM_JOB_ID") or not environ.keys() & {"SLURM_PROCID", "SLURM_LOCALID"}:
        return None
    is_step = "SLURM_STEP_ID" in environ or "SLURM_STEP_TASKS_PER_NODE" in environ
    if not is_step and environ.get("ENVIRONMENT") == "BATCH":
        return None
    _check_tasks(environ, words)
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            nodes = _nodes(name, environ[name])
            break
    else:
        return None
    node, node_rank = _this_node(environ, nodes)
    return Step(
        job_id=environ["SLURM_JOB_ID"],
        step_id=environ.get("SLURM_STEP_ID", "0"),
        nodes=nodes,
        node=node,
        node_rank=node_rank,
        restart_count=_number(environ, "SLURM_RESTART_COUNT"),
    )


def outside(environ: Mapping[str, str], words: Sequence[str]) -> str:
    """What to tell of a suprun that no step started although Slurm gave it several nodes; "" for nothing."""
    nodes = environ.get("SLURM_JOB_NUM_NODES", "")
    if not environ.get("SLURM_JOB_ID") or not re.fullmatch("[0-9]{1,6}", nodes) or int(nodes) < 2:
        return ""
    line = f"srun --ntasks={nodes} --ntasks-per-node=1 {suprun_line(words)}"
    return f"Slurm gave this job {nodes} nodes, and without srun suprun runs on this one only: {line}"


def _check_tasks(environ: Mapping[str, str], words: Sequence[str]) -> None:
    """One suprun a node: it starts the ranks. Raises Refused."""
    name = "SLURM_STEP_TASKS_PER_NODE" if environ.get("SLURM_STEP_TASKS_PER_NODE") else "SLURM_NTASKS_PER_NODE"
    text = environ.get(name, "1")
    counts = [int(count) for count in _TASKS.findall(text)]
    if "".join(match[0] for match in _TASKS.finditer(text)) != text:
        raise refused(BAD_STEP, f"{name} is {text!r}, which is none of Slurm's forms", f"unset {name}")
    if max(counts) <= 1:
        return
    message = (
        f"Slurm starts {max(counts)} suprun on a node ({name}={text}), and each would start all ranks of the node; "
        "suprun is one task a node, and starts the ranks itself"
    )
    line = f"srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {suprun_line(_bare(words))}"
    raise refused(SEVERAL_TASKS, message, line)


def _bare(words: Sequence[str]) -> list[str]:
    """Without what the step tells: a batch script has filled in `$SLURM_NODEID` for its first node only."""
    given, rest = split_line(words)
    idle = ("node_rank", "master_addr", "master_port")
    kept = [found for found in given if found.option.dest not in idle]
    return [*(found.spelling if found.value is None else f"{found.spelling}={found.value}" for found in kept), *rest]


def _nodes(name: str, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except NotAHostlist as exc:
        hint = f"unset {name}, or give --nnodes, --rdzv-backend=c10d and --rdzv-endpoint"
        raise refused(BAD_STEP, f"{name} is {text[:200]!r}, which is no list of nodes: {exc}", hint) from None


def _this_node(environ: Mapping[str, str], nodes: Sequence[str]) -> tuple[str, int]:
    """Its name and place: by its name, which Slurm gives to every task, else by its number."""
    name = environ.get("SLURMD_NODENAME", "")
    if name in nodes:
        return name, nodes.index(name)
    rank = _number(environ, "SLURM_NODEID")
    if name or rank >= len(nodes):
        what = f"SLURMD_NODENAME={name}" if name else f"SLURM_NODEID={rank}"
        message = f"{what} is none of the nodes of this step ({len(nodes)}: {nodes[0]} …)"
        raise refused(BAD_STEP, message, "give --nnodes, --rdzv-backend=c10d and --rdzv-endpoint")
    return nodes[rank], rank


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name) or "0"
    if not re.fullmatch("[0-9]{1,9}", text):
        raise refused(BAD_STEP, f"{name} is {text!r}, and no number", f"unset {name}")
    return int(text)
