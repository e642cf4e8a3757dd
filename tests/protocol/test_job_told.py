"""protocol/job_told.py: a job that a runner tells is one that somebody could have started."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from protocol.job import (
    HangTable,
    Job,
    JobSpec,
    LogsTable,
    ProgressTable,
    RestartTable,
    RunTable,
    StopTable,
    TopologyTable,
)
from protocol.job_file import read_job
from protocol.job_schema import SCHEMA
from protocol.job_told import flaw_of, written
from protocol.tables import Found, check_tables
from tests.protocol.build import job_spec, submitted

JOBS = Path(__file__).parents[2] / "conf" / "jobs"

MUCH = b"""
name = "j"
[run]
command = ["sleep", "1"]
args = ["{rank}", "${HOME}"]
env = { A = "b", "odd.name" = "" }
inherit_env = ["PATH"]
limits = { core = "unlimited", nofile = 1024 }
[topology]
nnodes = "2:4"
extra_nodes = "grow"
nproc_per_node = 8
nodes = ["gpu-*"]
node_labels = { rack = "b" }
rank_order = "label:rack"
[rendezvous]
master_port = 29500
join_timeout = "1h30m"
[restart]
max_restarts = -1
backoff = "1500ms"
never_on_exit = [2, 3]
[stop]
pre_signal = "SIGUSR1"
pre_wait = "250ms"
grace = "0s"
finish_timeout = "off"
[progress]
log_pattern = 'step (?P<step>\\d+)'
log_ranks = "0,8-15"
[hang]
init_timeout = "off"
step_timeout = "90s"
phases = { eval = "1500ms", upload = "off" }
[logs]
max_file = "1.5GiB"
keep_files = 2
timestamps = true
"""


def told(**changed: Any) -> Job:
    """The job of run j@1, with these tables or fields instead."""
    return submitted(replace(job_spec(), **changed))


@pytest.mark.parametrize("text", [MUCH, *(path.read_bytes() for path in sorted(JOBS.glob("*.toml")))])
def test_what_was_read_from_a_job_file_can_be_told(text: bytes) -> None:
    spec = read_job(text, "job.toml").spec
    assert flaw_of(replace(submitted(spec), run=f"{spec.name}@12ab")) == ""
    values = check_tables(written(spec), SCHEMA, Found("J"))
    assert msgspec.convert({**values, "origins": spec.origins}, JobSpec) == spec


@pytest.mark.parametrize(
    "job",
    [
        told(topology=TopologyTable(nnodes=(0, -5))),
        told(topology=TopologyTable(nnodes=(3, 2))),
        told(topology=TopologyTable(nproc_per_node=0)),
        told(topology=TopologyTable(nproc_per_node="all")),
        told(topology=TopologyTable(nodes=("a",), nnodes=(2, 2))),
        told(run=RunTable()),
        told(run=RunTable(script="t.py", module="t")),
        told(run=RunTable(script="t.py", env={"RANK": "3"})),
        told(run=RunTable(script="t.py", limits={"fsize": 1})),
        told(restart=RestartTable(backoff_s=float("nan"))),
        told(restart=RestartTable(backoff_max_s=1e308)),
        told(restart=RestartTable(never_on_exit=(3,), always_on_exit=(3,))),
        told(stop=StopTable(grace_s=-1.0)),
        told(stop=StopTable(signal="SIGKILL5")),
        told(progress=ProgressTable(log_pattern="(")),
        told(progress=ProgressTable(log_ranks="one")),
        told(hang=HangTable(action="explode")),
        told(hang=HangTable(phases={"eval": -1.0})),
        told(logs=LogsTable(max_file_bytes=0)),
        told(logs=LogsTable(max_file_bytes=-1)),
        told(logs=LogsTable(keep_files=1)),
        told(logs=LogsTable(keep_generations=-3)),
        told(schema=99),
    ],
)
def test_what_no_job_file_can_say_is_a_flaw(job: Job) -> None:
    assert flaw_of(job)


@pytest.mark.parametrize("run", ["other@12ab", "j", "j@", "j@xyz", "../j@12", "j/k@12", ""])
def test_a_run_has_the_name_of_its_job(run: str) -> None:
    assert flaw_of(replace(told(), run=run)) == "`j` has no run of that name"


@pytest.mark.parametrize(
    "submitter", [{"umask": -1}, {"umask": 0o1000}, {"limits": {"core": -2}}, {"limits": {"cpu": 1}}]
)
def test_a_runner_can_set_the_limits_and_the_umask(submitter: dict[str, Any]) -> None:
    assert flaw_of(submitted(job_spec(), **submitter))
