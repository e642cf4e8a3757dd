"""supervisor/suprun/slurm.py: under `srun --ntasks-per-node=1` no rendezvous option is needed."""

import pytest

from supervisor.suprun.job import job_of
from supervisor.suprun.plan import Mode
from supervisor.suprun.slurm import Step, read_step
from tests.suprun.build import plan, planned, refusal, step

NODES = ("gpu-01", "gpu-02", "gpu-03", "gpu-04")


def test_a_task_knows_its_step_its_node_and_the_nodes_of_the_step() -> None:
    expected = Step(job_id="4711", step_id="0", nodes=NODES, node="gpu-02", node_rank=1, restart_count=0)
    assert read_step(step(), []) == expected
    requeued = read_step(step(SLURM_RESTART_COUNT="2"), [])
    assert requeued is not None
    assert requeued.restart_count == 2


def test_the_endpoint_is_the_first_node_and_a_port_that_is_the_same_all_over_the_step() -> None:
    ports = set()
    for rank, node in enumerate(NODES):
        of_node = read_step(step(SLURMD_NODENAME=node, SLURM_NODEID=str(rank)), [])
        assert of_node is not None
        assert (of_node.host, of_node.node_rank) == ("gpu-01", rank)
        ports.add(of_node.port)
    assert len(ports) == 1
    others = [read_step(step(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(n)), []) for job in range(40) for n in range(5)]
    of_others = [other.port for other in others if other is not None]
    assert len(set(of_others)) > 190
    assert all(20_000 <= port < 29_400 for port in of_others)


def test_the_line_needs_no_option() -> None:
    p = plan("--nproc-per-node=8 train.py", step())
    assert (p.mode, p.host, p.nnodes, p.node, p.node_rank, p.is_host) == (
        Mode.STATIC, "gpu-01", (4, 4), "gpu-02", 1, False,
    )  # fmt: skip
    first = plan("--nproc-per-node=8 train.py", step(SLURMD_NODENAME="gpu-01", SLURM_NODEID="0"))
    assert (first.is_host, first.port, first.node_rank) == (True, p.port, 0)
    assert planned("train.py", step()).notes == ()


def test_an_elastic_line_takes_the_endpoint_of_the_step_and_its_own_range() -> None:
    p = plan("--nnodes=2:8 train.py", step())
    assert (p.mode, p.host, p.nnodes, p.node_rank, p.is_host) == (Mode.ELASTIC, "gpu-01", (2, 8), None, False)
    assert plan("--rdzv-backend=c10d train.py", step()).mode is Mode.ELASTIC
    assert plan("--rdzv-backend=c10d --rdzv-conf is_host=1 train.py", step()).is_host


def test_what_the_line_gives_wins() -> None:
    line = "--nnodes=4 --node-rank=1 --master-addr=10.0.0.1 --master-port=29500 train.py"
    p = plan(line, step())
    assert (p.mode, p.host, p.port, p.node) == (Mode.STATIC, "10.0.0.1", 29500, "gpu-02")
    assert plan("--master-port=29500 train.py", step()).port == 29500
    assert plan("--standalone train.py", step()).mode is Mode.STANDALONE


@pytest.mark.parametrize("given", ["--node_rank=0 ", ""])
def test_a_place_that_a_batch_script_filled_in_on_its_first_node_is_that_of_the_step(given: str) -> None:
    p, notes = planned(f"--nnodes=4 {given}--master_addr=gpu-01 --master_port=29500 train.py", step())
    assert (p.mode, p.host, p.node_rank, p.is_host) == (Mode.STATIC, "gpu-01", 1, False)
    assert [note for note in notes if "--node_rank" in note] == (
        ["--node_rank 0 is gpu-01's place: gpu-02 has 1 in Slurm's step"] if given else []
    )
    elsewhere = "--nnodes=4 --node_rank=0 --master_addr=gpu-02 --master_port=29500 train.py"
    assert plan(elsewhere, step()).node_rank == 0


def test_a_step_of_one_node_is_alone() -> None:
    one = step(SLURM_STEP_NODELIST="gpu-02", SLURM_STEP_TASKS_PER_NODE="1")
    assert plan("train.py", one).mode is Mode.STANDALONE


