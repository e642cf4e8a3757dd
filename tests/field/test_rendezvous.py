"""Cases H35 to H37 of the field reports: who takes part in a run, what all of them run, and what an earlier run left.

`front` is left out of all of them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import WORKERS, Supd, wait_for
from tests.e2e.threes import AT_ONCE, kill, parent_of, ranks_on, survivors
from tests.field.watching import runs_at, stays
from tests.netns import NamespaceFleet, fleet_in_namespaces, needs_namespaces


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """Two nodes, a and b."""
    with running_fleet(short_dir) as nodes:
        yield nodes


# --- H35 ---------------------------------------------------------------------------------------------------------


def test_a_second_node_of_a_name_is_refused_and_both_sides_name_both(short_dir: Path) -> None:
    """H35. Ranks of nodes are given out, not claimed, so what two nodes can both claim is a name."""
    fleet = Fleet(short_dir, 3)
    b, second, at = fleet["b"], fleet["c"], fleet.addresses
    second.config.write_text(second.config.read_text().replace('name = "c"', 'name = "b"'))
    try:
        fleet.host.start()
        b.start()
        fleet.wait_joined("a", "b")
        second.launch()
        [here, *_] = wait_for("the host to refuse it", lambda: told(fleet.host, "node_refused"))
        [there, *_] = wait_for("it to tell that", lambda: told(second, "host_missed"))
        for text in (here["why"], there["error"]):
            assert f"the name b is taken by the node at {at['b']}:{fleet.port}" in text
            assert f"{at['c']}:{fleet.port}" in text
        assert here["code"] == "F304"
        asked = second.supctl("nodes", check=False)
        assert (asked.returncode, "the name b is taken" in asked.stderr) == (69, True), asked.stderr
        nodes = fleet.host.json("nodes")["nodes"]
        assert [(n["node"], n["state"], n["address"]) for n in nodes] == [
            ("a", "ready", at["a"]),
            ("b", "ready", at["b"]),
        ]
    finally:
        fleet.close()


def told(supd: Supd, event: str) -> list[dict[str, Any]]:
    """What a supd has logged of one kind."""
    *whole, _ = supd.log.read_text().split("\n")
    return [line for line in map(json.loads, whole) if line["event"] == event]


# --- H36 ---------------------------------------------------------------------------------------------------------


@needs_namespaces
@pytest.mark.parametrize("what", ["script", "python"])
def test_nodes_that_would_not_run_the_same_are_told_apart_before_anything_runs(short_dir: Path, what: str) -> None:
    """H36. Numbers of nodes and of processes stand in the one job file, and cannot differ; what a node finds on its
    own disk can."""
    with fleet_in_namespaces(short_dir, 2) as fleet:
        script, python = short_dir / "train.py", short_dir / "venv" / "bin" / "python"
        script.write_text((WORKERS / "sleeper.py").read_text())
        make_environment(short_dir / "venv", "3.11.1")
        other = {"script": short_dir / "other.py", "python": short_dir / "other" / "pyvenv.cfg"}[what]
        if what == "script":
            other.write_text(script.read_text() + "# as it was last week\n")
            cover(fleet, "b", script, other)
        else:
            make_environment(other.parent, "3.11.2")
            cover(fleet, "b", short_dir / "venv" / "pyvenv.cfg", other)
        job = short_dir / "mixed.toml"
        job.write_text(
            f'name = "mixed"\n[run]\nscript = "{script}"\npython = "{python}"\nargs = ["--for", "0"]\n'
            "[topology]\nnnodes = 2\nnproc_per_node = 1\n"
        )
        done = fleet["b"].supctl("start", str(job), check=False)
        assert done.returncode == 4, done.stderr
        reason = fleet.host.status("mixed")["reason"]
        if what == "python":
            said = [f"{python} (python, 3.11.{number}) on {node}" for number, node in ((1, "a"), (2, "b"))]
            said = [text.replace("(python,", f"({python.resolve().name},") for text in said]
        else:
            said = [f"{digest(path)} on {node}" for path, node in ((script, "a"), (other, "b"))]
        assert all(text in reason for text in said), (reason, said)
        assert all(text in done.stderr for text in said)
        status = fleet.host.status("mixed")
        assert (status["generation"], status["state"]) == (None, "failed")
        fleet["b"].supctl("start", str(job), "--allow-mixed", "--follow")
        assert fleet.host.status("mixed")["state"] == "succeeded"


def make_environment(folder: Path, version: str) -> None:
    """A virtual environment, which is of that version by its own account."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    home = Path(sys.executable).resolve().parent
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n")


