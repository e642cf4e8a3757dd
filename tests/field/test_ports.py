"""Cases H38 to H41 of the field reports: the port of rank 0."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.supd import TIMEOUT_S, WORKERS, Supd, wait_for
from tests.field.watching import events, pids, running, runs_at

NEVER = '[restart]\npolicy = "never"\n'
AT_ONCE = '[restart]\nbackoff = "0s"\nmax_restarts = 1\non_startup_failure = "restart"\n'


@contextlib.contextmanager
def held(port: int = 0) -> Iterator[int]:
    """A port that this test listens on."""
    with socket.create_server(("127.0.0.1", port)) as server:
        yield int(server.getsockname()[1])


def free_port() -> int:
    """A port that is free and that nobody is given by chance: it lies below the ephemeral range."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(low - 1 - os.getpid() % 5000, 1024, -1):
        with contextlib.suppress(OSError), held(port):
            return port
    raise AssertionError("no port is free")


def binder(supd: Supd, name: str, *more: str, tables: str = NEVER, port: int | None = None, nproc: int = 1) -> Path:
    """A job whose rank 0 binds its port; it ends once the file of its name is there."""
    named = "" if port is None else f"[rendezvous]\nmaster_port = {port}\n"
    return supd.job(name, "binder.py", str(supd.folder / f"{name}.end"), *more, tables=tables + named, nproc=nproc)


def let_end(supd: Supd, run: str) -> None:
    """Let the run's ranks end with 0, and see that it is a success."""
    (supd.folder / f"{run.partition('@')[0]}.end").touch()
    status = supd.wait_state(run, "succeeded", "failed", "stopped")
    assert status["state"] == "succeeded", status["reason"]


def bound(supd: Supd, run: str, generation: int = 0) -> int:
    """The port that rank 0 says it has bound."""
    output = Path(supd.status(run)["logs_dir"], f"gen-{generation:04d}", "rank-00000.out")
    return int(wait_for("rank 0 to listen", lambda: (output.exists() and output.read_text()) or None))


def refused(supd: Supd, job: Path, *more: str) -> str:
    """What `supctl start` says of a job that it does not start."""
    done = supd.supctl("start", str(job), *more, check=False)
    assert done.returncode == 78, done.stderr
    return done.stderr


def test_two_jobs_at_once_that_name_no_port_have_distinct_ones(supd: Supd) -> None:
    """H38, its first part."""
    runs = [supd.start_job(binder(supd, name)) for name in ("one", "two")]
    assert len({bound(supd, run) for run in runs}) == 2
    for run in runs:
        let_end(supd, run)


def test_a_second_job_that_names_the_same_port_is_refused_with_the_port_and_its_holder(supd: Supd) -> None:
    """H38, its second part: nothing is started of it, whether the first has bound the port yet or not."""
    port = free_port()
    first = supd.start_job(binder(supd, "one", port=port))
    for more in ([], ["--dry-run"]):
        said = refused(supd, binder(supd, "two", port=port), *more)
        assert f"error[J406]: `rendezvous.master_port` is the port of {first}" in said
        assert f"supctl stop {first}" in said
    assert [run["job"] for run in supd.json("status")["runs"]] == ["one"]
    assert bound(supd, first) == port
    let_end(supd, first)
    second = supd.start_job(binder(supd, "two", port=port))
    assert bound(supd, second) == port, "the port of a run that is over is free"
    let_end(supd, second)


def test_a_port_that_another_program_has_fails_the_start_and_that_program_is_named(supd: Supd) -> None:
    """H38, where the holder is no job of ours: here it is this test."""
    with held() as port:
        said = refused(supd, binder(supd, "late", port=port))
    assert "error[J406]: `rendezvous.master_port` cannot be had on 127.0.0.1: address already in use: " in said
    assert f"pid {os.getpid()} (" in said
    assert supd.json("status")["runs"] == []


def test_a_job_keeps_the_port_it_names_over_restarts_also_with_old_connections_on_it(supd: Supd) -> None:
    """H39, with a port that is named. Rank 0 closed its connections first: they are left in TIME_WAIT."""
    port = free_port()
    run = supd.start_job(binder(supd, "stays", "--clients", tables=AT_ONCE, port=port, nproc=2))
    runs_at(supd, run, 1)
    assert bound(supd, run, 1) == port
    let_end(supd, run)


