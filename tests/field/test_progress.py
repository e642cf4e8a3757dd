"""Step, rate and ETA of a job that shows them in its output or in a file, and does not know of supd."""

import json
import os
import signal
from typing import Any

import pytest

from tests.e2e.supd import Supd, wait_for
from tests.field.watching import pids, running

PATTERN = r"log_pattern = 'step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)'"
BAR = r"log_pattern = '\| (?P<step>\d+)/(?P<total>\d+) \['"
TOTAL = 3000


def reaches(supd: Supd, run: str, step: int) -> Any:
    """Wait until the job shows this step, and a rate; returns its status."""

    def look() -> Any:
        status = supd.status(run)
        return status if (status["step"] or 0) >= step and status["rate"] is not None else None

    return wait_for(f"step {step}", look)


def of_rank(supd: Supd, run: str, rank: int) -> Any:
    return supd.json("ps", run)["ranks"][rank]


@pytest.mark.parametrize(("how", "pattern"), [("log", PATTERN), ("bar", BAR)])
def test_a_job_shows_step_rate_and_eta_by_what_it_prints(supd: Supd, how: str, pattern: str) -> None:
    run = running(supd, supd.job("printing", "steps.py", how, str(TOTAL), tables=f"[progress]\n{pattern}\n"))
    status = reaches(supd, run, 20)
    assert status["total_steps"] == TOTAL
    assert status["rate"] > 0
    assert status["eta_seconds"] > 0
    assert (status["loss"] is not None) == (how == "log")
    assert of_rank(supd, run, 0)["step"] >= 20
    assert of_rank(supd, run, 1)["step"] is None  # only rank 0 is listened to
    text = supd.supctl("status", run).stdout
    assert f" of {TOTAL:,}   " in text
    assert "   ETA " in text
    assert "last progress " in text


def test_the_jobs_step_is_the_one_that_every_rank_which_shows_one_has_reached(supd: Supd) -> None:
    tables = f'[progress]\nlog_ranks = "all"\n{PATTERN}\n'
    run = running(supd, supd.job("halves", "steps.py", "log", "60", tables=tables))
    wait_for("rank 0 to be ahead", lambda: (of_rank(supd, run, 0)["step"] or 0) > 30)
    wait_for("rank 1 to have made its half", lambda: supd.status(run)["step"] == 30)
    (supd.folder / "end").touch()
    assert supd.wait_state(run, "succeeded")["step"] == 30


@pytest.mark.parametrize("how", ["file", "json"])
def test_a_job_shows_its_step_by_a_file(supd: Supd, how: str) -> None:
    tables = '[progress]\nfile = "step-{rank}"\ntotal_steps = 3000\n'
    run = running(supd, supd.job("writing", "steps.py", how, str(TOTAL), "step-{rank}", tables=tables))
    status = reaches(supd, run, 20)
    assert (status["total_steps"], status["eta_seconds"] > 0) == (TOTAL, True)
    assert (status["loss"] is not None) == (how == "json")
    assert all(of_rank(supd, run, rank)["step"] >= 20 for rank in (0, 1))


@pytest.mark.parametrize("how", ["log", "json"])
def test_the_last_step_of_a_job_that_ends_at_once_is_known(supd: Supd, how: str) -> None:
    (supd.folder / "end").touch()
    tables = f'[progress]\nlog_ranks = "all"\nfile = "step-{{rank}}"\n{PATTERN}\n'
    run = supd.start_job(supd.job("short", "steps.py", how, "7", "step-{rank}", tables=tables, nproc=1))
    status = supd.wait_state(run, "succeeded")
    assert (status["step"], status["total_steps"]) == (7, 7)


def test_a_new_generation_shows_nothing_of_the_last_ones_steps(supd: Supd) -> None:
    tables = '[progress]\nfile = "step-{rank}"\n[restart]\nbackoff = "0s"\n'
    run = running(supd, supd.job("again", "steps.py", "file", str(TOTAL), "step-{rank}", tables=tables))
    reaches(supd, run, 20)
    (supd.folder / "hold").touch()
    os.kill(pids(supd, run)[0], signal.SIGKILL)
    status = wait_for("generation 1", lambda: (now := supd.status(run))["generation"] == 1 and now)
    assert (status["step"], status["rate"], status["silent_seconds"]) == (None, None, None)
    (supd.folder / "hold").unlink()
    assert reaches(supd, run, 1)["generation"] == 1


def test_a_pattern_that_takes_for_ever_costs_the_job_nothing_but_its_steps(supd: Supd) -> None:
    tables = '[hang]\naction = "restart"\ninit_timeout = "2s"\nstep_timeout = "2s"\n'
    tables += f"[progress]\nlog_pattern = {json.dumps('(?P<step>[0-9]+)(x|xx)+[yz]')}\n"
    run = running(supd, supd.job("slow", "steps.py", "noise", "50", tables=tables))
    logs = supd.state / "runs" / run
    wait_for("the pattern to be given up", lambda: any("pattern_dropped" in p.read_text() for p in logs.glob("*.log")))
    wait_for("ps to say so", lambda: "log_pattern was given up" in (of_rank(supd, run, 0)["note"] or ""))
    (supd.folder / "end").touch()
    status = supd.wait_state(run, "succeeded")
    assert (status["generation"], status["step"]) == (0, None)


def test_a_pipe_in_place_of_files_that_a_runner_reads_keeps_no_job_from_its_start(supd: Supd) -> None:
    os.mkfifo(supd.folder / "pipe")
    tables = '[progress]\nfile = "pipe"\n[checkpoint]\nmarker = "pipe"\n'
    run = running(supd, supd.job("piped", "steps.py", "log", "60", tables=tables))
    assert of_rank(supd, run, 0)["step"] is None
    (supd.folder / "end").touch()
    supd.wait_state(run, "succeeded")
