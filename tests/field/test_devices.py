"""Cases H79 to H82 of the field reports: accelerators, threads, and how many ranks "auto" and "cpu" are.

No GPU is needed: what is looked at are variables, CPUs and quotas.
"""

import os
from pathlib import Path

import pytest

from supervisor.shell.devices import count_ranks
from tests.e2e.fleet import Fleet
from tests.e2e.places import with_cpu_quota
from tests.e2e.supd import Supd, running_supd
from tests.e2e.surroundings import SCRIPT, Born, report
from tests.field.watching import events

FOUR_GPUS = "GPU-8932f937,GPU-11111111,MIG-5c89852c,GPU-22222222"


def born_as(
    supd: Supd, nproc: str, *, tables: str = "", run: str = "", env: dict[str, str] | None = None, name: str = "born"
) -> list[Born]:
    """What every rank of a job was born with; `nproc` as it stands in the job file, `env` the submitter's."""
    for old in supd.folder.glob("*-*.json"):
        old.unlink()
    job = supd.job(name, str(SCRIPT), str(supd.folder), run=run, tables=tables)
    job.write_text(job.read_text().replace("nproc_per_node = 2", f"nproc_per_node = {nproc}"))
    done = supd.supctl("start", str(job), "--follow", "--quiet", env=env, check=False)
    assert done.returncode == 0, done.stderr
    return [report(supd, rank) for rank in range(len(supd.ranks(name)))]


def counted(supd: Supd, name: str = "born") -> list[str]:
    """What the events say of how its ranks were counted, without the node's name."""
    return [event["text"].partition(": ")[2] for event in events(supd, name, "ranks.counted")]


@pytest.mark.parametrize("devices", ["GPU-8932f937,GPU-11111111", "3,1"])
def test_entries_of_cuda_visible_devices_are_never_numbers_and_keep_their_order(supd: Supd, devices: str) -> None:
    """H79. They may be counted: with an automatic process count there are two ranks."""
    env = {"CUDA_VISIBLE_DEVICES": devices}
    for nproc, count in (('"auto"', 2), ('"gpu"', 2), ("1", 1)):
        ranks = born_as(supd, nproc, env=env)
        assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in ranks] == [devices] * count
        assert [rank.env["LOCAL_RANK"] for rank in ranks] == [str(rank) for rank in range(count)]
        how = f"2 ranks by nproc_per_node = {nproc}: 2 in CUDA_VISIBLE_DEVICES={devices}"
        assert counted(supd) == ([] if nproc == "1" else [how])
    ranks = born_as(supd, '"auto"', env=env, tables='[devices]\nvisibility = "virtual"\n')
    assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in ranks] == devices.split(",")


@pytest.mark.parametrize("devices", ["GPU-8932f937,GPU-11111111", "3,1"])
def test_jobs_that_share_a_node_get_entries_of_the_one_that_supd_was_started_with(
    short_dir: Path, devices: str
) -> None:
    """H79. By their names and in their order: each job has its own; one for the whole node has them all."""
    with running_supd(short_dir, env={"CUDA_VISIBLE_DEVICES": devices}) as supd:
        runs = [supd.start_job(supd.job(name, "sleeper.py", nproc=1)) for name in ("first", "second")]
        seen = []
        for run in runs:
            supd.wait_state(run, "running")
            (rank,) = supd.ranks(run)
            variables = os.fsdecode(Path(f"/proc/{rank['pid']}/environ").read_bytes()).split("\0")
            seen += [line.partition("=")[2] for line in variables if line.startswith("CUDA_VISIBLE_DEVICES=")]
        assert seen == devices.split(",")
        supd.supctl("stop", "--all")
        assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in born_as(supd, '"gpu"')] == [devices] * 2
        ranks = born_as(supd, "2", tables='[devices]\nvisibility = "virtual"\n')
        assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in ranks] == devices.split(",")


def test_devices_that_the_job_file_sets_are_those_that_count(supd: Supd) -> None:
    """H79."""
    ranks = born_as(supd, '"auto"', run='env = { CUDA_VISIBLE_DEVICES = "GPU-b,GPU-a,GPU-c" }')
    assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in ranks] == ["GPU-b,GPU-a,GPU-c"] * 3


