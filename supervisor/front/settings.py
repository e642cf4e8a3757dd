"""What supd's parts have to know to run inside suprun."""

from pathlib import Path

from protocol.addresses import JoinEntry
from protocol.tables import Found
from protocol.text import host_port, one_line
from supervisor.front.ahead import LOG_LEVEL, Begun
from supervisor.front.submission import RANK_LABEL
from supervisor.shell.config import Config
from supervisor.shell.config_rules import timing_of
from supervisor.shell.paths import host_name
from supervisor.shell.runner_start import Embedded
from supervisor.shell.version import VERSION
from supervisor.suprun.plan import LaunchPlan, Mode

LINGER_S = 60.0

SHOWN_MAX = 200
"""Characters of what a node was told that others are shown."""


def config_of(plan: LaunchPlan, nproc: int, begun: Begun, credential: Path, *, node: str, hosts: bool) -> Config:
    """For this node of the job, which is called `node`; where it `hosts`, others find it at the endpoint."""
    is_alone = plan.mode is Mode.STANDALONE
    endpoint = JoinEntry(plan.host, plan.port, host_port(plan.host, plan.port))
    rank = plan.node_rank if plan.node_rank is not None else plan.step.node_rank if plan.step else None
    return Config(
        found=Found("S", "suprun"),
        node=node,
        labels={} if rank is None else {RANK_LABEL: str(rank)},
        devices=None,
        max_jobs=0,
        control=begun.state / "control.sock",
        peer=("127.0.0.1", 0) if is_alone else ("", plan.port if hosts else 0),
        peer_is_default=False,
        advertise=plan.local_addr or (plan.host if hosts and not is_alone else ""),
        interface="",
        runner_ports=None,
        fleet=fleet_name(plan),
        join=() if is_alone else (endpoint,),
        credential=credential,
        timing=timing_of({}),
        on_isolation="fence",
        state_dir=begun.state,
        logs_dir=begun.logs,
        max_disk_bytes=None,
        min_free_bytes=0,
        min_free_percent=0.0,
        keep_runs=50,
        keep_days=30,
        ready_runners=0,
        orphan_wait_s=plan.join_timeout_s,
        linger_s=LINGER_S,
        cgroup="auto",
        log_level=LOG_LEVEL,
        log_format="text",
        embedded=Embedded(
            tie=begun.tie,
            ahead=begun.ahead,
            hosts=None if is_alone else hosts,
            launch={} if is_alone else _launch(plan, nproc),
        ),
    )


def node_name(plan: LaunchPlan) -> str:
    """This node's: Slurm's, else that of the machine."""
    return plan.node or host_name()


def fleet_name(plan: LaunchPlan) -> str:
    """Of the nodes that belong together: by --rdzv-id."""
    return one_line(f"suprun:{plan.run_id or 'none'}")[:SHOWN_MAX]


def _launch(plan: LaunchPlan, nproc: int) -> dict[str, str]:
    """What all nodes have to be told alike."""
    least, most = plan.nnodes
    told = {
        "--rdzv-id": plan.run_id or "none",
        "--rdzv-backend": "static" if plan.mode is Mode.STATIC else "c10d",
        "--nnodes": str(most) if least == most else f"{least}:{most}",
        "--nproc-per-node": str(nproc),
        "script": plan.program,
        "version": VERSION,
    }
    return {what: one_line(value)[:SHOWN_MAX] for what, value in told.items()}
