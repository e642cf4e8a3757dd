"""[stop]: every key does what docs/job-file.md says, through real supd, supctl and workers."""

import os
import signal

import pytest

from tests.e2e.supd import Supd, wait_for
from tests.field.watching import events, nothing_is_left, pids, running, runs_at, shell_job, stays


def _got(supd: Supd) -> list[list[str]]:
    """The signals that each rank has noted, rank after rank."""
    return [path.read_text().splitlines() for path in sorted(supd.folder.glob("got-*"))]


# --- signal, grace -----------------------------------------------------------------------------------------------


def test_the_stop_signal_is_the_jobs(supd: Supd) -> None:
    run = running(supd, supd.job("train", "signals.py", "--end-on", "SIGUSR2", tables='[stop]\nsignal = "SIGUSR2"'))
    supd.supctl("stop", run)
    assert _got(supd) == [["SIGUSR2"]] * 2
    assert [(rank["exit_code"], rank["stopped_by_supervisor"]) for rank in supd.ranks(run)] == [(0, True)] * 2


def test_the_grace_of_a_stop_goes_before_the_jobs_and_a_later_stop_can_only_shorten_it(supd: Supd) -> None:
    run = running(supd, supd.job("train", "stubborn.py", tables='[stop]\ngrace = "10m"'))
    long = supd.popen("stop", run, "--grace", "5m")
    supd.wait_state(run, "stopping")
    supd.supctl("stop", run, "--grace", "500ms")
    long.communicate(timeout=60)
    assert long.returncode == 0
    [end] = events(supd, run, "generation.ended")
    assert "ranks 0-1 ended by SIGKILL (grace 0.5 s)" in end["text"]
    nothing_is_left(supd)


# --- pre_signal, pre_wait ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["rank", "tree"])
def test_the_pre_signal_comes_first_and_only_to_the_rank_itself(supd: Supd, scope: str) -> None:
    """Also with `scope = "tree"`: its default action would kill helpers, here `sleep`, that know nothing of it."""
    stop = f'[stop]\npre_signal = "SIGUSR1"\npre_wait = "500ms"\nscope = "{scope}"\n'
    run = running(supd, supd.job("train", "signals.py", tables=stop))
    supd.supctl("stop", run)
    first, second = zip(*_got(supd), strict=True)
    assert set(first) == {"SIGUSR1"}
    assert {name.removesuffix(", child dead") for name in second} == {"SIGTERM"}


def test_a_rank_that_ends_on_the_pre_signal_is_not_waited_for_any_longer(supd: Supd) -> None:
    stop = '[stop]\npre_signal = "SIGUSR1"\npre_wait = "10m"\n'
    run = running(supd, supd.job("train", "signals.py", "--end-on", "SIGUSR1", tables=stop))
    supd.supctl("stop", run)
    assert _got(supd) == [["SIGUSR1"]] * 2
    nothing_is_left(supd)


def test_the_peers_of_a_crashed_rank_get_the_pre_signal_too(supd: Supd) -> None:
    stop = '[stop]\npre_signal = "SIGUSR1"\npre_wait = "10m"\n'
    run = running(supd, supd.job("train", "signals.py", "--end-on", "SIGUSR1", tables=stop))
    os.kill(pids(supd, run)[1], signal.SIGKILL)
    runs_at(supd, run, 1)
    assert _got(supd) == [["SIGUSR1"]]


def test_a_stop_now_sends_neither_pre_signal_nor_stop_signal(supd: Supd) -> None:
    stop = '[stop]\npre_signal = "SIGUSR1"\npre_wait = "10m"\n'
    run = running(supd, supd.job("train", "signals.py", tables=stop))
    supd.supctl("stop", run, "--now")
    assert _got(supd) == []
    assert [rank["signal"] for rank in supd.ranks(run)] == ["SIGKILL"] * 2
    nothing_is_left(supd)


# --- scope -------------------------------------------------------------------------------------------------------


def test_with_scope_tree_the_stop_signal_goes_to_everything_below_a_rank_at_once(supd: Supd) -> None:
    """Ranks that end only once their child has, which nobody but supd asks to end; the grace is 10 minutes."""
    run = running(supd, supd.job("train", "family.py", tables='[stop]\nscope = "tree"\ngrace = "10m"'))
    supd.supctl("stop", run)
    assert sorted(path.name for path in supd.folder.glob("saved-*")) == ["saved-0", "saved-1"]
    nothing_is_left(supd)


@pytest.mark.parametrize("scope", ["rank", "tree"])
def test_a_program_under_a_shell_wrapper_is_asked_to_end_and_has_its_grace_to_save(supd: Supd, scope: str) -> None:
    """By `tree` with its shell; by `rank` after it, when the shell is gone."""
    saver = os.path.join(os.path.dirname(__file__), "workers", "saver.py")
    tables = f'[stop]\nscope = "{scope}"\ngrace = "10m"'
    run = running(supd, shell_job(supd, "train", f'"$PYTHON" {saver} --for 0.2; true', tables=tables))
    supd.supctl("stop", run)
    assert sorted(path.name for path in supd.folder.glob("saved-*")) == ["saved-train-0-0", "saved-train-0-1"]
    nothing_is_left(supd)


# --- finish_timeout ----------------------------------------------------------------------------------------------


def test_ranks_that_do_not_finish_in_time_after_the_first_one_fail_the_run(supd: Supd) -> None:
    tables = '[stop]\nfinish_timeout = "500ms"\n[restart]\npolicy = "never"\n'
    job = supd.job("train", "crasher.py", "--rank", "0", "--code", "0", tables=tables)
    done = supd.supctl("start", str(job), "--follow", check=False)
    assert done.returncode == 4, done.stderr
    incident = supd.status("train")["incident"]
    assert (incident["cause"], incident["rank"]) == ("finish-timeout", 1)
    assert "rank 1 had not ended 0.5 s after the first rank had (stop.finish_timeout)" in incident["summary"]
    nothing_is_left(supd)


def test_by_default_ranks_that_have_finished_wait_for_the_others_without_limit(supd: Supd) -> None:
    """Rank 0 has ended with 0; rank 1 goes on, until it is told to finish by TERM from outside, and ends with 0."""
    job = supd.job("train", "saver.py", "--rank-0-ends")
    run = supd.start_job(job)
    wait_for("the end of rank 0", lambda: [r["exit_code"] for r in supd.ranks(run)] == [0, None])
    stays("rank 1 runs on", lambda: [r["state"] for r in supd.ranks(run)] == ["exited", "running"])
    os.kill(pids(supd, run)[1], signal.SIGTERM)
    supd.wait_state(run, "succeeded")
