"""supervisor/runner/guard.py: a guard holds its runner to the lease, whatever has become of the runner or of itself."""

import signal
import time
from pathlib import Path

import pytest

from supervisor.shell import cgroup, tree
from supervisor.shell.clock import boot_s
from supervisor.shell.lease_page import LeasePage
from tests.runner.family import LINES, Family, sleeps_in_poll
from tests.runner.processes import is_gone, present, wait_until

TIMER = Path("anon_inode:[timerfd]")


def stop(pid: int) -> None:
    """Stop a process; it has stopped when this returns."""
    tree.signal_process(present(pid), signal.SIGSTOP)
    wait_until(lambda: present(pid).state == "T")


def go_on(pid: int) -> None:
    tree.signal_process(present(pid), signal.SIGCONT)


def ranks_alive(family: Family) -> list[tree.Process]:
    """What is below the runner and has not ended, with the marker or without."""
    return [process for process in tree.descendants(family.runner.pid, tree.processes()) if process.is_alive]


def wake_ups(pid: int) -> int:
    """How often it has gone to sleep."""
    return int(cgroup.read_text(f"/proc/{pid}/status").partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_a_stopped_runners_ranks_are_killed_when_their_lease_is_over_and_it_lives_on(family: Family) -> None:
    family.read_all(LINES + 1)
    family.hold("0.3")
    stop(family.runner.pid)
    wait_until(lambda: all(map(is_gone, family.started)))
    assert not is_gone(family.runner)
    assert family.guard.poll() is None
    go_on(family.runner.pid)
    family.hold("none")
    assert family.is_locked()


def test_ranks_that_appear_after_the_end_of_the_lease_are_killed_as_well(family: Family) -> None:
    family.read_all(LINES + 1)
    family.hold("0.05")
    wait_until(lambda: all(map(is_gone, family.started)))
    family.start_more("daemon")
    # The daemon has no marker. It may be born in the middle of one look at all processes, but not of two.
    wait_until(lambda: not ranks_alive(family) and not ranks_alive(family))
    assert not is_gone(family.runner)


def test_a_replacement_of_the_guard_holds_the_runner_to_the_lease_as_well(family: Family) -> None:
    family.read_all(LINES + 1)
    ranks = list(family.started)
    family.guard.kill()
    name, pid = family.read()
    assert name == "replacement"
    family.hold("0.3")
    stop(family.runner.pid)
    wait_until(lambda: all(map(is_gone, ranks)))
    assert not is_gone(family.runner)
    assert not is_gone(present(pid))


def test_a_stopped_guard_that_goes_on_goes_by_the_clock_as_it_is_then(family: Family) -> None:
    family.read_all(LINES + 1)
    stop(family.guard.pid)
    over_s = boot_s() + 0.2
    family.hold("0.1")
    wait_until(lambda: boot_s() > over_s)
    assert not any(map(is_gone, family.started)), "somebody else has killed them"
    go_on(family.guard.pid)
    wait_until(lambda: all(map(is_gone, family.started)))
    assert not is_gone(family.runner)


def test_a_stopped_guard_that_goes_on_kills_nobody_whose_lease_has_been_prolonged_meanwhile(family: Family) -> None:
    family.read_all(LINES + 1)
    family.hold("0.2")
    over_s = boot_s() + 0.4
    stop(family.guard.pid)
    assert not any(map(is_gone, family.started))
    wait_until(lambda: boot_s() > over_s)
    family.hold("60")
    before = wake_ups(family.guard.pid)
    go_on(family.guard.pid)
    wait_until(lambda: wake_ups(family.guard.pid) > before and sleeps(family.guard.pid, for_good=False))
    assert not any(map(is_gone, family.started))


def timers(pid: int) -> list[dict[str, str]]:
    """Its timer descriptors (proc_pid_fdinfo(5))."""
    folder = Path(f"/proc/{pid}/fdinfo")
    shown = [(folder / file.name).read_text() for file in Path(f"/proc/{pid}/fd").iterdir() if file.readlink() == TIMER]
    return [dict(line.split(": ", 1) for line in text.splitlines() if ": " in line) for text in shown]


def sleeps(pid: int, *, for_good: bool) -> bool:
    """Whether it is in a poll(2) until a timer goes off, which never does, or in a second of boot time at most."""
    if not sleeps_in_poll(pid):
        return False
    [timer] = timers(pid)
    assert timer["clockid"] == str(time.CLOCK_BOOTTIME)
    seconds, nanoseconds = map(int, timer["it_value"].strip("()").split(","))
    left_s = seconds + nanoseconds / 1e9
    return timer["ticks"] == "0" and (left_s == 0 if for_good else 0 < left_s <= 1)


def test_a_guard_sleeps_for_good_without_a_lease_and_with_one_for_a_second_of_boot_time_at_most(family: Family) -> None:
    family.read_all(LINES + 1)
    wait_until(lambda: sleeps(family.guard.pid, for_good=True))
    family.hold("60")
    wait_until(lambda: sleeps(family.guard.pid, for_good=False))
    family.hold("none")
    wait_until(lambda: sleeps(family.guard.pid, for_good=True))
    assert not any(map(is_gone, family.started))


@pytest.mark.parametrize(("lease_s", "is_over"), [(None, False), (60.0, False), (-0.1, True)])
def test_a_page_tells_whether_there_is_a_lease_that_has_ended(lease_s: float | None, is_over: bool) -> None:
    page = LeasePage.make()
    assert page.left_s() is None
    page.hold(None if lease_s is None else boot_s() + lease_s)
    assert page.is_over is is_over
