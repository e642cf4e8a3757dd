"""Field reports H08-H16: how a run is asked to end, how long it gets, and whose signals reach whom.

H09, which is about waiting for a second node, is in test_two_nodes.py.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.supd import BIN, Supd, alive, wait_for
from tests.field.watching import Terminal, events, nothing_is_left, pids, running, runs_at, stays, terminal


def _names(supd: Supd, pattern: str) -> list[str]:
    return sorted(path.name for path in supd.folder.glob(pattern))


def _generation_ended(supd: Supd, run: str) -> Any:
    """Wait for the end of a generation; returns its event."""
    return wait_for(f"a generation of {run} to end", lambda: events(supd, run, "generation.ended") or None)[0]


@contextmanager
def _under_way(supd: Supd, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A supctl that is still at it; it has to end well with the block."""
    client = supd.popen(*args)
    try:
        yield client
        _, said = client.communicate(timeout=60)
        assert client.returncode == 0, said
    finally:
        client.kill()
        client.communicate()


# --- H08 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["stop", "restart", "crash"])
def test_the_jobs_grace_is_given_on_every_path_and_a_kill_at_its_end_is_told(supd: Supd, path: str) -> None:
    """H08. Two jobs that are saving, grace 60 s and 1 s: the first is let finish only after the second was killed.

    Left out: TERM to the daemon, which ends no run here (the next test), and the front, whose TERM does.
    """
    patient = running(supd, supd.job("patient", "saver.py", "--until", "go", tables='[stop]\ngrace = "60s"'))
    hasty = running(supd, supd.job("hasty", "saver.py", "--until", "never", tables='[stop]\ngrace = "1s"'))
    if path == "crash":
        for run in (patient, hasty):
            os.kill(pids(supd, run)[1], signal.SIGKILL)
        _saves_or_is_killed(supd, patient, hasty, "rank 0")
    else:
        with _under_way(supd, path, patient), _under_way(supd, path, hasty):
            _saves_or_is_killed(supd, patient, hasty, "ranks 0-1")
    for run in (patient, hasty):
        if path == "stop":
            assert supd.status(run)["state"] == "stopped"
        else:
            runs_at(supd, run, 1)


def _saves_or_is_killed(supd: Supd, patient: str, hasty: str, killed: str) -> None:
    """See one end by SIGKILL and hear of it; then let the other finish."""
    end = _generation_ended(supd, hasty)
    assert f"{killed} ended by SIGKILL (grace 1 s)" in end["text"]
    assert supd.status(patient)["state"] in ("stopping", "restarting")
    (supd.folder / "go").touch()
    assert _generation_ended(supd, patient)["detail"]["killed"] == 0
    saving = [name.removeprefix("term-") for name in _names(supd, "term-patient-0-*")]
    assert "patient-0-0" in saving
    assert [name.removeprefix("saved-") for name in _names(supd, "saved-*")] == saving


def test_term_to_supd_leaves_runs_alive_and_asks_no_worker_to_end(supd: Supd) -> None:
    """H08, the daemon's part. By design TERM replaces supd and ends no run: `supctl stop --all` does, with grace."""
    run = running(supd, supd.job("train", "saver.py"))
    before = pids(supd, run)
    supd.kill(signal.SIGTERM)
    stays("the ranks are alive", lambda: sorted(supd.survivors()) == sorted(before.values()))
    assert _names(supd, "term-*") == []
    supd.start()
    runs_at(supd, run, 0)
    assert pids(supd, run) == before
    supd.supctl("stop", "--all")
    assert _names(supd, "saved-*") == ["saved-train-0-0", "saved-train-0-1"]
    nothing_is_left(supd)


# --- H10 ---------------------------------------------------------------------------------------------------------


def test_supd_under_nohup_and_its_jobs_outlive_the_terminal_they_were_started_in(supd: Supd) -> None:
    """H10. supd even leads the terminal's session, so that it is the one who gets HUP. Left out: the front."""
    supd.kill(signal.SIGTERM)
    with terminal() as tty:
        supd.start(argv=(*tty.argv, "nohup"))
        run = running(supd, supd.job("train", "signals.py"))
    before = pids(supd, run)
    assert supd.process is not None
    process = supd.process
    stays("supd is alive", lambda: process.poll() is None)
    assert supd.status(run)["state"] == "running"
    assert pids(supd, run) == before
    assert _names(supd, "got-*") == []


def test_supd_outlives_its_terminal_also_without_nohup(supd: Supd) -> None:
    """H10. Runs go on, so somebody has to look after them; no signal of the terminal reaches what supd started."""
    supd.kill(signal.SIGTERM)
    with terminal() as tty:
        supd.start(argv=tty.argv)
        run = running(supd, supd.job("train", "signals.py"))
        before = pids(supd, run)
    process = supd.process
    assert process is not None
    stays("supd is alive", lambda: process.poll() is None)
    runs_at(supd, run, 0)
    assert pids(supd, run) == before
    assert _names(supd, "got-*") == []


