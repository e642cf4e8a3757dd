"""Heartbeats and hang detection: no false alarm, and a report that tells what a rank that hangs is doing.

Limits are scaled to a second or two. A rank beats ten times a second, so that a loaded machine may hold it up for
longer than a second before a test that wants no alarm gets one.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.jobs import output
from tests.e2e.supd import Supd, alive, wait_for
from tests.field.watching import nothing_is_left, stays, stopped

LIMIT_S = 1.5
STEPS = f'[hang]\nstep_timeout = "{LIMIT_S}s"\n'
WARNS = f'{STEPS}action = "warn"\n'


def events(supd: Supd, run: str, *kinds: str) -> list[Any]:
    """What was told of the run so far, of these kinds."""
    told = map(json.loads, supd.supctl("events", run, "--json").stdout.splitlines())
    return [event for event in told if event["kind"] in kinds]


def alarms(supd: Supd, run: str) -> list[Any]:
    """Every word of a hang, or of a failure."""
    return events(supd, run, "rank.stalled", "incident.opened")


def beating(supd: Supd, name: str, *acts: str, tables: str = STEPS, nproc: int = 2) -> str:
    """A job whose ranks do these acts, running; its working directory is the test's folder."""
    run = supd.start_job(supd.job(name, "acts.py", *acts, tables=tables, nproc=nproc, run=f'workdir = "{supd.folder}"'))
    supd.wait_state(run, "running", "stalled")
    return run


def ends(supd: Supd, run: str, state: str = "succeeded") -> Any:
    """Its status, once it has ended as it should."""
    status = supd.wait_state(run, "succeeded", "failed", "stopped")
    assert status["state"] == state, status["reason"]
    nothing_is_left(supd)
    return status


def pid_of(supd: Supd, run: str, rank: int) -> int:
    return int(next(r["pid"] for r in supd.ranks(run) if r["rank"] == rank))


def shows_a_step(supd: Supd, run: str) -> Any:
    return wait_for("a step of every rank", lambda: all(r["step"] for r in supd.ranks(run)) or None)


def runs_again(supd: Supd, run: str) -> Any:
    """Its status, once the next generation has started."""
    return wait_for(
        "generation 1", lambda: (s := supd.status(run))["generation"] == 1 and s["state"] == "running" and s
    )


def three_limits_pass(pids: list[int]) -> None:
    stays("the ranks live", lambda: all(alive(pid) for pid in pids), window_s=3 * LIMIT_S)


def nobody_was_alarmed(supd: Supd, run: str) -> None:
    """It goes on, for longer than a limit, and comes to its end."""
    before = supd.status(run)["step"]
    stays("no alarm", lambda: not alarms(supd, run), window_s=1.5 * LIMIT_S)
    assert supd.status(run)["step"] > before
    (supd.folder / "end").touch()
    assert ends(supd, run)["restarts_used"] == 0
    assert alarms(supd, run) == []


# --- no false alarm --------------------------------------------------------------------------------------------------


def test_a_declared_phase_has_its_own_limit_and_an_undeclared_block_is_warned_of(supd: Supd) -> None:
    """H57. The second half with `action = "warn"`: the run goes on, and says when the rank does."""
    acts = ("beat:5", "phase:checkpoint", "sleep:4", "phase:", "beat:5", "sleep:3", "beat:12")
    run = beating(supd, "saves", *acts, tables=f'{WARNS}phases = {{ checkpoint = "60s" }}\n', nproc=1)
    assert ends(supd, run)["restarts_used"] == 0
    [stall] = events(supd, run, "rank.stalled")
    assert (stall["detail"]["step"], stall["detail"]["phase"]) == (10, "")
    assert len(events(supd, run, "rank.resumed")) == 1


def test_the_limit_of_the_first_beat_is_its_own_and_the_steady_one_begins_after_it(supd: Supd) -> None:
    """H59."""
    tables = f'{STEPS}init_timeout = "60s"\n'
    run = beating(supd, "compiles", "print", "sleep:4", "beat:20", tables=tables)
    assert ends(supd, run)["restarts_used"] == 0
    assert alarms(supd, run) == []


