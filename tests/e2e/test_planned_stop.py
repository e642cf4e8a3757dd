"""Planned stops on one node: the pre-wait ends with the last answer, and ranks are told what is going to happen."""

import json
import os
import signal
from typing import Any

import pytest

from supervisor.shell.clock import wall_s
from tests.e2e.supd import Supd
from tests.field.watching import nothing_is_left, running, runs_at

PRE_WAIT = '[stop]\npre_signal = "SIGUSR1"\npre_wait = "10m"\ngrace = "5m"\n[checkpoint]\nmarker = "marker"\n'
"""Longer than a test may wait."""


def answering(supd: Supd, how: str, *, tables: str = PRE_WAIT) -> str:
    return running(supd, supd.job("train", "answers.py", how, tables=tables))


def told(supd: Supd, generation: int = 0, rank: int = 0) -> list[Any]:
    """What a rank has noted."""
    path = supd.folder / f"told-train-{generation}-{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("how", ["done", "save"])
def test_the_pre_wait_is_over_once_all_ranks_have_answered_or_a_checkpoint_was_seen(supd: Supd, how: str) -> None:
    run = answering(supd, how)
    supd.supctl("stop", run)
    for rank in (0, 1):
        assert [line["what"] for line in told(supd, rank=rank)] == ["start", "USR1", "TERM"]
    nothing_is_left(supd)


def test_a_planned_stop_is_told_in_the_stop_file_before_its_first_signal(supd: Supd) -> None:
    run = answering(supd, "done")
    before_s = wall_s()
    supd.supctl("restart", run, "--reason", "new data")
    runs_at(supd, run, 1)
    start, warned, term = told(supd)
    assert start["file"] is None
    assert "new data" in warned["file"]["reason"]
    assert warned["file"]["signal_at"] == pytest.approx(before_s + 600.0, abs=30.0)
    assert warned["file"]["deadline"] - warned["file"]["signal_at"] == pytest.approx(300.0, abs=0.1)
    assert term["file"]["deadline"] < warned["file"]["signal_at"], "all had answered: it comes sooner"
    [next_start] = told(supd, generation=1)
    assert next_start["file"] is None, "each generation has its own"
    assert next_start["path"] != start["path"]


def test_the_next_generation_is_told_the_step_that_was_saved_last(supd: Supd) -> None:
    """It was saved a moment before its generation ended."""
    run = answering(supd, "save")
    supd.supctl("restart", run)
    runs_at(supd, run, 1)
    assert [lines[0]["resume"] for lines in (told(supd), told(supd, 1), told(supd, 1, 1))] == [None, "100", "100"]
    assert supd.status(run)["saved_step"] == 100


def test_what_the_marker_holds_counts_from_the_first_generation_on(supd: Supd) -> None:
    """It was written in an earlier run."""
    (supd.folder / "marker").write_text("step-40")
    run = answering(supd, "done")
    supd.supctl("restart", run)
    runs_at(supd, run, 1)
    assert [told(supd, generation)[0]["resume"] for generation in (0, 1)] == ["40", "40"]


def test_a_marker_of_each_rank_is_known_once_there_are_ranks(supd: Supd) -> None:
    (supd.folder / "marker-0").write_text("40")
    run = answering(supd, "done", tables=PRE_WAIT.replace('"marker"', '"marker-{rank}"'))
    supd.supctl("restart", run)
    runs_at(supd, run, 1)
    assert [told(supd, generation)[0]["resume"] for generation in (0, 1)] == [None, "40"]


def test_a_line_of_output_is_a_checkpoint_too(supd: Supd) -> None:
    tables = PRE_WAIT.replace('marker = "marker"', "log_pattern = 'saved (?P<step>\\d+)'")
    run = answering(supd, "say", tables=tables)
    supd.supctl("restart", run)
    runs_at(supd, run, 1)
    assert told(supd, 1)[0]["resume"] == "100"


def test_a_node_that_is_about_to_be_taken_away_is_left_as_soon_as_its_ranks_have_saved(supd: Supd) -> None:
    """The notice is a signal to the runner; there is no other node to go on with."""
    run = answering(supd, "save", tables=PRE_WAIT + '[preemption]\nsignals = ["SIGUSR2"]\n')
    for pid in supd.runner_pids():
        os.kill(pid, signal.SIGUSR2)
    assert supd.wait_state(run, "preempted")["saved_step"] == 100
    start, warned, term = told(supd)
    assert (start["file"], warned["what"], term["what"]) == (None, "USR1", "TERM")
    assert warned["file"]["reason"]
    nothing_is_left(supd)


def test_a_stop_file_is_there_without_a_pre_signal_too(supd: Supd) -> None:
    run = answering(supd, "silent", tables='[stop]\ngrace = "5m"\n')
    supd.supctl("restart", run)
    runs_at(supd, run, 1)
    start, term = told(supd)
    assert (start["file"], term["what"]) == (None, "TERM")
    assert term["file"]["signal_at"] <= wall_s()
    assert term["file"]["deadline"] - term["file"]["signal_at"] == pytest.approx(300.0, abs=0.1)