def test_jobs_outlive_a_supd_that_is_ended_with_ctrl_c(supd: Supd) -> None:
    """H10, H15: that ends supd alone."""
    supd.kill(signal.SIGTERM)
    with terminal() as tty:
        supd.start(argv=tty.argv)
        run = running(supd, supd.job("train", "signals.py"))
        before = pids(supd, run)
        assert supd.process is not None
        tty.type(b"\x03")
        assert supd.process.wait(60) == 0
    stays("the ranks are alive", lambda: all(map(alive, before.values())))
    assert _names(supd, "got-*") == []
    supd.start()
    runs_at(supd, run, 0)
    assert pids(supd, run) == before


# --- H11 ---------------------------------------------------------------------------------------------------------


def test_supd_runner_and_guard_survive_usr1_and_usr2(supd: Supd) -> None:
    """H11. A cluster's early warning kills none of them, and reaches no worker of a job that has not asked for it. Left
    out: the front. A runner that is only just starting, and has no run yet, is waited for: it could be killed, and
    would be replaced.
    """
    run = running(supd, supd.job("train", "signals.py"))
    before = pids(supd, run)
    assert supd.process is not None
    wait_for("a ready runner", lambda: len(supd.runner_pids()) == len(["this run's", "the ready one"]))
    supervisors = [supd.process.pid, *supd.runner_pids(), *supd.guard_pids()]
    assert len(supervisors) == 5
    wait_for("them to be up", lambda: all(_survives(pid, signal.SIGUSR2) for pid in supervisors))
    for pid in supervisors:
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGUSR2)
    stays("they are alive", lambda: all(map(alive, supervisors)))
    assert supd.status(run)["state"] == "running"
    assert pids(supd, run) == before
    assert _names(supd, "got-*") == []


