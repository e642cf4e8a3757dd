"""Cases H20 to H26 of the field reports: how a rank ended, as the user and the policy see it."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.jobs import command_job, finished
from tests.e2e.supd import Supd

NEVER = '[restart]\npolicy = "never"\n'
JOB_FAILED = 4
"""What supctl ends with after a run that failed (docs/cli.md, exit codes)."""


def again(restarts: int) -> str:
    """[restart] for ranks that fail as soon as they are there: without a wait, so many times."""
    return f'[restart]\nmax_restarts = {restarts}\nbackoff = "0s"\non_startup_failure = "restart"\n'


def own_folder(supd: Supd, name: str) -> str:
    """A line of [run] with a working directory of the job's own."""
    Path(supd.folder, name).mkdir()
    return f'workdir = "{name}"'


@pytest.mark.parametrize("rank", ["0", "1", "-1"], ids=["rank 0", "rank 1", "all"])
def test_whoever_waits_for_a_run_learns_of_its_failure_by_the_exit_code(supd: Supd, rank: str) -> None:
    """H20. Attached is `supctl start --follow`, and `supctl wait`.

    The second node: test_two_nodes.py. `front` is left out.
    """
    job = supd.job("fails", "crasher.py", "--rank", rank, "--code", "7", tables=NEVER)
    followed = supd.supctl("start", str(job), "--follow", check=False)
    assert followed.returncode == JOB_FAILED
    assert "exited with code 7" in followed.stderr
    for condition in ("running", "succeeded"):
        assert supd.supctl("wait", "fails", "--for", condition, check=False).returncode == JOB_FAILED
    assert supd.status("fails")["incident"]["exit_code"] == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_death_by_a_signal_is_a_failure_shown_as_128_plus_its_number(supd: Supd, number: signal.Signals) -> None:
    """H21. That it counts as a failure is seen by the restart it takes."""
    command = ["sh", "-c", f"kill -{number.value} $$"]
    status, [rank] = finished(supd, command_job(supd, "dies", command, tables=again(1)), "failed")
    assert (status["generation"], status["restarts_used"]) == (1, 1)
    for told in (rank, status["incident"]):
        assert (told["exit_code"], told["signal"], told["shell_code"]) == (None, number.name, 128 + number)
    assert status["incident"]["cause"] == "signal"
    assert not rank["stopped_by_supervisor"]
    assert supd.supctl("wait", "dies", check=False).returncode == JOB_FAILED


def test_no_exit_code_is_lost_however_soon_it_comes(supd: Supd) -> None:
    """H22. 200 generations of one rank, since of several ranks only the first to end is sure to end by itself; in 8
    runs, since one ends after 25 failures of one cause (docs/restarts.md)."""
    for name in (f"quick{number}" for number in range(8)):
        status, [rank] = finished(supd, command_job(supd, name, ["sh", "-c", "exit 3"], tables=again(24)), "failed")
        assert (status["generation"], status["restarts_used"], rank["exit_code"]) == (24, 24, 3)
        events = [json.loads(line) for line in supd.supctl("events", name, "--json").stdout.splitlines()]
        codes = [e["detail"]["exit_code"] for e in events if e["kind"] == "incident.opened"]
        assert codes == [3] * 25


def test_every_rank_that_was_stopped_has_its_own_end_on_record_and_is_no_failure(supd: Supd) -> None:
    """H23. Rank 0 fails; of the others one dies of TERM, one ends well on it, and one with a code."""
    job = supd.job("post-mortem", "peers.py", "5", "term", "term:0", "term:9", nproc=4, run=own_folder(supd, "meet"))
    job.write_text(job.read_text() + NEVER)
    status, ranks = finished(supd, job, "failed")
    assert [(r["exit_code"], r["signal"], r["stopped_by_supervisor"]) for r in ranks] == [
        (5, None, False),
        (None, "SIGTERM", True),
        (0, None, True),
        (9, None, True),
    ]
    assert all(r["ended_at"] and r["ran_seconds"] > 0 for r in ranks)
    assert (status["incident"]["rank"], status["incident"]["exit_code"]) == (0, 5)


def test_ranks_that_end_well_before_they_have_said_anything_are_a_success(supd: Supd) -> None:
    """H24. "Before any heartbeat" is here: before any output, and at once."""
    done = supd.supctl("start", str(command_job(supd, "brief", ["true"], nproc=4)), "--follow", timeout_s=20)
    assert done.returncode == 0
    assert supd.status("brief")["state"] == "succeeded"
    assert [r["exit_code"] for r in supd.ranks("brief")] == [0] * 4


@pytest.mark.parametrize("codes", [("75", "75"), ("75", "1")], ids=["agree", "differ"])
def test_exit_codes_are_kept_as_they_were(supd: Supd, codes: tuple[str, ...]) -> None:
    """H25. In status and ps.

    The second node: test_two_nodes.py. `front`, which ends with the code itself, is left out.
    """
    job = supd.job("codes", "peers.py", *codes, run=own_folder(supd, "meet"), tables=NEVER)
    status, ranks = finished(supd, job, "failed")
    assert [r["exit_code"] for r in ranks] == [int(code) for code in codes]
    first = status["incident"]
    assert (first["exit_code"], first["shell_code"]) == (int(codes[first["rank"]]),) * 2
    assert first["summary"].endswith(f"exited with code {first['exit_code']}")


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGABRT, "SIGABRT"), (signal.SIGRTMIN + 3, "SIGRTMIN+3")],
)
@pytest.mark.parametrize("core", ["0", '"unlimited"'], ids=["no core", "core"])
def test_a_signal_has_its_right_name_and_a_core_dump_is_told_where_there_is_one(
    supd: Supd, number: int, name: str, core: str
) -> None:
    """H26. Where the kernel pipes cores to a program, one is dumped whatever the limit: then only the name counts."""
    run = f"{own_folder(supd, 'cores')}\nlimits = {{ core = {core} }}"
    command = ["sh", "-c", f"kill -{int(number)} $$"]
    status, [rank] = finished(supd, command_job(supd, "dumps", command, run=run, tables=NEVER), "failed")
    for told in (rank, status["incident"]):
        assert (told["signal"], told["exit_code"], told["shell_code"]) == (name, None, 128 + number)
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if not pattern.startswith("|"):
        dumps = core != "0" and number < signal.SIGRTMIN
        assert rank["core_dumped"] == status["incident"]["core_dumped"] == dumps
        assert ("(core dumped)" in status["incident"]["summary"]) == dumps
        assert bool(os.listdir(supd.folder / "cores")) == dumps or "/" in pattern


def test_exit_255_is_not_taken_for_a_signal(supd: Supd) -> None:
    """H26, its last part."""
    status, [rank] = finished(supd, command_job(supd, "big", ["sh", "-c", "exit 255"], tables=NEVER), "failed")
    for told in (rank, status["incident"]):
        assert (told["signal"], told["exit_code"], told["shell_code"]) == (None, 255, 255)
    assert status["incident"]["cause"] == "exit"
