"""The job files of launch lines, by `supctl init --from` and by `suprun --print-job`: real ones, which start."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.job import JobSpec
from protocol.job_file import read_job
from tests.e2e.supd import Supd, running_supd
from tests.e2e.suprun import launching
from tests.suprun.launch_lines import ELASTIC, INLINE, SINGLE_NODE, SLURM, STATIC

TRAIN = 'import os, sys\nprint("rank", os.environ["RANK"], *sys.argv[1:])\n'
WITHOUT_COMMENTS = re.sub(r"\\ +#.*", r"\\", ELASTIC)
CODE = "suprun --nproc_per_node=8 --no-python python3 -c 'print(\"code\")'"
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "4",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "a,b,c,d",
    "SLURM_STEP_NODELIST": "a,b,c,d",
    "SLURMD_NODENAME": "a",
}
STAND_INS = "srun() { while [[ $1 == -* ]]; do shift; done; \"$@\"; }; scontrol() { printf '%s\\n' a b c d; }\n"

SMALL = ("--set", "topology.nnodes=1", "--set", "topology.nproc_per_node=2")
"""So that one node with two ranks runs it."""

LINES = {
    "one node": (SINGLE_NODE, "rank 1 --batch-size 32"),
    "several nodes": (STATIC.format(rank=2), "rank 1"),
    "Slurm": (SLURM, "rank 1"),
    "elastic": (WITHOUT_COMMENTS, "rank 1"),
    "code with a variable in front": (f"NCCL_DEBUG=INFO {CODE}", "code"),
}


@pytest.fixture(scope="module")
def supd() -> Iterator[Supd]:
    """A running supd."""
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    try:
        with running_supd(folder) as daemon:
            yield daemon
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spec(path: Path) -> JobSpec:
    return read_job(path.read_bytes(), "job.toml").spec


@pytest.mark.parametrize(("line", "output"), LINES.values(), ids=LINES)
def test_the_job_file_of_a_launch_line_is_sound_and_starts(supd: Supd, line: str, output: str) -> None:
    folder = supd.folder
    (folder / "train.py").write_text(TRAIN)
    supd.supctl("init", "job.toml", "--force", "--from", line)
    with launching(folder) as launches:
        printed = launches.shell(
            f"{STAND_INS}{{ {line.replace('torchrun', 'suprun').replace('suprun ', 'suprun --print-job ', 1)}\n}} "
            "> printed.toml",
            env=STEP if "$SLURM" in line else None,
        )
        assert printed.end() == 0, printed.text
    assert spec(folder / "printed.toml").topology.nproc_per_node == 8
    for name in ("job.toml", "printed.toml"):
        supd.supctl("validate", "--strict", name)
        job = supd.supctl("start", name, "--follow", "--set", f"name={name.removesuffix('.toml')}", *SMALL)
        assert output in supd.supctl("logs", name.removesuffix(".toml"), "-r", "1").stdout, job.stdout
    if "$SLURM" not in line:  # of what only the shell knows, init tells
        assert spec(folder / "job.toml").topology == spec(folder / "printed.toml").topology
    assert spec(folder / "job.toml").run.env == ({"NCCL_DEBUG": "INFO"} if "NCCL" in line else {})


@pytest.mark.parametrize("line", [ELASTIC, INLINE], ids=["a comment behind a backslash", "code"])
def test_a_line_that_does_not_work_prints_no_job_but_the_line_that_does(short_dir: Path, line: str) -> None:
    with launching(short_dir) as launches:
        broken = launches.shell(line.replace("torchrun", "suprun --print-job"))
        assert broken.end() != 0
        mend = next(text for text in broken.text.splitlines() if text.startswith("  = ")).partition("suprun ")[2]
        printed = launches.shell(f"suprun {mend.replace('HOST:PORT', '10.0.0.1:29500')}")
        assert printed.end() == 0, printed.text
    assert read_job(printed.text.encode(), "job.toml").spec.topology.nproc_per_node == 8
