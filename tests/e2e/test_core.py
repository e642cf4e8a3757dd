"""The first thing a user can trust: start, look, crash, restart, stop."""

import os
import signal

from tests.e2e.supd import Supd, wait_for


def test_a_job_runs_to_its_end_and_says_so(supd: Supd) -> None:
    done = supd.supctl("start", str(supd.job("ok", "sleeper.py", "--for", "0.3", nproc=4)), "--follow")
    assert "rank 0 of 4 generation 0" in done.stdout
    status = supd.status("ok")
    assert (status["state"], status["generation"], status["restarts_used"]) == ("succeeded", 0, 0)
    assert [(r["rank"], r["state"], r["exit_code"]) for r in supd.ranks("ok")] == [(i, "exited", 0) for i in range(4)]
    wait_for("all to be gone", lambda: not supd.survivors())


def test_a_rank_that_is_killed_brings_everybody_back_at_the_next_generation(supd: Supd) -> None:
    run = supd.start_job(supd.job("train", "sleeper.py", nproc=4))
    supd.wait_state(run, "running")
    before = {r["rank"]: r["pid"] for r in supd.ranks(run)}
    os.kill(before[3], signal.SIGKILL)
    status = wait_for(
        "generation 1", lambda: (s := supd.status(run))["generation"] == 1 and s["state"] == "running" and s
    )
    assert status["restarts_used"] == 1
    incident = status["incident"]
    assert (incident["cause"], incident["rank"], incident["signal"]) == ("signal", 3, "SIGKILL")
    after = {r["rank"]: r["pid"] for r in supd.ranks(run)}
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    supd.supctl("stop", run)
    assert supd.status(run)["state"] == "stopped"
    assert supd.survivors() == []