def test_a_paused_supd_blames_nobody(supd: Supd) -> None:
    """H60. One node: the daemon that coordinates is paused. Its disk is left out."""
    run = beating(supd, "train", "rest")
    shows_a_step(supd, run)
    pids = [r["pid"] for r in supd.ranks(run)]
    assert supd.process is not None
    with stopped([supd.process.pid]):
        three_limits_pass(pids)
    nobody_was_alarmed(supd, run)


def test_a_paused_runner_blames_nobody(supd: Supd) -> None:
    """H60, for the process that judges."""
    run = beating(supd, "train", "rest")
    shows_a_step(supd, run)
    pids = [r["pid"] for r in supd.ranks(run)]
    with stopped(supd.runner_pids()):
        three_limits_pass(pids)
    nobody_was_alarmed(supd, run)


def test_a_frozen_and_thawed_runner_with_its_ranks_blames_nobody(supd: Supd) -> None:
    """A snapshot of a machine, `docker pause`: by the freezer of cgroup2, where supd may have a group of its own."""
    run = beating(supd, "train", "rest")
    shows_a_step(supd, run)
    ranks = [r["pid"] for r in supd.ranks(run)]
    with frozen(supd, ranks):
        three_limits_pass(ranks)
    nobody_was_alarmed(supd, run)


@contextlib.contextmanager
def frozen(supd: Supd, ranks: list[int]) -> Iterator[None]:
    """Runner, guard and ranks don't run; all at once where the kernel can do that, else one after the other."""
    groups = {Path(lock.read_text()) for lock in (supd.state / "runners").glob("*.lock") if lock.read_text()}
    freezers = [group / "cgroup.freeze" for group in groups if (group / "cgroup.freeze").exists()]
    if not freezers:
        with stopped([*supd.runner_pids(), *supd.guard_pids(), *ranks]):
            yield
        return
    try:
        for freezer in freezers:
            freezer.write_text("1")
        yield
    finally:
        for freezer in freezers:
            freezer.write_text("0")


def test_a_rank_that_is_stopped_and_goes_on_within_its_limit_is_no_hang(supd: Supd) -> None:
    run = beating(supd, "train", "rest", tables='[hang]\nstep_timeout = "4s"\n')
    shows_a_step(supd, run)
    pid = pid_of(supd, run, 1)
    with stopped([pid]):
        stays("it is stopped", lambda: alive(pid), window_s=1.5)
    nobody_was_alarmed(supd, run)


def test_what_was_declared_before_a_restart_means_nothing_after_it(supd: Supd) -> None:
    """H46."""
    tables = '[hang]\naction = "restart"\nphases = { checkpoint = "2s" }\n'
    run = beating(supd, "saves", "g0/beat:3", "g0/phase:checkpoint", "g0/sleep:0.5", "g0/block", "rest", tables=tables)
    wait_for("the phase", lambda: all(r["phase"] == "checkpoint" for r in supd.ranks(run)) or None)
    os.kill(pid_of(supd, run, 0), signal.SIGKILL)
    runs_again(supd, run)
    stays("it runs", lambda: supd.status(run)["state"] == "running", window_s=6.0)
    (supd.folder / "end").touch()
    assert ends(supd, run)["restarts_used"] == 1
    assert [event["detail"]["cause"] for event in alarms(supd, run)] == ["signal"]


# --- alarms ----------------------------------------------------------------------------------------------------------


def test_code_that_keeps_the_interpreters_lock_is_alive_without_a_beat_and_leaves_its_stack(supd: Supd) -> None:
    """H58. And as soon as somebody does something about it, the incident holds the Python stack."""
    run = beating(supd, "native", "beat:5", "g0/r1/usleep:600", "rest")
    status = runs_again(supd, run)
    incident = status["incident"]
    assert (incident["cause"], incident["rank"], incident["signal"]) == ("hang", 1, "SIGABRT")
    assert " hangs: alive, no beat for " in incident["summary"]
    assert f", limit {LIMIT_S:g} s (hang.step_timeout), last step 5" in incident["summary"]
    assert "in hold_the_lock" in "\n".join(incident["stderr_tail"])
    assert b"in hold_the_lock" in output(supd, run, rank=1, stream="err")
    (supd.folder / "end").touch()
    assert ends(supd, run)["restarts_used"] == 1


