"""suprun as the tasks of a real Slurm of three nodes: how they meet, which signals reach whom, and what is left."""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.slurm import Slurm, Step, running_slurm, why_no_slurm
from tests.e2e.supd import WORKERS, wait_for
from tests.e2e.suprun import launching, worker
from tests.netns import hosts_in_namespaces, needs_namespaces

pytestmark = needs_namespaces
LAUNCHED = worker("launched")
BATCH = Path(__file__).parents[2] / "conf" / "slurm" / "train.sbatch"
RANKS = {str(rank) for rank in range(6)}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Of nodes a, b and c."""
    if why := why_no_slurm():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    (folder / "slurm").mkdir()
    try:
        with hosts_in_namespaces(folder, 3) as hosts, running_slurm(hosts, folder / "slurm") as slurm:
            yield slurm
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def srun(slurm: Slurm, short_dir: Path) -> Iterator[Step]:
    """Starts a step: of all three nodes, one task on each, unless its options have it otherwise."""
    step = Step(slurm, short_dir)
    try:
        yield step
    finally:
        step.close()


def up(step: Step) -> set[str]:
    """The ranks that have begun."""
    return set(re.findall(r"^up RANK=(\d+) .*WORLD_SIZE=6", step.text, re.MULTILINE))


def test_a_step_needs_no_option_to_meet(srun: Step) -> None:
    srun("suprun", "--nproc-per-node=2", LAUNCHED)
    assert srun.end() == 0, srun.text
    assert up(srun) == RANKS


def test_srun_ends_with_the_code_of_the_rank_that_failed_first(srun: Step) -> None:
    srun("suprun", "--nproc-per-node=2", LAUNCHED, "sleep", "exit:3:44")
    assert srun.end() == 44, srun.text


def test_several_tasks_a_node_end_with_the_line_that_works_in_the_same_job(srun: Step) -> None:
    script = srun.folder / "job.sh"
    script.write_text(
        f"srun suprun --nproc-per-node=2 {LAUNCHED} 2>refusal\n"
        'echo "code $?"\n'
        "eval \"$(grep -om1 'srun --ntasks.*' refusal)\"\n"
    )
    srun("bash", str(script), program="salloc", options=("-N3", "--ntasks-per-node=2"))
    assert srun.end() == 0, srun.text
    assert "code 2\n" in srun.text
    assert "Slurm starts 2 suprun on a node" in (srun.folder / "refusal").read_text()
    assert up(srun) == RANKS


@pytest.mark.parametrize("first", ["SIGUSR1", "SIGTERM"])
def test_the_batch_script_is_run_again_from_what_its_ranks_have_saved(slurm: Slurm, srun: Step, first: str) -> None:
    """conf/slurm/train.sbatch as it is, on three nodes without GPUs. --requeue, --signal, --open-mode are its own."""
    shutil.copy(WORKERS / "goes_on.py", srun.folder / "train.py")
    job = srun.submit("--nodes=3", "--gpus-per-node=0", str(BATCH))
    ranks = {str(rank) for rank in range(24)}
    output = srun.folder / f"slurm-{job}.out"

    def lines(pattern: str) -> Counter[str]:
        return Counter(re.findall(pattern, output.read_text(), re.MULTILINE) if output.exists() else [])

    wait_for("all ranks to be up", lambda: lines(r"^.*up (\d+) start=0").keys() == ranks)
    assert slurm.is_at_work(job)
    if first == "SIGUSR1":  # what --signal does, before the time is over
        slurm.run("scancel", "--signal=USR1", job)
    else:  # by an operator, or for a job that matters more
        slurm.run("scontrol", "requeue", job)

    def is_requeued() -> bool:
        """And nothing of its first start is left: Slurm would take the end of that for the end of the second one."""
        if slurm.is_at_work(job):
            return False
        is_idle = slurm.run("sinfo", "-h", "-o", "%D", "-t", "idle").strip() == "3"
        return is_idle and slurm.run("squeue", "-h", "-o", "%T", "-j", job).strip() == "PENDING"

    wait_for("the job to be requeued", is_requeued)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm would wait two minutes
    wait_for("all ranks to be done", lambda: lines(r"done (\d+)").keys() == ranks)
    assert lines(r"up (\d+) start=1").keys() == ranks
    counts = {len(re.findall(first, file.read_text())) for file in srun.folder.glob("told-*")}
    assert counts == {1} or not slurm.signals_tasks_alone
    assert "this is its start number 2" in output.read_text()
    wait_for("the job to end", lambda: "JobState=COMPLETED" in slurm.run("scontrol", "show", "job", job))
    assert "Restarts=1 BatchFlag=1 Reboot=0 ExitCode=0:0" in slurm.run("scontrol", "show", "job", job)


def test_a_warning_reaches_every_rank_once(slurm: Slurm, srun: Step) -> None:
    srun("suprun", "--nproc-per-node=2", LAUNCHED, "sleep", "usr1")
    wait_for("all ranks to be up", lambda: up(srun) == RANKS)
    slurm.run("scancel", "--signal=USR1", srun.job)
    wait_for("all ranks to be warned", lambda: set(re.findall(r"warned (\d)", srun.text)) == RANKS)
    slurm.run("scancel", srun.job)
    assert srun.end() == 143, srun.text
    if slurm.signals_tasks_alone:
        assert len(re.findall(r"warned (\d)", srun.text)) == 6
        assert srun.text.count("suprun: SIGUSR1 is passed on: 2 ranks of this node have it") == 3


@pytest.mark.parametrize("how", ["scancel", "scancel of deaf ranks", "SIGKILL to everything"])
def test_scancel_leaves_nothing(slurm: Slurm, srun: Step, how: str) -> None:
    deaf = ["deaf"] if "deaf" in how else []
    srun("suprun", "--nproc-per-node=2", "--shutdown-timeout=2", LAUNCHED, "sleep", "family", *deaf)
    wait_for("all ranks to be up", lambda: up(srun) == RANKS)
    left = srun.footprints()
    assert len([path for path in left if "cgroup" in str(path)]) in (0, 3)
    assert len(left) >= 6, "a folder for the state, and one for the output, on each node"
    if "SIGKILL" in how:
        slurm.run("scancel", "--signal=KILL", f"{srun.job}.0")
    else:
        slurm.run("scancel", srun.job)
    assert srun.end() == (137 if "SIGKILL" in how else 143), srun.text
    wait_for("its processes to end", lambda: not srun.left())
    if "SIGKILL" in how:  # nobody was left to tidy up: the next suprun does
        with launching(srun.folder) as suprun:
            assert suprun("--standalone", "--no-python", "true").end() == 0
    wait_for(f"all of {left} to go", lambda: not any(path.exists() for path in left))
