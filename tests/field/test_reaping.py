"""Cases H17 to H19 of the field reports: reaping, and what supd's own parent left it with."""

import functools
import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from supervisor.shell import cgroup, tree
from tests.e2e.jobs import command_job, finished, output
from tests.e2e.supd import TIMEOUT_S, Supd, wait_for

REAPED_WITHIN_S = 2.0

GLIBCS_OWN = 0b11 << 31
"""Signals 32 and 33, which nobody can set by way of the C library (signal(7))."""

IGNORES_AND_BLOCKS = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGPIPE, signal.SIG_IGN)\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


def below(supd: Supd) -> list[tree.Process]:
    """Every process below the daemon of the test, zombies too."""
    assert supd.process is not None
    return tree.descendants(supd.process.pid, tree.processes())


@pytest.fixture
def pid_1(short_dir: Path) -> Iterator[Supd]:
    """A supd that is pid 1 of a pid namespace: all that is orphaned in there stays below `unshare`."""
    supd = Supd(short_dir)
    try:
        supd.start(argv=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
        yield supd
    finally:
        if supd.process is not None and supd.process.poll() is None:
            supd.kill(signal.SIGKILL)  # which takes pid 1 with it, and so everybody
        supd.close()
        for lock in supd.state.glob("runners/*.lock"):  # with pid 1 died those who would have removed their cgroups
            wait_for("the cgroup to be empty", functools.partial(cgroup.remove_cgroup, lock.read_text()))


@pytest.mark.skipif(os.getuid() != 0, reason="a pid namespace takes root")
def test_as_pid_1_supd_leaves_no_zombie_and_loses_no_exit_code(pid_1: Supd) -> None:
    """H17. 50 double forks a second for 4 s instead of 20 s; what comes to supd itself, too, not only to a runner."""
    run = pid_1.start_job(pid_1.job("strays", "strays.py", "50", "4", "7", nproc=2, tables="[restart]\npolicy='never'"))
    pid_1.wait_state(run, "running")
    status = pid_1.wait_state(run, "failed")
    assert (status["incident"]["exit_code"], status["incident"]["cause"]) == (7, "exit")
    wait_for("zombies to be reaped", lambda: all(p.is_alive for p in below(pid_1)), REAPED_WITHIN_S)

    # With its guard a runner loses its subreaper: runner and ranks become orphans of pid 1.
    run = pid_1.start_job(pid_1.job("orphans", "sleeper.py", nproc=2))
    pid_1.wait_state(run, "running")
    runner = tree.processes()[pid_1.survivors()[0]].ppid
    os.kill(tree.processes()[runner].ppid, signal.SIGKILL)
    wait_for("another guard", lambda: any(p.ppid == runner and p.pid in pid_1.guard_pids() for p in below(pid_1)))
    os.kill(runner, signal.SIGKILL)
    wait_for("generation 1", lambda: (s := pid_1.status(run))["generation"] == 1 and s["state"] == "running")
    wait_for("zombies to be reaped", lambda: all(p.is_alive for p in below(pid_1)), REAPED_WITHIN_S)

    assert pid_1.process is not None
    [first] = [p.pid for p in below(pid_1) if p.ppid == pid_1.process.pid]
    os.kill(first, signal.SIGTERM)
    assert pid_1.process.wait(TIMEOUT_S) == 0, "pid 1 passes signals on, and ends as supd does"


def test_an_exit_is_seen_although_a_leftover_holds_the_output_open(supd: Supd) -> None:
    """H18. The leftover also ignores TERM, and is killed after a grace of 1 s."""
    script = "trap '' TERM; sleep 300 & echo $!; date +%s.%N; exit 3"
    tables = "[stop]\ngrace = '1s'\n[restart]\npolicy = 'never'"
    status, [rank] = finished(supd, command_job(supd, "held", ["sh", "-c", script], tables=tables), "failed")
    assert (rank["exit_code"], status["incident"]["exit_code"]) == (3, 3)
    leftover, ended_s = output(supd, status["run"]).split()
    seen_s = datetime.fromisoformat(rank["ended_at"]).timestamp()
    assert seen_s - float(ended_s) < 1.0
    over_s = datetime.fromisoformat(status["ended_at"]).timestamp()
    assert over_s - float(ended_s) < 10.0
    assert tree.look(int(leftover)) is None
    assert supd.survivors() == []


def test_what_supds_parent_ignored_and_blocked_harms_neither_supd_nor_workers(short_dir: Path) -> None:
    """H19. Stopped by TERM without a KILL; a worker's dispositions are read where nothing has changed them."""
    supd = Supd(short_dir)
    try:
        supd.start(argv=(sys.executable, "-c", IGNORES_AND_BLOCKS))
        script = "cat /proc/self/status; exec sleep 300"
        run = supd.start_job(command_job(supd, "clean", ["sh", "-c", script], nproc=2))
        supd.wait_state(run, "running")

        def is_told() -> bool:
            return all(b"\nSigCgt:" in output(supd, run, rank) for rank in (0, 1))

        wait_for("both to have told", is_told)
        for rank in (0, 1):
            fields = dict(line.split(":\t", 1) for line in output(supd, run, rank).decode().splitlines())
            masks = [int(fields[name], 16) & ~GLIBCS_OWN for name in ("SigBlk", "SigIgn", "SigCgt")]
            assert masks == [0, 0, 0]
        supd.supctl("stop", run)
        assert [(r["signal"], r["stopped_by_supervisor"]) for r in supd.ranks(run)] == [("SIGTERM", True)] * 2
        assert supd.survivors() == []
        supd.kill(signal.SIGTERM)
        assert supd.process is not None
        assert supd.process.returncode == 0
    finally:
        supd.close()
