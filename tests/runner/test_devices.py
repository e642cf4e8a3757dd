"""supervisor/runner/devices.py: which device is whose."""

import pytest

from protocol.errors import Refused
from supervisor.runner.devices import too_few, virtual_device, visible_devices


def test_what_is_visible_stays_as_it_is_named_and_nothing_is_made_up() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, GPU-8932f937,-1,7"}) == ["3", "GPU-8932f937"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_fewer_devices_than_ranks_are_told_of_and_none_are_not() -> None:
    told = [too_few(2, {"CUDA_VISIBLE_DEVICES": devices}) for devices in ("7", "7,8", "")]
    assert told == ["the job wants 2 ranks a node, and there are 1 GPUs", "", ""]


def test_each_rank_gets_one_device_by_its_local_rank() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "7,GPU-ab"}
    assert [virtual_device(rank, environ) for rank in range(2)] == ["7", "GPU-ab"]
    assert virtual_device(0, {"CUDA_VISIBLE_DEVICES": "-1"}) is None
    with pytest.raises(Refused, match=r"rank 2 of this node has no device: 2 visible \(7,GPU-ab\)"):
        virtual_device(2, environ)
