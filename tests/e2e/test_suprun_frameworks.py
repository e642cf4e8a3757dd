"""Frameworks that know torchrun take suprun for it: scripts as their users write them, on two CPUs."""

import importlib.util
import re
import sys

import pytest

from tests.e2e.suprun import Launches, worker

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

pytestmark = pytest.mark.timeout(300)


def framework(module: str, script: str, pattern: str) -> object:
    """A case, which is left out where its framework is not installed."""
    missing = next((name for name in ("torch", module) if importlib.util.find_spec(name) is None), None)
    mark = pytest.mark.skipif(missing is not None, reason=f"could not import {missing!r}")
    return pytest.param(script, pattern, marks=mark, id=module)


@pytest.mark.parametrize(
    ("script", "pattern"),
    [
        framework("accelerate", "with_accelerate", r"accelerate ([01]) of 2, local \1, gloo: 4 steps"),
        framework("lightning_fabric", "with_fabric", r"fabric ([01]) of 2, TorchElasticEnvironment: 4 steps"),
        framework("transformers", "with_trainer", r"trainer ([01]) of 2, local \1, distributed: 4 steps"),
    ],
)
def test_a_script_of_a_framework_trains_on_two_ranks(suprun: Launches, script: str, pattern: str) -> None:
    words = ("--standalone", "--nproc-per-node=2", worker(script), str(suprun.folder / "kept"))
    home = {"HF_HOME": str(suprun.folder / "hf"), "PYTHON_EXEC": sys.executable}
    launch = suprun(*words, env={**OFFLINE, **home})
    assert launch.process.wait(240) == 0, launch.text
    assert sorted(re.findall(pattern, launch.text)) == ["0", "1"], launch.text
