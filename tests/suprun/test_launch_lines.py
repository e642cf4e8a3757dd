"""Launch lines as bash hands them on: those that torchrun takes are a plan, the others end with the line that works."""

import os
import re
import shlex
import subprocess

import pytest

from supervisor.suprun.conversion import convert
from supervisor.suprun.line import read_line
from supervisor.suprun.plan import LaunchPlan, Mode, plan_of
from tests.suprun.build import refusal, step
from tests.suprun.launch_lines import ELASTIC, INLINE, SINGLE_NODE, SLURM, STATIC

LIMIT_S = 60.0
STAND_INS = """
torchrun() { printf '%s\\0' "$@"; }
suprun() { torchrun "$@"; }
srun() { while [[ $1 == -* ]]; do shift; done; "$@"; }
scontrol() { printf '%s\\n' gpu-01 gpu-02 gpu-03 gpu-04; }
"""


def words(line: str, **variables: str) -> list[str]:
    """What bash hands to the launcher; where the line ends early, the rest are commands that are not there."""
    environ = {"PATH": os.defpath, **variables}
    command = ["bash", "-c", STAND_INS + line]
    done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S, env=environ)
    return done.stdout.decode().split("\0")[:-1]


def planned(line: str, **variables: str) -> LaunchPlan:
    return plan_of(read_line(words(line, **variables), variables), variables).plan


def test_one_node() -> None:
    p = planned(SINGLE_NODE)
    assert (p.mode, p.nproc_per_node, p.program, p.args) == (Mode.STANDALONE, 8, "train.py", ("--batch-size", "32"))


@pytest.mark.parametrize("rank", range(4))
def test_several_nodes(rank: int) -> None:
    p = planned(STATIC.format(rank=rank))
    assert (p.mode, p.host, p.port, p.node_rank, p.is_host) == (Mode.STATIC, "10.0.0.1", 29500, rank, rank == 0)
    assert (p.nnodes, p.nproc_per_node, p.program) == ((4, 4), 8, "train.py")


@pytest.mark.parametrize("rank", range(4))
def test_a_step_of_slurm_with_one_task_a_node(rank: int) -> None:
    environ = step(SLURM_NNODES="4", SLURM_NODEID=str(rank), SLURMD_NODENAME=f"gpu-0{rank + 1}", SLURM_NODELIST="x")
    p = planned(SLURM, **environ)
    assert (p.mode, p.host, p.port, p.node_rank, p.nnodes) == (Mode.STATIC, "gpu-01", 29500, rank, (4, 4))
    bare = planned("srun suprun --nproc_per_node=8 train.py", **environ)
    assert (bare.mode, bare.host, bare.node_rank, bare.nnodes) == (Mode.STATIC, "gpu-01", rank, (4, 4))


def test_a_step_of_slurm_with_eight_tasks_a_node_ends_with_the_line_that_works() -> None:
    environ = step(SLURM_NNODES="4", SLURM_STEP_TASKS_PER_NODE="8(x4)")
    code, message, mend = refusal(words(SLURM, **environ), environ)
    assert (code, "each would start all ranks of the node" in message) == ("C025", True)
    assert mend == "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 suprun --nproc_per_node=8 --nnodes=4 train.py"
    for rank in range(4):
        fine = step(SLURM_NODEID=str(rank), SLURMD_NODENAME=f"gpu-0{rank + 1}")
        p = plan_of(read_line(words(mend, **fine), fine), fine).plan
        assert (p.mode, p.host, p.node_rank, p.nnodes) == (Mode.STATIC, "gpu-01", rank, (4, 4))


def test_an_elastic_line_whose_comments_break_it_ends_with_the_one_that_works() -> None:
    """Of which only the shell knows the rest: the commands behind it."""
    assert words(ELASTIC) == ["--nproc_per_node=8", "--nnodes=2:8", " "]
    code, _, mend = refusal(words(ELASTIC))
    assert code == "C027"
    line = mend.partition("there: suprun ")[2].replace("HOST:PORT", "10.0.0.1:29500")
    meant = plan_of(read_line(shlex.split(line), {}), {}).plan
    without_comments = re.sub(r"\\ +#.*", r"\\", ELASTIC)
    assert meant == planned(without_comments)
    assert (meant.mode, meant.host, meant.port, meant.nnodes) == (Mode.ELASTIC, "10.0.0.1", 29500, (2, 8))
    assert 'nnodes = "2:8"' in convert(ELASTIC).text


def test_code_on_the_line_ends_with_the_line_that_runs_it() -> None:
    code, _, mend = refusal(words(INLINE))
    assert code == "C026"
    p = planned(mend)
    assert (p.how, p.program, p.nproc_per_node) == ("command", "python", 8)
    assert words(mend)[-2:] == words(INLINE)[-2:]