def test_a_rank_that_somebody_has_stopped_is_named_as_such_and_comes_back(supd: Supd) -> None:
    run = beating(supd, "train", "rest", nproc=3)
    shows_a_step(supd, run)
    pid = pid_of(supd, run, 1)
    os.kill(pid, signal.SIGSTOP)
    status = wait_for(
        "generation 1", lambda: (s := supd.status(run))["generation"] == 1 and s["state"] == "running" and s
    )
    incident = status["incident"]
    assert (incident["cause"], incident["rank"], incident["pid"]) == ("hang", 1, pid)
    assert " hangs: stopped (T), no beat for " in incident["summary"]
    assert "SIGSTOP" in incident["summary"]
    assert not alive(pid)
    (supd.folder / "end").touch()
    ends(supd, run)


def test_a_program_below_a_wrapper_is_told_from_it_when_it_is_gone(supd: Supd) -> None:
    run = beating(supd, "wrapped", "child:5", "block", tables=WARNS, nproc=1)
    supd.wait_state(run, "stalled")
    [stall] = events(supd, run, "rank.stalled")
    assert stall["detail"]["state"] == "gone"
    [rank] = supd.ranks(run)
    assert rank["state"] == "stalled"
    assert rank["note"].startswith("gone, no beat for ")
    supd.supctl("stop", run)
    ends(supd, run, "stopped")


def test_the_stacks_of_a_program_below_a_wrapper_are_in_the_incident(supd: Supd) -> None:
    run = beating(supd, "wrapped", "g0/child:5000", "rest", tables=STEPS, nproc=1)
    shows_a_step(supd, run)
    [child] = [pid for pid in supd.survivors() if pid != pid_of(supd, run, 0)]
    os.kill(child, signal.SIGSTOP)
    status = runs_again(supd, run)
    assert "stopped (T)" in status["incident"]["summary"]
    assert "in beat" in "\n".join(status["incident"]["stderr_tail"])
    (supd.folder / "end").touch()
    ends(supd, run)


def test_a_rank_that_hangs_at_its_start_is_ended_before_the_next_one_begins_every_time(supd: Supd) -> None:
    """H53, with four cycles."""
    tables = (
        '[hang]\ninit_timeout = "1s"\n'
        '[restart]\nmax_restarts = 3\nbackoff = "10ms"\nbackoff_max = "10ms"\non_startup_failure = "restart"\n'
    )
    run = supd.start_job(supd.job("imports", "acts.py", "block", tables=tables, nproc=1))

    def is_over() -> bool:
        assert len(supd.survivors()) <= 1
        return bool(supd.status(run)["is_final"])

    wait_for("its end", is_over)
    status = ends(supd, run, "failed")
    assert (status["generation"], status["restarts_used"]) == (3, 3)
    summaries = [event["text"] for event in events(supd, run, "incident.opened")]
    assert len(summaries) == 4
    assert all("alive, no first beat for 1" in text and "(hang.init_timeout)" in text for text in summaries)


def test_a_hang_while_supd_is_away_is_ended_by_its_runner_and_told_afterwards(supd: Supd) -> None:
    run = beating(supd, "train", "rest")
    shows_a_step(supd, run)
    pid = pid_of(supd, run, 0)
    supd.kill()
    os.kill(pid, signal.SIGSTOP)
    wait_for("the runner to end its part", lambda: not supd.survivors())
    supd.start()
    status = wait_for(
        "generation 1", lambda: (s := supd.status(run))["generation"] == 1 and s["state"] == "running" and s
    )
    assert (status["incident"]["cause"], status["incident"]["rank"]) == ("hang", 0)
    (supd.folder / "end").touch()
    ends(supd, run)


def test_a_hang_fails_the_run_where_the_job_wants_that(supd: Supd) -> None:
    run = beating(supd, "once", "beat:3", "block", tables=f'{STEPS}action = "fail"\n', nproc=1)
    status = ends(supd, run, "failed")
    assert status["reason"].endswith('; hang.action is "fail"')
    assert status["restarts_used"] == 0
