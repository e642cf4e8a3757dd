"""Field reports H01-H07: nothing that a job started outlives it, and nothing is started twice."""

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.supd import BIN, Supd, alive, running_supd, wait_for
from tests.field.watching import events, nothing_is_left, pids, runner_log, running, runs_at, shell_job, stays

SHORT_GRACE = '[stop]\ngrace = "500ms"\n'

PARENT = "import subprocess, sys; subprocess.run(sys.argv[1:])"


# --- H01 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_is_detached_on_purpose_and_goes_on_when_whatever_started_it_is_killed(
    supd: Supd, number: signal.Signals
) -> None:
    """H01. The documented policy of `supctl start`: the run belongs to supd, and is listed until it is stopped.

    Left out: the front, whose run ends with it.
    """
    argv = [sys.executable, "-c", PARENT, str(BIN / "supctl"), "start", str(supd.job("train", "sleeper.py"))]
    parent = subprocess.Popen(
        [*argv, "--follow"], env=supd.env, cwd=supd.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for("the run", lambda: supd.json("status")["runs"])
    runs_at(supd, "train", 0)
    before = pids(supd, "train")
    parent.send_signal(number)
    parent.wait(60)
    stays("the ranks are alive", lambda: all(map(alive, before.values())))
    listed = supd.json("status")["runs"]
    assert [(run["job"], run["state"], run["generation"]) for run in listed] == [("train", "running", 0)]
    assert pids(supd, "train") == before
    supd.supctl("stop", "train")
    nothing_is_left(supd)


def test_a_worker_that_is_killed_by_hand_while_its_run_stops_is_not_respawned(supd: Supd) -> None:
    """H01, second half. Rank 0 saves for as long as the test wants; meanwhile rank 1 is killed."""
    run = running(supd, supd.job("train", "saver.py", "--until", "go"))
    stop = supd.popen("stop", run)
    wait_for("TERM at both", lambda: len(list(supd.folder.glob("term-*"))) == 2)
    rank_1 = pids(supd, run)[1]
    os.kill(rank_1, signal.SIGKILL)
    wait_for("the end of rank 1", lambda: not alive(rank_1))
    stays("only rank 0 is left, and still stopping", lambda: len(supd.survivors()) == 1 and stop.poll() is None)
    (supd.folder / "go").touch()
    stop.communicate(timeout=60)
    assert stop.returncode == 0
    assert (supd.folder / "saved-train-0-0").exists()
    nothing_is_left(supd)
    status = supd.status(run)
    assert (status["state"], status["generation"], status["incident"]) == ("stopped", 0, None)
    assert sorted((supd.folder / "starts").read_text().splitlines()) == ["train 0 0", "train 0 1"]


# --- H02 ---------------------------------------------------------------------------------------------------------


def test_start_returns_after_a_script_error_although_children_of_the_ranks_hold_their_stdout(supd: Supd) -> None:
    """H02. They ignore TERM as well, so each lasts until the grace is over; 1 h is what they would sleep."""
    job = supd.job("train", "holder.py", tables=f'[restart]\npolicy = "never"\n{SHORT_GRACE}')
    done = supd.supctl("start", str(job), "--follow", check=False)
    assert done.returncode == 4, done.stderr
    assert "RuntimeError: rank 1 has had enough" in done.stdout
    nothing_is_left(supd)


# --- H03 ---------------------------------------------------------------------------------------------------------


def test_stop_reports_the_end_only_when_grandchildren_in_sessions_of_their_own_are_gone(supd: Supd) -> None:
    """H03. shell → python → child with setsid → sleep; by marker, by every process's environment."""
    nest = Path(__file__).parents[1] / "e2e" / "workers" / "nest.py"
    run = running(supd, shell_job(supd, "train", f'"$PYTHON" {nest}; true', tables=SHORT_GRACE))
    assert len(supd.survivors()) == 2 * len(["shell", "python", "child", "sleep"])
    supd.supctl("stop", run)
    assert supd.survivors() == []
    nothing_is_left(supd)


# --- H04 ---------------------------------------------------------------------------------------------------------


def test_no_process_of_a_generation_lives_on_beside_its_replacement_under_a_shell_wrapper(supd: Supd) -> None:
    """H04. bash runs, without exec, a trainer that ignores TERM and writes its generation every 0.02 s.

    Left out: the other nodes.
    """
    beat = Path(__file__).parents[1] / "e2e" / "workers" / "stubborn.py"
    run = running(supd, shell_job(supd, "train", f'"$PYTHON" {beat}; true', tables=SHORT_GRACE))
    os.kill(pids(supd, run)[1], signal.SIGKILL)
    runs_at(supd, run, 1)
    _beats_in_order(supd.folder / "beats")
    assert len(supd.survivors()) == 2 * len(["shell", "python"])
    supd.supctl("stop", run)
    nothing_is_left(supd)


def _beats_in_order(path: Path) -> None:
    """Wait until generation 1 has beaten for a while; generation 0 has not, since its first beat."""

    def look() -> list[str] | None:
        generations = [line.split()[0] for line in path.read_text().splitlines()]
        return generations if generations.count("1") >= 20 else None

    generations = wait_for("beats of generation 1", look)
    assert "0" in generations
    assert "0" not in generations[generations.index("1") :]


# --- H05 ---------------------------------------------------------------------------------------------------------


def test_a_new_supd_adopts_the_workers_of_one_that_was_killed_and_never_starts_a_second_copy(supd: Supd) -> None:
    """H05. Four sleepers; the same job is refused while they run, and a crash then restarts each of them once."""
    job = supd.job("train", "sleeper.py", nproc=4)
    run = running(supd, job)
    before = pids(supd, run)
    supd.kill(signal.SIGKILL)
    stays("the four ranks and no more", lambda: sorted(supd.survivors()) == sorted(before.values()))
    supd.start()
    assert runs_at(supd, run, 0)["restarts_used"] == 0
    assert pids(supd, run) == before
    again = supd.supctl("start", str(job), check=False)
    assert again.returncode != 0
    assert "still active" in again.stderr
    assert sorted(supd.survivors()) == sorted(before.values())
    os.kill(before[2], signal.SIGKILL)
    runs_at(supd, run, 1)
    after = pids(supd, run)
    assert sorted(supd.survivors()) == sorted(after.values())
    assert not set(after.values()) & set(before.values())
    supd.supctl("stop", run)
    nothing_is_left(supd)


# --- H06 ---------------------------------------------------------------------------------------------------------


def test_a_double_forked_holder_of_a_device_goes_with_its_job_and_an_unrelated_job_stays(supd: Supd) -> None:
    """H06. The device is a file with an exclusive lock, the holder an orphan in a session of its own, deaf to TERM."""
    other = running(supd, supd.job("other", "sleeper.py"))
    others = pids(supd, other)
    first = running(supd, supd.job("first", "locker.py", nproc=1, tables=SHORT_GRACE))
    ranks = {*others.values(), *pids(supd, first).values()}
    wait_for("the holder as the only other process", lambda: len(supd.survivors()) == len(ranks) + 1)
    [holder] = set(supd.survivors()) - ranks
    supd.supctl("stop", first)
    assert not alive(holder)
    assert f'"pids": [{holder}], "killed": 1' in runner_log(supd, first)
    second = running(supd, supd.job("second", "locker.py", nproc=1, tables=SHORT_GRACE))
    assert pids(supd, other) == others
    assert supd.status(other)["generation"] == 0
    supd.supctl("stop", second)
    assert sorted(supd.survivors()) == sorted(others.values())
    assert not events(supd, other, "incident.opened")


# --- H07 ---------------------------------------------------------------------------------------------------------


def test_workers_have_descriptors_0_1_and_2_and_no_other(short_dir: Path) -> None:
    """H07. Even if supd has more from whoever started it, and in later generations. Nothing else is documented."""
    supd = Supd(short_dir)
    try:
        supd.start(argv=("bash", "-c", 'exec "$@" 7</dev/null 9>>leaked', "bash"))
        run = running(supd, supd.job("train", "descriptors.py", nproc=3))
        supd.supctl("restart", run)
        runs_at(supd, run, 1)
        found = sorted(short_dir.glob("fds-*"))
        assert len(found) == 6
        for path in found:
            seen = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
            assert sorted(seen) == ["0", "1", "2"], path.read_text()
            assert seen["0"] == "/dev/null"
            assert seen["1"].startswith("pipe:")
            assert seen["2"].startswith("pipe:")
        supd.supctl("stop", run)
        nothing_is_left(supd)
    finally:
        supd.close()


def test_a_killed_supd_can_listen_on_its_port_again_while_a_stray_of_a_worker_lives(short_dir: Path) -> None:
    """H07, second half. The stray is a `setsid sleep` that the worker has left behind."""
    port = _free_port()
    with running_supd(short_dir) as supd:
        supd.kill(signal.SIGTERM)
        supd.config.write_text(supd.config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        supd.start()
        run = running(supd, supd.job("train", "descriptors.py"))
        before = sorted(supd.survivors())
        assert len(before) == 2 * len(["worker", "sleep"])
        supd.kill(signal.SIGKILL)
        supd.start()
        assert (supd.state / "coordinator").read_text() == f"127.0.0.1:{port}\n"
        runs_at(supd, run, 0)
        assert sorted(supd.survivors()) == before
        supd.supctl("stop", run)
        nothing_is_left(supd)


def _free_port() -> int:
    """A port below those that the kernel gives to outgoing connections, so that nobody takes it by chance."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
