"""Restarts: H47, H48, H49, H51, H52 and H55 of the field reports."""

import contextlib
import json
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import Supd, wait_for

AT_ONCE = 'backoff = "10ms"\nbackoff_max = "10ms"\n'
STATES = {"starting", "running", "restarting", "stopping", "succeeded", "failed", "stopped", "held"}


def node(fleet: Fleet, name: str) -> dict[str, str]:
    [found] = [one for one in fleet.host.json("nodes")["nodes"] if one["node"] == name]
    return dict(found)


def kill_on(fleet: Fleet, run: str, name: str) -> None:
    """The rank of a node dies."""
    [pid] = [rank["pid"] for rank in fleet.ranks(run) if rank["node"] == name]
    os.kill(pid, signal.SIGKILL)


def test_a_node_that_fails_twice_is_left_out_for_a_while_which_is_shown_and_lifted_by_hand(short_dir: Path) -> None:
    """H47. That the next time is longer, and what comes after it, is in tests/protocol/test_exclusion.py."""
    with running_fleet(short_dir, 3) as fleet:
        job = fleet.job("train", "sleeper.py", nnodes="2:3", tables=f"[restart]\n{AT_ONCE}")
        run = fleet.host.start_job(job)
        assert fleet.wait_generation(run, 0)["nodes"] == ["a", "b"]
        kill_on(fleet, run, "b")
        assert fleet.wait_generation(run, 1)["nodes"] == ["a", "b"]
        kill_on(fleet, run, "b")
        status = fleet.wait_generation(run, 2)
        assert status["nodes"] == ["a", "c"]
        assert status["excluded"] == ["b (15 min more, 2 incidents within an hour)"]
        told = node(fleet, "b")
        assert (told["state"], "does without it for 15 min more" in told["note"]) == ("excluded", True)
        [event] = fleet.events(run, "node.excluded")
        assert (event["detail"]["node"], event["detail"]["times"]) == ("b", 1)
        fleet.host.kill()  # its past is kept
        fleet.host.start()
        fleet.wait_joined("a", "c")
        wait_for("the past of b", lambda: node(fleet, "b")["state"] == "excluded")
        fleet.host.supctl("undrain", "b")
        wait_for("b to be a spare", lambda: fleet.host.status(run)["spares"] == ["b"])
        assert node(fleet, "b")["state"] == "standby"
        assert fleet.host.status(run)["generation"] == 2


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ('command = ["/no/such/program"]', "/no/such/program"),
        ('command = ["FOLDER/plain"]', "plain"),
        ('command = ["FOLDER/bad-shebang"]', "bad-shebang"),
        ('command = ["true"]\nworkdir = "/no/such/folder"', "/no/such/folder"),
        ('module = "no_such_module"', "No module named no_such_module"),
    ],
)
def test_what_cannot_be_started_is_told_with_path_and_reason_and_is_not_tried_again(
    supd: Supd, what: str, says: str
) -> None:
    """H48."""
    (supd.folder / "plain").write_text("no program\n")
    (supd.folder / "bad-shebang").write_text("#!/no/such/interpreter\n")
    (supd.folder / "bad-shebang").chmod(0o755)
    job = supd.folder / "odd.toml"
    run = what.replace("FOLDER", str(supd.folder))
    job.write_text(f'name = "odd"\n[run]\n{run}\n[topology]\nnproc_per_node = 1\n')
    done = supd.supctl("start", str(job), check=False)
    assert done.returncode in (4, 78)
    assert says in done.stderr
    runs = supd.json("status")["runs"]
    assert [(one["state"], one["generation"], one["restarts_used"]) for one in runs] in ([], [("failed", 0, 0)])
    wait_for("nothing to be left", lambda: not supd.survivors())


