import os
import signal
import subprocess
import sys

import pytest

from supervisor.shell import tree
from tests.runner.processes import AS_NOBODY, IS_ROOT, WORKERS, end, is_gone, present, read_pids, stray, wait_until


def process(pid: int, ppid: int, session: int = 0) -> tree.Process:
    return tree.Process(pid, f"{pid} (x) S {ppid} 0 {session} 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 100 0".encode())


def table(*lines: tree.Process) -> dict[int, tree.Process]:
    return {line.pid: line for line in lines}


def pids(found: list[tree.Process]) -> list[int]:
    return sorted(line.pid for line in found)


def test_a_process_is_read_right_whatever_its_name_is() -> None:
    line = tree.Process(7, b"7 (a) R 1 2 (b c)) Z 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0")
    assert (line.state, line.ppid, line.pgrp, line.session, line.start_ticks) == ("Z", 3, 4, 5, 99)


def test_descendants_are_all_below_but_for_what_is_left_out_with_everything_below_it() -> None:
    family = table(process(1, 0), process(2, 1), process(3, 2), process(4, 3), process(5, 2), process(6, 1))
    assert pids(tree.descendants(2, family)) == [3, 4, 5]
    assert pids(tree.descendants(2, family, without=(3,))) == [5]
    assert tree.descendants(9, family) == []


def test_we_are_in_the_table_of_processes() -> None:
    us = tree.processes()[os.getpid()]
    assert (us.ppid, us.session, us.pgrp) == (os.getppid(), os.getsid(0), os.getpgrp())


def test_only_a_whole_variable_with_the_whole_value_is_a_marker(incarnation: str) -> None:
    name = tree.MARKER
    with (
        stray("sleeper", 1, {name: incarnation}) as ours,
        stray("sleeper", 1, {name: incarnation + "x"}),
        stray("sleeper", 1, {"X" + name: incarnation}),
        stray("sleeper", 1, {"OTHER": f"{name}={incarnation}", name: incarnation[:-1]}),
    ):
        assert pids(tree.marked(incarnation)) == pids(ours["sleeper"])


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_a_marker_on_another_users_process_does_not_count(incarnation: str) -> None:
    argv = [*AS_NOBODY, "sh", "-c", "echo other $$; read line"]
    env = {"PATH": os.environ["PATH"], tree.MARKER: incarnation}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        read_pids(other, 1)
        assert tree.marked(incarnation) == []
        assert tree.sweep(incarnation, None) == []
        assert other.poll() is None
        other.communicate(b"\n", timeout=15)


def test_a_signal_is_not_sent_to_another_process_that_got_the_pid(incarnation: str) -> None:
    with stray("sleeper", 1, {}) as found:
        [sleeper] = found["sleeper"]
        past = present(sleeper.pid)
        past.start_ticks -= 1
        assert not tree.signal_process(past, signal.SIGKILL)
        assert not is_gone(sleeper)
        assert tree.signal_process(sleeper, signal.SIGKILL)
        wait_until(lambda: is_gone(sleeper))


def test_we_and_the_first_process_are_never_killed() -> None:
    assert tree.kill_once([present(os.getpid()), *filter(None, [tree.look(1)])]) == []


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = tree.look(child.pid)
        assert zombie is not None
        assert not zombie.is_alive


def test_a_process_whose_first_thread_has_ended_is_alive_and_is_killed() -> None:
    with stray("headless", 1, {}) as found:
        [headless] = found["headless"]
        wait_until(lambda: present(headless.pid).state == "Z")
        assert tree.kill_all(lambda: [now] if (now := tree.look(headless.pid)) else []) == []


@pytest.mark.parametrize("has_group", [True, False])
def test_a_sweep_ends_a_storm_by_its_marker(has_group: bool, incarnation: str, group: str | None) -> None:
    with stray("storm", 68, {tree.MARKER: incarnation}) as found:
        assert tree.sweep(incarnation, group if has_group else None) == []
        assert all(map(is_gone, found["drop"]))


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_a_sweep_ends_members_of_the_cgroup_that_bear_no_marker(incarnation: str, group: str | None) -> None:
    assert group is not None
    with stray("sleeper", 1, {}) as found, stray("sleeper", 1, {}) as innocent:
        inner = os.path.join(group, "inner")
        os.mkdir(inner)
        with open(f"{inner}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(found["sleeper"][0].pid))
        assert tree.sweep(incarnation, group) == []
        assert is_gone(found["sleeper"][0])
        assert not is_gone(innocent["sleeper"][0])
    assert not os.path.exists(group)


def test_a_sweep_refuses_a_cgroup_that_is_not_that_runners(incarnation: str) -> None:
    with pytest.raises(AssertionError, match="is not the cgroup of"):
        tree.sweep(incarnation, "/sys/fs/cgroup/unified")


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_what_cannot_be_killed_is_named_when_patience_ends() -> None:
    program = """if True:
        import sys
        from supervisor.shell import tree
        pid = int(sys.argv[1])
        print(tree.kill_all(lambda: [tree.look(pid)], patience_s=0.2)[0].pid == pid)"""
    with stray("sleeper", 1, {}) as found:
        argv = [*AS_NOBODY, sys.executable, "-c", program, str(found["sleeper"][0].pid)]
        assert subprocess.run(argv, capture_output=True, check=True, timeout=15).stdout == b"True\n"
        assert not is_gone(found["sleeper"][0])


def test_leftovers_belong_to_no_live_rank_and_to_no_helper() -> None:
    subprocess.run([sys.executable, os.path.join(WORKERS, "leftovers.py")], check=True, timeout=30)


def test_ending_what_is_gone_is_no_error() -> None:
    with stray("sleeper", 1, {}) as found:
        assert tree.kill_all(lambda: [now] if (now := tree.look(found["sleeper"][0].pid)) else []) == []
        end(found["sleeper"])