def test_a_restart_waits_until_the_named_port_is_free_again_and_says_for_whom(supd: Supd) -> None:
    """H39: between two generations the port is no longer ours. That the wait ends is in tests/runner/test_ports.py."""
    port = free_port()
    named = f"[rendezvous]\nmaster_port = {port}\n"
    run = running(supd, supd.job("waits", "sleeper.py", tables=NEVER + named, nproc=1))
    with held(port):
        restart = supd.popen("restart", run)
        said = wait_for("the port to be told", lambda: told(supd, run, "port"))
        assert said.startswith(f"port {port} on ")
        assert f"to be free (pid {os.getpid()} (" in said
    with restart:
        assert restart.wait(TIMEOUT_S) == 0
    assert runs_at(supd, run, 1)["restarts_used"] == 0


def told(supd: Supd, run: str, word: str) -> str | None:
    """What the run waits for, if it is about this."""
    waiting_for: str | None = supd.status(run)["waiting_for"]
    return waiting_for if waiting_for and word in waiting_for else None


def test_a_port_that_is_taken_before_rank_0_has_it_is_replaced_and_nobody_is_charged(supd: Supd) -> None:
    """H39. The thief comes by order here; by chance, below. By default a failure before the start is not retried."""
    run = supd.start_job(binder(supd, "robbed", "--robbed", "3", tables="", nproc=2))
    status = runs_at(supd, run, 3)
    assert status["restarts_used"] == 0
    decided = events(supd, run, "restart.decided")
    assert [(e["detail"]["delay_s"], e["detail"]["charged"]) for e in decided] == [(0.0, False)] * 3
    assert all("lost its port" in event["text"] for event in decided)
    masters = [event["detail"]["master"] for event in events(supd, run, "generation.launched")]
    assert all(one != other for one, other in itertools.pairwise(masters))
    let_end(supd, run)


def test_who_loses_every_port_fails_with_the_reason_instead_of_trying_for_ever(supd: Supd) -> None:
    """H39: never a hang, and never without end."""
    run = supd.start_job(binder(supd, "unlucky", "--robbed", "100", tables=""))
    status = supd.wait_state(run, "failed")
    assert status["generation"] == 3
    assert "it never started" in status["reason"]
    assert "Address already in use" in "\n".join(status["incident"]["stderr_tail"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a network namespace of its own")
def test_starts_and_restarts_with_a_thief_after_every_port_all_come_to_a_good_end(short_dir: Path) -> None:
    """H39. 32 ephemeral ports, of which 16 are free, and change; 50 starts and restarts are scaled down to 12."""
    script = 'ip link set lo up; echo "40000 40031" > /proc/sys/net/ipv4/ip_local_port_range; exec "$@"'
    supd = Supd(short_dir)
    try:
        supd.start(argv=("unshare", "--net", "sh", "-c", script, "sh"))
        assert supd.process is not None
        enter = ["nsenter", f"--net=/proc/{supd.process.pid}/ns/net"]
        thief = subprocess.Popen([*enter, sys.executable, str(WORKERS / "thief.py"), "16"], stdout=subprocess.PIPE)
        try:
            assert thief.stdout is not None
            assert thief.stdout.readline()
            patient = '[restart]\nbackoff = "0s"\nmax_restarts = -1\non_startup_failure = "restart"\n'
            for number in range(6):
                run = supd.start_job(binder(supd, f"job-{number}", tables=patient))
                supd.wait_state(run, "running")
                supd.supctl("restart", run)
                let_end(supd, run)
        finally:
            thief.kill()
            thief.communicate()
    finally:
        supd.close()


def test_the_end_of_one_job_is_invisible_to_the_others_on_its_node(supd: Supd) -> None:
    """H40. Three jobs; 10, 20 and 30 s stand for "one after the other", which is what is done here."""
    runs = [running(supd, binder(supd, name)) for name in ("short", "medium", "long")]
    while runs:
        let_end(supd, runs.pop(0))
        for run in runs:
            status = runs_at(supd, run, 0)
            assert (status["restarts_used"], status["incident"]) == (0, None)
            assert all(Path(f"/proc/{pid}").exists() for pid in pids(supd, run).values())
            assert not events(supd, run, "incident.opened")


def test_the_port_on_which_supd_listens_is_refused_at_start_with_a_hint(supd: Supd) -> None:
    """H41."""
    port = int((supd.state / "coordinator").read_text().rpartition(":")[2])
    for more in ([], ["--dry-run"]):
        said = refused(supd, binder(supd, "bold", port=port), *more)
        assert "error[J406]: `rendezvous.master_port` is the port on which this supd listens" in said
        assert 'write "auto", or another' in said
    assert supd.json("status")["runs"] == []
