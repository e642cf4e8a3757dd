"""Runs that come no further or have no budget left: exit code 7, held and gone on with, and what would follow."""

import os
import signal
from pathlib import Path

from tests.e2e.supd import Supd, wait_for

STEPS = "[progress]\nlog_pattern = 'step (?P<step>\\d+)'\nlog_ranks = \"all\"\n"
AT_ONCE = '[restart]\nbackoff = "10ms"\nbackoff_max = "10ms"\non_startup_failure = "restart"\n'


def crashes(supd: Supd, name: str, *, tables: str = "", says: str = "ready") -> str:
    """A job of one rank that says one line and raises an exception."""
    program = supd.folder / f"{name}.py"
    program.write_text(f"print({says!r}, flush=True)\nraise RuntimeError('rank is sad')\n")
    return supd.start_job(supd.job(name, str(program), tables=tables, nproc=1))


def test_a_run_that_fails_of_one_cause_at_one_step_ends_with_code_7_wherever_its_outcome_is_waited_for(
    supd: Supd,
) -> None:
    run = crashes(supd, "stuck", tables=f"{AT_ONCE}{STEPS}", says="step 5")
    waited = supd.supctl("wait", run, check=False)
    assert waited.returncode == 7
    status = supd.status(run)
    assert (status["state"], status["made_no_progress"], status["restarts_used"]) == ("failed", True, 2)
    assert "no progress: 3 failures in a row of one cause (RuntimeError at " in status["reason"]
    assert "at step 5 (restart.no_progress_limit)" in status["reason"]
    assert supd.supctl("logs", "--exit-status", run, check=False).returncode == 7
    assert "2 of 10 restarts used, no-progress streak 3 of 3" in supd.supctl("status", run).stdout


def test_a_run_without_steps_that_are_known_spends_its_budget(supd: Supd) -> None:
    run = crashes(supd, "mute", tables=f"{AT_ONCE}max_restarts = 4\n")
    assert supd.supctl("wait", run, check=False).returncode == 4
    assert supd.status(run)["restarts_used"] == 4
    kinds = supd.supctl("events", run, "--type", "restart.*").stdout
    assert [f"restart {number} of 4" in kinds for number in (1, 2, 3, 4, 5)] == [True, True, True, True, False]


def test_a_run_that_is_held_keeps_its_runner_over_a_restart_of_supd_and_goes_on_by_hand(supd: Supd) -> None:
    tables = f'{AT_ONCE}max_restarts = 0\non_budget_spent = "hold"\n'
    run = supd.start_job(supd.job("train", "sleeper.py", tables=tables, nproc=2))
    supd.wait_state(run, "running")
    pid = supd.ranks(run)[1]["pid"]
    runner = parent(pid)
    os.kill(pid, signal.SIGKILL)
    status = supd.wait_state(run, "held")
    assert (status["is_final"], status["waiting_for"]) == (False, "supctl resume, restart or stop")
    assert "restart budget spent (0 of 0)" in status["reason"]
    assert supd.supctl("status", "--check", check=False).returncode == 6
    supd.kill()
    supd.start()
    supd.wait_state(run, "held")
    assert supd.supctl("resume", run).stderr.splitlines()[0] == f"resuming {run}: its budgets are as at its start"
    status = supd.status(run)
    assert (status["state"], status["generation"], status["restarts_used"]) == ("running", 1, 0)
    assert parent(supd.ranks(run)[0]["pid"]) == runner
    refused = supd.supctl("resume", run, check=False)
    assert (refused.returncode, "F123" in refused.stderr) == (1, True)
    os.kill(supd.ranks(run)[0]["pid"], signal.SIGKILL)
    supd.wait_state(run, "held")
    supd.supctl("stop", run)
    assert supd.status(run)["state"] == "stopped"
    wait_for("all to be gone", lambda: not supd.survivors())


def parent(pid: int) -> int:
    """The runner of a rank."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_would_follow_is_told_without_touching_the_run(supd: Supd) -> None:
    tables = '[restart]\nmax_restarts = 2\nnever_on_exit = [3]\nbackoff = "4s"\n'
    run = supd.start_job(supd.job("train", "sleeper.py", tables=tables, nproc=2))
    supd.wait_state(run, "running")
    steps = supd.json("policy", "--exit", "139", "--rank", "37", "--after", "9", run)["steps"]
    assert [(step["action"], step["delay_seconds"]) for step in steps] == [("restart", 0), ("restart", 4), ("fail", 0)]
    told = supd.supctl("policy", "--exit", "3", run).stdout
    assert "exit code 3 is in restart.never_on_exit" in told
    assert supd.status(run)["restarts_used"] == 0
    supd.supctl("stop", run)
    over = supd.supctl("policy", "--exit", "3", run, check=False)
    assert (over.returncode, "F104" in over.stderr) == (1, True)
