"""protocol/job_text.py: a job as a file that is read back as the same job."""

from pathlib import Path

import msgspec
import pytest

from protocol.job import HangTable, JobSpec, LogsTable, RunTable, TopologyTable
from protocol.job_file import read_job
from protocol.job_text import job_text, written_keys

ROOT = Path(__file__).parents[2]


def read_back(spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(read_job(job_text(spec).encode(), "job.toml").spec, origins={})


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "jobs").glob("*.toml")), ids=lambda path: path.name)
def test_a_job_file_that_was_written_anew_says_the_same(path: Path) -> None:
    spec = read_job(path.read_bytes(), "job.toml").spec
    assert read_back(spec) == msgspec.structs.replace(spec, origins={})


def test_only_what_is_not_a_default_is_written() -> None:
    spec = JobSpec(
        name="j",
        run=RunTable(command=("a", 'b"\n'), env={"A B": "x\U000d8000", "C": ""}, limits={"nofile": -1}),
        topology=TopologyTable(nnodes=(2, 4), nodes=("n-*",)),
        hang=HangTable(step_timeout_s=90.0, phases={"eval": None, "checkpoint": 1800.0}),
        logs=LogsTable(max_file_bytes=65536, timestamps=True),
    )
    assert [*written_keys(spec)] == [
        "run.command",
        "run.env",
        "run.limits",
        "topology.nnodes",
        "topology.nodes",
        "hang.step_timeout",
        "hang.phases",
        "logs.max_file",
        "logs.timestamps",
    ]
    assert read_back(spec) == spec


def test_a_comment_stands_behind_its_key_on_one_line_also_where_the_value_is_the_default() -> None:
    text = job_text(JobSpec(name="j", run=RunTable(script="a.py")), {"restart.max_restarts": "a\nb"})
    assert text == 'name = "j"\n\n[run]\nscript = "a.py"\n\n[restart]\nmax_restarts = 10                   # a b\n'
