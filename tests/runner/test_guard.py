import os
import signal
import subprocess
import sys
from pathlib import Path

from supervisor.shell import cgroup, guarding, tree
from tests.runner.family import LINES, Family, sleeps_in_poll
from tests.runner.processes import IS_ROOT, is_gone, present, wait_until


def test_a_killed_runner_leaves_nothing_behind(family: Family) -> None:
    family.read_all(LINES + 1)
    assert family.is_locked()
    tree.signal_process(family.runner, signal.SIGKILL)
    assert family.guard.wait(15) == 0
    family.assert_gone()


def test_a_runner_that_ends_by_itself_leaves_nothing_behind(family: Family) -> None:
    family.read_all(LINES + 1)
    family.end_input()
    assert family.guard.wait(15) == 0
    family.assert_gone()


def test_a_guard_that_is_killed_is_replaced_and_the_runner_leaves_nothing_behind(family: Family) -> None:
    family.read_all(LINES + 1)
    family.guard.kill()
    name, _ = family.read()
    assert name == "replacement"
    assert not is_gone(family.runner)
    assert family.is_locked()
    # It has looked at the tree, or blocks for good, when it sleeps in poll(2).
    wait_until(lambda: sleeps_in_poll(family.started[-1].pid))
    tree.signal_process(family.runner, signal.SIGKILL)
    family.assert_gone()


def test_signals_do_not_end_a_guard(family: Family) -> None:
    family.read_all(LINES + 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP):
        family.guard.send_signal(number)
    tree.signal_process(family.runner, signal.SIGKILL)
    assert family.guard.wait(15) == 0
    family.assert_gone()


def test_a_sweep_of_the_guard_touches_nobody_else(family: Family, incarnation: str) -> None:
    family.read_all(LINES + 1)
    env = {"PATH": os.environ["PATH"], tree.MARKER: incarnation + "x"}
    with subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as innocent:
        tree.signal_process(family.runner, signal.SIGKILL)
        assert family.guard.wait(15) == 0
        assert innocent.poll() is None
        innocent.communicate(timeout=15)


def test_a_runner_starts_with_fresh_signals_and_its_own_descriptors_in_its_cgroup(
    family: Family, setting: tuple[str | None, list[str]]
) -> None:
    facts = family.read_all(LINES + 1)
    # Python itself ignores these two.
    assert facts["ignored"] == [signal.SIGPIPE, signal.SIGXFSZ]
    assert facts["blocked"] == []
    assert facts["fds"] == sorted([0, 1, 2, family.lock_fd, *facts["page"]])
    ours = cgroup.parse_memberships(cgroup.read_text("/proc/self/cgroup")).get("", "")
    assert facts["group"] == (os.path.join(ours, os.path.basename(setting[0])) if setting[0] else ours)


def test_a_guard_comes_before_the_ranks_where_that_is_allowed(
    family: Family, setting: tuple[str | None, list[str]]
) -> None:
    family.read_all(LINES + 1)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = min(ours, -10) if IS_ROOT and not setting[1] else ours
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, family.guard.pid) == wanted)
    assert {os.getpriority(os.PRIO_PROCESS, process.pid) for process in family.started} == {ours}


def rss_kib(pid: int) -> int:
    return int(cgroup.read_text(f"/proc/{pid}/status").partition("VmRSS:")[2].split()[0])


def test_a_guard_is_little_more_than_a_bare_interpreter_and_sleeps(family: Family) -> None:
    family.read_all(LINES + 1)
    bare = [sys.executable, "-E", "-P", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(bare, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as interpreter:
        assert interpreter.stdout is not None
        interpreter.stdout.readline()
        assert rss_kib(family.guard.pid) < rss_kib(interpreter.pid) + 3 * 1024
        interpreter.communicate(b"\n", timeout=15)
    wait_until(lambda: present(family.guard.pid).state == "S")


def test_the_cgroup_is_removed_with_the_last_of_the_runner(group: str | None, incarnation: str, tmp_path: Path) -> None:
    family = Family(incarnation, group, tmp_path, ["daemon"], [])
    try:
        family.read_all(3)
        tree.signal_process(family.runner, signal.SIGKILL)
        assert family.guard.wait(15) == 0
        family.assert_gone()
        assert group is None or not os.path.exists(group)
    finally:
        family.close()


def test_a_runner_that_cannot_be_started_ends_the_guard(incarnation: str, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        argv = guarding.guard_argv(guarding.guard_options(incarnation, lock.fileno(), None), ["/no/such/runner"])
        ended = subprocess.run(argv, pass_fds=(lock.fileno(),), stderr=subprocess.PIPE, check=False, timeout=15)
    assert ended.returncode == 1
    assert b"/no/such/runner" in ended.stderr