def test_an_instant_crasher_gets_exactly_its_restarts_with_growing_waits(supd: Supd) -> None:
    """H49: also where a minimum uptime of zero is asked for."""
    tables = '[restart]\nmax_restarts = 3\nstable_after = "0s"\nbackoff = "20ms"\non_startup_failure = "restart"\n'
    run = supd.start_job(supd.job("crash", "crasher.py", "--code", "1", tables=tables, nproc=1))
    status = supd.wait_state(run, "failed")
    assert (status["generation"], status["restarts_used"]) == (3, 3)
    assert "restart budget spent (3 of 3)" in status["reason"]
    lines = supd.supctl("events", run, "--json", "--type", "restart.decided").stdout.splitlines()
    decided = [json.loads(line)["detail"] for line in lines]
    assert [(one["used"], one["limit"]) for one in decided] == [(1, 3), (2, 3), (3, 3)]
    first_s, second_s, third_s = (one["delay_s"] for one in decided)
    assert 0 == first_s < second_s < third_s


def test_ranks_that_are_done_wait_as_configured_and_a_failure_ends_the_wait_at_once(supd: Supd) -> None:
    """H51: rank 0 ends with 0, rank 1 goes on; then it is killed."""
    tables = '[restart]\nmax_restarts = 0\n[stop]\nfinish_timeout = "1h"\n'
    run = supd.start_job(supd.job("uneven", "crasher.py", "--rank", "0", "--code", "0", tables=tables))
    ranks = wait_for("rank 0 to end", lambda: (r := supd.ranks(run)) and r[0]["state"] == "exited" and r)
    assert (supd.status(run)["state"], ranks[1]["state"]) == ("running", "running")
    os.kill(ranks[1]["pid"], signal.SIGSEGV)
    status = supd.wait_state(run, "failed")
    assert status["incident"]["signal"] == "SIGSEGV"


def test_commands_in_a_crash_loop_get_definite_answers_and_the_last_one_holds(supd: Supd) -> None:
    """H52, with 24 commands: start, restart and stop of a job that crashes, four at a time."""
    tables = f'[restart]\nmax_restarts = -1\nno_progress_limit = 0\non_startup_failure = "restart"\n{AT_ONCE}'
    job = supd.job("loop", "crasher.py", "--code", "1", "--after", "0.05", tables=tables, nproc=1)
    codes: list[int] = []

    def command(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(6):
            words = rng.choice((["start", str(job), "--detach"], ["stop", "loop"], ["restart", "loop"]))
            codes.append(supd.supctl(*words, check=False).returncode)

    threads = [threading.Thread(target=command, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(codes) == 24
    assert set(codes) <= {0, 1, 3, 4, 5}  # refused: it is active already, over, being stopped, or not there yet
    supd.supctl("stop", "--all")
    assert supd.process is not None
    assert supd.process.poll() is None
    runs = supd.json("status")["runs"]
    assert {run["state"] for run in runs} <= {"stopped", "failed"}
    wait_for("nothing to be left", lambda: not supd.survivors())


def test_a_restart_that_races_with_a_crash_always_brings_the_run_back(supd: Supd) -> None:
    """H55, with eight restarts."""
    tables = f"[restart]\nmax_restarts = -1\nno_progress_limit = 0\n{AT_ONCE}stable_after = '1ms'\n"
    run = supd.start_job(supd.job("race", "sleeper.py", tables=tables, nproc=2))
    supd.wait_state(run, "running")
    rng = random.Random(55)
    for _ in range(8):
        pids = [rank["pid"] for rank in supd.ranks(run) if rank["pid"] is not None and rank["state"] == "running"]
        with supd.popen("restart", run) as restart:
            if pids and rng.random() < 0.7:
                with contextlib.suppress(ProcessLookupError):  # the restart was quicker
                    os.kill(rng.choice(pids), signal.SIGKILL)
            out, err = restart.communicate(timeout=60)
        assert restart.returncode == 0, out + err
        status = supd.status(run)
        assert status["state"] in STATES - {"succeeded", "failed", "stopped", "held"}
    status = wait_for("all ranks to run", lambda: (s := supd.status(run))["ranks_running"] == 2 and s)
    assert status["generation"] >= 8
