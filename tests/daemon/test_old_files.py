"""supervisor/daemon/old_files.py: what a node keeps of its runs, and for how long."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.daemon import old_files
from supervisor.daemon.old_files import OldFiles
from supervisor.daemon.retention import DAY_S
from supervisor.logs import marks
from supervisor.shell.config import Config
from tests.daemon.serving import config_in

NOW_S = 1000 * DAY_S


def config(folder: Path, **changed: int) -> Config:
    return replace(config_in(folder), **changed)  # type: ignore[arg-type]


def lies(config: Config, run: str, ago_days: float = 1.0) -> None:
    """A run with one runner that is gone, its record and its output."""
    run_dir, logs_dir = config.state_dir / "runs" / run, config.logs_dir / run
    for folder in (run_dir, logs_dir):
        folder.mkdir(parents=True)
    (run_dir / "aa.log").touch()
    (run_dir / "aa.record").touch()
    marks.end(logs_dir, marks.owner(config.node, config.state_dir))
    os.utime(run_dir, (0.0, NOW_S - ago_days * DAY_S))


def test_the_runs_that_are_too_many_or_too_old_are_found_but_never_one_that_has_a_runner_here(tmp_path: Path) -> None:
    node = config(tmp_path, keep_runs=2, keep_days=30)
    assert OldFiles(node, lambda _run: False).look(NOW_S) == [], "nothing has run here yet"
    for run, ago in (("a@1", 5), ("b@2", 4), ("c@3", 3), ("live@4", 400), ("d@5", 31)):
        lies(node, run, ago)
    (node.state_dir / "runs" / "no run").mkdir()
    assert OldFiles(node, lambda run: run == "live@4").look(NOW_S) == ["d@5", "a@1"]


def test_nothing_is_left_of_a_run_that_is_removed(tmp_path: Path) -> None:
    node = config(tmp_path)
    lies(node, "a@1")
    lies(node, "b@2")
    OldFiles(node, lambda _run: False).remove_run("a@1")
    assert [path.name for path in (node.state_dir / "runs").iterdir()] == ["b@2"]
    assert [path.name for path in node.logs_dir.iterdir()] == ["b@2"]
    OldFiles(node, lambda _run: False).remove_run("a@1")  # again: it is as it was


def test_a_run_that_has_got_a_runner_meanwhile_is_left_alone(tmp_path: Path) -> None:
    node = config(tmp_path)
    lies(node, "a@1")
    OldFiles(node, lambda _run: True).remove_run("a@1")
    assert (node.state_dir / "runs" / "a@1" / "aa.record").exists()


def test_of_several_nodes_that_share_a_folder_of_output_the_last_one_removes_it(tmp_path: Path) -> None:
    logs_dir = tmp_path / "shared"
    nodes = [replace(config(tmp_path / name), node=name, logs_dir=logs_dir) for name in "ab"]
    for node in nodes:
        (node.state_dir / "runs" / "a@1").mkdir(parents=True)
        (logs_dir / "a@1").mkdir(parents=True, exist_ok=True)
        marks.begin(logs_dir / "a@1", marks.owner(node.node, node.state_dir))  # its runner was killed there
    left = []
    for node in nodes:
        OldFiles(node, lambda _run: False).remove_run("a@1")
        left.append((logs_dir / "a@1").exists())
        assert not (node.state_dir / "runs" / "a@1").exists()
    assert left == [True, False]


def test_of_runners_that_are_gone_the_records_go_and_the_newest_logs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_files, "LOGS_KEPT", 2)
    node = config(tmp_path)
    files, run_dir, locks = OldFiles(node, lambda _run: True), node.state_dir / "runs" / "a@1", node.state_dir
    run_dir.mkdir(parents=True)
    (locks / "runners").mkdir()
    for age, incarnation in enumerate(("alive", "r0", "r1", "r2", "r3")):
        (run_dir / f"{incarnation}.record").touch()
        log = run_dir / f"{incarnation}.log"
        log.touch()
        os.utime(log, (age, age))
    (locks / "runners" / "alive.lock").touch()
    files.forget_runner("r3")
    files.forget_runner("of another folder")
    left = {path.name for path in run_dir.iterdir()}
    assert left == {"alive.log", "alive.record", "r0.record", "r1.record", "r2.log", "r2.record", "r3.log"}


def test_the_log_of_a_runner_that_goes_on_for_ever_is_cut_to_its_end_in_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_files, "LOG_MAX_BYTES", 1000)
    monkeypatch.setattr(old_files, "LOG_TAIL_BYTES", 105)
    node = config(tmp_path)
    run_dir = node.state_dir / "runs" / "a@1"
    run_dir.mkdir(parents=True)
    with (run_dir / "aa.log").open("ab", buffering=0) as runner:  # as guard and runner have it
        runner.write(b"".join(b"%09d\n" % number for number in range(200)))
        OldFiles(node, lambda _run: True).look(NOW_S)
        runner.write(b"next\n")
    lines = (run_dir / "aa.log").read_text().splitlines()
    assert lines == [f"{number:09d}" for number in range(190, 200)] + ["next"]
