import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.runner.oom import OomWatch
from supervisor.shell import cgroup
from tests.runner.processes import IS_ROOT, WORKERS, read_pids, stray, wait_until

MEMORY = next(
    (m for m in cgroup.parse_mounts(cgroup.read_text("/proc/self/mountinfo")) if "memory" in m.controllers), 0
)
A, B = 101, 102


class FakeTree:
    """A /proc and a cgroup hierarchy made of files, with the processes A and B in /job/ranks."""

    def __init__(self, folder: Path, mountinfo: str, group: str, path: str) -> None:
        self.proc, self.group = folder / "proc", folder / group
        self.group.mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "mountinfo").write_text(mountinfo.replace("ROOT", str(folder)))
        for pid in (A, B):
            (self.proc / str(pid)).mkdir()
            (self.proc / str(pid) / "cgroup").write_text(path)
            self.set_state(pid, "S", 0)

    def set_state(self, pid: int, state: str, flags: int) -> None:
        (self.proc / str(pid) / "stat").write_text(f"{pid} (x) {state} 1 2 3 0 -1 {flags} 0")

    def write(self, name: str, content: str) -> None:
        (self.group / name).write_text(content)

    def watch(self) -> OomWatch:
        return OomWatch(str(self.proc))


@pytest.fixture
def v2(tmp_path: Path) -> FakeTree:
    fake = FakeTree(tmp_path, "30 1 0:9 / ROOT/cg rw - cgroup2 cgroup2 rw\n", "cg/job/ranks", "0::/job/ranks\n")
    fake.write("memory.events.local", "low 0\noom 3\noom_kill 0\noom_group_kill 0\n")
    fake.write("memory.max", "max\n")
    (fake.group.parent / "memory.max").write_text(f"{64 << 20}\n")
    return fake


def test_a_rise_of_the_counter_is_told_with_the_tightest_limit_above(v2: FakeTree) -> None:
    watch = v2.watch()
    watch.look(A)
    v2.write("memory.events.local", "oom 4\noom_kill 1\n")
    assert watch.evidence(A) == "cgroup /job/ranks: oom_kill 0 -> 1, limit 64 MiB"


def test_a_counter_that_did_not_rise_is_no_evidence(v2: FakeTree) -> None:
    v2.write("memory.events.local", "oom_kill 7\n")
    watch = v2.watch()
    watch.look(A)
    assert watch.evidence(A) == ""
    assert watch.evidence(B) == "", "it was never looked at"


def test_each_rise_is_evidence_for_one_death_only(v2: FakeTree) -> None:
    watch = v2.watch()
    watch.look(A)
    watch.look(B)
    v2.write("memory.events.local", "oom_kill 1\n")
    assert watch.evidence(A) != ""
    assert watch.evidence(B) == ""


def test_two_rises_are_evidence_for_two_deaths(v2: FakeTree) -> None:
    watch = v2.watch()
    watch.look(A)
    watch.look(B)
    v2.write("memory.events.local", "oom_kill 2\n")
    assert watch.evidence(A) != ""
    assert watch.evidence(B) != ""


def test_an_old_rise_was_somebody_elses(v2: FakeTree) -> None:
    watch = v2.watch()
    watch.look(A)
    v2.write("memory.events.local", "oom_kill 1\n")
    watch.look_again()
    watch.look_again()
    assert watch.evidence(A) == ""


def test_a_look_between_the_kill_and_the_news_of_it_hides_nothing(v2: FakeTree) -> None:
    watch = v2.watch()
    watch.look(A)
    watch.look_again()
    v2.write("memory.events.local", "oom_kill 1\n")
    watch.look_again()
    assert watch.evidence(A) != ""