def cover(fleet: NamespaceFleet, node: str, file: Path, by: Path) -> None:
    """On that node, a file is another one."""
    subprocess.run(fleet.hosts.of[node].argv("mount", "--bind", str(by), str(file)), check=True)


def digest(path: Path) -> str:
    """As nodes compare it."""
    done = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    return done.stdout[:12]


# --- H37 ---------------------------------------------------------------------------------------------------------


def test_a_job_that_runs_again_is_another_run_whatever_the_one_before_has_left(fleet: Fleet) -> None:
    """H37. It has ended, has failed, or was stopped; a job without a name is none (J101), so there is no default."""
    end = fleet.folder / "end"
    job = fleet.job("again", "until.py", str(end), tables='[restart]\npolicy = "never"\n')
    runs = []
    for codes, state in (("", "succeeded"), ("1 9", "failed"), (None, "stopped")):
        end.unlink(missing_ok=True)
        run = fleet["b"].start_job(job)
        status = runs_at(fleet.host, run, 0)
        assert (status["nodes"], status["restarts_used"], status["incident"]) == (["a", "b"], 0, None)
        if codes is None:
            fleet["b"].supctl("stop", run)
        else:
            end.write_text(codes)
        assert fleet.host.wait_state(run, "succeeded", "failed", "stopped")["state"] == state
        runs.append(run)
    assert len(set(runs)) == 3
    folders = {fleet.host.status(run)["logs_dir"] for run in runs}
    assert len(folders) == 3


def test_what_kill_9_of_everything_left_goes_on_where_it_was_and_can_be_replaced(fleet: Fleet) -> None:
    """H37, its second part: the run is still there, so it is not started twice; `--replace` begins anew."""
    run = fleet.host.start_job(fleet.job("killed", "sleeper.py", tables=AT_ONCE))
    runs_at(fleet.host, run, 0)
    ranks = [rank["pid"] for rank in fleet.ranks(run)]
    runners = [parent_of(pid) for pid in ranks]
    doomed = [*map(parent_of, runners), *runners, *ranks]
    for supd in fleet.nodes.values():
        supd.kill()
    kill(*doomed)
    for supd in fleet.nodes.values():
        supd.launch()
    fleet.host.wait_until_ready()
    assert runs_at(fleet.host, run, 1)["nodes"] == ["a", "b"]
    job = fleet.host.folder / "killed.toml"
    again = fleet["b"].supctl("start", str(job), "--detach", check=False)
    assert (again.returncode, "F101" in again.stderr) == (1, True), again.stderr
    other = fleet["b"].start_job(job, "--replace")
    status = runs_at(fleet.host, other, 0)
    assert (other != run, status["nodes"], fleet.host.status(run)["state"]) == (True, ["a", "b"], "stopped")
    assert len(survivors(fleet)) == 2


def test_a_run_is_not_over_and_its_job_not_begun_anew_while_a_runner_of_it_may_still_speak(fleet: Fleet) -> None:
    """H37, its third part: b's runner is held up while its run is stopped and replaced."""
    job = fleet.job("late", "sleeper.py")
    first = fleet.host.start_job(job)
    runs_at(fleet.host, first, 0)
    runner = parent_of(next(rank["pid"] for rank in fleet.ranks(first) if rank["node"] == "b"))
    os.kill(runner, signal.SIGSTOP)
    try:
        replacing = fleet["b"].popen("start", str(job), "--replace", "--detach", "--quiet")
        wait_for("a's rank to be gone", lambda: not ranks_on(fleet, fleet.host))
        stays("the run is stopping", lambda: fleet.host.status(first)["state"] == "stopping")
        assert len(ranks_on(fleet, fleet["b"])) == 1
    finally:
        os.kill(runner, signal.SIGCONT)
    second = replacing.communicate(timeout=60)[0].strip()
    status = runs_at(fleet.host, second, 0)
    assert (second != first, status["nodes"], status["incident"]) == (True, ["a", "b"], None)
    assert len(survivors(fleet)) == 2
