"""What is said of a SIGKILL: out of memory only where the kernel's counters show it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.shell import cgroup
from tests.e2e.jobs import finished
from tests.e2e.supd import Supd, wait_for

NEVER = '[restart]\npolicy = "never"\n'
LIMIT_MIB = 32


@pytest.fixture
def small_group(short_dir: Path) -> Iterator[str]:
    """The folder of a memory cgroup of 32 MiB, v1 or v2."""
    mounts = cgroup.parse_mounts(cgroup.read_text("/proc/self/mountinfo"))
    v1 = next((m for m in mounts if "memory" in m.controllers), None)
    mount = v1 or next((m for m in mounts if m.is_v2), None)
    if os.getuid() != 0 or mount is None:
        pytest.skip("a memory cgroup takes root")
    folder = Path(mount.point, short_dir.name)
    folder.mkdir()
    Path(folder, "memory.limit_in_bytes" if v1 else "memory.max").write_text(str(LIMIT_MIB << 20))
    yield str(folder)
    wait_for("the cgroup to be empty", lambda: cgroup.remove_cgroup(str(folder)))


def test_a_rank_that_its_memory_cgroup_has_killed_is_out_of_memory_with_the_evidence(
    small_group: str, supd: Supd
) -> None:
    status, ranks = finished(supd, supd.job("hog", "hog.py", small_group, tables=NEVER), "failed")
    incident = status["incident"]
    assert (incident["cause"], incident["rank"], incident["signal"]) == ("out-of-memory", 0, "SIGKILL")
    name = os.path.basename(small_group)
    assert incident["evidence"] == f"cgroup /{name}: oom_kill 0 -> 1, limit {LIMIT_MIB} MiB"
    assert "killed by SIGKILL, out of memory" in incident["summary"]
    assert (ranks[0]["shell_code"], ranks[0]["signal"]) == (137, "SIGKILL")
    assert ranks[1]["stopped_by_supervisor"]


def test_a_kill_from_outside_is_a_sigkill_whose_sender_nobody_knows(supd: Supd) -> None:
    run = supd.start_job(supd.job("victim", "sleeper.py", tables=NEVER))
    supd.wait_state(run, "running")
    os.kill(supd.ranks(run)[1]["pid"], signal.SIGKILL)
    incident = supd.wait_state(run, "failed")["incident"]
    assert (incident["cause"], incident["rank"], incident["evidence"]) == ("signal", 1, None)
    assert incident["summary"].endswith("killed by SIGKILL, sender unknown")