@pytest.mark.parametrize(("state", "flags"), [("Z", 0), ("R", 0x4)])
def test_a_process_on_its_way_out_is_left_as_it_was_seen_last(v2: FakeTree, state: str, flags: int) -> None:
    watch = v2.watch()
    watch.look(A)
    v2.write("memory.events.local", "oom_kill 1\n")
    v2.set_state(A, state, flags)
    for _ in range(5):
        watch.look_again()
    assert watch.evidence(A) != ""


def test_an_older_kernel_counts_in_memory_events(v2: FakeTree) -> None:
    (v2.group / "memory.events.local").unlink()
    v2.write("memory.events", "oom_kill 0\n")
    watch = v2.watch()
    watch.look(A)
    v2.write("memory.events", "oom_kill 1\n")
    assert watch.evidence(A) != ""


def test_v1_is_found_in_a_hybrid_system_behind_a_mount_of_a_part(tmp_path: Path) -> None:
    mountinfo = (
        "30 1 0:9 / ROOT/uni rw - cgroup2 cgroup2 rw\n31 1 0:8 /box ROOT/mem rw shared:1 - cgroup cgroup memory\n"
    )
    fake = FakeTree(tmp_path, mountinfo, "mem/job", "4:memory:/box/job\n0::/\n")
    (tmp_path / "uni").mkdir()
    fake.write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    fake.write("memory.limit_in_bytes", "9223372036854771712\n")
    watch = fake.watch()
    watch.look(A)
    fake.write("memory.oom_control", "oom_kill 3\n")
    assert watch.evidence(A) == "cgroup /box/job: oom_kill 2 -> 3, no limit of its own: the machine ran short"


def test_where_there_is_no_memory_controller_there_is_no_evidence(tmp_path: Path) -> None:
    fake = FakeTree(tmp_path, "30 1 0:9 / ROOT/cg rw - cgroup2 cgroup2 rw\n", "cg", "0::/\n")
    watch = fake.watch()
    watch.look(A)
    assert watch.evidence(A) == ""


@pytest.fixture
def small_group(incarnation: str) -> Iterator[str]:
    """The folder of a real memory cgroup of 32 MiB."""
    assert isinstance(MEMORY, cgroup.Mount)
    folder = f"{MEMORY.point}/supd-test-{incarnation}"
    os.mkdir(folder)
    Path(folder, "memory.limit_in_bytes").write_text(str(32 << 20))
    yield folder
    wait_until(lambda: cgroup.remove_cgroup(folder))


@pytest.mark.skipif(not IS_ROOT or not MEMORY, reason="needs root and the memory controller of cgroup v1")
def test_a_process_that_the_kernel_kills_for_want_of_memory_is_told_from_one_that_is_just_killed(
    small_group: str,
) -> None:
    watch = OomWatch()
    argv = [sys.executable, os.path.join(WORKERS, "hog.py"), small_group]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hog, stray("sleeper", 1, {}) as other:
        read_pids(hog, 1)
        [bystander] = other["sleeper"]
        for pid in (hog.pid, bystander.pid):
            watch.look(pid)
        hog.communicate(b"go\n", timeout=30)
        assert hog.returncode == -signal.SIGKILL
        assert watch.evidence(bystander.pid) == ""
        said = watch.evidence(hog.pid)
    assert said.endswith(f"/supd-test-{os.path.basename(small_group)[10:]}: oom_kill 0 -> 1, limit 32 MiB")


@pytest.mark.skipif(not IS_ROOT or not MEMORY, reason="needs root and the memory controller of cgroup v1")
def test_a_kill_by_someone_in_the_same_group_is_no_evidence(small_group: str) -> None:
    watch = OomWatch()
    argv = [sys.executable, os.path.join(WORKERS, "hog.py"), small_group]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hog:
        read_pids(hog, 1)
        watch.look(hog.pid)
        hog.kill()
        os.waitid(os.P_PID, hog.pid, os.WEXITED | os.WNOWAIT)
        watch.look(hog.pid)  # a zombie, which v1 shows in the root
        assert watch.evidence(hog.pid) == ""
        hog.communicate(timeout=15)
