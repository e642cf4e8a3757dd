"""Batch scripts of Slurm without a Slurm: what srun would start on every node of a step, started on hosts of a test."""

import shlex

from scripts.hosts.namespaces import Hosts
from tests.e2e.suprun import Launches, Suprun

STAND_INS = """\
srun() { while [[ $1 == -* ]]; do shift; done; printf '%s\\0' "$@" > step; }
scontrol() { printf '%s\\n' NAMES; }
"""
"""In front of a script: the words that srun would hand to every task are in the file `step`."""


def tasks_of(suprun: Launches, hosts: Hosts, script: str, tasks_per_node: int) -> list[Suprun]:
    """A batch script runs on the first host; then one of its tasks on each host."""
    names = list(hosts.of)
    batch = {"ENVIRONMENT": "BATCH", "SLURM_NNODES": str(len(names)), "SLURM_NODEID": "0"}
    batch["SLURM_NODELIST"] = ",".join(names)
    stand_ins = STAND_INS.replace("NAMES", shlex.join(names))
    first = suprun.shell(stand_ins + script, env=batch, argv=hosts.of[names[0]].argv())
    assert first.end() == 0, first.text
    words = (first.folder / "step").read_text().split("\0")[:-1]
    step = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": ",".join(names),
        "SLURM_STEP_TASKS_PER_NODE": f"{tasks_per_node}(x{len(names)})",
    }
    return [
        suprun.shell(
            shlex.join(words), env={**step, "SLURMD_NODENAME": name, "SLURM_NODEID": str(number)}, argv=host.argv()
        )
        for number, (name, host) in enumerate(hosts.of.items())
    ]
