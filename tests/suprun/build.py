"""Lines of suprun, read and planned."""

import shlex

import pytest

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from supervisor.suprun.line import read_line
from supervisor.suprun.plan import LaunchPlan, Planned, plan_of


def planned(text: str, environ: dict[str, str] | None = None) -> Planned:
    """The plan of a line, and its notes."""
    variables = environ or {}
    return plan_of(read_line(shlex.split(text), variables), variables)


def plan(text: str, environ: dict[str, str] | None = None) -> LaunchPlan:
    """The plan of a line."""
    return planned(text, environ).plan


def refusal(text: str | list[str], environ: dict[str, str] | None = None) -> tuple[str, str, str]:
    """Code, message and mend of a line that is refused, as a command line that is wrong."""
    words = shlex.split(text) if isinstance(text, str) else text
    variables = environ or {}
    with pytest.raises(Refused) as caught:
        plan_of(read_line(words, variables), variables)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in caught.value.hint
    return caught.value.code, str(caught.value), caught.value.hint


def step(**changed: str) -> dict[str, str]:
    """The environment of a task on the second of four nodes."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_JOB_NODELIST": "gpu-[01-06]",
        "SLURM_STEP_NODELIST": "gpu-[01-04]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
        "SLURM_NTASKS_PER_NODE": "8",
        "SLURMD_NODENAME": "gpu-02",
        **changed,
    }