def _survives(pid: int, number: int) -> bool:
    """Whether it ignores or catches the signal, by proc_pid_status(5)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool((int(status["SigIgn"], 16) | int(status["SigCgt"], 16)) >> (number - 1) & 1)


PREEMPTION = """
[preemption]
signals = ["SIGUSR1"]
[stop]
pre_signal = "SIGUSR1"
pre_wait = "30s"
grace = "30s"
"""


def test_a_warning_to_supd_reaches_every_worker_of_a_job_that_lists_it_once_and_no_other_one(supd: Supd) -> None:
    """H11. Its workers get `pre_signal`, save, and end; supd goes on, and so does a job that lists another signal."""
    listing = running(supd, supd.job("lists", "signals.py", "--end-on", "SIGUSR1", tables=PREEMPTION))
    other = running(supd, supd.job("other", "signals.py", tables=PREEMPTION.replace("USR1", "USR2")))
    assert supd.process is not None
    os.kill(supd.process.pid, signal.SIGUSR1)
    status = supd.wait_state(listing, "preempted", "failed", "succeeded", "stopped")
    assert (status["state"], status["restarts_used"]) == ("preempted", 0), status
    assert [_got(supd, "lists", rank) for rank in (0, 1)] == [["SIGUSR1"], ["SIGUSR1"]]
    assert (supd.status(other)["state"], _names(supd, "got-other-*")) == ("running", [])
    assert supd.process.poll() is None


def test_a_run_is_told_of_a_supd_that_is_ended_where_it_takes_that_for_a_notice(supd: Supd) -> None:
    """TERM ends supd as ever; a job that lists it is told first, and saves meanwhile."""
    tables = PREEMPTION.replace('["SIGUSR1"]', '["SIGTERM"]')
    running(supd, supd.job("told", "signals.py", "--end-on", "SIGUSR1", tables=tables))
    assert supd.process is not None
    os.kill(supd.process.pid, signal.SIGTERM)
    assert supd.process.wait(60) == 0
    wait_for("its workers to be told", lambda: [_got(supd, "told", rank) for rank in (0, 1)] == [["SIGUSR1"]] * 2)
    supd.launch()


def _got(supd: Supd, job: str, rank: int) -> list[str]:
    """The signals that a rank of signals.py got."""
    path = supd.folder / f"got-{job}-{rank}"
    return path.read_text().splitlines() if path.exists() else []


# --- H12 ---------------------------------------------------------------------------------------------------------


def test_a_data_loading_child_lives_until_its_rank_has_saved(supd: Supd) -> None:
    """H12. The default, `stop.scope = "rank"`: TERM goes to the main process, which needs one more item to save.

    The child has TERM's default action. The other scope: tests/e2e/test_stopping.py.
    """
    run = running(supd, supd.job("train", "loader.py"))
    supd.supctl("stop", run)
    assert _names(supd, "saved-*") == ["saved-0-0", "saved-0-1"]
    assert [(rank["exit_code"], rank["stopped_by_supervisor"]) for rank in supd.ranks(run)] == [(0, True)] * 2
    nothing_is_left(supd)


# --- H13 ---------------------------------------------------------------------------------------------------------


def test_a_worker_that_ignores_term_is_killed_and_reaped_before_its_successor_is_spawned(supd: Supd) -> None:
    """H13. Ranks that ignore TERM and INT and write their generation every 0.02 s; a restart with a grace of 1 s."""
    run = running(supd, supd.job("train", "stubborn.py", tables='[stop]\ngrace = "1s"'))
    before = pids(supd, run)
    supd.supctl("restart", run)
    beats = supd.folder / "beats"
    wait_for("beats of generation 1", lambda: beats.read_text().count("1 0 ") >= 20)
    generations = [line.split()[0] for line in beats.read_text().splitlines()]
    assert generations == sorted(generations)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before.values())
    assert "ranks 0-1 ended by SIGKILL (grace 1 s)" in _generation_ended(supd, run)["text"]


def test_a_second_stop_shortens_the_grace_to_zero_and_abandons_nothing(supd: Supd) -> None:
    """H13, second half: `supctl stop`, Ctrl-C at it (it detaches), `supctl stop --now`.

    Left out: two Ctrl-C at the front, which mean the same.
    """
    run = running(supd, supd.job("train", "stubborn.py", tables='[stop]\ngrace = "10m"'))
    first = supd.popen("stop", run)
    supd.wait_state(run, "stopping")
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "keeps stopping" in said
    assert supd.status(run)["state"] == "stopping"
    assert len(supd.survivors()) == 2
    supd.supctl("stop", run, "--now")
    assert supd.survivors() == []
    assert [rank["signal"] for rank in supd.ranks(run)] == ["SIGKILL"] * 2
    assert "ranks 0-1 ended by SIGKILL (no grace)" in _generation_ended(supd, run)["text"]
    nothing_is_left(supd)


# --- H14 ---------------------------------------------------------------------------------------------------------


def test_no_worker_shares_a_group_or_session_with_supd_runner_or_guard_nor_two_jobs_with_each_other(supd: Supd) -> None:
    """H14. supd shares the group of the script that started it: there is no job control. One of two jobs is stopped."""
    first, second = (running(supd, supd.job(name, "signals.py")) for name in ("first", "second"))
    assert supd.process is not None
    supervisors = [supd.process.pid, *supd.runner_pids(), *supd.guard_pids()]
    workers = [*pids(supd, first).values(), *pids(supd, second).values()]
    assert os.getpgid(supd.process.pid) == os.getpgid(0)
    for kind in (os.getpgid, os.getsid):
        assert len(set(map(kind, workers))) == len(workers)
        assert not set(map(kind, workers)) & set(map(kind, supervisors))
    seconds = pids(supd, second)
    supd.supctl("stop", first)
    assert _names(supd, "got-*") == ["got-first-0", "got-first-1"]
    stays("supd is alive, and all of the second job", lambda: all(map(alive, [supervisors[0], *seconds.values()])))
    assert supd.status(second)["generation"] == 0
    assert pids(supd, second) == seconds


# --- H15 ---------------------------------------------------------------------------------------------------------


def test_ctrl_c_in_the_terminal_of_an_attached_client_only_detaches_it(supd: Supd) -> None:
    """H15. Neither supd nor a helper nor a worker hears of it, and a stop afterwards is an orderly one.

    The second node: test_two_nodes.py. Left out: the front, where Ctrl-C is that orderly stop.
    """
    job = supd.job("train", "saver.py")
    with terminal() as tty:
        argv = [*tty.argv, str(BIN / "supctl"), "start", str(job), "--follow"]
        client = subprocess.Popen(argv, env=supd.env, cwd=supd.folder, stdin=subprocess.DEVNULL)
        _shows(tty, b"ready")
        runs_at(supd, "train", 0)
        before = pids(supd, "train")
        tty.type(b"\x03")
        assert client.wait(60) == 130
        _shows(tty, b"detached; job keeps running")
    stays("the ranks are alive", lambda: all(map(alive, before.values())))
    assert _names(supd, "term-*") == []
    assert pids(supd, "train") == before
    supd.supctl("stop", "train")
    assert _names(supd, "saved-*") == ["saved-train-0-0", "saved-train-0-1"]
    nothing_is_left(supd)


def _shows(tty: Terminal, text: bytes) -> None:
    shown = bytearray()

    def look() -> bool:
        shown.extend(tty.read())
        return text in shown

    wait_for(f"{text!r} on the terminal", look)


# --- H16 ---------------------------------------------------------------------------------------------------------


def test_stop_returns_when_the_workers_have_ended_and_does_not_wait_for_the_end_of_the_grace(supd: Supd) -> None:
    """H16. They end 0.1 s after TERM. A grace of 10 minutes: had it been waited for, `supctl` would be timed out."""
    run = running(supd, supd.job("train", "saver.py", "--for", "0.1", tables='[stop]\ngrace = "10m"'))
    supd.supctl("stop", run, timeout_s=60)
    assert [(rank["state"], rank["exit_code"]) for rank in supd.ranks(run)] == [("exited", 0)] * 2
    assert _generation_ended(supd, run)["detail"]["killed"] == 0