def test_more_ranks_than_gpus_run_since_that_may_be_meant_and_it_is_told(supd: Supd) -> None:
    """H79: with a device for each rank they cannot, and nothing of them is spawned."""
    ranks = born_as(supd, "6", env={"CUDA_VISIBLE_DEVICES": FOUR_GPUS})
    assert len(ranks) == 6
    assert counted(supd) == ["the job wants 6 ranks a node, and there are 4 GPUs"]
    job = supd.job("virtual", "sleeper.py", tables='[devices]\nvisibility = "virtual"\n', nproc=6)
    done = supd.supctl("start", str(job), env={"CUDA_VISIBLE_DEVICES": FOUR_GPUS}, check=False)
    assert done.returncode == 78
    assert "error[J405]: each of 6 ranks is to see a device of its own, and there are 4: " in done.stderr
    assert "virtual" not in {run["job"] for run in supd.json("status")["runs"]}


def test_omp_num_threads_is_the_users_wherever_it_is_set_and_else_torchruns_default(supd: Supd) -> None:
    """H80. The job file wins over the shell, as everywhere; what was set is shown by `describe`."""
    supd.env.pop("OMP_NUM_THREADS", None)
    seven, file = {"OMP_NUM_THREADS": "7"}, 'env = { OMP_NUM_THREADS = "5" }'
    Path(supd.folder, "vars").write_text("OMP_NUM_THREADS=6\n")
    table = "[devices]\nomp_num_threads = 4\n"
    for nproc, env, run, tables, expected in (
        ("1", {}, "", "", None),
        ("2", {}, "", "", "1"),
        ("1", seven, "", "", "7"),
        ("2", seven, "", "", "7"),
        ("2", seven, file, "", "5"),
        ("2", {}, file, "", "5"),
        ("2", seven, "env_file = 'vars'", "", "6"),
        ("2", seven, "", table, "4"),
        ("2", seven, file, table, "5"),
    ):
        ranks = born_as(supd, nproc, env=env, run=run, tables=tables)
        seen = {rank.env.get("OMP_NUM_THREADS") for rank in ranks}
        assert seen == {expected}, (nproc, env, run, tables)


@pytest.mark.parametrize(
    ("env", "run", "expected"),
    [({}, "", "1"), ({"OMP_NUM_THREADS": "7"}, "", "7"), ({}, 'env = { OMP_NUM_THREADS = "5" }', "5")],
)
def test_omp_num_threads_is_the_same_on_every_node(
    short_dir: Path, env: dict[str, str], run: str, expected: str
) -> None:
    """H80: a user's value is not lost on other nodes, whatever the supd there was started with."""
    fleet = Fleet(short_dir, 2)
    fleet["a"].env.pop("OMP_NUM_THREADS", None)
    fleet["b"].env["OMP_NUM_THREADS"] = "3"
    try:
        fleet.start()
        job = fleet.host.job("born", str(SCRIPT), str(fleet.host.folder), run=run, tables="nnodes = 2\n")
        fleet.host.supctl("start", str(job), "--follow", "--quiet", env=env)
        born = [report(fleet.host, rank).env for rank in range(4)]
        assert [(one["SUPD_NODE"], one["OMP_NUM_THREADS"]) for one in born] == [(n, expected) for n in "aabb"]
    finally:
        fleet.close()


def test_nproc_cpu_counts_the_cpus_of_supds_affinity(short_dir: Path) -> None:
    """H81, with one CPU for the report's two: there may be no more here."""
    cpu = min(os.sched_getaffinity(0))
    with running_supd(short_dir, argv=("taskset", "--cpu-list", str(cpu))) as supd:
        assert len(born_as(supd, '"cpu"', env={"OMP_NUM_THREADS": "64"})) == 1
        assert counted(supd) == ['1 rank by nproc_per_node = "cpu": 1 CPU by affinity']


def test_nproc_cpu_and_automatic_threads_honour_the_quota_of_a_cgroup(short_dir: Path) -> None:
    """H81, with one and a half CPUs for the report's two."""
    here = len(os.sched_getaffinity(0))
    with with_cpu_quota(1.5) as argv, running_supd(short_dir, argv=argv) as supd:
        assert len(born_as(supd, '"cpu"')) == 1
        how = f"1.5 CPUs by the cgroup's quota, {here} by affinity" if here > 1 else "1 CPU by affinity"
        assert counted(supd) == [f'1 rank by nproc_per_node = "cpu": {how}']
        (rank,) = born_as(supd, "1", tables='[devices]\nomp_num_threads = "auto"\n')
        assert rank.env["OMP_NUM_THREADS"] == "1"


def test_nproc_cpu_is_what_affinity_says_and_not_omp_with_an_affinity_call_that_answers_10(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H82. Ten CPUs are stood in for by the call that counts them."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(10)))
    monkeypatch.setattr("supervisor.shell.devices.cpu_quota", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert count_ranks("cpu", {"OMP_NUM_THREADS": "1"}) == (10, "10 CPUs by affinity")
