"""protocol/backend.py: what the ranks are told of their backend, and what a node has to have for it."""

import pytest

from protocol.backend import backend_variables, check_backend
from protocol.errors import Refused


def test_ranks_are_told_of_a_backend_that_the_job_names_and_of_no_other() -> None:
    assert backend_variables("auto") == {}
    assert backend_variables("gloo") == {"SUPD_BACKEND": "gloo"}
    assert backend_variables("nccl") == {"SUPD_BACKEND": "nccl"}


@pytest.mark.parametrize(("backend", "gpus"), [("auto", 0), ("gloo", 0), ("nccl", 2), ("nccl", 8)])
def test_what_a_node_can_do_is_not_refused(backend: str, gpus: int) -> None:
    check_backend(backend, 2, gpus, "counted")


@pytest.mark.parametrize(
    ("gpus", "message", "hint"),
    [
        (0, "this node has none: counted", 'run.backend = "gloo"'),
        (1, "each of 2 ranks, and there are 1: counted", "topology.nproc_per_node = 1 or less"),
    ],
)
def test_nccl_wants_a_gpu_of_its_own_for_each_rank(gpus: int, message: str, hint: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        check_backend("nccl", 2, gpus, "counted")
    assert caught.value.code == "F212"
    assert hint in caught.value.hint
