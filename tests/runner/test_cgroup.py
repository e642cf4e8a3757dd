import subprocess
import sys

import pytest

from supervisor.shell import cgroup
from tests.runner.processes import AS_NOBODY, IS_ROOT

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/my\\040cgroup rw,relatime - cgroup2 cgroup2 rw
"""


def test_mounts_are_found_in_a_hybrid_system_whatever_stands_around_them() -> None:
    memory, cpu, unified = cgroup.parse_mounts(HYBRID)
    assert (memory.point, memory.root, memory.is_v2) == ("/sys/fs/cgroup/memory", "/docker/ab", False)
    assert {"cpu", "cpuacct"} <= cpu.controllers
    assert (unified.point, unified.is_v2) == ("/sys/fs/my cgroup", True)


def test_a_group_is_found_below_a_mount_of_a_part_only_if_it_is_in_that_part() -> None:
    memory = cgroup.parse_mounts(HYBRID)[0]
    assert memory.folder("/docker/ab") == "/sys/fs/cgroup/memory"
    assert memory.folder("/docker/ab/job") == "/sys/fs/cgroup/memory/job"
    assert memory.folder("/docker/abc") is None
    assert memory.folder("/") is None


def test_a_group_outside_of_our_namespace_is_nowhere() -> None:
    whole = cgroup.parse_mounts(HYBRID)[2]
    assert whole.folder("/") == "/sys/fs/my cgroup"
    assert whole.folder("/a/b") == "/sys/fs/my cgroup/a/b"
    assert whole.folder("/../other") is None


def test_memberships_tell_the_path_for_each_controller_and_for_cgroup2() -> None:
    text = "4:memory:/a:b\n3:cpu,cpuacct:/c\n1:name=systemd:/d\n0::/e\n"
    assert cgroup.parse_memberships(text) == {
        "memory": "/a:b",
        "cpu": "/c",
        "cpuacct": "/c",
        "name=systemd": "/d",
        "": "/e",
    }


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_a_process_joins_a_runners_group_and_leaves_it_and_the_group_is_removed(group: str | None) -> None:
    assert group is not None
    program = "import os, sys; from supervisor.shell import cgroup as c; p = sys.argv[1]; me = os.getpid()"
    checks = "assert c.join(p); assert c.members(p) == [me]; assert not c.remove_cgroup(p); assert c.leave(p)"
    checks += "; assert c.members(p) == []; assert c.remove_cgroup(p); assert c.remove_cgroup(p)"
    subprocess.run([sys.executable, "-c", f"{program}; {checks}", group], check=True, timeout=15)


def test_an_ordinary_user_goes_without_a_group(incarnation: str) -> None:
    program = "import sys; from supervisor.shell import cgroup; print(cgroup.make_runner_cgroup(sys.argv[1]))"
    argv = [*AS_NOBODY, sys.executable, "-c", program, incarnation]
    assert subprocess.run(argv, capture_output=True, check=True, timeout=15).stdout == b"None\n"


def test_what_is_not_there_is_no_error() -> None:
    assert cgroup.members("/no/such/group") == []
    assert not cgroup.join("/no/such/group")
    assert not cgroup.kill_members("/no/such/group")
    assert cgroup.remove_cgroup("/no/such/group")