def test_a_number_of_nodes_that_is_not_the_steps_is_refused() -> None:
    assert refusal("--nnodes=2 train.py", step()) == (
        "C022",
        "the step of Slurm has 4 nodes, and --nnodes wants 2",
        "leave --nnodes out, or ask for as many: srun --nodes=2",
    )


@pytest.mark.parametrize(
    "environ",
    [
        step(SLURM_STEP_TASKS_PER_NODE="8(x4)"),
        step(SLURM_STEP_TASKS_PER_NODE="1,8(x3)"),
        {"SLURM_JOB_ID": "1", "SLURM_LOCALID": "3", "SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8"},
    ],
)
def test_several_tasks_on_a_node_are_refused_with_the_line_that_works(environ: dict[str, str]) -> None:
    code, message, mend = refusal("--nproc_per_node=8 train.py --lr '1 2'", environ)
    assert (code, message[:36]) == ("C025", "Slurm starts 8 suprun on a node (SLU")
    assert mend == ("srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 suprun --nproc_per_node=8 train.py --lr '1 2'")


def test_a_batch_script_is_no_step() -> None:
    """What it starts without srun is one process on its first node, whatever tasks it asked for."""
    batch = {
        "ENVIRONMENT": "BATCH", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
        "SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_NODELIST": "n[1-4]", "SLURMD_NODENAME": "n1",
    }  # fmt: skip
    assert read_step(batch, []) is None
    assert read_step({"SLURM_JOB_ID": "1", "SLURM_NTASKS_PER_NODE": "8"}, []) is None, "nor is a shell of salloc"
    assert read_step({}, []) is None


def test_a_launch_on_one_of_several_nodes_is_told_of_with_the_line_that_takes_them_all() -> None:
    batch = {"ENVIRONMENT": "BATCH", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_JOB_NUM_NODES": "4"}
    (note,) = planned("train.py", batch).notes
    assert note == (
        "Slurm gave this job 4 nodes, and without srun suprun runs on this one only: "
        "srun --ntasks=4 --ntasks-per-node=1 suprun train.py"
    )
    for line in ("--standalone train.py", "--nnodes=4 --master-addr=n1 --node-rank=1 train.py"):
        assert planned(line, batch).notes == ()
    assert planned("train.py", {**batch, "SLURM_JOB_NUM_NODES": "1"}).notes == ()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (step(SLURM_STEP_NODELIST="gpu-[01"), "SLURM_STEP_NODELIST is 'gpu-[01', which is no list of nodes: "),
        (step(SLURM_STEP_TASKS_PER_NODE="many"), "SLURM_STEP_TASKS_PER_NODE is 'many', which is none of Slurm's forms"),
        (step(SLURM_RESTART_COUNT="x"), "SLURM_RESTART_COUNT is 'x', and no number"),
        (step(SLURMD_NODENAME="cpu-1"), "SLURMD_NODENAME=cpu-1 is none of the nodes of this step (4: gpu-01 …)"),
        (step(SLURMD_NODENAME="", SLURM_NODEID="9"), "SLURM_NODEID=9 is none of the nodes of this step (4: gpu-01 …)"),
    ],
)
def test_variables_that_are_not_slurms_are_one_clear_error(environ: dict[str, str], message: str) -> None:
    code, told, mend = refusal("train.py", environ)
    assert (code, told[: len(message)]) == ("C028", message)
    assert mend


def test_ranks_of_a_step_are_killed_before_slurm_kills_everything() -> None:
    """Slurm's KillWait is 30 s by default."""
    assert plan("train.py", step()).grace_s == 25
    assert plan("train.py").grace_s == 30
    assert plan("train.py", step(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="60")).grace_s == 60
    assert plan("--shutdown-timeout=90 train.py", step()).grace_s == 90


def test_a_rank_of_a_step_that_wants_to_go_on_in_another_start_is_not_restarted() -> None:
    line = "--max-restarts=3 train.py"
    assert job_of(plan(line, step())).restart.never_on_exit == (75,)
    assert job_of(plan(line)).restart.never_on_exit == ()


def test_a_requeued_job_says_so_on_its_first_node() -> None:
    requeued = step(SLURM_RESTART_COUNT="2", SLURMD_NODENAME="gpu-01")
    assert planned("train.py", requeued).notes == ("Slurm has requeued job 4711: this is its start number 3",)
    assert planned("train.py", step(SLURM_RESTART_COUNT="2")).notes == ()
