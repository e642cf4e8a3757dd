"""`[run] backend` on several nodes: told to every rank, and checked on every node before anything starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet

SAYS = 'import os\nprint("backend", os.environ.get("SUPD_BACKEND"))\n'


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """Nodes a and b, of which a says that it has GPUs."""
    fleet = Fleet(short_dir)
    fleet["a"].env["CUDA_VISIBLE_DEVICES"] = "0,1"
    fleet["b"].env["CUDA_VISIBLE_DEVICES"] = ""
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()


def test_every_rank_is_told_the_backend_and_a_node_without_gpus_keeps_nccl_from_starting(fleet: Fleet) -> None:
    (fleet.folder / "says.py").write_text(SAYS)
    job = fleet.folder / "job.toml"
    job.write_text(
        'name = "job"\n[run]\nscript = "says.py"\nbackend = "gloo"\n[topology]\nnnodes = 2\nnproc_per_node = 2\n'
    )
    fleet.host.supctl("start", str(job), "--follow")
    assert fleet.host.supctl("logs", "job", "-r", "all").stdout.count("backend gloo") == 4
    nccl = ("--set", "run.backend=nccl", "--set", "rendezvous.join_timeout=2s")
    refused = fleet.host.supctl("start", str(job), *nccl, check=False)
    assert refused.returncode != 0
    assert 'b: backend = "nccl" needs a GPU for each rank, and this node has none' in refused.stdout + refused.stderr
    alone = fleet.host.supctl(
        "start", str(job), *nccl, "--set", "topology.nnodes=1", "--set", "topology.nproc_per_node=3", check=False
    )
    assert (alone.returncode, "error[J408]" in alone.stderr) == (78, True)
    fleet.host.supctl("start", str(job), "--follow", *nccl, "--set", "topology.nnodes=1")
    assert fleet.host.supctl("logs", "job", "-r", "all").stdout.count("backend nccl") == 2
